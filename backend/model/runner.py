"""The only caller of a model's forward: pieces of sequences in, logits out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from backend.errors import ModelUnavailable
from backend.kv.paged_attention import CURRENT, Bundle, PackedBatch, Row, paged_attention
from backend.kv.paged_cache import PagedCache
from backend.kv.size import kv_cache_bytes
from backend.model import lean, long_rope
from backend.model.adaptations import adapt, context_length, refuse_unpageable, set_attention
from backend.model.files import first_line
from backend.model.layer_skip import without_layers
from backend.model.packed import is_packed

_ATTENTION = "decoding_playground_paged"
BUNDLED_TOKENS = 256
# A text past a border is computed at the start up to this length, by device.
_CHECKED_TOKENS = {"cpu": 1024, "cuda": 4096}
AttentionInterface.register(_ATTENTION, paged_attention)


@dataclass(frozen=True)
class Piece:
    """New tokens of one sequence to be computed.

    Attributes:
        token_ids: the new tokens. start: position of the first of them.
        block_table: the sequence's blocks, with room for them; None computes without any cache, and then
            token_ids is the whole sequence.
        num_logits: logits are returned for this many of the last positions.
        is_long: the sequence uses the model's long position factors, where it has two sets.
        hidden_states: those of the last layer, after its norm, are returned as well.
    """

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int] | None
    num_logits: int
    is_long: bool = False
    hidden_states: bool = False


class ModelRunner:
    """Runs a stock transformers model over a paged cache.

    Args:
        model: in eval mode, on its device.
        vocab_size: tokens that exist; wider logits (a padded vocabulary) are cut off there.

    Attributes:
        context_length: tokens the model can hold.
        border: length beyond which it uses another set of position factors; None where it has one set.
    """

    def __init__(self, model: PreTrainedModel, num_blocks: int, block_size: int, vocab_size: int):
        refuse_unpageable(model)
        adapt(model)
        self.model = model
        self.device = model.device
        self.context_length = context_length(model.config.get_text_config())
        self.vocab_size = min(vocab_size, int(model.config.get_text_config().vocab_size))
        self.border = long_rope.install(model)
        self.cache = PagedCache(num_blocks, block_size)
        self._lean = lean.LeanForward(model) if not self.border and lean.supports(model) else None
        set_attention(model, _ATTENTION)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole blocks before the next forward writes to them."""
        self.cache.copy_blocks(pairs)

    @torch.inference_mode()
    def forward(self, pieces: list[Piece]) -> list[Tensor]:
        """One model call for all cached pieces, one for all uncached ones.

        Returns per piece the logits of its last num_logits positions, [num_logits, vocab_size]; and then, per
        piece that asks for them, the hidden states there, [num_logits, hidden_size].
        """
        results: dict[int, Tensor] = {}
        hidden_states: dict[int, Tensor] = {}
        for cached in (True, False):
            numbers = [i for i, piece in enumerate(pieces) if (piece.block_table is not None) == cached]
            # Without a cache some layers count places from the start of the call: no longer than a context.
            total = sum(len(pieces[i].token_ids) for i in numbers)
            alone = not cached and total > self.context_length
            for group in [[i] for i in numbers] if alone else [numbers] if numbers else []:
                logits, hidden = self._call([pieces[i] for i in group], cached)
                counts = [pieces[i].num_logits for i in group]
                results.update(zip(group, logits.split(counts), strict=True))
                if hidden is not None:
                    hidden_states.update(zip(group, hidden.split(counts), strict=True))
        asking = [i for i, piece in enumerate(pieces) if piece.hidden_states]
        return [results[i] for i in range(len(pieces))] + [hidden_states[i] for i in asking]

    def _call(self, pieces: list[Piece], cached: bool) -> tuple[Tensor, Tensor | None]:
        token_ids: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        for piece in pieces:
            token_ids.extend(piece.token_ids)
            positions.extend(range(piece.start, piece.start + len(piece.token_ids)))
            wanted.extend(range(len(token_ids) - piece.num_logits, len(token_ids)))
        packed = self._pack(pieces, positions, cached)
        if self.border:
            packed.is_long = self._tensor([piece.is_long for piece in pieces for _ in piece.token_ids]).bool()
        self.cache.packed = packed
        places = self._tensor(wanted)
        asked = any(piece.hidden_states for piece in pieces)
        if self._lean is not None:
            cache = self.cache if cached else None
            logits, hidden = self._lean(
                self._tensor(token_ids), self._tensor(positions), places, packed, cache
            )
            return logits[:, : self.vocab_size], hidden if asked else None
        token = CURRENT.set(packed)
        try:
            out = self.model(
                input_ids=self._tensor([token_ids]),
                position_ids=self._tensor([positions]),
                cache=self.cache if cached else None,
                use_cache=cached,
                logits_to_keep=places,
                output_hidden_states=asked,
                packed=packed,
            )
        finally:
            CURRENT.reset(token)
        return out.logits[0, :, : self.vocab_size], out.hidden_states[-1][0, places] if asked else None

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

    def _tensor(self, values: list[int] | list[bool] | list[list[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)

    @torch.inference_mode()
    def verify(self) -> None:
        """Compare texts computed in pages, in parts, with the model's own attention.

        A short one goes through the whole model; one past each border that the configuration names goes
        through its first layers, unless the border is too far for this device.

        Raises:
            ModelUnavailable: they differ by more than rounding or cannot be computed, so the model cannot be
                paged correctly; or a weight is no number.
        """
        _refuse_broken_weights(self.model)
        size = self.cache.block_size
        self._compare(self.model, 12 + size, [7, 11, 11 + size])
        longest = min(self.context_length, _CHECKED_TOKENS.get(self.device.type, 0)) - 8
        for border in sorted({self.border or 0, *_borders(self.model.config.get_text_config())} - {0}):
            if border <= longest:
                is_long = self.border is not None and border >= self.border
                self._compare(_first_layers(self.model), border + 8, [border - 1, border + 6], is_long)

    def _compare(
        self, model: PreTrainedModel, num_tokens: int, cuts: list[int], is_long: bool = False
    ) -> None:
        """Compare the last logits of a random text that is computed in parts, cut at these places."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(self.vocab_size, (num_tokens,), generator=generator).tolist()
        size = self.cache.block_size
        table = list(range(-(-num_tokens // size)))
        kept = min(num_tokens, 12 + size)
        parts = [
            Piece(ids[start:end], start, table, max(0, end - max(start, num_tokens - kept)), is_long)
            for start, end in itertools.pairwise((0, *cuts, num_tokens))
        ]
        whole, pool, forward = self.model, self.cache, self._lean
        self.model, self.cache = model, PagedCache(len(table), size)  # whatever the size of the pool
        if forward is not None and model is not whole:
            self._lean = lean.LeanForward(model)
        try:
            paged = torch.cat([self.forward([part])[0] for part in parts]).float()
            set_attention(model, "eager")
            stock = model(input_ids=self._tensor([ids]), use_cache=False, logits_to_keep=kept).logits
        except (ValueError, RuntimeError, TypeError, IndexError, AttributeError) as error:
            raise ModelUnavailable(
                f"{type(model).__name__} cannot be paged: its layers do not work with paged attention "
                f"({type(error).__name__}: {first_line(error)})"
            ) from error
        finally:
            self.model, self.cache, self._lean = whole, pool, forward
            set_attention(self.model, _ATTENTION)
        expected = stock[0, :, : self.vocab_size].float()
        limit = 1e-3 if model.dtype == torch.float32 and not is_packed(model) else 0.1
        difference = float((paged - expected).abs().max() / expected.abs().max().clamp(min=1))
        if not difference <= limit:
            raise ModelUnavailable(
                f"{type(model).__name__} cannot be paged correctly: the logits of a text of {num_tokens:,} "
                f"tokens change by {difference:.2g} of their size, at most {limit:g} is rounding"
            )


def _borders(config: Any) -> set[int]:
    """Lengths at which layers of the model begin to see less than all."""
    return {getattr(config, name, None) or 0 for name in ("sliding_window", "attention_chunk_size")}


def _first_layers(model: PreTrainedModel) -> PreTrainedModel:
    """A view of the model that ends after one layer of each type."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ()
    last = max((kinds.index(kind) for kind in set(kinds)), default=0)
    others = range(last + 1, config.num_hidden_layers)
    return cast(PreTrainedModel, without_layers(model, others)) if others else model


def _refuse_broken_weights(model: PreTrainedModel) -> None:
    """Raises ModelUnavailable naming the tensors with a weight that is NaN or infinite."""
    broken = [
        name
        for name, weight in model.named_parameters()
        if weight.is_floating_point() and not weight.isfinite().all()
    ]
    if broken:
        kind = "NaN" if model.get_parameter(broken[0]).isnan().any() else "infinity"
        more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
        raise ModelUnavailable(
            f"{type(model).__name__} cannot be run: the weights hold {kind} in "
            f"{', '.join(broken[:3])}{more}. The file is damaged; load it again."
        )


def kv_bytes_per_token(model: PreTrainedModel) -> int:
    """Bytes of keys and values that one token takes in all layers."""
    config = model.config.get_text_config()
    if rank := getattr(config, "kv_lora_rank", None):  # latents, the same for all heads
        return int(config.num_hidden_layers * (rank + config.qk_rope_head_dim) * model.dtype.itemsize)
    heads = config.num_attention_heads
    return kv_cache_bytes(
        num_layers=config.num_hidden_layers,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        num_tokens=1,
        bytes_per_element=model.dtype.itemsize,
    )
