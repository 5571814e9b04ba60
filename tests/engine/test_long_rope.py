"""Models with two sets of position factors: chosen by sequence, and a text ends at their border."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
    PreTrainedModel,
)

from backend import BeamSearch, Engine, Sample, SamplingParams, Speculative
from backend.errors import ModelUnavailable
from backend.kv import paged_attention
from backend.model import long_rope
from tests import models
from tests.engine.test_greedy_equality import assert_equal_to, reference
from tests.running import audit, greedy, together, token_ids

BORDER = 32
NEW = 40


def factors() -> dict[str, object]:
    rng = random.Random(3)
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1 + rng.random() for _ in range(4)],
        "long_factor": [2 + 6 * rng.random() for _ in range(4)],
        "original_max_position_embeddings": BORDER,
    }


def phi3() -> PreTrainedModel:
    changes = models._common(max_position_embeddings=256, rope_parameters=factors())
    return models._seeded(Phi3ForCausalLM, Phi3Config(original_max_position_embeddings=BORDER, **changes))


def phimoe() -> PreTrainedModel:
    parameters = factors() | {"short_mscale": 1.1, "long_mscale": 1.3}
    changes = models._common(max_position_embeddings=256, rope_parameters=parameters, num_local_experts=2)
    return models._seeded(PhimoeForCausalLM, PhimoeConfig(**changes))


def llama() -> PreTrainedModel:
    changes = models._common(max_position_embeddings=256, rope_parameters=factors())
    return models._seeded(LlamaForCausalLM, LlamaConfig(**changes))


def prompt(length: int) -> tuple[int, ...]:
    rng = random.Random(length)
    return tuple(rng.randrange(256) for _ in range(length))


@pytest.fixture(params=[phi3, phimoe, llama], ids=lambda make: make.__name__)
def make(request: pytest.FixtureRequest) -> Callable[[], PreTrainedModel]:
    return request.param


@pytest.fixture
def engine(make: Callable[[], PreTrainedModel]) -> Iterator[Engine]:
    tiny = models.engine(make(), num_blocks=400)
    yield tiny
    audit(tiny)
    tiny.close()


def test_alone_together_and_uncached_equal_generate_up_to_the_border(make, engine) -> None:
    oracle = make()
    prompts = [prompt(length) for length in (20, 60, 6, 31, 32, 33, 100)]
    requests = [greedy(ids, NEW, cache_salt="alone") for ids in prompts]
    alone = [engine.generate(request) for request in requests]
    batch = together(engine, [replace(request, cache_salt="batch") for request in requests])
    uncached = [engine.generate(replace(request, use_cache=False)) for request in requests]
    for ids, *traces in zip(prompts, alone, batch, uncached, strict=True):
        is_long = len(ids) > BORDER
        count = NEW if is_long else BORDER + 1 - len(ids)
        expected = reference(oracle, list(ids), count)
        for trace in traces:
            assert_equal_to(expected, trace)
            assert len(trace.token_ids) == count
            assert trace.finish_reason == ("length" if is_long else "context_full")
            assert ("changes its position factors" in trace.finished.message) != is_long


def test_a_longer_prompt_does_not_start_from_the_blocks_of_a_shorter_one(engine) -> None:
    whole = prompt(60)
    fresh = engine.generate(greedy(whole, 8, cache_salt="fresh"))
    engine.generate(greedy(whole[:20], 8, cache_salt="used"))
    engine.generate(greedy(whole[:30], 8, cache_salt="used"))
    again = engine.generate(greedy(whole, 8, cache_salt="used"))
    assert again.finished.num_cached_tokens == 0
    assert again.token_ids == fresh.token_ids
    third = engine.generate(greedy((*whole, 7), 8, cache_salt="used"))
    assert third.finished.num_cached_tokens > BORDER
    assert third.token_ids == engine.generate(greedy((*whole, 7), 8)).token_ids


def test_beams_samples_and_drafts_use_the_factors_of_their_sequence(engine) -> None:
    for length in (20, 30, 60):
        request = greedy(prompt(length), NEW)
        plain = engine.generate(request).token_ids
        drafted = engine.generate(replace(request, strategy=Speculative(draft="layer_skip")))
        looked_up = engine.generate(replace(request, strategy=Speculative(draft="prompt_lookup")))
        assert drafted.token_ids == looked_up.token_ids == plain
        beams = replace(request, strategy=BeamSearch(num_beams=3))
        beside, _ = together(engine, [beams, greedy(prompt(100), NEW)])
        assert beside.token_ids == engine.generate(replace(beams, use_cache=False)).token_ids
        samples = replace(request, strategy=Sample(n=3), sampling=SamplingParams(), seed=4)
        beside, _ = together(engine, [samples, greedy(prompt(101), NEW)])
        assert token_ids(beside) == token_ids(engine.generate(replace(samples, use_cache=False)))


def test_a_branch_and_a_forked_run_repeat_the_run(engine) -> None:
    run = engine.generate(greedy(prompt(20), NEW))
    place = 8
    branch = engine.generate(run.branch(place, token_id=run.token_ids[place]))
    assert branch.token_ids == run.token_ids
    again = engine.evaluate(replace(run.request, output_prefix=run.token_ids[:place]))
    assert again.token_id == run.token_ids[place]


@pytest.mark.parametrize("length", [20, 33, 90])
def test_a_score_reads_the_whole_text_with_one_set(make, engine, length: int) -> None:
    text = "".join(chr(97 + each % 26) for each in prompt(length))
    ids = engine.encode(text)
    with torch.no_grad():
        expected = make()(torch.tensor([ids])).logits[0].log_softmax(-1)
    found = [step.model_logprob for step in engine.score(text).steps()]
    wanted = [float(expected[place, token]) for place, token in enumerate(ids[1:])]
    assert found == pytest.approx(wanted, abs=1e-4)


def test_layers_with_different_borders_are_refused() -> None:
    model = phi3()
    other = phi3()
    other.model.rotary_emb.config.rope_parameters["original_max_position_embeddings"] = 16
    model.model.second = other.model.rotary_emb
    with pytest.raises(ModelUnavailable, match=r"different lengths \(16, 32 tokens\)"):
        models.engine(model)


# What the check at the start sees


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_window_that_the_attention_forgets_is_found_at_the_start(monkeypatch, block_size: int) -> None:
    attend = paged_attention._attend
    monkeypatch.setattr(
        paged_attention, "_attend", lambda *args: attend(*args[:-1], replace(args[-1], window=None))
    )
    with pytest.raises(ModelUnavailable, match="logits of a text of 108 tokens"):
        models.engine(models.mistral(sliding_window=100), block_size=block_size)


def test_factors_that_are_wrong_beyond_the_border_are_found_at_the_start(monkeypatch) -> None:
    def always_short(self: Any, x: Tensor, position_ids: Tensor) -> Any:
        if paged_attention.CURRENT.get() is None:
            return self.stock(x, position_ids)
        return self.short(x, position_ids.clamp(max=BORDER - 1))

    monkeypatch.setattr(long_rope._PerToken, "forward", always_short)
    with pytest.raises(ModelUnavailable, match="logits of a text of 40 tokens"):
        models.engine(phi3())


def test_a_fault_beyond_the_first_block_is_found_at_the_start(monkeypatch) -> None:
    gather = paged_attention.Row.gather

    def shifted(self: Any, pool: Tensor, block_size: int) -> Tensor:
        return gather(self, pool, block_size).roll(int(self.num_tokens > 16), 0)

    monkeypatch.setattr(paged_attention.Row, "gather", shifted)
    with pytest.raises(ModelUnavailable, match="cannot be paged correctly"):
        models.engine(block_size=16)
