"""What single families of models need before their attention can be paged."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.falcon.modeling_falcon import FalconAttention, apply_rotary_pos_emb

from backend.errors import ModelUnavailable
from backend.kv.paged_attention import CURRENT, paged_attention

# Classes that do not say that their attention can be replaced, and whose attention can.
_REPLACEABLE = ("StableLmForCausalLM", "FalconForCausalLM")
_PAGEABLE_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}


def refuse_unpageable(model: PreTrainedModel) -> None:
    """Refuse, by name, a model whose layers keep anything but keys and values per token.

    Raises:
        ModelUnavailable: naming the layer types, or the class that cannot take another attention.
    """
    name, config = type(model).__name__, model.config.get_text_config()
    others = sorted(set(getattr(config, "layer_types", None) or ()) - _PAGEABLE_LAYERS)
    if others:
        raise ModelUnavailable(f"{name} has layers that cannot be paged: {', '.join(others)}")
    if getattr(config, "alibi", False):
        raise ModelUnavailable(f"{name} cannot be paged: its attention adds a bias by distance (alibi)")
    replaceable = model._supports_attention_backend or name in _REPLACEABLE
    if not replaceable or not hasattr(config, "max_position_embeddings"):
        raise ModelUnavailable(f"{name} cannot be paged: its attention cannot be replaced")


def adapt(model: nn.Module) -> None:
    """Let attention that does not go through transformers' interface, or that caches latents, be paged.

    Outside a paged forward everything stays as it was. Adapting again changes nothing.
    """
    module: Any
    for module in model.modules():
        if isinstance(module, FalconAttention) and "forward" not in vars(module):
            module.forward = partial(_falcon, module, module.forward)  # type: ignore[method-assign]
        elif hasattr(module, "expand_kv") and not hasattr(module, "expand_latent"):
            # The pool holds latents, so they are expanded only after those of a row are gathered.
            module.expand_latent = module.expand_kv
            module.expand_kv = partial(_expand_later, module.expand_latent)


def set_attention(model: PreTrainedModel, name: str) -> None:
    """Choose the attention that stock layers call; Falcon's call none, and only warn."""
    if type(model).__name__ != "FalconForCausalLM":
        model.set_attn_implementation(name)


def context_length(config: Any) -> int:
    """Tokens a model can hold, from its text configuration."""
    length = int(config.max_position_embeddings)
    if getattr(config, "attn_temperature_tuning", False):
        # From here on Llama 4 scales queries by their place in the batch, which is not that in the text.
        length = min(length, int(config.floor_scale) - 1)
    return length


def _expand_later(
    expand: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    return expand(keys, values) if CURRENT.get() is None else (keys, values)


def _falcon(module: Any, stock: Callable[..., Any], hidden_states: Tensor, **arguments: Any) -> Any:
    """Falcon's attention, the new tokens [1, T, hidden] of all rows, over the pages of its cache."""
    if CURRENT.get() is None:
        return stock(hidden_states, **arguments)
    query, key, value = (
        states.transpose(1, 2) for states in module._split_heads(module.query_key_value(hidden_states))
    )
    query, key = apply_rotary_pos_emb(query, key, *arguments["position_embeddings"])
    if (cache := arguments.get("layer_past")) is not None:
        key, value = cache.update(key, value, module.layer_idx)
    out, _ = paged_attention(module, query, key, value, None)
    return module.dense(out.flatten(2)), None
