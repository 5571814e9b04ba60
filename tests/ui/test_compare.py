"""Lanes: their requests, the sentence on a first difference, their table and curves."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from backend import BeamSearch, Request, SamplingParams
from backend.comparison import Cut, Difference
from backend.errors import RequestError
from backend.events import Candidates, Finished
from tests.ui.steps import step
from ui import knobs, tables
from ui.payloads import compare as compare_payloads
from ui.plots import lanes as lane_plots
from ui.runs import lanes
from ui.runs.lanes import Lane, Lanes


def asked(*values: dict[str, Any], **settings: Any) -> list[Request]:
    return lanes.requests("A prompt", knobs.DEFAULTS | settings, list(values), "salt")


def test_a_lane_sets_its_knobs_and_leaves_the_others_neutral() -> None:
    one, two, three = asked({}, {"temperature": 0.7, "top_k": 5}, {"num_beams": 3}, temperature=0.2, seed=9)
    assert one.sampling == SamplingParams()
    assert two.sampling == SamplingParams(temperature=0.7, top_k=5)
    assert three.strategy == BeamSearch(3)
    assert {request.seed for request in (one, two, three)} == {9}


def test_order_bias_stop_and_chat_are_common_to_all_lanes() -> None:
    for request in asked({}, {}, order="vllm", logit_bias={"3": 1.5}, stop=["x"], chat=True):
        assert (request.sampling.order, dict(request.sampling.logit_bias)) == ("vllm", {3: 1.5})
        assert (request.stop, request.chat) == (("x",), True)


def test_without_a_seed_one_is_drawn_for_all() -> None:
    seeds = {request.seed for request in asked({}, {}, {}, seed=None)}
    assert len(seeds) == 1
    assert None not in seeds


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([{}], "a comparison takes 2 to 8 lanes, got 1"),
        ([{}] * 9, "a comparison takes 2 to 8 lanes, got 9"),
        ("AB", "a comparison takes 2 to 8 lanes, got 'AB'"),
        ([{}, {"top_p": 2}], "lane B: top_p must be a number between 0 and 1, got 2"),
        ([{}, {"colour": 1}], "lane B has the unknown setting 'colour'"),
        ([{"num_beams": 0}, {}], "lane A: num_beams must be a whole number from 1 to 64, got 0"),
        ([3, {}], "lane A must map names to values, got 3"),
    ],
)
def test_bad_lanes_are_refused_by_name(values: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        lanes.requests("p", knobs.DEFAULTS, values, "")


def said(found: Difference, one: SamplingParams, two: SamplingParams) -> str:
    pieces = compare_payloads.sentence(found, "B", Request("p", sampling=one), Request("p", sampling=two))
    return "".join(piece.get("text", f"[{piece.get('token')}]") for piece in pieces)


def test_a_cut_is_told_with_rank_and_margin() -> None:
    cut = Cut(1, 5, " moon", 7, "top_p", "0.9", 0.92, 0.9)
    found = Difference(3, (5, 6), (" moon", " sea"), "stages", ("top_p",), cut, (0.3, math.inf))
    assert said(found, SamplingParams(), SamplingParams(top_p=0.9)) == (
        "First difference at token 3: in B top-p 0.9 cut [ moon] (rank 7, cumulative 0.92 before it), which A"
        " drew; B then drew [ sea]. Checked: without top-p in both, both draw the same token."
    )


@pytest.mark.parametrize(
    ("stage", "setting", "reached", "limit", "words"),
    [
        ("min_p", "0.1", 0.03, 0.04, "(rank 7, 3.0 % < 4.0 %)"),
        ("top_k", "5", 7.0, 5.0, "(rank 7, place 7 of 5 kept)"),
        ("no_repeat_ngram_size", "2", None, None, "(rank 7)"),
    ],
)
def test_margins_in_their_own_unit(
    stage: str, setting: str, reached: float | None, limit: float | None, words: str
) -> None:
    cut = Cut(0, 6, " sea", 7, stage, setting, reached, limit)
    found = Difference(3, (5, 6), (" moon", " sea"), "stages", (stage,), cut)
    assert f"cut [ sea] {words}, which B drew; A then drew [ moon]." in said(
        found, SamplingParams(), SamplingParams()
    )


def test_a_turned_draw_is_told_with_both_leads() -> None:
    found = Difference(0, (5, 6), (" moon", " sea"), "stages", ("temperature",), None, (0.31, 0.12))
    assert said(found, SamplingParams(temperature=0.7), SamplingParams(temperature=1.2)).startswith(
        "First difference at token 0: temperature 1.2 instead of 0.7 turned the draw. "
        "A drew [ moon] by 0.31, B drew [ sea] by 0.12; lead in log p + luck."
    )


def test_greedy_several_causes_and_ends() -> None:
    cut = Cut(0, 6, " sea", 12, "temperature", "0", None, None)
    found = Difference(0, (5, 6), (" moon", " sea"), "stages", ("temperature", "top_p"), cut)
    assert said(found, SamplingParams(temperature=0), SamplingParams(top_p=0.5)) == (
        "First difference at token 0: A is greedy and takes the likeliest token, [ moon]; B drew [ sea] "
        "(rank 12)."
        " Checked: without temperature and top-p in both, both draw the same token "
        "(either alone would not do)."
    )
    without_a_row = Difference(0, (5, 6), (" moon", " sea"), "stages", ("temperature",))
    assert "B is greedy and takes the likeliest token. A drew [ moon], B drew [ sea]." in said(
        without_a_row, SamplingParams(), SamplingParams(temperature=0)
    )
    ended = Difference(2, (None, 6), ("", "x"), "ended")
    assert said(ended, SamplingParams(), SamplingParams()).endswith("A stops, B goes on.")


def test_slim_keeps_the_best_the_drawn_and_the_uncut_winner() -> None:
    count = 200
    table = Candidates(
        tuple(range(count)),
        tuple(map(str, range(count))),
        tuple(-float(i) for i in range(count)),
        (tuple(-2.0 * i for i in range(count)),),
        (-1,) * count,
        (None,) * count,
        tuple(i / 10 for i in range(count)),
    )
    kept = lanes.slim(step(token_id=150, uncut_winner=199, candidates=table)).candidates
    assert kept is not None
    assert kept.token_ids == (*range(lanes.MAX_ROWS), 150, 199)
    assert kept.after == ((*(-2.0 * i for i in range(lanes.MAX_ROWS)), -300.0, -398.0),)
    assert lanes.slim(step()) == step()


def grown(*ids: int, **changes: Any) -> Lane:
    made = Lane(Request("p", **changes))
    for index, token_id in enumerate(ids):
        made.add(step(index, token_id=token_id, label=f" {token_id}", model_logprob=math.log(0.25)))
    return made


def test_lanes_show_where_they_leave_lane_a() -> None:
    compared = Lanes([grown(1, 2, 3, 4), grown(1, 2, 9), grown(1, 2, 3, 4)])
    first, second, third = compare_payloads.lanes(compared)
    assert (first["apart"], second["apart"], third["apart"]) == (None, 2, None)
    assert (first["sentence"], second["sentence"], third["sentence"]) == ([], [], [])
    compared.differences = [None, Difference(2, (3, 9), (" 3", " 9"), "rounding"), None]
    first, second, third = compare_payloads.lanes(compared)
    assert "equal up to rounding" in second["sentence"][0]["text"]
    assert "same tokens as A" in third["sentence"][0]["text"]


def test_the_row_of_a_lane() -> None:
    finished = Finished("length", "", 1, 0, 6, 0.1, 0.1, 0.5, 10.04)
    steps = grown(1, 2, 1, 2, 1, 2).tokens
    row = dict(
        zip(
            [name for name, _ in compare_payloads.COLUMNS], compare_payloads.row(steps, finished), strict=True
        )
    )
    assert row == {
        "tokens": "6",
        "perplexity": "4.00",
        "loop": "2 × 3",
        "4-grams again": "33.3 %",
        "distinct-1": "0.33",
        "distinct-2": "0.40",
        "distinct-3": "0.50",
        "entropy, bits": "1.73",
        "tokens/s": "10.0",
        "ended": "token limit",
    }


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (SamplingParams(), "pure sampling, nothing switched on"),
        (SamplingParams(temperature=0.8, top_p=0.95), "temperature 0.8, top-p 0.95"),
        (SamplingParams(temperature=0, top_p=0.5), "greedy"),
        (SamplingParams(temperature=0, repetition_penalty=1.3), "greedy, repetition 1.3"),
    ],
)
def test_a_lane_in_a_line(params: SamplingParams, words: str) -> None:
    assert compare_payloads.summary(Request("p", sampling=params)) == words
    beams = Request("p", sampling=params, strategy=BeamSearch(4))
    assert compare_payloads.summary(beams) == "beam search, 4 beams"


def test_curves_are_running_means() -> None:
    assert lane_plots.running_mean([1, 0, 0, 0, 0, 1, 1]) == pytest.approx(
        [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 5, 2 / 5]
    )
    compared = Lanes([grown(1, 2, 3), grown(1)])
    compared.human = grown(7, 8).tokens
    figure = lane_plots.probabilities(compared)
    assert figure is not None
    assert [(line["name"], line["y"]) for line in figure["data"]] == [
        ("A", [0.25] * 3),
        ("B", [0.25]),
        ("human", [0.25] * 2),
    ]


def test_a_table_survives_the_way_out_and_in() -> None:
    header, rows = ["a", "b"], [["1,5", 'x"y'], ["line\nbreak", ""]]
    text = tables.to_csv(header, rows)
    assert tables.from_csv(text, header) == [dict(zip(header, row, strict=True)) for row in rows]
    for bad, message in (
        ("a,c\r\n1,2\r\n", "must have the columns a, b; found a, c"),
        ("a,b\r\n1\r\n", "line 2 of the table has 1 cells, not 2"),
        ("", "found nothing"),
        ('a,b\r\n"x', "no CSV table"),
    ):
        with pytest.raises(RequestError, match=message):
            tables.from_csv(bad, header)


def test_the_knobs_make_a_lane() -> None:
    settings = knobs.DEFAULTS | {"temperature": 0.8, "top_p": 0.95, "seed": 4}
    assert lanes.of_settings(settings) == {"temperature": 0.8, "top_p": 0.95}
    assert replace(asked(lanes.of_settings(settings), {})[0].sampling) == knobs.sampling(settings)


def test_a_search_is_timed_over_the_whole_run() -> None:
    finished = Finished("length", "", 1, 0, 40, 3.99, 0.1, 0.0005, 74_949.0, time=4.0)
    cells = compare_payloads.row(grown(1, 2).tokens, finished)
    assert cells[[name for name, _ in compare_payloads.COLUMNS].index("tokens/s")] == "10.0"
