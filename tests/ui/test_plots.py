"""Trace -> plotly figures."""

from __future__ import annotations

import json
import math

import plotly.graph_objects as go
import pytest

from tests.ui.steps import step
from ui.plots import trace as plots


def test_bars_are_the_surprise_in_bits_and_the_line_is_the_entropy() -> None:
    figure = plots.surprise([step(0, model_logprob=math.log(0.125), entropy=math.log(2)), step(1)])
    bars, line = figure["data"]
    assert (bars["x"], bars["y"]) == ([0, 1], [3.0, 2.0])
    assert line["y"][0] == 1.0


def test_the_figure_is_one_that_plotly_accepts() -> None:
    figure = plots.surprise([step(0), step(1)], [step(0)], "the other")
    colours = json.loads(
        json.dumps(figure).replace("var(--pg-", "rgb(0,0,0)").replace("rgb(0,0,0)heat)", "red")
    )
    for trace in colours["data"]:
        for part in ("marker", "line"):
            trace.get(part, {}).pop("color", None)
    for axis in ("xaxis", "yaxis", "font"):
        for key in ("color", "gridcolor"):
            colours["layout"][axis].pop(key, None)
    assert len(go.Figure(colours).data) == 3


def test_an_infinite_surprise_leaves_a_gap_and_stays_strict_json() -> None:
    figure = plots.surprise([step(0, model_logprob=-math.inf)])
    assert figure["data"][0]["y"] == [None]
    json.dumps(figure, allow_nan=False)


@pytest.mark.parametrize(
    ("label", "text"),
    [
        ("<a href='javascript:x'>", "&lt;a·href='javascript:x'&gt;"),
        (" a\n\t", "·a↵→"),
        ("&lt;", "&amp;lt;"),
        ("%{x}", "%{x}"),
    ],
)
def test_hover_labels_are_not_markup(label: str, text: str) -> None:
    assert plots.plain(label) == text


def test_a_long_text_is_drawn_as_an_area() -> None:
    kinds = [plots.surprise([step(i) for i in range(n)])["data"][0]["type"] for n in (300, 301)]
    assert kinds == ["bar", "scatter"]
