"""The lean forward against the stock module, on every class it knows, in float32 and packed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from backend.model import lean
from backend.model.layer_skip import without_layers
from backend.model.packed import pack
from backend.model.runner import ModelRunner, Piece
from tests import models

# 64 rows at least, so that packed layers are fused too.
SHAPES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 192,
    "num_attention_heads": 8,
    "initializer_range": 0.15,
}
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, rope scaled": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "mistral": ("mistral", {}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2, one layer slides": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "too narrow to be fused": ("llama", {"hidden_size": 96, "num_attention_heads": 6}),
}


def both(runner: ModelRunner, pieces: list[Piece]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the pieces by the lean forward and by the stock module."""
    found = torch.cat(runner.forward(pieces))
    kept, runner._lean = runner._lean, None
    expected = torch.cat(runner.forward(pieces))
    runner._lean = kept
    return found, expected


@pytest.mark.parametrize("packed", [False, True], ids=["float32", "int4"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_it_computes_what_the_stock_module_computes(name: str, packed: bool) -> None:
    family, changes = CONFIGURATIONS[name]
    model = models.MODELS[family](**SHAPES | changes)
    if packed:
        pack(model)
    runner = ModelRunner(model, 32, 4, models.VOCAB_SIZE)
    assert runner._lean is not None
    ids = torch.randint(256, (30,), generator=torch.Generator().manual_seed(1)).tolist()
    table, other = [3, 4, 9, 1, 0, 2, 7, 8], [10, 11, 12, 13]
    calls = [
        [Piece(ids[:17], 0, table, 17), Piece(ids[5:14], 0, other, 1)],
        [Piece(ids[17:18], 17, table, 1), Piece(ids[14:15], 9, other, 1)],
        [Piece(ids[18:23], 18, table, 5)],
        [Piece(ids, 0, None, 30)],
    ]
    for pieces in calls:
        found, expected = both(runner, pieces)
        # A difference of float32 rounding may turn the rounding to bfloat16 in front of a packed product.
        limit = 0.02 if packed else 1e-5
        assert (found - expected).norm() / expected.norm() < limit
    runner.verify()


def test_layers_left_out_share_the_fused_weights() -> None:
    model = models.llama(**SHAPES, num_hidden_layers=4)
    runner = ModelRunner(model, 32, 4, models.VOCAB_SIZE)
    shared = model.model.layers[0].self_attn.q_proj.weight.data_ptr()
    view: Any = without_layers(model, [1, 2])
    skipping = ModelRunner(view, 32, 4, models.VOCAB_SIZE)
    assert model.model.layers[0].self_attn.q_proj.weight.data_ptr() == shared
    found, expected = both(skipping, [Piece(list(b"hello"), 0, [0, 1], 5)])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found, runner.forward([Piece(list(b"hello"), 0, [0, 1], 5)])[0])


@pytest.mark.parametrize("family", sorted(set(models.MODELS) - {"llama", "mistral", "qwen2", "qwen3"}))
def test_other_classes_keep_the_stock_module(family: str) -> None:
    assert not lean.supports(models.MODELS[family]())


def test_other_precisions_and_activations_keep_the_stock_module() -> None:
    assert not lean.supports(models.llama().to(torch.bfloat16))  # type: ignore[arg-type]
    assert not lean.supports(models.llama(hidden_act="gelu"))
