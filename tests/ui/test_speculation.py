"""Rates, timings and payloads of speculative runs, from literal rounds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from backend import Request, RequestError, SamplingParams, Speculative
from backend.events import DraftedToken, DraftVerified, Event, Finished, Residual, Started
from backend.experiments import prove_tables
from tests.ui.steps import step
from ui.payloads import speculation as drawn
from ui.presets.files import PresetError
from ui.presets.lessons import load_lessons
from ui.runs.series import Series
from ui.runs.speculation import SOURCES, Speculation, rates, source, telling_round, timing
from ui.session import View
from ui.tabs.speculate import FOLDER, START, lossless

STARTED = Started("tiny", 7, (5, 6), ("Once", " upon"), ())
FINISHED = Finished("length", "", 2, 0, 8, 0.5, 0.1, 0.25, 4.0, 0.8)


def drafted(
    label: str, status: Any, p: float | None = 0.5, q: float = 1.0, u: float | None = 0.2
) -> DraftedToken:
    if status == "unused":
        return DraftedToken(ord(label), label, status, None, q, None, None)
    assert p is not None
    return DraftedToken(ord(label), label, status, p, q, min(1.0, p / q), u)


# Three drafted: a accepted, b rejected, c unread; x recovered.
FIRST = DraftVerified(
    number=0,
    index=0,
    drafted=(drafted("a", "accepted"), drafted("b", "rejected", 0.1, 1.0, 0.7), drafted("c", "unused")),
    num_accepted=1,
    next_token_id=120,
    next_label="x",
    next_is="recovered",
    residual=Residual((98, 121, 120), ("b", "y", "x"), (0.1, 0.6, 0.3), (1.0, 0.0, 0.0), (0.0, 0.667, 0.333)),
    draft_seconds=0.01,
    verify_seconds=0.05,
    time=1.0,
)
# Two drafted, both accepted; z is the bonus.
SECOND = DraftVerified(
    1, 2, (drafted("d", "accepted"), drafted("e", "accepted")), 2, 122, "z", "bonus", None, 0.02, 0.06, 1.1
)
# No draft.
THIRD = DraftVerified(2, 5, (), 0, 119, "w", "bonus", None, 0.0, 0.04, 1.15)
CHECKS = [FIRST, SECOND, THIRD]


def view(checks: list[DraftVerified], num_steps: int, **strategy: Any) -> View:
    shown = View()
    shown.begin(Request("hi", strategy=Speculative(num_draft_tokens=3, **strategy)), "run")
    for event in (STARTED, *checks, *(step(index) for index in range(num_steps)), FINISHED):
        shown.add(event)
    return shown


def test_rates_count_checks_not_drafts() -> None:
    counted = rates(CHECKS)
    assert (counted.num_rounds, counted.num_drafted, counted.num_checked) == (3, 5, 4)
    assert (counted.num_accepted, counted.num_tokens) == (3, 6)
    assert counted.acceptance == pytest.approx(0.75)
    assert counted.tokens_per_call == pytest.approx(2.0)
    # (1 - .75^4) / .25, (1 - .75^3) / .25 and 1
    assert counted.predicted == pytest.approx((2.734375 + 2.3125 + 1) / 3)


def test_rates_of_nothing_are_unknown() -> None:
    counted = rates([])
    assert (counted.acceptance, counted.tokens_per_call, counted.predicted) == (None, None, None)
    assert rates([THIRD]).acceptance is None
    assert rates([THIRD]).predicted == 1


def test_an_accepted_end_of_text_gives_no_token_after_it() -> None:
    ended = replace(SECOND, next_token_id=None, next_label="", next_is="none")
    assert rates([ended]).num_tokens == 2
    assert [piece["kind"] for piece in drawn.pieces([ended], 9)] == ["accepted", "accepted"]


def test_time_is_measured_between_the_ends_of_the_first_and_the_last_round() -> None:
    took = timing(CHECKS)
    assert took is not None
    assert (took.num_tokens, took.seconds) == (4, pytest.approx(0.15))
    assert (took.draft, took.verify) == (pytest.approx(0.02), pytest.approx(0.10))
    assert took.overhead == pytest.approx(0.03)
    assert took.milliseconds == pytest.approx(37.5)
    plain = timing([step(0), step(1), step(2)])
    assert plain is not None
    assert (plain.num_tokens, plain.seconds, plain.draft) == (2, pytest.approx(0.5), 0)
    assert timing([FIRST]) is None
    assert timing([step(0)]) is None
    assert timing([]) is None


def test_a_rejected_draft_stands_before_the_token_drawn_in_its_place() -> None:
    pieces = drawn.pieces(CHECKS, 6)
    assert [(piece["kind"], piece["label"], piece["round"], piece["place"]) for piece in pieces] == [
        ("accepted", "a", 0, 0),
        ("rejected", "b", 0, 1),
        ("recovered", "x", 0, 1),
        ("accepted", "d", 1, 0),
        ("accepted", "e", 1, 1),
        ("bonus", "z", 1, 2),
        ("target", "w", 2, 0),
    ]
    assert pieces[1]["numbers"] == {"p": 0.1, "q": 1.0, "ratio": 0.1, "threshold": 0.1, "uniform": 0.7}
    assert pieces[2]["numbers"] is None


@pytest.mark.parametrize(("num_shown", "text"), [(0, ""), (1, "a"), (2, "abx"), (4, "abxde"), (5, "abxdez")])
def test_what_a_stop_string_took_away_is_not_shown(num_shown: int, text: str) -> None:
    assert "".join(piece["label"] for piece in drawn.pieces(CHECKS, num_shown)) == text


def test_the_round_worth_showing_has_a_rejection_after_an_accepted_draft() -> None:
    only = replace(FIRST, number=0, num_accepted=0, drafted=(drafted("b", "rejected"),))
    assert telling_round([only, replace(FIRST, number=1)]) == (1, 1)
    assert telling_round([only]) == (0, 0)
    assert telling_round([replace(SECOND, number=0), replace(THIRD, number=1)]) == (0, 0)
    assert telling_round([replace(THIRD, number=0)]) == (0, 0)
    assert telling_round([]) is None


def test_the_selection_stays_inside_the_rounds() -> None:
    assert drawn.selection(CHECKS, Speculation(selected=(1, 99))) == (1, 2)
    assert drawn.selection(CHECKS, Speculation(selected=(9, 0))) == (0, 1)
    assert drawn.selection(CHECKS, Speculation(selected=(2, -5))) == (2, 0)
    assert drawn.selection([], Speculation(selected=(0, 0))) is None


def test_the_step_to_prove_is_a_checked_draft() -> None:
    assert drawn.provable(CHECKS, (0, 0)) == (0, 0)
    assert drawn.provable(CHECKS, (0, 1)) == (0, 1)
    assert drawn.provable(CHECKS, (1, 2)) == (1, 1)  # the bonus has no draft; the one before it has
    assert drawn.provable(CHECKS, (2, 0)) is None
    assert drawn.provable([], None) is None


def test_the_bars_show_the_rejected_and_the_recovered_token_first() -> None:
    rows = drawn.residual_bars(FIRST)
    assert [(row["label"], row["rejected"], row["drawn"]) for row in rows] == [
        ("b", True, False),
        ("x", False, True),
        ("y", False, False),
    ]
    assert [row["left"] for row in rows] == [0.0, 0.3, 0.6]
    assert drawn.residual_bars(SECOND) == []


def events(kind: str, ids: list[int], start: float, period: float) -> list[Event]:
    rows: list[Event] = []
    for index, token_id in enumerate(ids):
        at = start + period * index
        if kind == "speculative":
            check = DraftVerified(index, index, (), 0, token_id, "t", "bonus", None, 0.001, period / 2, at)
            rows.append(check)
        rows.append(step(index, token_id=token_id, time=at))
    return [STARTED, *rows, FINISHED]


def filled(speculative: list[int], plain: list[int], same: bool = True) -> Speculation:
    state = Speculation(lossless=same, planned=["speculative", "plain"])
    assert all(state.take(event) for event in events("speculative", speculative, 1.0, 0.02))
    assert not any(state.take(event) for event in events("plain", plain, 1.0, 0.05))
    return state


def test_speed_is_the_median_of_pairs_taken_in_turns() -> None:
    state = filled([1, 2, 3], [1, 2, 3])
    assert state.speedup == pytest.approx(2.5)
    state.planned = ["plain", "speculative", "speculative", "plain"]
    for kind, period in (("plain", 0.1), ("speculative", 0.02), ("speculative", 0.02), ("plain", 0.06)):
        for event in events(kind, [1, 2, 3], 0.0, period):
            state.take(event)
    shown = drawn.speed(state)
    assert shown is not None
    assert shown["ratios"] == [2.5, 5.0, 3.0]
    assert (shown["ratio"], shown["num_pairs"]) == (3.0, 3)
    assert shown["draft"] + shown["verify"] + shown["overhead"] == pytest.approx(shown["speculative"])


def test_a_run_that_was_stopped_is_not_measured() -> None:
    state = Speculation(planned=["speculative", "plain"])
    for event in events("speculative", [1, 2, 3], 0.0, 0.02)[:-1]:
        state.take(event)
    state.take(replace(FINISHED, reason="cancelled"))
    assert (state.speedup, drawn.speed(state), state.compared) == (None, None, False)
    assert drawn.verdict(state)["kind"] == ""


def test_the_verdict_on_the_text() -> None:
    assert drawn.verdict(filled([1, 2, 3], [1, 2, 3]))["kind"] == "same"
    assert "from token 1 on" in drawn.verdict(filled([1, 2, 3], [1, 9, 3]))["text"]
    assert "from token 2 on" in drawn.verdict(filled([1, 2, 3], [1, 2]))["text"]
    assert drawn.verdict(filled([1, 2, 3], [1, 9, 3], same=False))["kind"] == "drawn"


@pytest.mark.parametrize(
    ("a", "k", "tokens"),
    [(0.6, 4, 2.31), (0.6, 8, 2.47), (0.7, 4, 2.77), (0.7, 8, 3.20), (0.8, 4, 3.36), (0.8, 8, 4.33),
     (0.9, 4, 4.10), (0.9, 8, 6.13), (0.75, 6, 3.47), (0.6, 3, 2.176), (1.0, 5, 6.0), (0.0, 16, 1.0)],
)  # fmt: skip
def test_the_picture_of_the_formula_holds_its_worked_values(a: float, k: int, tokens: float) -> None:
    table = drawn.formula()
    column = table["acceptances"].index(a)
    assert table["grid"][k - 1][column] == pytest.approx(tokens, abs=0.0051)


def test_every_payload_is_strict_json() -> None:
    shown, state = view(CHECKS, 6), filled([1, 2, 3], [1, 2, 3])
    state.proof = prove_tables(torch.tensor([0.5, 0.0, 0.5]), None, 1, 1_000)
    state.proof_of = (0, 1)
    for payload in (
        drawn.text(shown, state),
        drawn.detail(shown, state),
        drawn.payoff(shown, state),
        drawn.proof(shown, state),
        drawn.formula_point(shown),
        drawn.text(View(), Speculation()),
        drawn.payoff(View(), Speculation()),
        drawn.proof(View(), Speculation()),
    ):
        json.dumps(payload, allow_nan=False)
    assert drawn.detail(View(), Speculation()) is None


def test_a_coupled_check_offers_no_proof() -> None:
    shown = view([FIRST], 2, verify="coupled")
    payload = drawn.proof(shown, Speculation())
    assert payload["step"] is None
    assert "plain decoding draws" in payload["note"]


def test_sources_are_those_of_the_menu() -> None:
    assert source("prompt_lookup", 30) == {"draft": "prompt_lookup"}
    assert source("layer_skip_half", 30) == {"draft": "layer_skip", "skip_layers": tuple(range(7, 22))}
    assert "smollm2-135m" in SOURCES
    for name in ("/etc", "<b>x</b>", "org/model", 3, None):
        with pytest.raises(RequestError, match="draft must be one of"):
            source(name, 30)


def test_which_requests_must_give_the_plain_text() -> None:
    sampled = Request("a", strategy=Speculative())
    assert not lossless(sampled)
    assert lossless(replace(sampled, sampling=SamplingParams(temperature=0)))
    assert lossless(replace(sampled, strategy=Speculative(verify="coupled")))


def test_the_presets_span_gain_and_loss() -> None:
    lessons = {lesson.name: lesson for lesson in load_lessons(FOLDER)}
    assert list(lessons) == ["copy", "edit", "code", "chat", "hot", "skip", "bad-draft"]
    for lesson in lessons.values():
        assert lesson.tab == "speculate"
        assert set(lesson.fields) <= set(START)
        source(lesson.fields["draft"], 30)
    assert lessons["hot"].prompt == lessons["copy"].prompt
    assert lessons["chat"].chat


def test_a_preset_with_a_bad_field_names_file_and_value(tmp_path: Path) -> None:
    text = (FOLDER / "copy.yaml").read_text(encoding="utf-8")
    (tmp_path / "bad.yaml").write_text(text.replace("num_draft_tokens: 8", "num_draft_tokens: 99"))
    with pytest.raises(PresetError, match=r"bad.yaml: fields: num_draft_tokens .* 99"):
        load_lessons(tmp_path)


class Recorder:
    """Stands for the engine: hands out streams of given events and notes what was closed."""

    def __init__(self) -> None:
        self.started: list[Request] = []
        self.closed = 0

    def stream(self, request: Request) -> Any:
        if request.prompt == "bad":
            raise RequestError("refused")
        self.started.append(request)
        return self.Stream(self)

    class Stream:
        def __init__(self, owner: Recorder):
            self.owner = owner

        def __iter__(self) -> Any:
            return iter([STARTED, FINISHED])

        def close(self) -> None:
            self.owner.closed += 1


def test_a_series_runs_one_after_the_other() -> None:
    engine: Any = Recorder()
    with Series(engine, [Request("a"), Request("b")]) as series:
        events = iter(series)
        assert next(events) == STARTED
        assert [request.prompt for request in engine.started] == ["a"]
        assert list(events) == [FINISHED, STARTED, FINISHED]
    assert [request.prompt for request in engine.started] == ["a", "b"]


def test_a_closed_series_starts_no_more_and_a_refused_first_request_is_raised() -> None:
    engine: Any = Recorder()
    series = Series(engine, [Request("a"), Request("b")])
    series.close()
    assert list(series) == [STARTED, FINISHED]
    assert (len(engine.started), engine.closed) == (1, 1)
    with pytest.raises(RequestError):
        Series(engine, [Request("bad")])
    later = Series(engine, [Request("a"), Request("bad")])
    assert list(later) == [STARTED, FINISHED]
    assert str(later.error) == "refused"
