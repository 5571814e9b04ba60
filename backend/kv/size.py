"""How much memory keys and values take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def kv_cache_bytes(
    num_layers: int,
    num_kv_heads: int,
    head_size: int,
    num_tokens: int,
    bytes_per_element: int,
    batch_size: int = 1,
) -> int:
    """Bytes of keys and values: 2 * layers * KV heads * head size * tokens * batch * bytes per element."""
    return 2 * num_layers * num_kv_heads * head_size * num_tokens * batch_size * bytes_per_element


@dataclass(frozen=True)
class Reservation:
    """Tokens that have room, and those of them that are there."""

    used: int
    reserved: int

    @property
    def waste(self) -> float:
        """Share of the room that holds nothing."""
        return 1 - self.used / self.reserved if self.reserved else 0.0


def contiguous(lengths: Sequence[int], buffer: int) -> Reservation:
    """One buffer of that many tokens for each sequence, as a cache without blocks would reserve.

    Raises:
        ValueError: a sequence is longer than its buffer.
    """
    if any(length > buffer for length in lengths):
        raise ValueError(f"{max(lengths):,} tokens do not fit into a buffer of {buffer:,}")
    return Reservation(sum(lengths), len(lengths) * buffer)


def in_blocks(lengths: Sequence[int], block_size: int) -> Reservation:
    """Blocks for each sequence, nothing shared: only the last block of each can have empty slots."""
    return Reservation(sum(lengths), sum(-(-length // block_size) * block_size for length in lengths))
