"""Lanes -> plotly figures as plain dicts; colours and labels as in trace.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from backend.events import TokenDecoded
from ui.plots.layout import layout, line
from ui.plots.trace import plain
from ui.runs.lanes import NAMES, Lanes

WINDOW = 5
DASHES = ("solid", "dash", "dot", "dashdot")


def color(place: int) -> str:
    """Lane colours are defined once, in the component's style."""
    return f"var(--pg-lane-{place})"


def probabilities(compared: Lanes) -> dict[str, Any] | None:
    """Model probability of each token, as a running mean over WINDOW tokens, one line per text."""
    lines = [
        _line(NAMES[place], lane.tokens, color(place), DASHES[place % 4], 2)
        for place, lane in enumerate(compared.lanes)
    ]
    if compared.human:
        lines.append(_line("human", compared.human, "var(--pg-ink)", "dot", 2.5))
    longest = max((len(each["x"]) for each in lines), default=0)
    if longest < 2:
        return None
    legend = {"orientation": "h", "y": 1.12, "x": 1, "xanchor": "right", "font": {"color": "var(--pg-ink)"}}
    look = layout(
        (34, 8, 4, 30),
        {"showgrid": False, "tickformat": "d", "range": [1, max(longest, 8)]},
        {"range": [0, 1.02], "tickformat": ".0%", "nticks": 5},
        height=190,
        showlegend=True,
        legend=legend,
        hovermode="closest",
    )
    return {"data": lines, "layout": look}


def _line(name: str, steps: Sequence[TokenDecoded], colour: str, dash: str, width: float) -> dict[str, Any]:
    values = [math.exp(step.model_logprob) for step in steps]
    return line(
        list(range(len(steps))),
        [round(mean, 4) for mean in running_mean(values)],
        colour,
        width,
        dash,
        name=name,
        customdata=[[plain(step.label), round(value, 4)] for step, value in zip(steps, values, strict=True)],
        hovertemplate=f"{name}  %{{customdata[0]}}  %{{customdata[1]:.1%}}<extra></extra>",
    )


def running_mean(values: Sequence[float], window: int = WINDOW) -> list[float]:
    """Mean of each value and up to `window` - 1 before it."""
    means = []
    for end in range(1, len(values) + 1):
        part = values[max(0, end - window) : end]
        means.append(sum(part) / len(part))
    return means
