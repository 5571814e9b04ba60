"""The same engine on a CUDA device; skipped where there is none."""

from __future__ import annotations

import pytest
import torch

from backend import Engine, Request, Sample, SamplingParams, Speculative
from tests import models

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
PROMPT = tuple(range(65, 95))
SAMPLED = SamplingParams(temperature=0.9, top_k=40, top_p=0.95, min_p=0.02, repetition_penalty=1.1)


def on(device: str) -> Engine:
    return models.engine(models.llama().to(device))


@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0), SAMPLED], ids=["greedy", "sampled"])
def test_text_and_numbers_are_those_of_the_cpu(sampling: SamplingParams) -> None:
    request = Request(PROMPT, sampling=sampling, max_new_tokens=40)
    ours, reference = on("cuda").generate(request), on("cpu").generate(request)
    assert ours.token_ids == reference.token_ids
    for a, b in zip(ours.steps(), reference.steps(), strict=True):
        assert a.model_logprob == pytest.approx(b.model_logprob, abs=1e-3)
        assert a.luck == b.luck


def test_forked_samples_and_cached_reruns_agree() -> None:
    engine = on("cuda")
    request = Request(PROMPT, sampling=SAMPLED, strategy=Sample(4), max_new_tokens=20)
    first, again = engine.generate(request), engine.generate(request)
    assert first.samples == again.samples
    assert again.finished is not None
    assert again.finished.num_cached_tokens > 0
    assert engine.block_manager.num_free_blocks == engine.block_manager.num_blocks


def test_coupled_speculation_gives_the_text_of_plain_sampling() -> None:
    engine = on("cuda")
    plain = engine.generate(Request(PROMPT, sampling=SAMPLED, max_new_tokens=30))
    draft = Speculative("layer_skip", 4, "coupled", skip_layers=(1,))
    spoken = engine.generate(Request(PROMPT, sampling=SAMPLED, strategy=draft, max_new_tokens=30))
    assert spoken.token_ids == plain.token_ids
