"""Attention of a packed batch over block tables; plain torch.

The tokens of all rows of a batch lie one after another in one sequence [1, T], without padding. Every
other part of a transformer treats tokens one by one, so only attention needs to know where a row ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.errors import ModelUnavailable

# Arguments with which a model asks its attention for more than softmax(q k / sqrt d) v.
_UNSUPPORTED = ("softcap", "s_aux", "position_bias", "head_mask")


@dataclass
class Row:
    """The new tokens of one sequence inside a packed batch.

    Attributes:
        start, end: its place among the T packed tokens.
        num_tokens: length of the sequence, the new tokens included.
        first_slot: where its keys start, if they lie in one piece; else None.
        block_ids: its block table as a tensor, if they do not; else None.
    """

    start: int
    end: int
    num_tokens: int
    first_slot: int | None
    block_ids: Tensor | None
    masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    @property
    def num_new(self) -> int:
        return self.end - self.start

    def gather(self, pool: Tensor, block_size: int) -> Tensor:
        """Keys or values of the sequence; [num_tokens, kv_heads, head_size], from [slots, ...].

        A view where the sequence lies in one piece, so that nothing is copied.
        """
        if self.first_slot is not None:
            return pool[self.first_slot : self.first_slot + self.num_tokens]
        blocks = pool.view(-1, block_size, *pool.shape[1:]).index_select(0, self.block_ids)  # type: ignore[arg-type]
        return blocks.flatten(0, 1)[: self.num_tokens]

    def mask(self, window: int, repeats: int, device: torch.device) -> Tensor:
        """True where a new token may look; [repeats * num_new, num_tokens]. Built once per forward."""
        key = (window, repeats)
        if key not in self.masks:
            queries = torch.arange(self.num_tokens - self.num_new, self.num_tokens, device=device)[:, None]
            keys = torch.arange(self.num_tokens, device=device)[None, :]
            visible = (keys <= queries) & (keys > queries - window)
            self.masks[key] = visible.repeat(repeats, 1)
        return self.masks[key]


@dataclass
class Bundle:
    """Sequences of one length with one new token each, so that one call computes all of them.

    Attributes:
        places: their places among the T packed tokens; [R].
        block_ids: their block tables; [R, blocks].
        num_tokens: their length, the new token included.
    """

    places: Tensor
    block_ids: Tensor
    num_tokens: int

    def gather(self, pool: Tensor, block_size: int) -> Tensor:
        """Keys or values of the sequences; [R, num_tokens, kv_heads, head_size], from [slots, ...]."""
        blocks = pool.view(-1, block_size, *pool.shape[1:]).index_select(0, self.block_ids.flatten())
        return blocks.view(len(self.places), -1, *pool.shape[1:])[:, : self.num_tokens]


@dataclass
class PackedBatch:
    """Where everything of one forward lies.

    `slots` [T] are the cache slots the new tokens are written to. `block_size` 0 means that there is no
    cache and the packed keys themselves are what rows attend to.
    """

    rows: list[Row]
    slots: Tensor | None
    block_size: int
    bundles: list[Bundle] = field(default_factory=list)


def paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packed: PackedBatch | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    """Attention function in the form transformers calls; query is [1, heads, T, head_size].

    key and value are the layer's pool [slots, kv_heads, head_size], or the packed keys
    [1, kv_heads, T, head_size] where there is no cache. Returns [1, T, heads, head_size].

    Raises:
        ModelUnavailable: the model asks for something this attention does not compute.
    """
    wanted = [name for name in _UNSUPPORTED if extra.get(name) is not None]
    if packed is None or attention_mask is not None or wanted:
        reason = f"its attention uses {', '.join(wanted)}" if wanted else "it does not pass the batch through"
        raise ModelUnavailable(f"{type(module).__name__} cannot be paged: {reason}")
    if packed.block_size == 0:
        key, value = key[0].transpose(0, 1), value[0].transpose(0, 1)
    size = packed.block_size
    if not packed.bundles:
        outputs = [_attend(row, query, key, value, size, scaling, sliding_window) for row in packed.rows]
        return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)), None
    whole = query.new_empty(1, query.shape[2], query.shape[1], value.shape[-1])
    for row in packed.rows:
        whole[:, row.start : row.end] = _attend(row, query, key, value, size, scaling, sliding_window)
    for bundle in packed.bundles:
        whole[0, bundle.places] = _attend_bundle(bundle, query, key, value, size, scaling, sliding_window)
    return whole, None


def _attend(
    row: Row,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_size: int,
    scaling: float | None,
    sliding_window: int | None,
) -> Tensor:
    """One row; [1, num_new, heads, head_size]."""
    keys = row.gather(key, block_size).transpose(0, 1)[None]  # [1, kv_heads, num_tokens, head_size]
    values = row.gather(value, block_size).transpose(0, 1)[None]
    queries = query[:, :, row.start : row.end]  # [1, heads, num_new, head_size]
    heads, kv_heads = queries.shape[1], keys.shape[1]
    repeats = heads // kv_heads
    window = sliding_window or row.num_tokens
    if row.num_new == row.num_tokens and window >= row.num_tokens and row.num_new > 1:
        keys, values = keys.repeat_interleave(repeats, 1), values.repeat_interleave(repeats, 1)
        out = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=scaling)
        return out.transpose(1, 2)
    # Query heads that share a key head become further queries of it: no key is copied.
    folded = queries.reshape(1, kv_heads, repeats * row.num_new, queries.shape[-1])
    if row.num_new == 1:
        keys, values, mask = keys[:, :, -window:], values[:, :, -window:], None
    else:
        mask = row.mask(window, repeats, query.device)
    out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scaling)
    return out.reshape(1, heads, row.num_new, values.shape[-1]).transpose(1, 2)


def _attend_bundle(
    bundle: Bundle,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_size: int,
    scaling: float | None,
    sliding_window: int | None,
) -> Tensor:
    """All rows of a bundle; [R, heads, head_size]."""
    window = sliding_window or bundle.num_tokens
    keys = bundle.gather(key, block_size)[:, -window:].transpose(1, 2)  # [R, kv_heads, tokens, head_size]
    values = bundle.gather(value, block_size)[:, -window:].transpose(1, 2)
    queries = query[0].index_select(1, bundle.places).transpose(0, 1)  # [R, heads, head_size]
    count, heads, head_size = queries.shape
    kv_heads = keys.shape[1]
    folded = queries.reshape(count, kv_heads, heads // kv_heads, head_size)
    out = F.scaled_dot_product_attention(folded, keys, values, scale=scaling)
    return out.reshape(count, heads, values.shape[-1])
