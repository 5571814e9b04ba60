"""Sweeps: which runs they make, that a batch changes none, and that closing one ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from backend import Engine, Request, SamplingParams
from backend.errors import RequestError
from backend.metrics import describe
from backend.sweep import Axis, Sweep, fold, requests, spaced
from tests import models
from tests.running import audit, guarded

BASE = Request("Once upon", sampling=SamplingParams(top_p=0.9), max_new_tokens=10, seed=5)


@pytest.fixture
def engine() -> Iterator[Engine]:
    loaded = models.engine()
    yield loaded
    loaded.close()


def test_values_are_spaced_evenly() -> None:
    assert spaced(0, 1, 5) == (0, 0.25, 0.5, 0.75, 1)
    assert spaced(0.1, 0.3, 3) == (0.1, 0.2, 0.3)
    assert spaced(1, 4, 6, whole=True) == (1, 2, 3, 4)
    assert spaced(7, 9, 1) == (7,)
    with pytest.raises(RequestError, match="1 to 50 values, got 51"):
        spaced(0, 1, 51)


def test_every_combination_runs_under_the_same_seeds() -> None:
    made = requests(BASE, [Axis("temperature", (0.5, 1.0)), Axis("min_p", (0.0, 0.1))], 2)
    assert [(r.sampling.temperature, r.sampling.min_p, r.seed) for r in made] == [
        (0.5, 0.0, 5),
        (0.5, 0.0, 6),
        (0.5, 0.1, 5),
        (0.5, 0.1, 6),
        (1.0, 0.0, 5),
        (1.0, 0.0, 6),
        (1.0, 0.1, 5),
        (1.0, 0.1, 6),
    ]
    assert all(request.sampling.top_p == 0.9 for request in made)


@pytest.mark.parametrize(
    ("knob", "values", "seeds", "message"),
    [
        ("colour", (1.0,), 1, "not 'colour'"),
        ("order", (1.0,), 1, "not 'order'"),
        ("top_p", (2.0,), 1, "top_p must be a number between 0 and 1, got 2"),
        ("top_k", (1.5,), 1, "top_k must be a whole number"),
        ("top_p", (0.5,) * 9, 50, "would take 450 runs; 1 to 400 are possible"),
        ("top_p", (0.5,), 0, "would take 0 runs"),
        ("top_p", (), 1, "has no values"),
    ],
)
def test_bad_sweeps_are_refused(knob: str, values: tuple[float, ...], seeds: int, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        requests(BASE, [Axis(knob, values)], seeds)


def test_one_knob_or_two_different_ones() -> None:
    one = Axis("top_p", (0.5,))
    for axes, message in (
        ([], "got 0"),
        ([one] * 3, "got 3"),
        ([one, one], "both knobs of the sweep are top_p"),
    ):
        with pytest.raises(RequestError, match=message):
            requests(BASE, axes, 1)


def test_a_batch_gives_what_single_runs_give(engine: Engine) -> None:
    made = requests(BASE, [Axis("temperature", (0.0, 0.8, 1.5))], 4)
    with Sweep(engine, made, width=5) as sweep:
        outcomes = {outcome.index: outcome for outcome in sweep}
    assert sorted(outcomes) == list(range(12))
    for index, request in enumerate(made):
        trace = engine.generate(request)
        assert outcomes[index].text == trace.text
        ours, alone = outcomes[index].metrics, describe(trace.steps())
        assert ours.perplexity == pytest.approx(alone.perplexity)
        assert ours.mean_entropy == pytest.approx(alone.mean_entropy)
        rounded = {"perplexity": None, "mean_entropy": None}
        assert replace(ours, **rounded) == replace(alone, **rounded)  # type: ignore[arg-type]
        assert outcomes[index].reason == trace.finish_reason
        assert outcomes[index].survivors == pytest.approx(
            sum(step.stages[-1].num_kept for step in trace.steps()) / len(trace.steps())
        )
        assert outcomes[index].acted == {
            item.stage: item.num_changed / item.num_steps for item in trace.activity()
        }
    audit(engine)


def test_a_run_without_stages_has_no_survivors_to_count(engine: Engine) -> None:
    outcome = fold(3, iter(engine.stream(replace(BASE, sampling=SamplingParams()))))
    assert (outcome.index, outcome.survivors, outcome.acted) == (3, None, {})


def test_closing_ends_the_runs_and_keeps_what_came(engine: Engine) -> None:
    long = replace(BASE, max_new_tokens=400, sampling=SamplingParams(logit_bias={models.EOS_ID: -100}))
    made = [replace(BASE, max_new_tokens=1), *requests(long, [Axis("temperature", (0.5, 1.0))], 4)]
    sweep = Sweep(engine, made, width=3)
    seen = []

    def consume() -> None:
        for outcome in sweep:
            seen.append(outcome.index)
            sweep.close()

    guarded(consume)
    assert seen[0] == 0
    assert len(seen) < len(made)
    audit(engine)
    assert not [thread for thread in threading.enumerate() if thread.name == "sweep" and thread.is_alive()]


def test_closing_waits_for_one_step_and_not_for_one_of_each_run(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = replace(BASE, max_new_tokens=400, sampling=SamplingParams(logit_bias={models.EOS_ID: -100}))
    scheduler = engine._loop._scheduler
    step, running, num_steps = scheduler.step, threading.Event(), [0]

    def counted() -> None:
        num_steps[0] += 1
        step()
        if len(scheduler._running) == 16:
            running.set()
            time.sleep(0.02)  # long enough for all to be asked

    monkeypatch.setattr(scheduler, "step", counted)
    sweep = Sweep(engine, requests(long, [Axis("temperature", (0.5, 1.0))], 8), width=16)
    assert running.wait(20)
    before = num_steps[0]
    sweep.close()
    assert num_steps[0] - before <= 4
    audit(engine)


def test_a_refused_run_says_why_and_the_others_go_on(engine: Engine) -> None:
    made = [replace(BASE, prompt="x" * 600), BASE]
    outcomes = {outcome.index: outcome for outcome in Sweep(engine, made)}
    assert "the prompt has 600 tokens" in outcomes[0].error
    assert outcomes[1].error == ""
