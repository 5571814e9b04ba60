"""Attention of a packed batch over block tables; plain torch.

The tokens of all rows of a batch lie one after another in one sequence [1, T], without padding. Every
other part of a transformer treats tokens one by one, so only attention needs to know where a row ends.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.errors import ModelUnavailable

# Arguments with which a model asks its attention for what is not computed here.
_UNSUPPORTED = ("position_bias", "head_mask")


@dataclass(frozen=True, eq=False)
class Form:
    """What one layer computes beyond softmax(q k / sqrt d) v.

    Attributes:
        scaling: factor of q k; None for 1 / sqrt d.
        window: a token sees this many tokens, itself the last of them; None for all.
        chunk: a token sees only tokens of its own chunk of this length; None for all.
        softcap: scores are squeezed into (-softcap, softcap) by tanh (Gemma 2).
        sinks: one score per head that takes its share of the softmax and has no value (gpt-oss); [heads].
        expand: makes keys and values [B, heads, n, size] of what is cached in their place
            [B, 1, n, size], as in latent attention (DeepSeek).
    """

    scaling: float | None = None
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    expand: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether softmax(q k scaling) v is all."""
        return self.softcap is None and self.sinks is None

    def first_visible(self, num_tokens: int) -> int:
        """The first of so many tokens that the last of them sees."""
        first = num_tokens - (self.window or num_tokens)
        return max(first, (num_tokens - 1) // self.chunk * self.chunk if self.chunk else 0, 0)

    def visible(self, queries: Tensor, keys: Tensor) -> Tensor:
        """True where the token at a position of `queries` may look; [queries, keys]."""
        queries, keys = queries[:, None], keys[None, :]
        seen = keys <= queries
        if self.window:
            seen &= keys > queries - self.window
        if self.chunk:
            seen &= keys >= queries // self.chunk * self.chunk
        return seen

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Queries [B, kv_heads, n, size] over keys [B, kv_heads, tokens, size]; [B, kv_heads, n, value_size].

        The n queries of a key head are those of all query heads that share it, one head after another.
        """
        if self.is_plain:
            return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=self.scaling)
        scores = queries @ keys.transpose(2, 3) * (self.scaling or queries.shape[-1] ** -0.5)
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        if self.sinks is not None:
            kv_heads, count = scores.shape[1:3]
            repeats = self.sinks.numel() // kv_heads
            sinks = self.sinks.view(kv_heads, repeats, 1).expand(-1, -1, count // repeats)
            sinks = sinks.reshape(1, kv_heads, count, 1).expand(len(scores), -1, -1, -1)
            scores = torch.cat((scores, sinks.to(scores.dtype)), 3)
        weights = scores.softmax(3, dtype=torch.promote_types(scores.dtype, torch.float32))
        return weights[..., : keys.shape[2]].to(values.dtype) @ values


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
    masks: dict[tuple[int | None, ...], Tensor] = field(default_factory=dict)

    @property
    def num_new(self) -> int:
        """Tokens of this forward."""
        return self.end - self.start

    def gather(self, pool: Tensor, block_size: int) -> Tensor:
        """Keys or values of the sequence; [num_tokens, kv_heads, head_size], from [slots, ...].

        A view where the sequence lies in one piece, so that nothing is copied.
        """
        if self.first_slot is not None:
            return pool[self.first_slot : self.first_slot + self.num_tokens]
        blocks = pool.view(-1, block_size, *pool.shape[1:]).index_select(0, self.block_ids)  # type: ignore[arg-type]
        return blocks.flatten(0, 1)[: self.num_tokens]

    def mask(self, form: Form, repeats: int, device: torch.device) -> Tensor:
        """True where a new token may look; [repeats * num_new, num_tokens]. Built once per forward."""
        key = (form.window, form.chunk, repeats)
        if key not in self.masks:
            positions = torch.arange(self.num_tokens, device=device)
            self.masks[key] = form.visible(positions[-self.num_new :], positions).repeat(repeats, 1)
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
    cache and the packed keys themselves are what rows attend to. `is_long` [T] tells which tokens use the
    model's long position factors; None where it has one set.
    """

    rows: list[Row]
    slots: Tensor | None
    block_size: int
    bundles: list[Bundle] = field(default_factory=list)
    is_long: Tensor | None = None


# The batch of the forward that runs in this thread, for layers that do not pass it on.
CURRENT: ContextVar[PackedBatch | None] = ContextVar("packed", default=None)


def paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packed: PackedBatch | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    """Attention function in the form transformers calls; query is [1, heads, T, head_size].

    key and value are the layer's pool [slots, kv_heads, head_size], or the packed keys
    [1, kv_heads, T, head_size] where there is no cache. Returns [1, T, heads, head_size].

    Raises:
        ModelUnavailable: the model asks for something this attention does not compute.
    """
    packed = packed or CURRENT.get()
    wanted = [name for name in _UNSUPPORTED if extra.get(name) is not None]
    if packed is None or attention_mask is not None or wanted:
        reason = f"its attention uses {', '.join(wanted)}" if wanted else "it does not pass the batch through"
        raise ModelUnavailable(f"{type(module).__name__} cannot be paged: {reason}")
    expand = getattr(module, "expand_latent", None)
    form = Form(scaling, sliding_window, _chunk(module), softcap, s_aux, expand)
    if packed.block_size == 0:
        key, value = key[0].transpose(0, 1), value[0].transpose(0, 1)
    size = packed.block_size
    if not packed.bundles:
        outputs = [_attend(row, query, key, value, size, form) for row in packed.rows]
        return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)), None
    attended = [_attend(row, query, key, value, size, form) for row in packed.rows]
    bundled = [_attend_bundle(bundle, query, key, value, size, form) for bundle in packed.bundles]
    whole = query.new_empty(1, query.shape[2], query.shape[1], bundled[0].shape[-1])
    for row, out in zip(packed.rows, attended, strict=True):
        whole[:, row.start : row.end] = out
    for bundle, out in zip(packed.bundles, bundled, strict=True):
        whole[0, bundle.places] = out
    return whole, None


