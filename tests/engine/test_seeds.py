"""One seed, one text: alone, in company, in any order, preempted, with more or fewer samples."""

from __future__ import annotations

import random

import pytest

from backend import Request, Sample, SamplingParams
from backend.events import Started, TokenDecoded
from tests import models
from tests.running import audit, kinds, together, token_ids


def drawn(prompt: str, seed: int | None, n: int = 1, max_new_tokens: int = 20) -> Request:
    return Request(prompt, strategy=Sample(n), seed=seed, max_new_tokens=max_new_tokens)


REQUESTS = [drawn(f"prompt {number % 3}", seed=number) for number in range(10)]


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("num_blocks", [256, 24], ids=["roomy", "preempting"])
def test_a_text_depends_on_its_seed_and_not_on_its_neighbours(order: int, num_blocks: int) -> None:
    engine = models.engine(inline=True)
    alone = [engine.generate(request).token_ids for request in REQUESTS]
    assert len(set(alone)) == len(REQUESTS)
    crowd = models.engine(inline=True, block_size=4, num_blocks=num_blocks)
    shuffled = random.Random(order).sample(range(10), 10)
    traces = together(crowd, [REQUESTS[number] for number in shuffled])
    assert [trace.token_ids for trace in traces] == [alone[number] for number in shuffled]
    preempted = any("Preempted" in kinds(trace.events) for trace in traces)
    assert preempted == (num_blocks == 24)
    audit(crowd)


def test_samples_differ_and_sample_i_is_the_same_for_4_and_for_8() -> None:
    """A26."""
    engine = models.engine(inline=True)
    four, eight, again = (token_ids(engine.generate(drawn("x", 7, n))) for n in (4, 8, 8))
    assert sorted(eight) == list(range(8))
    assert len({tuple(ids) for ids in eight.values()}) == 8
    assert {number: eight[number] for number in range(4)} == four
    assert eight == again


def test_the_first_sample_is_that_of_a_single_run() -> None:
    engine = models.engine(inline=True)
    assert token_ids(engine.generate(drawn("x", 7, 3)))[0] == token_ids(engine.generate(drawn("x", 7)))[0]


def test_unseeded_runs_differ_show_their_seed_and_can_be_repeated() -> None:
    engine = models.engine(inline=True)
    traces = [engine.generate(drawn("x", None)) for _ in range(5)]
    assert len({trace.started.seed for trace in traces}) == 5
    assert len({trace.token_ids for trace in traces}) == 5
    for trace in traces:
        assert engine.generate(drawn("x", trace.started.seed)).token_ids == trace.token_ids


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**63 - 1])
def test_the_seed_given_is_the_seed_shown(seed: int) -> None:
    engine = models.engine(inline=True)
    trace = engine.generate(drawn("x", seed, max_new_tokens=2))
    assert isinstance(trace.events[0], Started)
    assert trace.events[0].seed == seed


def test_the_luck_at_a_position_is_shared_by_all_settings_under_one_seed() -> None:
    engine = models.engine(inline=True)
    runs = [
        engine.generate(Request("x", sampling=SamplingParams(temperature=t), seed=3, max_new_tokens=6))
        for t in (1.0, 1.5)
    ]
    luck = []
    for trace in runs:
        table: dict[tuple[int, int], float] = {}
        for step in trace.steps():
            assert isinstance(step, TokenDecoded)
            assert step.candidates is not None
            for token_id, value in zip(step.candidates.token_ids, step.candidates.luck, strict=True):
                table[step.position, token_id] = value
        luck.append(table)
    common = luck[0].keys() & luck[1].keys()
    assert len(common) > 30
    assert all(luck[0][place] == luck[1][place] for place in common)
