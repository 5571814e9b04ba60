"""The size formula as the component draws it: one shape, a table and two plots; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from backend import RequestError
from ui.order import drawn
from ui.presets.model_shapes import ModelShape, from_config

BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
CONTEXTS = (512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
MAX_TOKENS, MAX_BATCH = 10_000_000, 100_000


@dataclass(frozen=True)
class SizeState:
    """What the reader chose; the page counts the choices in `asked`.

    `pasted` is the shape of a config of theirs, `notice` why a choice was refused.
    """

    shape: str = "smollm2-135m"
    precision: str = "float32"
    num_tokens: int = 4096
    batch_size: int = 1
    pasted: ModelShape | None = None
    notice: str = ""
    asked: int = 0


def turned(state: SizeState, shapes: Mapping[str, ModelShape], data: Any) -> SizeState:
    """The state after the reader's choice; what makes no sense is named in `notice` and changes nothing."""
    sent = data if isinstance(data, dict) else {}
    if type(sent.get("asked")) is int:
        if sent["asked"] < state.asked:  # a later choice has been served first
            return state
        state = replace(state, asked=sent["asked"])
    try:
        if isinstance(sent.get("config"), str):
            return replace(state, pasted=from_config(sent["config"]), shape="pasted", notice="")
        shape, precision = sent.get("shape", state.shape), sent.get("precision", state.precision)
        known = [*shapes, *(["pasted"] if state.pasted is not None else [])]
        if shape not in known:
            raise RequestError(f"there is no model shape {str(shape)[:40]!r}")
        if precision not in list(BYTES):
            raise RequestError(f"precision must be one of {', '.join(BYTES)}, got {str(precision)[:40]!r}")
        return replace(
            state,
            shape=shape,
            precision=precision,
            num_tokens=_whole("tokens", sent.get("num_tokens", state.num_tokens), MAX_TOKENS),
            batch_size=_whole("batch", sent.get("batch_size", state.batch_size), MAX_BATCH),
            notice="",
        )
    except RequestError as error:
        return replace(state, notice=str(error))


def _whole(name: str, value: Any, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise RequestError(f"{name} must be a whole number from 1 to {most:,}, got {str(value)[:40]}")
    return value


def payload(state: SizeState, shapes: Mapping[str, ModelShape]) -> dict[str, Any]:
    """Everything the component draws; sizes in bytes."""
    shape = state.pasted if state.shape == "pasted" and state.pasted is not None else shapes[state.shape]
    size = BYTES[state.precision]
    return {
        "drawn": drawn(),
        "asked": state.asked,
        "shape": state.shape,
        "pasted": state.pasted.title if state.pasted else "",
        "title": shape.title,
        "source": shape.source,
        "note": shape.note,
        "notice": state.notice,
        "numbers": {
            "layers": shape.num_layers,
            "heads": shape.num_heads,
            "kv_heads": shape.num_kv_heads,
            "head_size": shape.head_size,
            "context_length": shape.context_length,
        },
        "precision": state.precision,
        "bytes_per_element": size,
        "num_tokens": state.num_tokens,
        "batch_size": state.batch_size,
        "total": shape.cache_bytes(state.num_tokens, state.batch_size, size),
        "per_token": shape.cache_bytes(1, 1, size),
        "grouping": shape.saved_by_grouping,
        "ungrouped": replace(shape, num_kv_heads=shape.num_heads).cache_bytes(
            state.num_tokens, state.batch_size, size
        ),
        "over_context": [
            [tokens, shape.cache_bytes(tokens, state.batch_size, size), tokens <= shape.context_length]
            for tokens in CONTEXTS
        ],
        "over_batch": [[batch, shape.cache_bytes(state.num_tokens, batch, size), True] for batch in BATCHES],
    }
