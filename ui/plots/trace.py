"""Trace -> plotly figures as plain dicts. Pure functions.

Colours are CSS variables ("var(--pg-heat)"); the page puts in their value for light or dark.
Token labels are escaped, since plotly reads hover text as markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.events import TokenDecoded
from ui.numbers import bits, number
from ui.plots.layout import layout, line

MAX_LABEL = 40
# Beyond, bars are narrower than their gaps, and cost the browser four times as much as an area.
MAX_BARS = 300
EXPECTED = "entropy (expected)"
HEAT = "var(--pg-heat)"
BARS = {"type": "bar", "marker": {"color": HEAT, "line": {"width": 0}}}
AREA = {
    "type": "scatter",
    "mode": "lines",
    "fill": "tozeroy",
    "fillcolor": HEAT,
    "line": {"color": HEAT, "width": 0, "shape": "hvh"},
}


def plain(label: str) -> str:
    """A token label that plotly shows as it is, whitespace made visible."""
    marks = label.replace("\n", "↵").replace("\t", "→").replace(" ", "·")
    return marks[:MAX_LABEL].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def surprise(
    steps: Sequence[TokenDecoded], overlay: Sequence[TokenDecoded] = (), overlay_name: str = ""
) -> dict[str, Any]:
    """Surprise of each token, as bars or for a long text as an area, and the entropy as a line, in bits.

    The two together say whether the text is as surprising as the model expected it to be.
    """
    places = [step.index for step in steps]
    traces: list[dict[str, Any]] = [
        {
            **(BARS if len(steps) <= MAX_BARS else AREA),
            "name": "surprise",
            "x": places,
            "y": [_height(-step.model_logprob) for step in steps],
            "customdata": [plain(step.label) for step in steps],
            "hovertemplate": "%{customdata}  %{y:.2f} bits<extra></extra>",
        },
        line(places, [_height(step.entropy) for step in steps], "var(--pg-accent)", 1.5, name=EXPECTED),
    ]
    traces[1]["line"]["shape"] = "hvh"
    if overlay:
        heights = [_height(-step.model_logprob) for step in overlay]
        marks = [step.index for step in overlay]
        traces.append(line(marks, heights, "var(--pg-muted)", 1, "dot", name=overlay_name))
    return {"data": traces, "layout": _layout(len(steps))}


def _height(nats: float) -> float | str | None:
    value = number(bits(nats), 4)
    return value if isinstance(value, float) else None


def _layout(num_steps: int) -> dict[str, Any]:
    return layout(
        (28, 6, 4, 18),
        {"range": [-0.6, max(num_steps, 12) - 0.4], "showgrid": False, "tickformat": "d"},
        {"rangemode": "tozero", "nticks": 4},
        height=108,
        bargap=0.15 if num_steps < 200 else 0,
        hovermode="closest" if num_steps <= MAX_BARS else "x",
    )
