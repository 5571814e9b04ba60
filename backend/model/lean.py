"""A forward of Llama-class models with little around its products, for the CPU.

The same weights and formulas as the stock module, which stays the general path and the oracle: q, k and v are
one product, so are gate and up; rotation takes q and k at once; what all layers share is computed once. The
stock layers go on working, since their weights become views of the fused ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from backend.kv.paged_attention import PackedBatch, paged_attention
from backend.kv.paged_cache import PagedCache
from backend.model.packed import PackedLinear

_CLASSES = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
_PACKED_ROWS = 64  # rows are packed in tiles of this many; only whole tiles can be put together

Product = Callable[[Tensor], Tensor]


def supports(model: PreTrainedModel) -> bool:
    """Whether this forward computes what the model does: one of the known classes, in float32 on the CPU."""
    config = model.config
    return (
        type(model) in _CLASSES
        and config.hidden_act == "silu"
        and model.device.type == "cpu"
        and model.dtype == torch.float32
    )


@dataclass(frozen=True)
class _Layer:
    """What a layer needs; norms are (weight, epsilon), those of q and k only where the model has them."""

    attention: nn.Module
    number: int
    qkv: Product
    out: Product
    gate_up: Product
    down: Product
    norms: tuple[Tensor, Tensor]
    head_norms: tuple[Tensor, Tensor] | None
    window: int | None


class LeanForward:
    """The forward of a model for which `supports` holds; its layers' weights are fused in place."""

    def __init__(self, model: PreTrainedModel):
        config: Any = model.config
        decoder: Any = model.model
        self._embedding = decoder.embed_tokens.weight
        self._rotary = decoder.rotary_emb
        self._layers = [_layer(layer) for layer in decoder.layers]
        self._norm = decoder.norm.weight
        self._head = model.lm_head
        self._epsilon = config.rms_norm_eps
        self._heads = config.num_attention_heads
        self._kv_heads = config.num_key_value_heads
        self._scaling = decoder.layers[0].self_attn.scaling

    def __call__(
        self,
        token_ids: Tensor,
        positions: Tensor,
        wanted: Tensor,
        packed: PackedBatch,
        cache: PagedCache | None,
    ) -> tuple[Tensor, Tensor]:
        """Logits and last hidden states of the packed tokens numbered in `wanted` [W].

        Returns [W, vocabulary] and, after the last norm, [W, hidden].

        Args:
            token_ids, positions: of the packed tokens; [T].
            cache: written to where `packed` says; None for a batch without one.
        """
        x = F.embedding(token_ids, self._embedding)  # [T, hidden]
        cos, sin = self._rotary(x[None], positions[None])  # [1, T, head_size] each
        half = cos.shape[-1] // 2
        cos = cos[0, :, None]
        sin = torch.cat([-sin[0, :, None, :half], sin[0, :, None, half:]], -1)
        for layer in self._layers:
            x = x + layer.out(self._attend(layer, self._rms(x, layer.norms[0]), cos, sin, packed, cache))
            gate, up = layer.gate_up(self._rms(x, layer.norms[1])).chunk(2, -1)
            x = x + layer.down(F.silu(gate) * up)
        hidden = self._rms(x[wanted], self._norm)
        return self._head(hidden), hidden

    def _attend(
        self,
        layer: _Layer,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        packed: PackedBatch,
        cache: PagedCache | None,
    ) -> Tensor:
        """[T, heads * head_size], from [T, hidden]."""
        heads = self._heads + self._kv_heads
        states = layer.qkv(x).view(len(x), heads + self._kv_heads, -1)
        if layer.head_norms is not None:
            parts = states.split([self._heads, self._kv_heads, self._kv_heads], 1)
            normed = [self._rms(part, weight) for part, weight in zip(parts, layer.head_norms, strict=False)]
            turning = torch.cat(normed, 1)
        else:
            turning = states[:, :heads]
        # Rotation by halves: (a, b) becomes (a cos - b sin, b cos + a sin).
        turned = torch.addcmul(turning * cos, turning.roll(cos.shape[-1] // 2, -1), sin).transpose(0, 1)[None]
        query, key = turned[:, : self._heads], turned[:, self._heads :]
        value = states[:, heads:].transpose(0, 1)[None]
        if cache is not None:
            key, value = cache.update(key, value, layer.number)
        out, _ = paged_attention(
            layer.attention,
            query,
            key,
            value,
            None,
            scaling=self._scaling,
            sliding_window=layer.window,
            packed=packed,
        )
        return out.reshape(len(x), -1)

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self._epsilon)


def _layer(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    has_head_norms = hasattr(attention, "q_norm")
    return _Layer(
        attention=attention,
        number=attention.layer_idx,
        qkv=_fused(attention, "q_proj", "k_proj", "v_proj"),
        out=attention.o_proj,
        gate_up=_fused(mlp, "gate_proj", "up_proj"),
        down=mlp.down_proj,
        norms=(layer.input_layernorm.weight, layer.post_attention_layernorm.weight),
        head_norms=(attention.q_norm.weight, attention.k_norm.weight) if has_head_norms else None,
        # Qwen's attention knows whether its layer slides; Mistral's does wherever the configuration says so.
        window=getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None)),
    )


@torch.no_grad()
def _fused(parent: nn.Module, *names: str) -> Product:
    """One product for the linear layers of these names; they become views of it where that can be.

    Remembered in the module, since a model with layers left out shares them.
    """
    known = parent.__dict__.get("_fused_product")
    if known is not None:
        return known
    linears = [parent.get_submodule(name) for name in names]
    product: Product
    if all(type(linear) is nn.Linear for linear in linears):
        product = _fused_linear(linears)
    elif all(isinstance(each, PackedLinear) and each.out_features % _PACKED_ROWS == 0 for each in linears):
        product = _fused_packed(linears)
    else:
        return lambda x: torch.cat([linear(x) for linear in linears], -1)
    parent.__dict__["_fused_product"] = product  # not as a submodule: the model has the weights already
    return product


def _fused_linear(linears: list[Any]) -> Product:
    weight = torch.cat([linear.weight for linear in linears])
    for linear, part in zip(linears, weight.split([each.out_features for each in linears]), strict=True):
        linear.weight.data = part
    bias = _biases(linears)
    return lambda x: F.linear(x, weight, bias)


def _fused_packed(linears: list[Any]) -> Product:
    whole = PackedLinear(
        torch.cat([each.packed for each in linears]),
        torch.cat([each.scale_and_zero for each in linears], 1),
        _biases(linears),
    )
    sizes = [each.out_features for each in linears]
    parts = zip(linears, whole.packed.split(sizes), whole.scale_and_zero.split(sizes, 1), strict=True)
    for linear, packed, scale_and_zero in parts:
        linear.packed, linear.scale_and_zero = packed, scale_and_zero
    return whole


def _biases(linears: list[Any]) -> Tensor | None:
    if linears[0].bias is None:
        return None
    return torch.cat([linear.bias for linear in linears])
