"""Packed 4-bit layers against the float32 weights they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from backend import Engine, Request, SamplingParams, Speculative
from backend.errors import RequestError
from backend.model.packed import Groups, HalfLinear, PackedLinear, pack, packable, rounded
from tests import models

SHAPES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}


def random_groups(rows: int, columns: int, seed: int = 0) -> Groups:
    """Groups in which the least and the greatest step are in use, with float16 scales as files have them."""
    noise = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 16, (rows, columns), generator=noise, dtype=torch.uint8)
    values[:, 0::32], values[:, 1::32] = 0, 15
    scale, zero = (torch.randn(2, rows, columns // 32, generator=noise) * 0.02).half().float()
    return Groups(values, scale.abs() + 1e-3, zero)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(("rows", "columns"), [(16, 32), (48, 64), (192, 576), (64, 1536)])
def test_the_packed_product_is_the_dequantized_one_within_bfloat16(rows: int, columns: int) -> None:
    groups, bias = random_groups(rows, columns), torch.randn(rows)
    x = torch.randn(3, 5, columns)
    found = PackedLinear.of(groups, bias)(x)
    assert found.dtype == torch.float32
    assert relative(found, x @ groups.dequantized().T + bias) < 5e-3


def test_a_batch_changes_no_bit_of_a_packed_product() -> None:
    layers = [PackedLinear.of(random_groups(192, 576), None), HalfLinear(torch.randn(257, 576), None)]
    x = torch.randn(40, 576)
    for layer in layers:
        whole = layer(x)
        for row in range(40):
            assert torch.equal(layer(x[row : row + 1])[0], whole[row])
        for count in range(2, 40):
            assert torch.equal(layer(x[:count]), whole[:count])


def test_rounding_gives_back_the_groups_a_weight_came_from() -> None:
    groups = random_groups(64, 128)
    again = rounded(groups.dequantized())
    assert torch.equal(again.values, groups.values)
    torch.testing.assert_close(again.dequantized(), groups.dequantized(), rtol=1e-5, atol=1e-6)


def test_rounding_is_off_by_at_most_half_a_step_and_keeps_a_flat_group() -> None:
    weight = torch.randn(16, 96)
    weight[3, 32:64] = 0.25
    groups = rounded(weight)
    off = (groups.dequantized() - weight).abs().view(16, 3, 32)
    assert (off <= groups.scale[..., None] / 2 + 1e-6).all()
    assert torch.equal(groups.dequantized()[3, 32:64], weight[3, 32:64])


def test_the_half_product_differs_by_the_rounding_of_float16() -> None:
    weight, bias = torch.randn(257, 48), torch.randn(257)
    x = torch.randn(2, 7, 48)
    assert relative(HalfLinear(weight, bias)(x), x @ weight.T + bias) < 5e-4


def test_what_cannot_be_packed_is_widened_and_counted() -> None:
    assert not packable(17, 64)
    assert not packable(16, 48)
    model = nn.ModuleDict({"a": nn.Linear(64, 32), "b": nn.Linear(48, 32), "c": nn.Linear(64, 32)})
    model["c"].weight.data *= 1e7  # more than float16 holds
    packing = pack(model, lambda name, linear: None if name == "c" else rounded(linear.weight))
    assert [type(model[name]) for name in "abc"] == [PackedLinear, HalfLinear, nn.Linear]
    assert (packing.num_packed, packing.num_half, packing.num_kept) == (1, 1, 1)
    assert 0.01 < packing.error < 0.2
    assert str(packing).startswith("int4: 1 layers in 4 bits, rounded, ")
    assert str(packing).endswith("; 1 layers in 16; 1 layers in 32")


@pytest.fixture(scope="module", params=["llama", "qwen2", "mistral", "qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    getattr(models, request.param)(**SHAPES).save_pretrained(folder)
    models.byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    engine = Engine.load(str(folder), device="cpu", precision="int4", num_blocks=128, block_size=4)
    yield engine
    engine.close()


def test_a_folder_is_packed_on_load_and_says_so(engine: Engine) -> None:
    assert engine.precision == "int4"
    assert "in 4 bits, rounded, " in engine.packing
    assert engine.packing.endswith("; 1 layers in 16")  # the output layer


def test_greedy_text_is_the_same_alone_batched_and_drafted(engine: Engine) -> None:
    """Within int4; the random models of this size leave no ties that bfloat16 rounding could turn."""
    prompts = ["abcabc", "The quick brown fox", "x", "0123456789" * 3]
    greedy = SamplingParams(temperature=0)
    requests = [Request(prompt, sampling=greedy, max_new_tokens=24) for prompt in prompts]
    alone = [engine.generate(request).token_ids for request in requests]
    streams = [engine.stream(request) for request in requests]
    events = [list(stream) for stream in streams]
    batched = [tuple(e.token_id for e in run if type(e).__name__ == "TokenDecoded") for run in events]
    assert batched == [tuple(ids) for ids in alone]
    for request, ids in zip(requests, alone, strict=True):
        drafted = Request(
            request.prompt, sampling=greedy, max_new_tokens=24, strategy=Speculative("prompt_lookup", 4)
        )
        assert engine.generate(drafted).token_ids == ids


def test_int4_elsewhere_than_on_the_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(RequestError, match="int4 is computed on the CPU only, not on cuda"):
        Engine.load(device="cuda", precision="int4")
