"""The first difference of two runs and its cause; each cause is checked by running without it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from backend import BeamSearch, Engine, Request, SamplingParams, Trace
from backend.comparison import ORDER, Cut, differing_stages, first_difference
from backend.events import Finished, StageOutcome, Started
from tests import models
from tests.running import FULL, together
from tests.ui.steps import step


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    loaded = models.engine()
    yield loaded
    loaded.close()


def runs(engine: Engine, one: SamplingParams, two: SamplingParams, **fields: object) -> list[Trace]:
    """Both in one batch, under one seed."""
    values: dict[str, object] = {"prompt": "Once upon a time", "seed": 3, "max_new_tokens": 24} | fields
    return together(engine, [Request(sampling=params, **values) for params in (one, two)])  # type: ignore[arg-type]


def test_equal_settings_give_equal_texts(engine: Engine) -> None:
    for params in (SamplingParams(), SamplingParams(temperature=1.7, min_p=0.02), SamplingParams(top_k=9)):
        one, two = runs(engine, params, replace(params))
        assert one.text == two.text
        assert first_difference(engine, one, two) is None


def test_the_cut_and_its_margin_are_those_of_the_record(engine: Engine) -> None:
    one, two = runs(engine, SamplingParams(), SamplingParams(top_p=0.5))
    found = first_difference(engine, one, two)
    assert found is not None
    assert found.kind == "stages"
    assert found.causes == ("top_p",)
    left, right = one.steps()[found.index], two.steps()[found.index]
    assert found.token_ids == (left.token_id, right.token_id)
    cut = found.cut
    assert cut is not None
    assert (cut.run, cut.label, cut.rank, cut.stage) == (1, left.label, left.rank, "top_p")
    # With top-p alone, the probability reached before a token is the sum over all better ones of the model.
    table = right.candidates
    assert table is not None
    if left.rank <= len(table.token_ids):
        assert table.token_ids[left.rank - 1] == left.token_id
    assert cut.limit == 0.5
    assert cut.reached is not None
    assert cut.reached >= 0.5
    assert found.leads[1] == float("inf")


def literal(sampling: SamplingParams, token_id: int, cut_by: int, stage: StageOutcome) -> Trace:
    """A run of one step with four candidates, of which the fourth is what the other run drew."""
    base = step().candidates
    assert base is not None
    table = replace(base, cut_by=(-1, -1, -1, cut_by), margins=(None, None, None, 0.1))
    drawn = step(
        token_id=token_id, label=" b" if token_id == 21 else "\n", rank=4, stages=(stage,), candidates=table
    )
    started = Started("tiny", 3, (1, 2), ("a", "b"), ())
    finished = Finished("length", "", 2, 0, 1, None, 0.0, 0.0, None)
    return Trace(Request((1, 2), sampling=sampling, seed=3, max_new_tokens=1), (started, drawn, finished))


@pytest.mark.parametrize(
    ("stage", "value", "threshold", "reached", "limit"),
    [
        ("top_p", 0.75, 0.75, 0.85, 0.75),
        ("min_p", 0.4, 0.2, 0.1, 0.2),  # 0.1 below the least probability of 0.2
    ],
)
def test_the_margin_of_a_literal_cut(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    value: float,
    threshold: float,
    reached: float,
    limit: float,
) -> None:
    monkeypatch.setattr(engine, "evaluate", lambda request: step(token_id=23))
    outcome = StageOutcome(stage, value, 2, 0.25, True, threshold)
    one = literal(SamplingParams(), 23, -1, replace(outcome, num_kept=4, changed=False))
    two = literal(SamplingParams(**{stage: value}), 21, 0, outcome)  # type: ignore[arg-type]
    found = first_difference(engine, one, two)
    assert found is not None
    assert found.causes == (stage,)
    assert found.cut == Cut(1, 23, "\n", 4, stage, value, pytest.approx(reached), pytest.approx(limit))


def random_params(chance: random.Random) -> SamplingParams:
    values: dict[str, object] = {
        "temperature": chance.choice([0, 0.3, 0.7, 1.0, 1.5, 2.5]),
        "top_k": chance.choice([0, 0, 1, 3, 20]),
        "top_p": chance.choice([1.0, 1.0, 0.3, 0.8, 0.95]),
        "min_p": chance.choice([0.0, 0.0, 0.05, 0.3]),
        "typical_p": chance.choice([1.0, 1.0, 1.0, 0.5]),
        "repetition_penalty": chance.choice([1.0, 1.0, 1.3]),
        "frequency_penalty": chance.choice([0.0, 0.0, 1.0]),
        "presence_penalty": chance.choice([0.0, 0.0, -0.7]),
        "no_repeat_ngram_size": chance.choice([0, 0, 2]),
        "logit_bias": chance.choice([{}, {}, {40: 3.0, 41: -100.0}]),
        "order": chance.choice([None, None, "vllm", "llama.cpp"]),
    }
    return SamplingParams(**values)  # type: ignore[arg-type]


def random_pair(chance: random.Random) -> tuple[SamplingParams, SamplingParams]:
    """Half of the pairs differ in one or two knobs, half in anything."""
    one, other = random_params(chance), random_params(chance)
    if chance.random() < 0.5:
        names = chance.sample(["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "order"], 2)
        other = replace(one, **{name: getattr(other, name) for name in names})
    return one, other


def drawn_without(engine: Engine, traces: list[Trace], index: int, stages: tuple[str, ...]) -> set[int]:
    """What the two draw at `index` with some stages switched off in both."""
    requests = [
        replace(
            trace.request,
            prompt=trace.started.prompt_token_ids,
            output_prefix=trace.token_ids[:index],
            sampling=trace.request.sampling.without(stages),
            max_new_tokens=index + 1,
        )
        for trace in traces
    ]
    return {trace.token_ids[index] for trace in together(engine, requests)}


def test_without_the_named_cause_the_difference_is_gone(engine: Engine) -> None:
    """Random pairs whose texts differ; both steps are run again, in one batch, with the cause off."""
    chance, wanted = random.Random(1), 200 if FULL else 80
    explained = several = 0
    for seed in itertools.count():
        if explained == wanted:
            break
        params = random_pair(chance)
        traces = runs(engine, *params, seed=seed, max_new_tokens=8, prompt=f"{seed}: a b")
        found = first_difference(engine, *traces)
        if found is None:
            assert traces[0].token_ids == traces[1].token_ids
            continue
        assert traces[0].token_ids[: found.index] == traces[1].token_ids[: found.index]
        if found.kind == "ended":
            assert {trace.finish_reason for trace in traces} == {"eos", "length"}
            continue
        assert found.kind == "stages"
        assert set(found.causes) <= set(differing_stages(*params))

        assert len(drawn_without(engine, traces, found.index, ())) == 2
        assert len(drawn_without(engine, traces, found.index, found.causes)) == 1
        for left_out in found.causes if len(found.causes) > 1 else ():
            fewer = tuple(stage for stage in found.causes if stage != left_out)
            assert len(drawn_without(engine, traces, found.index, fewer)) == 2, "a smaller set would do"
        explained += 1
        several += len(found.causes) > 1
    assert several < explained / 2


def test_what_settings_cannot_explain_is_named(engine: Engine) -> None:
    hot = SamplingParams(temperature=1.5)
    one = engine.generate(Request("abc", sampling=hot, seed=1))
    for kind, other in (
        ("seed", Request("abc", sampling=hot, seed=2)),
        ("prompt", Request("abd", sampling=hot, seed=1)),
        ("strategy", Request("abc", sampling=hot, seed=1, strategy=BeamSearch(2))),
    ):
        found = first_difference(engine, one, engine.generate(other))
        assert found is not None
        assert (found.kind, found.causes) == (kind, ())


def test_a_run_that_was_cut_short_ended(engine: Engine) -> None:
    hot = SamplingParams(temperature=0.5)
    one, two = (engine.generate(Request("abc", sampling=hot, seed=4, max_new_tokens=n)) for n in (3, 6))
    found = first_difference(engine, one, two)
    assert found is not None
    assert (found.kind, found.index, found.labels[0], found.token_ids[0]) == ("ended", 3, "", None)


def test_greedy_runs_need_no_common_seed(engine: Engine) -> None:
    one = engine.generate(Request("abc", sampling=SamplingParams(temperature=0), seed=1))
    two = engine.generate(
        Request("abc", sampling=SamplingParams(temperature=0, repetition_penalty=3.0), seed=2)
    )
    found = first_difference(engine, one, two)
    assert found is not None
    assert found.causes == ("repetition_penalty",)


def test_the_order_is_a_cause_only_where_it_can_matter() -> None:
    a, b = SamplingParams(order="llama.cpp"), SamplingParams()
    assert differing_stages(a, b) == ()
    a, b = (SamplingParams(temperature=2, min_p=0.2, order=order) for order in ("llama.cpp", None))
    assert differing_stages(a, b) == (ORDER,)
    assert differing_stages(SamplingParams(top_p=0.5), SamplingParams(top_p=0.6, top_k=3)) == (
        "top_k",
        "top_p",
    )
