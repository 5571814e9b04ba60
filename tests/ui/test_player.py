"""Streams played into a View."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from backend.errors import RequestError
from backend.events import Finished, Started
from tests.ui.steps import step
from ui.loading import Loader
from ui.session import View
from ui.tabs.player import halt, play

STARTED = Started("tiny", 7, (5, 6), ("Once", " upon"), ())
FINISHED = Finished("length", "", 2, 0, 1, 0.5, 0.1, 0.25, 4.0, 0.8)


@pytest.fixture
def loader() -> Loader:
    loaded = Loader(lambda progress: object())  # type: ignore[arg-type, return-value]
    loaded.start()
    list(loaded.wait(0.01))
    return loaded


class FakeStream:
    """Gives its events, then waits like a run that waits for memory, until it is closed."""

    def __init__(self, events: list[Any]):
        self.events = list(events)
        self.closed = threading.Event()

    def __iter__(self) -> FakeStream:
        return self

    def __next__(self) -> Any:
        if self.events:
            return self.events.pop(0)
        self.closed.wait()
        raise StopIteration

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.closed.set()


def events_of(playing: Any) -> list[str]:
    return [type(event).__name__ for batch in playing for _, event in batch or ()]


def test_a_play_gives_every_event_and_closes_the_stream(loader: Loader) -> None:
    view, stream = View(), FakeStream([STARTED, step(0), FINISHED])
    events: list[str] = []
    for batch in play(view, loader, lambda engine: [stream]):
        assert view.running
        events += [type(event).__name__ for _, event in batch or ()]
        if "Finished" in events:
            stream.closed.set()
    assert events == ["Started", "TokenDecoded", "Finished"]
    assert stream.closed.is_set()
    assert not view.running


def test_control_comes_back_while_nothing_happens_and_closing_ends_the_run(loader: Loader) -> None:
    view, stream = View(), FakeStream([])
    playing = play(view, loader, lambda engine: [stream])
    assert [next(playing), next(playing), next(playing)] == [None, [], []]
    assert not stream.closed.is_set()
    playing.close()  # type: ignore[attr-defined]
    assert stream.closed.is_set()
    assert not view.running


def test_a_stop_ends_every_stream(loader: Loader) -> None:
    view, streams = View(), [FakeStream([STARTED]), FakeStream([])]
    playing = play(view, loader, lambda engine: streams)
    next(playing)
    stopper = threading.Thread(target=halt, args=(view,))
    stopper.start()
    list(playing)
    stopper.join()
    assert view.stopped
    assert all(stream.closed.is_set() for stream in streams)


def test_a_run_that_was_taken_over_leaves_the_view_to_the_next(loader: Loader) -> None:
    """The end of the first, read late, must not make the second look ended."""
    view, first, second = View(), FakeStream([STARTED]), FakeStream([STARTED])
    old = play(view, loader, lambda engine: [first])
    next(old), next(old)
    new = play(view, loader, lambda engine: [second])
    taker = threading.Thread(target=next, args=(new,))
    taker.start()
    assert [batch for batch in old if batch] == []
    taker.join()
    assert first.closed.is_set()
    assert list(old) == []
    assert view.running
    new.close()  # type: ignore[attr-defined]
    assert not view.running


def test_a_refused_request_leaves_the_text_and_says_why(loader: Loader) -> None:
    view = View()
    view.steps.append(step(0))

    def refuse(engine: Any) -> Any:
        raise RequestError("top_p must be between 0 and 1, got 7")

    assert events_of(play(view, loader, refuse)) == []
    assert view.notice == "top_p must be between 0 and 1, got 7"
    assert len(view.steps) == 1
    assert not view.running
