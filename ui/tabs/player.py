"""Plays streams into a View: handover from an earlier run, waiting for the model, stop, errors."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Protocol, TypeVar

from backend import Request
from backend.errors import PlaygroundError
from backend.protocol import EngineProtocol, RunStream
from ui.loading import Loader
from ui.session import Turn, View

HANDOVER_SECONDS = 5.0
_handover = threading.Lock()  # held for an instant, so one for all views
PERIOD = 0.05  # seconds of events in one batch; silence is reported after four times as long
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Playable(Protocol[T_co]):
    """A stream that can be ended early: an EventStream, several in a row, or a Sweep's outcomes."""

    def __iter__(self) -> Iterator[T_co]: ...

    def __enter__(self) -> Iterable[T_co]: ...

    def __exit__(self, *exc: object) -> None: ...


def play(
    view: View, loader: Loader, start: Callable[[EngineProtocol], Sequence[Playable[T]]]
) -> Iterator[list[tuple[int, T]] | None]:
    """Run what `start` begins; a second run in the same view ends the first.

    Yields batches of (number of the stream, event), empty while nothing happens, and None whenever only the
    view's phase or notice changed. Closing the iterator, or view.stop, ends every stream. A refused request
    leaves what the view holds and sets its notice.
    """
    turn = _take_over(view)
    try:
        view.notice, view.phase, view.progress = "", "starting", None
        yield None
        for line in loader.wait():
            view.phase, view.progress = f"waiting for the model: {line}", loader.fraction
            yield None
            if turn.stop.is_set():
                return
        with ExitStack() as stack:
            streams = [stack.enter_context(stream) for stream in start(loader.require())]
            stack.callback(_cancel, streams)
            for batch in stack.enter_context(closing(_merged(streams))):
                yield batch
                if turn.stop.is_set():
                    view.stopped = True
                    return
    except PlaygroundError as error:
        view.notice = str(error)
    except Exception as error:
        logging.getLogger(__name__).exception("a run failed")
        view.notice = f"The run failed: {type(error).__name__}: {error}"
    finally:
        if view.turn is turn:  # otherwise the next has the view already
            if view.finished is not None and view.finished.message:
                view.notice = view.finished.message
            view.phase, view.progress = "", None
        turn.ended.set()


def _cancel(streams: Sequence[object]) -> None:
    """Ask all to end before each is waited for: otherwise every one would take a step of the model."""
    for stream in streams:
        if isinstance(stream, RunStream):
            stream.cancel()


def start_all(engine: EngineProtocol, requests: Sequence[Request]) -> list[RunStream]:
    """A stream for each request.

    Raises:
        PlaygroundError: one of them was refused; those before it are ended again.
    """
    streams: list[RunStream] = []
    try:
        for request in requests:
            streams.append(engine.stream(request))
    except PlaygroundError:
        for stream in streams:
            stream.close()
        raise
    return streams


def _take_over(view: View) -> Turn:
    """The view's turn from now on, once the run before it has ended; the view never looks idle meanwhile."""
    turn = Turn()
    with _handover:
        before, view.turn = view.turn, turn
    before.stop.set()
    before.ended.wait(HANDOVER_SECONDS)
    return turn


def halt(view: View) -> None:
    """Ask the view's run to end and wait until it has."""
    turn = view.turn
    turn.stop.set()
    turn.ended.wait(HANDOVER_SECONDS)


def _merged(streams: Sequence[Iterable[T]]) -> Generator[list[tuple[int, T]], None, None]:
    """The events of several streams as they come, about PERIOD seconds at a time, until all have ended."""
    arrived: queue.SimpleQueue[tuple[int, T | None]] = queue.SimpleQueue()

    def pump(number: int) -> None:
        for event in streams[number]:
            arrived.put((number, event))
        arrived.put((number, None))

    for number in range(len(streams)):
        threading.Thread(target=pump, args=(number,), name="events", daemon=True).start()
    left = len(streams)
    while left:
        batch: list[tuple[int, T]] = []
        deadline = time.monotonic() + 4 * PERIOD
        while left and (seconds := deadline - time.monotonic()) > 0:
            try:
                number, event = arrived.get(timeout=seconds)
            except queue.Empty:
                break
            if event is None:
                left -= 1
                continue
            if not batch:
                deadline = time.monotonic() + PERIOD
            batch.append((number, event))
        yield batch
