"""The same prompt with and without a cache: time of each token, prefill against decode; pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from backend import Event
from backend.events import Finished, Prefilled, Started, TokenDecoded
from ui.order import drawn


@dataclass
class Recompute:
    """Events of the cached run and of the one that computes everything anew at each step.

    Attributes:
        prompt: the request both had, for display. runs: events, the cached run first.
    """

    prompt: str = ""
    runs: list[list[Event]] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Take in the next event; Started opens the next run."""
        if isinstance(event, Started):
            self.runs.append([])
        self.runs[-1].append(event)


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


def measure(events: Sequence[Event]) -> Measured:
    """What the events of one run say about its time."""
    tokens = [event for event in events if isinstance(event, TokenDecoded)]
    parts = [event for event in events if isinstance(event, Prefilled)]
    cached = parts[0].num_cached_tokens if parts else 0
    gaps = tuple(after.time - before.time for before, after in itertools.pairwise(tokens))
    return Measured(
        gaps=gaps,
        prefill_tokens=parts[-1].num_computed_tokens - cached if parts else 0,
        prefill_seconds=sum(part.seconds for part in parts),
        decode_tokens=len(gaps),
        decode_seconds=sum(gaps),
    )


def payload(state: Recompute, running: bool, notice: str) -> dict[str, Any]:
    """What the component draws."""
    names = ["with a cache", "everything anew"]
    measured = [measure(events) for events in state.runs]
    ids = [[event.token_id for event in events if isinstance(event, TokenDecoded)] for events in state.runs]
    ended = [bool(events) and isinstance(events[-1], Finished) for events in state.runs]
    both = len(ended) == 2 and all(ended)
    return {
        "drawn": drawn(),
        "running": running,
        "notice": notice,
        "prompt": state.prompt[:120],
        "figure": figure(measured),
        "rows": [
            {
                "name": name,
                "prefill_tokens": run.prefill_tokens,
                "prefill_rate": run.prefill_rate,
                "decode_rate": run.decode_rate,
                "prefill_share": run.prefill_share,
                "per_token": run.decode_seconds / run.decode_tokens * 1000 if run.decode_tokens else None,
                "last": run.gaps[-1] * 1000 if run.gaps else None,
            }
            for name, run in zip(names, measured, strict=False)
        ],
        "same_text": ids[0] == ids[1] if both and not running else None,
    }


def figure(measured: Sequence[Measured]) -> dict[str, Any]:
    """Milliseconds of each token, one line per run."""
    styles = (("with a cache", "var(--pg-kept)", "solid"), ("everything anew", "var(--pg-heat)", "dash"))
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": list(range(2, len(run.gaps) + 2)),
            "y": [gap * 1000 for gap in run.gaps],
            "line": {"color": colour, "width": 2, "dash": dash},
            "hovertemplate": "token %{x}: %{y:.0f} ms<extra></extra>",
        }
        for (name, colour, dash), run in zip(styles, measured, strict=False)
    ]
    axis = {"gridcolor": "var(--pg-line)", "zeroline": False, "color": "var(--pg-muted)", "fixedrange": True}
    return {
        "data": traces,
        "layout": {
            "margin": {"l": 44, "r": 8, "t": 6, "b": 34},
            "showlegend": False,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"size": 11},
            "xaxis": {**axis, "title": {"text": "token", "standoff": 6}},
            "yaxis": {**axis, "rangemode": "tozero", "title": {"text": "ms", "standoff": 6}},
        },
    }
