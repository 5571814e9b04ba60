"""LongRoPE position factors by sequence (Ding et al. 2024).

Such a model has two sets of factors: short ones up to the length it was first trained for, the border, and
long ones beyond it. Stock models choose one set for a whole batch, by its furthest position. Here every
token says which set its sequence uses, so a neighbour never changes a text.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from backend.errors import ModelUnavailable
from backend.kv.paged_attention import CURRENT


def install(model: nn.Module) -> int | None:
    """Let `model` choose its factors per token.

    Installing again changes nothing. Outside a paged forward it keeps the behaviour of the stock model.
    Returns the border in tokens; None where there is only one set.

    Raises:
        ModelUnavailable: its layers have different borders.
    """
    for path, module in list(model.named_modules()):
        if not isinstance(module, _PerToken) and (border := _border(module)) is not None:
            parent, _, name = path.rpartition(".")
            if not isinstance(model.get_submodule(parent), _PerToken):
                setattr(model.get_submodule(parent), name, _PerToken(module, border))
    borders = {module.border for module in model.modules() if isinstance(module, _PerToken)}
    if len(borders) > 1:
        raise ModelUnavailable(
            f"{type(model).__name__} cannot be run: its layers change their position factors at different "
            f"lengths ({', '.join(map(str, sorted(borders)))} tokens)"
        )
    return borders.pop() if borders else None


def _border(module: nn.Module) -> int | None:
    """The border of a rotary embedding with two sets of factors; None for any other module."""
    kinds = getattr(module, "rope_type", None)
    parameters: Any = getattr(getattr(module, "config", None), "rope_parameters", None) or {}
    if isinstance(kinds, Mapping):  # by layer type
        names = [name for name, kind in kinds.items() if kind == "longrope"]
        return int(parameters[names[0]]["original_max_position_embeddings"]) if names else None
    return int(parameters["original_max_position_embeddings"]) if kinds == "longrope" else None


class _PerToken(nn.Module):
    """A rotary embedding that is asked once for each set of factors.

    The stock module keeps the set last used, so each set has a copy that always uses the same one.
    """

    def __init__(self, stock: nn.Module, border: int):
        super().__init__()
        self.border = border
        self.stock, self.short, self.long = stock, copy.deepcopy(stock), copy.deepcopy(stock)

    def forward(self, x: Tensor, position_ids: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Cosines and sines; [1, T, size] each."""
        packed = CURRENT.get()
        if packed is None or packed.is_long is None:
            return cast(tuple[Tensor, Tensor], self.stock(x, position_ids, **kwargs))
        short = self.short(x, position_ids.clamp(max=self.border - 1), **kwargs)
        # One position beyond the border makes the stock module take the long factors for all.
        beyond = position_ids.new_full((len(position_ids), 1), self.border)
        long = self.long(x, torch.cat((position_ids, beyond), 1), **kwargs)
        cos, sin = (
            torch.where(packed.is_long[None, :, None], far[:, :-1], near)
            for near, far in zip(short, long, strict=True)
        )
        return cos, sin
