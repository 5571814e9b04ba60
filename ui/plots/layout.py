"""What all figures look like. Colours are CSS variables; the page puts in their value for light or dark."""

from __future__ import annotations

from typing import Any

AXIS: dict[str, Any] = {
    "gridcolor": "var(--pg-line)",
    "zeroline": False,
    "color": "var(--pg-muted)",
    "fixedrange": True,
}


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
