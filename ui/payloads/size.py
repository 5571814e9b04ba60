"""The size formula as the component draws it: one shape, a table and two plots; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ui.runs.model_shape import ModelShape
from ui.runs.size import BYTES, SizeState

CONTEXTS = (512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
BATCHES = (1, 2, 4, 8, 16, 32, 64)


def payload(state: SizeState, shapes: Mapping[str, ModelShape]) -> dict[str, Any]:
    """Everything the component draws; sizes in bytes."""
    shape = state.pasted if state.shape == "pasted" and state.pasted is not None else shapes[state.shape]
    size = BYTES[state.precision]
    return {
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
