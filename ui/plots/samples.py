"""Votes and similarities of samples -> plotly figures as plain dicts; colours and labels as in trace.py."""

from __future__ import annotations

from typing import Any

from ui.plots.layout import heat, layout
from ui.plots.trace import plain
from ui.runs.reselect import Recorded, votes

MAX_BARS = 12


def histogram(found: Recorded, chosen: str | None) -> dict[str, Any] | None:
    """Votes per answer, the most frequent first; samples without an answer as a bar of their own."""
    if found.selected is None:
        return None
    counted = votes(found).most_common()
    bars = [(plain(answer), count, answer == chosen) for answer, count in counted[:MAX_BARS]]
    if len(counted) > MAX_BARS:
        rest = sum(count for _, count in counted[MAX_BARS:])
        bars.append((f"{len(counted) - MAX_BARS} other answers", rest, False))
    silent = sum(sample.answer is None for sample in found.samples)
    if silent:
        bars.append(("no answer found", silent, False))
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": [count for _, count, _ in bars],
        "y": [f"{name} " for name, _, _ in bars],
        "text": [f"{count} ★" if is_chosen else str(count) for _, count, is_chosen in bars],
        "textposition": "outside",
        "cliponaxis": False,
        "hoverinfo": "skip",
        "marker": {
            "color": ["var(--pg-accent)" if is_chosen else "var(--pg-gone)" for _, _, is_chosen in bars]
        },
    }
    axis = {"color": "var(--pg-ink)", "showgrid": False}
    look = layout(
        (10, 40, 2, 4),
        {**axis, "visible": False, "range": [0, max(count for _, count, _ in bars) * 1.08]},
        {**axis, "autorange": "reversed", "automargin": True, "type": "category"},
        height=max(60, 24 * len(bars) + 12),
        bargap=0.25,
    )
    return {"data": [trace], "layout": look}


def heat_map(found: Recorded, chosen: int | None) -> dict[str, Any] | None:
    """chrF of each sample (row) with each as its reference; the chosen row is outlined."""
    if not found.matrix:
        return None
    size = len(found.matrix)
    names = [str(number + 1) for number in range(size)]
    grid = [list(row) for row in found.matrix]
    trace = heat(names, names, grid, "sample %{y} against %{x}: chrF %{z:.1f}", zmin=0, zmax=100)
    trace["colorbar"] |= {"len": 1, "tickvals": [0, 50, 100]}
    if size <= 12:
        trace |= {"texttemplate": "%{z:.0f}", "textfont": {"size": 10}}
    axis = {"type": "category", "showgrid": False}
    look = layout(
        (26, 6, 4, 22),
        {**axis, "constrain": "domain"},
        {**axis, "autorange": "reversed"},
        height=min(360, max(150, 26 * size + 40)),
    )
    if chosen is not None:
        look["shapes"] = [
            {
                "type": "rect",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": chosen - 0.5,
                "y1": chosen + 0.5,
                "line": {"color": "var(--pg-heat)", "width": 2},
            }
        ]
    return {"data": [trace], "layout": look}
