"""The same model with some layers left out, sharing every weight (Zhang et al. 2023, Draft & Verify)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import cast

from torch import nn

from backend.errors import RequestError

# Share of the layers left out where the request names none.
_SHARE = 1 / 6


def default_skip(num_layers: int) -> tuple[int, ...]:
    """About a sixth of the layers, the middle ones in one block: of the bundled model's 30 layers 12 to 16.

    Leaving out neighbours there costs less acceptance than as many layers spread out, or late ones.
    """
    count = max(1, round(num_layers * _SHARE))
    first = (num_layers - count) // 2
    return tuple(range(first, first + count))


def without_layers(model: nn.Module, skipped: Iterable[int]) -> nn.Module:
    """A view of a decoder model that runs without the `skipped` layers; nothing of it is copied.

    Raises:
        RequestError: a layer does not exist, none would be left, or the model's layers cannot be found.
    """
    path, layers = _find_layers(model)
    gone = set(skipped)
    outside = sorted(layer for layer in gone if not 0 <= layer < len(layers))
    if outside or len(gone) >= len(layers):
        raise RequestError(f"cannot skip layers {sorted(gone)}: the model has layers 0 to {len(layers) - 1}")
    kept = nn.ModuleList(layer for number, layer in enumerate(layers) if number not in gone)
    return _replaced(model, path, kept)


def _find_layers(model: nn.Module) -> tuple[list[str], nn.ModuleList]:
    count = model.config.get_text_config().num_hidden_layers  # type: ignore[operator, union-attr]
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return name.split("."), module
    raise RequestError(f"{type(model).__name__} has no list of its {count} layers to skip from")


def _replaced(module: nn.Module, path: list[str], layers: nn.ModuleList) -> nn.Module:
    """A shallow copy of `module` in which the submodule at `path` is `layers`."""
    view = copy.copy(module)
    view._modules = dict(module._modules)
    name, rest = path[0], path[1:]
    view._modules[name] = _replaced(cast(nn.Module, view._modules[name]), rest, layers) if rest else layers
    return view
