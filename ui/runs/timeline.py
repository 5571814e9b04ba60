"""From the events of one request to the stretches of its timeline, and its figures; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from backend import Event
from backend.events import Finished, Preempted, Prefilled, TokenDecoded

Kind = Literal["waiting", "prefill", "decode", "preempted"]


@dataclass(frozen=True)
class Stretch:
    """What a request did from `start` to `end`, in seconds since it was submitted."""

    kind: Kind
    start: float
    end: float


def stretches(events: Sequence[Event], now: float) -> list[Stretch]:
    """The timeline without gaps, up to `now` while the request still goes on."""
    found: list[Stretch] = []
    kind: Kind = "waiting"
    since = 0.0

    def turn(following: Kind, time: float) -> None:
        nonlocal kind, since
        time = max(time, since)
        if following != kind:
            if time > since:
                found.append(Stretch(kind, since, time))
            kind, since = following, time

    for event in events:
        if isinstance(event, Prefilled):
            # It is told when a part has been computed; the part began its seconds earlier.
            turn("prefill", event.time - event.seconds)
            if event.num_computed_tokens == event.num_tokens:
                turn("decode", event.time)
        elif isinstance(event, TokenDecoded):
            turn("decode", event.time)
        elif isinstance(event, Preempted):
            turn("preempted", event.time)
        elif isinstance(event, Finished):
            now = event.time
    if now > since:
        found.append(Stretch(kind, since, now))
    return found


@dataclass(frozen=True)
class Figures:
    """Times of one request in seconds; None where there are too few tokens.

    Attributes:
        time_to_first_token: from submission, waiting included. per_token: from one token to the next.
        hit_blocks, miss_blocks: of the prompt, found in the cache and computed; None before the prefill.
    """

    time_to_first_token: float | None
    per_token: float | None
    hit_blocks: int | None
    miss_blocks: int | None


def figures(events: Sequence[Event], block_size: int) -> Figures:
    """What the events say of one request; several samples count as one line of tokens."""
    tokens = [event for event in events if isinstance(event, TokenDecoded) and not event.forced]
    lanes = len({token.sample for token in tokens})
    first = tokens[0].time if tokens else None
    steps = max((token.index for token in tokens), default=0) - (tokens[0].index if tokens else 0)
    per_token = (tokens[-1].time - tokens[0].time) / steps if lanes and steps > 0 else None
    prefilled = next((event for event in events if isinstance(event, Prefilled)), None)
    hits = misses = None
    if prefilled is not None:
        hits = -(-prefilled.num_cached_tokens // block_size)  # a fork also shares a block partly filled
        misses = -(-prefilled.num_tokens // block_size) - hits
    return Figures(first, per_token, hits, misses)


def throughput(requests: Sequence[tuple[float, Sequence[Event]]]) -> float | None:
    """Tokens per second of all requests together, (offset, events) each, from the first submission on."""
    times = [
        offset + event.time
        for offset, events in requests
        for event in events
        if isinstance(event, TokenDecoded) and not event.forced
    ]
    if not times:
        return None
    span = max(times) - min(offset for offset, events in requests if events)
    return len(times) / span if span > 0 else None