def _chunk(module: torch.nn.Module) -> int | None:
    """Length of the chunks of a layer that sees no further (Llama 4); it is named by its type only."""
    config: Any = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None)
    is_chunked = kinds and kinds[module.layer_idx] == "chunked_attention"
    return config.attention_chunk_size if is_chunked else None


def _attend(row: Row, query: Tensor, key: Tensor, value: Tensor, block_size: int, form: Form) -> Tensor:
    """One row; [1, num_new, heads, head_size]."""
    keys = row.gather(key, block_size).transpose(0, 1)[None]  # [1, kv_heads, num_tokens, head_size]
    values = row.gather(value, block_size).transpose(0, 1)[None]
    queries = query[:, :, row.start : row.end]  # [1, heads, num_new, head_size]
    first = form.first_visible(row.num_tokens)
    if row.num_new == 1:
        keys, values = keys[:, :, first:], values[:, :, first:]
    if form.expand is not None:
        keys, values = form.expand(keys, values)
    heads, kv_heads = queries.shape[1], keys.shape[1]
    repeats = heads // kv_heads
    if row.num_new == row.num_tokens and first == 0 and row.num_new > 1 and form.is_plain:
        keys, values = keys.repeat_interleave(repeats, 1), values.repeat_interleave(repeats, 1)
        out = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=form.scaling)
        return out.transpose(1, 2)
    # Query heads that share a key head become further queries of it: no key is copied.
    folded = queries.reshape(1, kv_heads, repeats * row.num_new, queries.shape[-1])
    mask = None if row.num_new == 1 else row.mask(form, repeats, query.device)
    out = form.attend(folded, keys, values, mask)
    return out.reshape(1, heads, row.num_new, values.shape[-1]).transpose(1, 2)


def _attend_bundle(
    bundle: Bundle, query: Tensor, key: Tensor, value: Tensor, block_size: int, form: Form
) -> Tensor:
    """All rows of a bundle; [R, heads, head_size]."""
    first = form.first_visible(bundle.num_tokens)
    keys = bundle.gather(key, block_size)[:, first:].transpose(1, 2)  # [R, kv_heads, tokens, head_size]
    values = bundle.gather(value, block_size)[:, first:].transpose(1, 2)
    if form.expand is not None:
        keys, values = form.expand(keys, values)
    queries = query[0].index_select(1, bundle.places).transpose(0, 1)  # [R, heads, head_size]
    count, heads, head_size = queries.shape
    kv_heads = keys.shape[1]
    folded = queries.reshape(count, kv_heads, heads // kv_heads, head_size)
    out = form.attend(folded, keys, values, None)
    return out.reshape(count, heads, values.shape[-1])
