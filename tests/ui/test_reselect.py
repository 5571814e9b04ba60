"""Selecting again from what a run recorded gives what a run by that rule would have selected."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from backend import BestOf, Request, Trace
from backend.events import SampleFinished, SampleSelected, TokenDecoded
from tests import models
from ui.payloads import search as search_payloads
from ui.plots import samples as sample_plots
from ui.runs.reselect import RULES, Recorded, RecordedSample, num_tied, recorded, scores, votes, winner
from ui.session import View
from ui.tabs import samples


def made(answers: list[str | None], sums: list[float], lengths: list[int]) -> Recorded:
    selected = SampleSelected("vote", 0, (), tuple(answers), ())
    found = [
        RecordedSample([None] * length, total, "eos", "", answer)  # type: ignore[list-item]
        for answer, total, length in zip(answers, sums, lengths, strict=True)
    ]
    return Recorded(found, selected)


def test_each_rule_by_hand() -> None:
    found = made(["7", "9", "9", None], [-3.0, -4.0, -9.0, -2.0], [3, 8, 9, 1])
    assert scores(found, "sum") == [-3.0, -4.0, -9.0, -2.0]
    assert winner(found, "sum") == 3
    assert scores(found, "mean") == [-1.0, -0.5, -1.0, -2.0]
    assert winner(found, "mean") == 1
    assert scores(found, "vote") == [0.25, 0.5, 0.5, 0.0]
    assert winner(found, "vote") == 1
    assert votes(found) == {"9": 2, "7": 1}
    assert scores(found, "mbr") is None


def test_nothing_is_selected_while_a_sample_grows() -> None:
    found = made(["7", "9"], [-1.0, -2.0], [2, 2])
    found.samples[1].reason = None
    assert [winner(found, rule) for rule in RULES] == [None, None, None, None]


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    """One run per rule, of the same samples: texts of digits and letters, so that answers are found."""
    engine = models.engine(inline=True)
    asked = Request((49, 50, 51), max_new_tokens=12, seed=4, num_candidates=0)
    return {rule: engine.generate(replace(asked, strategy=BestOf(6, rule))) for rule in RULES}  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", RULES)
def test_reselection_equals_a_run_by_that_rule(traces: dict[str, Trace], rule: str) -> None:
    found = recorded(traces["mbr"].events, 6)
    (selected,) = [event for event in traces[rule].events if isinstance(event, SampleSelected)]
    assert winner(found, rule) == selected.sample
    assert scores(found, rule) == pytest.approx(list(selected.scores))


def shown(trace: Trace, end: int | None = None) -> View:
    """The run as the page holds it after so many events."""
    view = View()
    view.begin(trace.request, "run")
    for event in trace.events[:end]:
        view.add(event)
    return view


def test_a_run_without_the_matrix_says_that_mbr_needs_a_run(traces: dict[str, Trace]) -> None:
    payload = search_payloads.samples(shown(traces["mean"]), "mbr")
    assert payload["selected"] is None
    assert payload["missing"] == "This run recorded no similarities: run again to select by MBR."
    assert payload["matrix"] is None
    assert search_payloads.samples(shown(traces["mbr"]), "mbr")["missing"] == ""


def test_the_payload_follows_a_run_event_by_event(traces: dict[str, Trace]) -> None:
    events = traces["mbr"].events
    for end in range(len(events) + 1):
        payload = search_payloads.samples(shown(traces["mbr"], end), "vote")
        json.dumps(payload, allow_nan=False)
        tokens = [event for event in events[:end] if isinstance(event, TokenDecoded)]
        assert sum(len(sample["tokens"]) for sample in payload["samples"]) == len(tokens)
    assert [sample["sum"] for sample in payload["samples"]] == pytest.approx(
        [event.cum_logprob for event in sorted_ends(events)], abs=1e-3
    )


def sorted_ends(events: Any) -> list[SampleFinished]:
    return sorted((e for e in events if isinstance(e, SampleFinished)), key=lambda e: e.sample)


def test_answers_are_no_markup_in_the_histogram() -> None:
    figure = sample_plots.histogram(made(["<b>1</b>", "<b>1</b>", None], [-1.0] * 3, [1] * 3), "<b>1</b>")
    assert figure is not None
    assert figure["data"][0]["y"] == ["&lt;b&gt;1&lt;/b&gt; ", "no answer found "]
    assert figure["data"][0]["text"] == ["2 ★", "1"]


def test_the_page_records_similarities_only_where_that_is_quick() -> None:
    def asked(n: int) -> str:
        strategy = samples.request("a", {}, {"n": n}, "vote", "").strategy
        assert isinstance(strategy, BestOf)
        return strategy.select

    assert [asked(n) for n in (1, 32, 33, 64)] == ["mbr", "mbr", "vote", "vote"]


@pytest.mark.parametrize(
    ("answers", "tied"),
    [(["1", "2", "3"], 3), (["1", "1", "2"], 1), (["1", "2", "2", "1"], 2), ([None, "4", None], 1)],
)
def test_equally_many_votes_for_different_answers_are_a_tie(answers: list[str | None], tied: int) -> None:
    samples = [
        RecordedSample(reason="eos", answer=answer, text=str(place)) for place, answer in enumerate(answers)
    ]
    selected = SampleSelected("vote", 0, (0.0,) * len(answers), tuple(answers), ())
    assert num_tied(Recorded(samples, selected), "vote") == tied
