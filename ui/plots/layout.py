"""What all figures look like. Colours are CSS variables; the page puts in their value for light or dark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

AXIS: dict[str, Any] = {
    "gridcolor": "var(--pg-line)",
    "zeroline": False,
    "color": "var(--pg-muted)",
    "fixedrange": True,
}


def line(
    x: Sequence[Any], y: Sequence[Any], colour: str, width: float, dash: str = "solid", **more: Any
) -> dict[str, Any]:
    """A scatter trace drawn as a line; without hover text unless `more` has a hovertemplate."""
    look = {"color": colour, "width": width, "dash": dash}
    silent = {} if "hovertemplate" in more else {"hoverinfo": "skip"}
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": look, **silent, **more}


def heat(x: Sequence[Any], y: Sequence[Any], z: Sequence[Any], hover: str, **more: Any) -> dict[str, Any]:
    """A heat map from the panel's colour to the accent's."""
    bar = {"thickness": 8, "outlinewidth": 0}
    scale = [[0, "var(--pg-panel)"], [1, "var(--pg-accent)"]]
    look = {"type": "heatmap", "colorscale": scale, "xgap": 1, "ygap": 1, "colorbar": bar}
    return {**look, "x": x, "y": y, "z": z, "hovertemplate": f"{hover}<extra></extra>", **more}


def layout(
    margin: tuple[int, int, int, int], x: dict[str, Any], y: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """A plotly layout with margins left, right, top and bottom in pixels and both axes as AXIS says."""
    return {
        "margin": dict(zip("lrtb", margin, strict=True)),
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 11, "color": "var(--pg-muted)"},
        "showlegend": False,
        "dragmode": False,
        "xaxis": AXIS | x,
        "yaxis": AXIS | y,
        **more,
    }
