"""Trace -> what the components draw."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from backend import Request, SamplingParams
from backend.events import Candidates, Finished, Prefilled, StageOutcome, Started, Waiting
from tests.ui.steps import step
from ui.payloads import run as payloads
from ui.session import View

STARTED = Started("tiny", 7, (5, 6, 7), ("Once", " upon", "<|im_end|>"), (), prompt_special=(2,))
FINISHED = Finished("length", "", 3, 0, 2, 0.5, 0.1, 0.25, 4.0, 0.8)


def strict(payload: Any) -> Any:
    """The payload after a round trip that allows no NaN and no Infinity."""
    return json.loads(json.dumps(payload, allow_nan=False))


def view(*events: Any, source: str = "run", request: Request | None = None) -> View:
    shown = View()
    shown.begin(request or Request("Once upon"), source)  # type: ignore[arg-type]
    for event in events:
        shown.add(event)
    return shown


def test_a_strip_row_holds_probability_surprise_rank_and_entropy_in_bits() -> None:
    row = payloads.strip_row(step(entropy=math.log(8)))
    assert row == [21, " b", 0.25, 2.0, 2, 3.0, False, False]


def test_an_impossible_token_is_marked_and_never_null() -> None:
    row = payloads.strip_row(step(model_logprob=-math.inf))
    assert row[2:4] == [0.0, "inf"]
    strict(row)


def test_the_strip_shows_prompt_output_and_status() -> None:
    strip = strict(payloads.strip(view(STARTED, step(0), step(1), FINISHED)))
    assert strip["prompt"] == [[5, "Once", False], [6, " upon", False], [7, "<|im_end|>", True]]
    assert [row[0] for row in strip["rows"]["0"]] == [21, 21]
    assert strip["status"] == [
        ["tokens", "2"],
        ["tok/s", "4.0"],
        ["first token", "0.50 s"],
        ["ended", "token limit"],
        ["seed", "7"],
        ["model", "tiny"],
    ]


def test_of_a_long_text_the_last_rows_travel_unless_all_are_asked_for() -> None:
    shown = view(STARTED, *(step(i) for i in range(1000)))
    for whole, starts in ((True, range(0, 1000, 64)), (False, (896, 960))):
        strip = payloads.strip(shown, whole=whole)
        assert list(strip["rows"]) == [str(start) for start in starts]
        assert sum(map(len, strip["rows"].values())) == 1000 - starts[0]
        assert strip["total"] == 1000


def test_a_long_prompt_is_shown_from_its_end() -> None:
    started = Started("tiny", 7, tuple(range(900)), tuple(f"t{i}" for i in range(900)), ())
    strip = payloads.strip(view(started))
    assert strip["hidden_prompt"] == 500
    assert strip["prompt"][0] == [500, "t500", False]
    assert len(strip["prompt"]) == 400


def test_prefill_and_waiting_are_said_with_their_numbers() -> None:
    shown = view(STARTED, Prefilled(900, 256, 128, 0.2))
    assert shown.phase == "reading the prompt: 256 of 900 tokens, 128 reused"
    assert shown.progress == pytest.approx(256 / 900)
    shown.add(Waiting(12, 3))
    assert shown.phase == "waiting for memory: needs 12 blocks, 3 are free"


def test_a_step_shows_kept_and_cut_candidates() -> None:
    drawn = strict(payloads.step(step(4), key="9"))
    assert (drawn["key"], drawn["index"], drawn["model"], drawn["rank"]) == ("9", 4, 0.25, 2)
    assert drawn["final"] == pytest.approx(1 / 3, rel=1e-4)
    kept, won, border, beyond = drawn["rows"]
    assert kept["after"] == [pytest.approx(2 / 3, rel=1e-4)]
    assert (won["won"], kept["won"]) == (True, False)
    assert (border["after"], border["final"], border["cut_by"]) == ([], "cut", 0)
    assert border["margin"] == "0.7500 ≥ 0.75 before it"
    assert beyond["margin"] == "0.9000 ≥ 0.75 before it"
    assert beyond["uncut"]
    assert border["total"] == "-inf"
    assert drawn["num_kept"] == 2


def test_the_verdict_names_who_would_have_won_without_the_cuts() -> None:
    assert payloads.verdict(step(), None) == [
        {"text": "Without the cuts "},
        {"token": "\n"},
        {"text": " would have won"},
    ]
    assert payloads.verdict(step(uncut_winner=21), None) == [
        {"text": "The same token would have won without the cuts"}
    ]
    assert payloads.verdict(step(uncut_winner=21, stages=()), None) == [
        {"text": "Nothing was cut at this step"}
    ]
    greedy = StageOutcome("temperature", 0, 1, 0.5, True, None)
    assert payloads.verdict(step(uncut_winner=21, stages=(greedy,)), None) == [
        {"text": "Greedy: the most likely token is taken"}
    ]


def test_the_verdict_of_a_step_evaluated_again_names_both_tokens_and_the_cut() -> None:
    recorded = step(token_id=22, label="<img src=x>")
    pieces = payloads.verdict(step(uncut_winner=21), recorded)
    assert pieces == [
        {"text": "With these knobs the draw is "},
        {"token": " b"},
        {"text": ", not "},
        {"token": "<img src=x>"},
        {"text": " (cut by top-p: 0.7500 ≥ 0.75 before it)"},
    ]
    assert payloads.verdict(step(uncut_winner=21), step()) == [
        {"text": "With these knobs the draw is still "},
        {"token": " b"},
    ]


@pytest.mark.parametrize(
    ("outcome", "value", "text"),
    [
        (StageOutcome("top_k", 40, 40, 0.1, True, 40.0), 3.0, "rank 43 > 40"),
        (StageOutcome("top_p", 0.95, 9, 0.1, True, 0.96), 0.0112, "0.9612 ≥ 0.95 before it"),
        (StageOutcome("min_p", 0.1, 9, 0.1, True, 0.04), 0.035, "0.5 % < 4.0 %"),
        (StageOutcome("no_repeat_ngram_size", 2, 9, 0.1, True, None), None, "masked by no-repeat"),
    ],
)
def test_a_margin_is_the_comparison_that_was_lost(
    outcome: StageOutcome, value: float | None, text: str
) -> None:
    assert payloads.margin(value, outcome) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 %"), (1e-7, "<0.001 %"), (0.00045, "0.045 %"), (0.123, "12.3 %"), (1.0, "100.0 %")],
)
def test_a_share_is_never_rounded_to_nothing(value: float, text: str) -> None:
    assert payloads.percent(value) == text


def table(probabilities: list[float], after: list[list[float]], cut_by: list[int]) -> Candidates:
    logs = [tuple(math.log(p) if p else -math.inf for p in row) for row in (probabilities, *after)]
    size = len(probabilities)
    return Candidates(
        tuple(range(size)),
        tuple("abcdef"[:size]),
        logs[0],
        tuple(logs[1:]),
        tuple(cut_by),
        (None,) * size,
        (0.0,) * size,
    )


@pytest.mark.parametrize(("num_kept", "num_listed"), [(3, 60), (68, 80), (150, 200), (500, 200)])
def test_the_picture_of_top_p_reaches_its_line_however_many_tokens_that_takes(
    num_kept: int, num_listed: int
) -> None:
    mass, p = 0.9 / num_kept, 0.9
    before = [mass] * min(num_kept, num_listed) + [0.001] * max(0, num_listed - num_kept)
    logs = tuple(math.log(value) for value in before)
    after = tuple(value if place < num_kept else -math.inf for place, value in enumerate(logs))
    cut_by = tuple(-1 if place < num_kept else 0 for place in range(num_listed))
    rows = (tuple(range(num_listed)), ("x",) * num_listed, logs, (after,), cut_by)
    candidates = Candidates(*rows, (None,) * num_listed, (0.0,) * num_listed)
    (chart,) = payloads.charts(candidates, (StageOutcome("top_p", p, num_kept, 0.1, True, p),))
    kept = [bar for bar in chart["bars"] if bar[2]]
    assert sum(bar[1] for bar in kept) == pytest.approx(p, abs=1e-3)
    assert chart["tokens"] >= num_kept
    unlisted = max(0, num_kept - num_listed)
    assert (kept[-1][0] == f"{unlisted:,} more tokens") == (unlisted > 0)


def test_charts_hold_the_distribution_before_each_cut() -> None:
    candidates = table(
        [0.5, 0.3, 0.15, 0.05],
        [[0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0], [0.625, 0.375, 0, 0]],
        [-1, -1, 1, 0],
    )
    stages = (
        StageOutcome("top_k", 3, 3, 0.05, True, 3.0),
        StageOutcome("min_p", 0.4, 2, 0.158, True, 0.2105),
    )
    ranks, ratio = strict(payloads.charts(candidates, stages))
    assert ranks["line"] == 3
    assert ranks["bars"] == [["a", 0.5, True], ["b", 0.3, True], ["c", 0.15, True], ["d", 0.05, False]]
    assert ratio["line"] == 0.2105
    assert ratio["bars"] == [["a", 0.52632, True], ["b", 0.31579, True], ["c", 0.15789, False]]


def test_the_top_p_chart_draws_its_line_at_p_and_not_at_what_was_reached() -> None:
    candidates = table([0.6, 0.3, 0.1], [[2 / 3, 1 / 3, 0]], [-1, -1, 0])
    (chart,) = payloads.charts(candidates, (StageOutcome("top_p", 0.7, 2, 0.1, True, 0.9),))
    assert chart["line"] == 0.7


def test_a_stage_that_only_reshapes_has_no_cutoff_chart() -> None:
    candidates = table([0.6, 0.4], [[0.7, 0.3]], [-1, -1])
    assert payloads.charts(candidates, (StageOutcome("temperature", 0.8, 2, 0.0, True, None),)) == []


@pytest.mark.parametrize(
    ("stage", "changed", "text"),
    [
        ("top_p", 31, "cut 31.0 % of steps, 4.2 % mass"),
        ("min_p", 0, "never fired"),
        ("temperature", 100, "acted on 100.0 % of steps"),
    ],
)
def test_activity_is_one_short_line(stage: str, changed: int, text: str) -> None:
    assert payloads.activity_line(stage, changed, 100, 0.042) == text


def test_activity_counts_the_steps_at_which_a_stage_changed_something() -> None:
    idle = step(1, stages=(StageOutcome("top_p", 0.75, 4, 0.0, False, 1.0),))
    assert payloads.activity(view(STARTED, step(0), idle)) == {"top_p": "cut 50.0 % of steps, 25.0 % mass"}


@pytest.mark.parametrize(
    "label", ["<img src=x onerror=alert(1)>", "${alert(1)}", "{{this}}", "\u202eabc", "\x00"]
)
def test_hostile_labels_pass_through_as_plain_data(label: str) -> None:
    row = strict(payloads.strip_row(step(label=label)))
    assert row[1] == label


def test_a_scored_text_shows_perplexity_and_no_speed() -> None:
    shown = view(
        STARTED, step(0, forced=True), source="score", request=Request("x", sampling=SamplingParams())
    )
    assert payloads.status(shown) == [
        ["tokens", "1"],
        ["bits a token", "2.00"],
        ["perplexity", "4"],
        ["model", "tiny"],
    ]
