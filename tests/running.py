"""Short ways to start runs and to look at what happened in them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from backend import Engine, Request, SamplingParams, Trace
from backend.events import Event, Finished, TokenDecoded

T = TypeVar("T")

# Larger grids, more examples; see CONTRIBUTING.md.
FULL = os.environ.get("PLAYGROUND_FULL_GRID") == "1"


def greedy(prompt: str | tuple[int, ...], max_new_tokens: int = 8, **fields: Any) -> Request:
    return Request(prompt, sampling=SamplingParams(temperature=0), max_new_tokens=max_new_tokens, **fields)


def together(engine: Engine, requests: Iterable[Request]) -> list[Trace]:
    """Submit all of them before the first event is awaited."""
    started = [(request, engine.stream(request)) for request in requests]
    return [Trace(request, tuple(stream)) for request, stream in started]


def kinds(events: Iterable[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def finished(events: Iterable[Event]) -> Finished:
    (event,) = [event for event in events if isinstance(event, Finished)]
    return event


def texts(trace: Trace) -> dict[int, str]:
    """Text by sample; only samples with a recorded token."""
    out: dict[int, str] = {}
    for event in trace.events:
        if isinstance(event, TokenDecoded):
            out[event.sample] = out.get(event.sample, "") + event.text
    return out


def token_ids(trace: Trace) -> dict[int, list[int]]:
    out: dict[int, list[int]] = {}
    for event in trace.events:
        if isinstance(event, TokenDecoded):
            out.setdefault(event.sample, []).append(event.token_id)
    return out


def audit(engine: Engine) -> None:
    """No run is left: the books balance without any sequence, and every block is free."""
    engine.block_manager.check_integrity([])
    assert engine.block_manager.num_free_blocks == engine.block_manager.num_blocks


def guarded(call: Callable[[], T], seconds: float = 20) -> T:
    """The value of `call`; a failure instead of a test run that never ends.

    The limit is no measurement: what it guards either ends at once or never.
    """
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((True, call()))
        except BaseException as error:
            outcome.append((False, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert outcome, f"still going after {seconds} seconds"
    succeeded, value = outcome[0]
    if not succeeded:
        raise value
    return value
