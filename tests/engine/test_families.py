"""Families whose attention is more than softmax(q k) v: equal to generate, alone and in a batch."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from backend.errors import ModelUnavailable
from backend.model.runner import ModelRunner, Piece, kv_bytes_per_token
from tests import models
from tests.engine.test_greedy_equality import assert_equal_to, reference
from tests.running import audit, greedy, together

NEW = 24
WINDOW = 13
LATENT: dict[str, Any] = {
    "num_key_value_heads": 6,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
GEMMA2: dict[str, Any] = {"head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 8}
GPT_OSS: dict[str, Any] = {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2}
GPT_OSS["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA4: dict[str, Any] = {"head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 64}
FALCON: dict[str, Any] = {"alibi": False, "num_kv_heads": 2, "parallel_attn": True}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "soft-capping": ("Gemma2", GEMMA2 | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 30.0}),
    "strong soft-capping": ("Gemma2", GEMMA2 | {"attn_logit_softcapping": 0.5, "num_hidden_layers": 3}),
    "sinks": ("GptOss", GPT_OSS | {"sliding_window": WINDOW}),
    "sinks, no window": ("GptOss", GPT_OSS | {"layer_types": ["full_attention"] * 2}),
    "chunks": ("Llama4", LLAMA4 | {"attention_chunk_size": 16, "num_hidden_layers": 4}),
    "chunks of 7": ("Llama4", LLAMA4 | {"attention_chunk_size": 7, "layer_types": ["chunked_attention"] * 2}),
    "latents, V2": ("DeepseekV2", LATENT | {"q_lora_rank": None}),
    "latents, V3": ("DeepseekV3", LATENT | {"q_lora_rank": 16}),
    "StableLM": ("StableLm", {}),
    "StableLM 2": ("StableLm", {"qk_layernorm": True, "use_parallel_residual": True, "use_qkv_bias": True}),
    "Falcon, one key head": ("Falcon", FALCON | {"new_decoder_architecture": False, "multi_query": True}),
    "Falcon, all key heads": ("Falcon", FALCON | {"multi_query": False, "num_kv_heads": 6}),
    "Falcon, new": ("Falcon", FALCON | {"new_decoder_architecture": True}),
    "layers that lose the batch": ("Nemotron", {}),
}


def make(family: str, **changes: Any) -> PreTrainedModel:
    name, own = FAMILIES[family]
    config = getattr(transformers, {"Llama4": "Llama4Text"}.get(name, name) + "Config")
    model = models._seeded(
        getattr(transformers, name + "ForCausalLM"), config(**models._common(**(own | changes)))
    )
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("sinks"):
                parameter.copy_(torch.linspace(-1, 3, len(parameter)))
    return model


def prompts() -> list[tuple[int, ...]]:
    rng = random.Random(5)
    return [tuple(rng.randrange(256) for _ in range(length)) for length in (1, 6, 12, 13, 16, 33, 70)]


@pytest.mark.parametrize("family", FAMILIES)
def test_alone_together_and_uncached_equal_generate(family: str) -> None:
    oracle = make(family)
    engine = models.engine(make(family), num_blocks=200, inline=True)
    requests = [greedy(prompt, NEW) for prompt in prompts()]
    expected = [reference(oracle, list(request.prompt), NEW) for request in requests]
    for wanted, request in zip(expected, requests, strict=True):
        assert_equal_to(wanted, engine.generate(request))
    twice = [replace(request, cache_salt=salt) for salt in "ab" for request in requests]
    for wanted, trace in zip(expected * 2, together(engine, twice), strict=True):
        assert_equal_to(wanted, trace)
    assert_equal_to(expected[-1], engine.generate(replace(requests[-1], use_cache=False)))
    audit(engine)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("soft-capping", {"attn_logit_softcapping": None}),
        ("sinks, no window", {}),
        ("chunks", {"layer_types": ["full_attention"] * 4}),
    ],
)
def test_what_makes_a_family_special_matters_for_the_oracle(family: str, changes: dict[str, Any]) -> None:
    """Else the cases above would prove nothing."""
    ids = torch.tensor([list(range(60))])
    other = make(family, **changes)
    with torch.no_grad():
        for path, parameter in other.named_parameters():
            if path.endswith("sinks"):
                parameter.fill_(-100)
        special, plain = make(family)(ids).logits[0, -1], other(ids).logits[0, -1]
    assert float((special - plain).abs().max()) > 0.1


def test_latents_are_cached_instead_of_keys_and_values() -> None:
    model = make("latents, V3")
    assert kv_bytes_per_token(model) == 2 * (16 + 8) * 4
    runner = ModelRunner(model, 8, 4, models.VOCAB_SIZE)
    runner.forward([Piece([1, 2, 3], 0, [0], 1)])
    assert runner.cache.num_bytes == 8 * 4 * kv_bytes_per_token(model)


def test_a_text_of_llama_4_ends_before_its_queries_are_scaled_by_place() -> None:
    scaled = models.engine(make("chunks", attn_temperature_tuning=True, floor_scale=100))
    plain = models.engine(make("chunks", attn_temperature_tuning=False, floor_scale=100))
    assert (scaled.context_length, plain.context_length) == (99, models.CONTEXT)
    together_uncached = [greedy(prompt, 29, use_cache=False) for prompt in prompts()[-2:]]
    alone = [scaled.generate(request).token_ids for request in together_uncached]
    assert [trace.token_ids for trace in together(scaled, together_uncached)] == alone
    scaled.close()
    plain.close()


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("Falcon", {"alibi": True}, "its attention adds a bias by distance"),
        ("Bloom", {"n_layer": 2, "n_head": 6}, "its attention cannot be replaced"),
        ("Mpt", {"d_model": 48, "n_heads": 6, "n_layers": 2}, "its attention cannot be replaced"),
        ("Mamba", {}, "cannot be paged"),
    ],
)
def test_families_that_are_not_paged_are_refused_by_name(
    name: str, changes: dict[str, Any], why: str
) -> None:
    config = getattr(transformers, name + "Config")(**models._common(**changes))
    model = getattr(transformers, name + "ForCausalLM")(config)
    with pytest.raises(ModelUnavailable, match=f"{name}ForCausalLM .*{why}"):
        models.engine(model)
