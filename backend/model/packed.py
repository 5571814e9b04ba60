"""Linear layers whose weights stay small: packed 4-bit groups, or 16 bits where four would not do.

A group is 32 neighbours of one row of a weight, w = (q - 8) * scale + zero with q from 0 to 15. That is just
what the GGUF types Q4_0, Q4_1 and Q4_K hold. torch multiplies such weights as they are; its product takes
activations, scales and zeros in bfloat16 and sums in float32, row by row, so a batch changes nothing.
Layers that hold more than four bits, and the output layer, whose logits want more digits than bfloat16 has,
keep their weights in float16 and compute in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from backend.model.progress import Progress

GROUP = 32
_ROWS = 16  # torch packs rows in multiples of this
_FLOAT16_MAX = 65504.0
_EXACT = 1e-5  # an error that is float32 rounding only


@dataclass(frozen=True)
class Groups:
    """A weight in groups: values 0 to 15 [rows, columns], scale and zero [rows, columns / 32]."""

    values: Tensor
    scale: Tensor
    zero: Tensor

    def dequantized(self) -> Tensor:
        """The weight in float32; [rows, columns]."""
        parts = self.values.view(*self.scale.shape, GROUP).float() - 8
        return (parts * self.scale[..., None] + self.zero[..., None]).flatten(1)

    def reordered(self, order: Tensor) -> Groups:
        """The same weight with its rows in another order [rows]."""
        return Groups(self.values[order], self.scale[order], self.zero[order])


def rounded(weight: Tensor) -> Groups:
    """The weight rounded to the nearest of 16 even steps from the least to the greatest of each group.

    A weight that came from such groups, each with its least and greatest step in use, comes back as it was.
    """
    parts = weight.detach().float().view(weight.shape[0], -1, GROUP)
    low, high = parts.amin(-1), parts.amax(-1)
    scale = (high - low) / 15
    steps = (parts - low[..., None]) / torch.where(scale == 0, 1, scale)[..., None]
    values = steps.round_().clamp_(0, 15).to(torch.uint8).flatten(1)
    return Groups(values, scale, low + 8 * scale)


def packable(rows: int, columns: int) -> bool:
    """Whether torch's packed product takes a weight of this shape."""
    return rows % _ROWS == 0 and columns % GROUP == 0


class PackedLinear(nn.Module):
    """y = x W^T + b with W in packed 4-bit groups; [..., columns] to [..., rows], in the type of x."""

    packed: Tensor
    scale_and_zero: Tensor
    bias: Tensor | None

    def __init__(self, packed: Tensor, scale_and_zero: Tensor, bias: Tensor | None):
        super().__init__()
        self.out_features, self.in_features = packed.shape[0], packed.shape[1] * 2
        self.register_buffer("packed", packed)  # [rows, columns / 2], bytes
        self.register_buffer("scale_and_zero", scale_and_zero)  # [columns / 32, rows, 2], bfloat16
        self.register_buffer("bias", bias)

    @classmethod
    def of(cls, groups: Groups, bias: Tensor | None) -> PackedLinear:
        """Pack the groups; scale and zero are rounded to bfloat16."""
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(groups.values.int(), 1)
        pairs = torch.stack([groups.scale, groups.zero], -1).transpose(0, 1)
        return cls(packed, pairs.to(torch.bfloat16).contiguous(), None if bias is None else bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """y of x, rounded to bfloat16 on the way in; [..., columns] to [..., rows] in the dtype of x."""
        rows = x.reshape(-1, x.shape[-1]).to(torch.bfloat16)
        pairs = self.scale_and_zero.contiguous()  # a part of fused layers is a view
        out = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.packed, GROUP, pairs).to(x.dtype)
        if self.bias is not None:
            out += self.bias
        return out.view(*x.shape[:-1], self.out_features)


class HalfLinear(nn.Module):
    """y = x W^T + b with W in float16, computed in float32; [..., columns] to [..., rows]."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        # The packed form is an object of torch's own, which no buffer can hold.
        self._packed = torch.ops.quantized.linear_prepack_fp16(
            weight.detach().float(), None if bias is None else bias.detach().float()
        )

    def forward(self, x: Tensor) -> Tensor:
        """y of x in float32; [..., columns] to [..., rows]."""
        rows = x.reshape(-1, x.shape[-1])
        # Some processors add up the last one or two rows of a product in another order than the rest.
        whole = nn.functional.pad(rows, (0, 0, 0, -len(rows) % 3))
        out = torch.ops.quantized.linear_dynamic_fp16(whole, self._packed)[: len(rows)]
        return out.view(*x.shape[:-1], self.out_features)


@dataclass(frozen=True)
class Packing:
    """What became of a model's linear layers.

    Attributes:
        num_packed, num_half, num_kept: layers in 4 bits, in float16, and left as they were.
        error: of the 4-bit weights against those that were given, as a share of their norm; 0 where they
            are the file's own groups.
    """

    num_packed: int
    num_half: int
    num_kept: int
    error: float

    def __str__(self) -> str:
        source = "the file's own" if self.error < _EXACT else f"rounded, {self.error:.1%} off"
        counts = (
            (self.num_packed, f"in 4 bits, {source}"),
            (self.num_half, "in 16"),
            (self.num_kept, "in 32"),
        )
        return f"int4: {'; '.join(f'{count} layers {what}' for count, what in counts if count)}"


def is_packed(model: nn.Module) -> bool:
    """Whether any layer holds 4-bit weights."""
    return any(isinstance(module, PackedLinear) for module in model.modules())


Stored = Callable[[str, nn.Linear], Groups | None]
"""Groups of the layer of that name as the file holds them; None where it holds more than four bits."""


def pack(model: nn.Module, stored: Stored | None = None, progress: Progress | None = None) -> Packing:
    """Replace every nn.Linear of `model`, one by one, so that no second copy of the weights is kept.

    Args:
        stored: the file's own groups; None rounds every weight but the output layer's.
    """
    output = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    counts = {PackedLinear: 0, HalfLinear: 0, nn.Linear: 0}
    lost = total = 0.0
    linears = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    for number, (name, linear) in enumerate(linears):
        weight = linear.weight.detach()
        if progress is not None:
            progress("Packing the weights to 4 bits", number / len(linears))
        groups = None
        if linear is not output and packable(*weight.shape) and weight.isfinite().all():
            groups = stored(name, linear) if stored is not None else rounded(weight)
        if groups is not None:
            lost += float((groups.dequantized() - weight).square().sum(dtype=torch.float64))
            total += float(weight.square().sum(dtype=torch.float64))
        replaced = _smaller(linear, groups)
        counts[type(replaced)] += 1
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, replaced)
    if progress is not None:
        progress("Packing the weights to 4 bits", 1.0)
    error = math.sqrt(lost / total) if total else 0.0
    return Packing(counts[PackedLinear], counts[HalfLinear], counts[nn.Linear], error)


def _smaller(linear: nn.Linear, groups: Groups | None) -> nn.Module:
    if groups is not None:
        return PackedLinear.of(groups, linear.bias)
    holds = bool(linear.weight.abs().max() <= _FLOAT16_MAX)
    if holds and "fbgemm" in torch.backends.quantized.supported_engines:
        return HalfLinear(linear.weight, linear.bias)
    return linear
