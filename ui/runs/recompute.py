"""The same prompt with and without a cache: time of each token, prefill against decode; pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from backend import Event
from backend.events import Prefilled, Started
from ui.runs.log import Log


@dataclass
class Recompute:
    """Events of the cached run and of the one that computes everything anew at each step.

    Attributes:
        prompt: the request both had, for display. runs: the cached run first.
    """

    prompt: str = ""
    runs: list[Log] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Take in the next event; Started opens the next run."""
        if isinstance(event, Started):
            self.runs.append(Log())
        self.runs[-1].events.append(event)


@dataclass(frozen=True)
class Measured:
    """One run in seconds and tokens.

    Attributes:
        gaps: from each token to the next. prefill_tokens: computed for the prompt in `prefill_seconds`.
    """

    gaps: tuple[float, ...]
    prefill_tokens: int
    prefill_seconds: float
    decode_tokens: int
    decode_seconds: float

    @property
    def prefill_rate(self) -> float | None:
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds > 0 else None

    @property
    def decode_rate(self) -> float | None:
        return self.decode_tokens / self.decode_seconds if self.decode_seconds > 0 else None

    @property
    def prefill_share(self) -> float | None:
        """Of the time of both."""
        total = self.prefill_seconds + self.decode_seconds
        return self.prefill_seconds / total if total > 0 else None


def measure(run: Log) -> Measured:
    """What the events of one run say about its time."""
    tokens = run.tokens
    parts = [event for event in run.events if isinstance(event, Prefilled)]
    cached = parts[0].num_cached_tokens if parts else 0
    gaps = tuple(after.time - before.time for before, after in itertools.pairwise(tokens))
    return Measured(
        gaps=gaps,
        prefill_tokens=parts[-1].num_computed_tokens - cached if parts else 0,
        prefill_seconds=sum(part.seconds for part in parts),
        decode_tokens=len(gaps),
        decode_seconds=sum(gaps),
    )
