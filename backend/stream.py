"""The events of one run, for whoever waits for them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

from backend.events import Event, Finished
from backend.loop import Loop
from backend.request import Request
from backend.scheduler import Run


class EventStream(Iterator[Event]):
    """The live events of one run. Closing it early cancels the run and waits until its blocks are free.

    Attributes:
        request: what was asked. run: what the scheduler makes of it, for the engine.
    """

    def __init__(
        self,
        request: Request,
        loop: Loop,
        run: Run,
        events: queue.SimpleQueue[Event],
        ended: threading.Event,
    ):
        self.request = request
        self._loop = loop
        self.run = run
        self._events = events
        self._ended = ended
        self._exhausted = False

    @property
    def number(self) -> int:
        """The run's number in a PoolWatch."""
        return self.run.number

    @property
    def submitted(self) -> float:
        """When the run was submitted, by time.perf_counter(); the times of its events count from there."""
        return self.run.submitted

    def __next__(self) -> Event:
        """The next event, waiting for it.

        Raises:
            StopIteration: after Finished.
        """
        if self._exhausted:
            raise StopIteration
        event = self._loop.next_event(self._events)
        self._exhausted = isinstance(event, Finished)
        return event

    def cancel(self) -> None:
        """Cancel the run before the next step; never waits. Several that are asked first end together."""
        if not self._ended.is_set():
            self._loop.cancel_later(self.run)

    def close(self) -> None:
        """Cancel the run if it still goes on; returns once the model no longer works for it.

        What happened until then, Finished included, can still be read.
        """
        if not self._ended.is_set():
            self._loop.cancel(self.run, self._ended)

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.cancel()  # the garbage collector runs in any thread, the loop's own included
