"""The shape of a model for the size formula, also out of a pasted config; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from backend import RequestError, kv_cache_bytes
from backend.validation import whole

MAX_CONFIG_CHARACTERS = 100_000
MAX_VALUE = 10_000_000  # no model has more of anything; larger numbers are typing errors
_Number = Annotated[int, whole(1, MAX_VALUE)]

# What configurations call the same number, the most usual name first.
_NAMES: dict[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "head_size": ("head_dim",),
    "context_length": ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"),
}


@dataclass(frozen=True)
class ModelShape:
    """What of a model decides the size of its cache.

    Attributes:
        num_kv_heads: heads that have keys and values of their own; `num_heads` queries share them.
        source: where the numbers come from. note: what else there is to know.
    """

    name: str
    title: str
    source: str
    num_layers: _Number
    num_heads: _Number
    num_kv_heads: _Number
    head_size: _Number
    context_length: _Number
    note: str = ""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise RequestError(f"{self.num_heads} heads cannot share {self.num_kv_heads} key heads evenly")

    def cache_bytes(self, num_tokens: int, batch_size: int, bytes_per_element: int) -> int:
        return kv_cache_bytes(
            self.num_layers, self.num_kv_heads, self.head_size, num_tokens, bytes_per_element, batch_size
        )

    @property
    def saved_by_grouping(self) -> float:
        """How many times larger the cache would be if every query head had its own keys and values."""
        return self.num_heads / self.num_kv_heads


def from_config(text: str) -> ModelShape:
    """The shape of a Hugging Face config.json.

    Raises:
        RequestError: it is no JSON object, a number is missing or makes no sense, or the model does not keep
            keys and values per head and token.
    """
    config = _parsed(text)
    inner = config.get("text_config")
    if isinstance(inner, dict):  # a model of text and images keeps its language model's numbers here
        config = {**config, **inner}
    if "kv_lora_rank" in config:
        raise RequestError(
            "this model caches one compressed vector per token (kv_lora_rank); the formula does not hold"
        )
    num_heads = _required(config, "num_heads")
    num_kv_heads = 1 if config.get("multi_query") is True else _number(config, "num_kv_heads")
    head_size = _number(config, "head_size")
    if head_size is None:
        hidden = _number(config, "hidden_size")
        if hidden is None:
            raise RequestError("the config has neither head_dim nor hidden_size")
        if hidden % num_heads:
            raise RequestError(f"hidden_size {hidden} is no multiple of {num_heads} heads")
        head_size = hidden // num_heads
    return ModelShape(
        name="pasted",
        title=_title(config),
        source="the pasted config",
        num_layers=_required(config, "num_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads or num_heads,
        head_size=head_size,
        context_length=_required(config, "context_length"),
        note=_note(config),
    )


def _parsed(text: str) -> dict[str, Any]:
    if len(text) > MAX_CONFIG_CHARACTERS:
        raise RequestError(f"the config has {len(text):,} characters, at most {MAX_CONFIG_CHARACTERS:,} work")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the config is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise RequestError(f"the config must be a JSON object, got {type(config).__name__}")
    return config


def _number(config: Mapping[str, Any], name: str) -> int | None:
    for key in _NAMES[name]:
        value = config.get(key)
        if value is None:
            continue
        if type(value) is not int or not 1 <= value <= MAX_VALUE:
            raise RequestError(f"{key} must be a whole number from 1 to {MAX_VALUE:,}, got {value!r:.40}")
        return value
    return None


def _required(config: Mapping[str, Any], name: str) -> int:
    value = _number(config, name)
    if value is None:
        raise RequestError(f"the config has none of {', '.join(_NAMES[name])}")
    return value


def _title(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or [config.get("_name_or_path") or config.get("model_type")]
    first = names[0] if isinstance(names, list) and names else None
    return first[:60] if isinstance(first, str) and first else "pasted model"


def _note(config: Mapping[str, Any]) -> str:
    layers = config.get("layer_types")
    others = {kind for kind in layers if kind != "full_attention"} if isinstance(layers, list) else set()
    if others:
        kinds = ", ".join(sorted(str(kind)[:40] for kind in others))
        return f"Some layers are {kinds} and keep less: the figures are an upper bound."
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        return f"A sliding window of {config['sliding_window']!r:.20} tokens bounds what must be kept."
    return ""
