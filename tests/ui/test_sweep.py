"""The Sweep tab's plan, table and plots, on literal runs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from backend import Request, SamplingParams
from backend.errors import RequestError
from backend.metrics import Phrase, TextMetrics
from backend.sweep import Axis, Outcome
from ui import knobs
from ui.plots import sweep as sweep_plots
from ui.runs import sweep_table
from ui.runs.sweep_table import Table
from ui.tabs import sweep

AXIS = Axis("temperature", (0.5, 1.0))


def outcome(index: int, perplexity: float, text: str = "a b c d e", loop: bool = False) -> Outcome:
    phrase = Phrase(2, 3) if loop else None
    metrics = TextMetrics(7, perplexity, math.log(8), phrase, 0.25, 0.9, 1.0, None)
    return Outcome(index, text, "length", metrics, 12.5, {"temperature": 0.75}, 30.0)


def table(*perplexities: float, loops: tuple[int, ...] = ()) -> Table:
    """Two seeds per value of the axis."""
    made = [
        Request("p", sampling=SamplingParams(temperature=value), seed=7 + seed)
        for value in AXIS.values
        for seed in range(2)
    ]
    found = Table((AXIS,), made)
    for index, value in enumerate(perplexities):
        found.add(outcome(index, value, f"a b c d {index}", index in loops))
    return found


def test_the_fields_make_the_runs() -> None:
    fields = {"knob": "top_k", "low": 1, "high": 3, "count": 3, "seeds": 2, "max_new_tokens": 9}
    axes, made = sweep.plan("p", knobs.DEFAULTS | {"seed": 4}, fields, "salt")
    assert axes == (Axis("top_k", (1, 2, 3)),)
    assert [(r.sampling.top_k, r.seed, r.max_new_tokens) for r in made] == [
        (1, 4, 9),
        (1, 5, 9),
        (2, 4, 9),
        (2, 5, 9),
        (3, 4, 9),
        (3, 5, 9),
    ]
    axes, made = sweep.plan("p", knobs.DEFAULTS, fields | {"second": "min_p", "high2": 0.6, "count2": 2}, "")
    assert axes[1] == Axis("min_p", (0.5, 0.6))
    assert len(made) == 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"knob": "order"}, "knob must be one of temperature, .* got 'order'"),
        ({"low": "x"}, "from must be a number from -100 to 1,000,000, got 'x'"),
        ({"high": math.nan}, "to must be a number from .*, got nan"),
        ({"count": 2.5}, "values must be a whole number from 1 to 50, got 2.5"),
        ({"seeds": 0}, "seeds must be a whole number from 1 to 64, got 0"),
        ({"high": 200}, "temperature must be a number between 0 and 100, got 133.4"),
        ({"max_new_tokens": 5000}, "new tokens must be a whole number from 1 to 512, got 5000"),
        ({"second": "temperature"}, "both knobs of the sweep are temperature"),
    ],
)
def test_bad_fields_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        sweep.plan("p", knobs.DEFAULTS, change, "")


def test_a_table_survives_the_way_out_and_in() -> None:
    found = table(2.0, 3.0, 40.0)
    formula = outcome(3, math.inf, '=1+1\n"quoted", ü\t<b>')
    found.add(formula)
    text = sweep_table.export(found)
    assert "\n=1" not in text
    assert ",=1" not in text
    again = sweep_table.opened(text)
    assert again.axes == found.axes
    assert again.rows == found.rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with one or two knobs"),
        ("a,b\r\n1,2\r\n", "begins with one or two knobs"),
        ("colour," + ",".join(sweep_table.COLUMNS) + "\r\n", "has no runs"),
        (
            sweep_table.export(table(2.0)).replace("temperature,", "colour,"),
            "a sweep moves a number among the sampling settings, not 'colour'",
        ),
        (sweep_table.export(table(2.0)).replace("0.9", "x"), "run 1 of the table cannot be read"),
    ],
)
def test_a_file_that_is_no_sweep_is_refused(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        sweep_table.opened(text)


def test_the_band_is_the_middle_half_over_the_seeds() -> None:
    assert sweep_plots.quartiles([1, 2, 3, 4, 5]) == (2, 3, 4)
    assert sweep_plots.quartiles([7]) == (7, 7, 7)
    figure = sweep_plots.band(table(2.0, 4.0, 10.0, 30.0), "perplexity")
    high, low, middle, dots = figure["data"]
    assert (low["y"], middle["y"], high["y"]) == ([2.5, 15.0], [3.0, 20.0], [3.5, 25.0])
    assert middle["x"] == [0.5, 1.0]
    assert dots["x"] == [0.5, 0.5, 1.0, 1.0]
    assert dots["customdata"] == [[0, 7], [1, 8], [2, 7], [3, 8]]


def test_the_share_of_runs_in_a_loop_is_a_mean() -> None:
    figure = sweep_plots.band(table(2.0, 2.0, 2.0, 2.0, loops=(0,)), "loop")
    assert figure["data"][2]["y"] == [0.5, 0.0]


def test_two_knobs_are_a_heat_map_whose_cells_open_their_first_seed() -> None:
    axes = (AXIS, Axis("min_p", (0.0, 0.1)))
    made = [
        Request("p", sampling=SamplingParams(temperature=t, min_p=m), seed=7)
        for t in AXIS.values
        for m in (0.0, 0.1)
    ]
    found = Table(axes, made)
    for index, value in ((0, 1.0), (1, 2.0), (2, 3.0)):
        found.add(outcome(index, value))
    (item,) = sweep_plots.figures(found, "perplexity")
    trace = item["figure"]["data"][0]
    assert trace["z"] == [[1.0, 3.0], [2.0, None]]  # rows: min_p
    assert trace["customdata"] == [[0, 2], [1, None]]


def test_failed_runs_are_counted_and_not_drawn() -> None:
    found = table(2.0)
    found.add(Outcome(1, "", "error", TextMetrics(0, *[None] * 7), None, {}, None, "too long"))
    assert (len(found.rows), found.errors) == (1, ["too long"])
