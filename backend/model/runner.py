"""The only caller of a model's forward: pieces of sequences in, logits out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from backend.errors import ModelUnavailable
from backend.kv.paged_attention import Bundle, PackedBatch, Row, paged_attention
from backend.kv.paged_cache import PagedCache
from backend.kv.size import kv_cache_bytes
from backend.model.packed import is_packed

_ATTENTION = "decoding_playground_paged"
BUNDLED_TOKENS = 256
_PAGEABLE_LAYERS = {"full_attention", "sliding_attention"}
AttentionInterface.register(_ATTENTION, paged_attention)


@dataclass(frozen=True)
class Piece:
    """New tokens of one sequence to be computed.

    Attributes:
        token_ids: the new tokens. start: position of the first of them.
        block_table: the sequence's blocks, with room for them; None computes without any cache, and then
            token_ids is the whole sequence.
        num_logits: logits are returned for this many of the last positions.
    """

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int] | None
    num_logits: int


class ModelRunner:
    """Runs a stock transformers model over a paged cache.

    Args:
        model: in eval mode, on its device.
        vocab_size: tokens that exist; wider logits (a padded vocabulary) are cut off there.
    """

    def __init__(self, model: PreTrainedModel, num_blocks: int, block_size: int, vocab_size: int):
        refuse_unpageable(model)
        self.model = model
        self.device = model.device
        self.context_length = int(model.config.get_text_config().max_position_embeddings)
        self.vocab_size = min(vocab_size, int(model.config.get_text_config().vocab_size))
        self.cache = PagedCache(num_blocks, block_size)
        model.set_attn_implementation(_ATTENTION)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole blocks before the next forward writes to them."""
        self.cache.copy_blocks(pairs)

    @torch.inference_mode()
    def forward(self, pieces: list[Piece]) -> list[Tensor]:
        """One model call for all cached pieces, one for all uncached ones.

        Returns per piece the logits of its last num_logits positions; [num_logits, vocab_size].
        """
        results: dict[int, Tensor] = {}
        for cached in (True, False):
            numbers = [i for i, piece in enumerate(pieces) if (piece.block_table is not None) == cached]
            if numbers:
                logits = self._call([pieces[i] for i in numbers], cached)
                counts = [pieces[i].num_logits for i in numbers]
                results.update(zip(numbers, logits.split(counts), strict=True))
        return [results[i] for i in range(len(pieces))]

    def _call(self, pieces: list[Piece], cached: bool) -> Tensor:
        token_ids: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        for piece in pieces:
            token_ids.extend(piece.token_ids)
            positions.extend(range(piece.start, piece.start + len(piece.token_ids)))
            wanted.extend(range(len(token_ids) - piece.num_logits, len(token_ids)))
        packed = self._pack(pieces, positions, cached)
        self.cache.packed = packed
        out = self.model(
            input_ids=self._tensor([token_ids]),
            position_ids=self._tensor([positions]),
            cache=self.cache if cached else None,
            use_cache=cached,
            logits_to_keep=self._tensor(wanted),
            packed=packed,
        )
        return out.logits[0, :, : self.vocab_size]

    def _pack(self, pieces: list[Piece], positions: list[int], cached: bool) -> PackedBatch:
        ends = itertools.accumulate(len(piece.token_ids) for piece in pieces)
        bounds_of = list(itertools.pairwise((0, *ends)))  # [start, end) of each piece among the packed tokens
        if not cached:
            return PackedBatch(
                [Row(start, end, end - start, start, None) for start, end in bounds_of], None, 0
            )
        size = self.cache.block_size
        bundled = self._bundles(pieces)
        places = {place for members in bundled for place in members}
        rows = [self._row(pieces[i], *bounds_of[i]) for i in range(len(pieces)) if i not in places]
        bundles = [self._bundle(members, pieces, bounds_of) for members in bundled]
        slots = [
            (piece.block_table or ())[at // size] * size + at % size
            for piece, (start, end) in zip(pieces, bounds_of, strict=True)
            for at in positions[start:end]
        ]
        return PackedBatch(rows, self._tensor(slots), size, bundles)

    def _bundles(self, pieces: list[Piece]) -> list[list[int]]:
        """The numbers of the pieces that can be attended to together: short, one new token, one length.

        Gathering copies the keys; of a long sequence in one piece a view is cheaper than the copy.
        """
        by_length: dict[int, list[int]] = {}
        for number, piece in enumerate(pieces):
            if len(piece.token_ids) == 1 and piece.start < BUNDLED_TOKENS:
                by_length.setdefault(piece.start, []).append(number)
        return [members for members in by_length.values() if len(members) > 1]

    def _bundle(self, members: list[int], pieces: list[Piece], bounds_of: list[tuple[int, int]]) -> Bundle:
        num_tokens = pieces[members[0]].start + 1
        num_blocks = -(-num_tokens // self.cache.block_size)
        tables = [list(pieces[number].block_table or ())[:num_blocks] for number in members]
        places = self._tensor([bounds_of[number][0] for number in members])
        return Bundle(places, self._tensor(tables), num_tokens)

    def _row(self, piece: Piece, start: int, end: int) -> Row:
        num_tokens = piece.start + len(piece.token_ids)
        table = list(piece.block_table or ())[: -(-num_tokens // self.cache.block_size)]
        if table == list(range(table[0], table[0] + len(table))):
            return Row(start, end, num_tokens, table[0] * self.cache.block_size, None)
        return Row(start, end, num_tokens, None, self._tensor(table))

    def _tensor(self, values: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)

    @torch.inference_mode()
    def verify(self) -> None:
        """Compare a short text computed in pages, in parts, with the model's own attention.

        Raises:
            ModelUnavailable: they differ by more than rounding, so the model cannot be paged correctly.
        """
        ids = torch.randint(self.vocab_size, (12,), generator=torch.Generator().manual_seed(0)).tolist()
        size = self.cache.block_size
        table = list(range(-(-len(ids) // size)))
        pool, self.cache = self.cache, PagedCache(len(table), size)  # whatever the size of the pool
        parts = [Piece(ids[:7], 0, table, 7), Piece(ids[7:11], 7, table, 4), Piece(ids[11:], 11, table, 1)]
        try:
            paged = torch.cat([self.forward([part])[0] for part in parts]).float()
            self.model.set_attn_implementation("eager")
            whole = self.model(input_ids=self._tensor([ids]), use_cache=False).logits
        finally:
            self.cache = pool
            self.model.set_attn_implementation(_ATTENTION)
        reference = whole[0, :, : self.vocab_size].float()
        limit = 1e-3 if self.model.dtype == torch.float32 and not is_packed(self.model) else 0.1
        difference = float((paged - reference).abs().max() / reference.abs().max().clamp(min=1))
        if not difference <= limit:
            raise ModelUnavailable(
                f"{type(self.model).__name__} cannot be paged correctly: its logits change by "
                f"{difference:.2g} of their size, at most {limit:g} is rounding"
            )


def kv_bytes_per_token(model: PreTrainedModel) -> int:
    """Bytes of keys and values that one token takes in all layers."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    return kv_cache_bytes(
        num_layers=config.num_hidden_layers,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        num_tokens=1,
        bytes_per_element=model.dtype.itemsize,
    )


def refuse_unpageable(model: PreTrainedModel) -> None:
    """Refuse, by name, a model whose layers keep anything but keys and values per token.

    Raises:
        ModelUnavailable: naming the layer types, or the class that cannot take another attention.
    """
    config = model.config.get_text_config()
    others = sorted(set(getattr(config, "layer_types", None) or ()) - _PAGEABLE_LAYERS)
    if others:
        raise ModelUnavailable(f"{type(model).__name__} has layers that cannot be paged: {', '.join(others)}")
    if not model._supports_attention_backend or not hasattr(config, "max_position_embeddings"):
        raise ModelUnavailable(f"{type(model).__name__} cannot be paged: its attention cannot be replaced")
