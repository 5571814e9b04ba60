"""A sweep's table -> plotly figures as plain dicts; colours as in trace.py."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from ui.plots.layout import heat, layout, line
from ui.runs.sweep_table import MEASURES, Table, cells, values
from ui.titles import title

ACCENT = "var(--pg-accent)"
LOGARITHMIC = ("perplexity", "survivors")  # they range over several powers of ten
SHOWN = ("perplexity", "loop", "repeated_4grams", "distinct_2", "self_bleu", "survivors", "acted", "entropy")


def name(measure: str) -> str:
    return "self-BLEU" if measure == "self_bleu" else MEASURES[measure][0]


def figures(table: Table, measure: str) -> list[dict[str, Any]]:
    """Small plots over one knob, or one heat map of a measure over two."""
    if not table.rows:
        return []
    if len(table.axes) == 2:
        return [{"title": name(measure), "figure": heat_map(table, measure), "wide": True}]
    return [{"title": name(shown), "figure": band(table, shown), "wide": False} for shown in SHOWN]


def quartiles(found: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile, with values between two taken in proportion."""
    if len(found) == 1:
        return found[0], found[0], found[0]
    low, middle, high = statistics.quantiles(found, n=4, method="inclusive")
    return low, middle, high


def band(table: Table, measure: str) -> dict[str, Any]:
    """Median over the seeds as a line, the middle half as a band, every run as a dot that can be clicked."""
    places, quarters = [], []
    for at, rows in cells(table.rows).items():
        found = values(rows, measure)
        if found:
            share = middle(found, "loop")
            quarter = (share,) * 3 if measure == "loop" and share is not None else quartiles(found)
            places.append(at[0])
            quarters.append(quarter)
    low, median, high = ([quarter[place] for quarter in quarters] for place in range(3))
    in_order = sorted(table.rows, key=lambda row: row.index)  # they come in as they end
    dots = [row for row in in_order if row.measures.get(measure) is not None]
    data: list[dict[str, Any]] = [
        line(places, high, ACCENT, 0),
        line(places, low, ACCENT, 0, fill="tonexty", fillcolor="var(--pg-kept-soft)"),
        line(places, median, ACCENT, 2, mode="lines+markers"),
        {
            "type": "scatter",
            "mode": "markers",
            "x": [row.at[0] for row in dots],
            "y": [row.measures[measure] for row in dots],
            "customdata": [[row.index, row.seed] for row in dots],
            "hovertemplate": "%{x}: %{y:.4~g}, seed %{customdata[1]}<extra></extra>",
            "marker": {"color": "var(--pg-heat)", "size": 6, "opacity": 0.75},
        },
    ]
    look = layout(
        (38, 6, 6, 32),
        {"showgrid": False, "title": {"text": title(table.axes[0].knob), "standoff": 4}, "nticks": 8},
        {"rangemode": "tozero", "nticks": 4},
        height=150,
        hovermode="closest",
    )
    if measure in LOGARITHMIC:
        look["yaxis"] |= {"type": "log", "rangemode": "normal", "dtick": 1}
    return {"data": data, "layout": look}


def heat_map(table: Table, measure: str) -> dict[str, Any]:
    """Median over the seeds per pair of values; a click opens the first seed's run."""
    found = cells(table.rows)
    across, down = table.axes[0].values, table.axes[1].values
    grid = [
        [middle(values(found.get((float(x), float(y)), []), measure), measure) for x in across] for y in down
    ]
    first = [
        [(found[float(x), float(y)][0].index if (float(x), float(y)) in found else None) for x in across]
        for y in down
    ]
    shown = [f"{x:g}" for x in across], [f"{y:g}" for y in down]
    trace = heat(*shown, grid, "%{x}, %{y}: %{z:.4~g}", customdata=first, texttemplate="%{z:.3~g}")
    names = [
        {"title": {"text": title(axis.knob)}, "type": "category", "showgrid": False} for axis in table.axes
    ]
    look = layout((60, 8, 6, 40), names[0], names[1], height=max(200, 34 * len(down) + 70))
    return {"data": [trace], "layout": look}


def middle(found: Sequence[float], measure: str) -> float | None:
    """The median of a measure's values, of loops their share; None without any."""
    if not found:
        return None
    return statistics.fmean(found) if measure == "loop" else statistics.median(found)
