"""The tensors of the paged cache, in the form transformers writes to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from backend.kv.paged_attention import PackedBatch


class PagedCache(Cache):
    """Keys and values of every layer, [slots, kv_heads, head_size] each, in blocks of `block_size` slots.

    Memory is taken when a layer is first written to, since only then its shapes are certain. Before a
    forward the runner sets `packed`, which says where the new tokens go.
    """

    def __init__(self, num_blocks: int, block_size: int):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.packed: PackedBatch | None = None
        self.layers: list[Any] = []  # transformers looks for per-layer caches here; ours live in the pools
        self._pools: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new keys and values [1, kv_heads, T, head_size]; returns the whole pool of the layer."""
        if layer_idx not in self._pools:
            self._pools[layer_idx] = (self._new_pool(key_states), self._new_pool(value_states))
        keys, values = self._pools[layer_idx]
        assert self.packed is not None
        assert self.packed.slots is not None
        keys.index_copy_(0, self.packed.slots, key_states[0].transpose(0, 1))
        values.index_copy_(0, self.packed.slots, value_states[0].transpose(0, 1))
        return keys, values

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy the contents of each (source, copy) pair in all layers."""
        if not pairs:
            return
        pools = [pool for pools in self._pools.values() for pool in pools]
        if not pools:
            return
        sources, copies = torch.tensor(pairs, device=pools[0].device).unbind(1)
        for pool in pools:
            blocks = pool.view(self.num_blocks, self.block_size, *pool.shape[1:])
            blocks.index_copy_(0, copies, blocks.index_select(0, sources))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Lengths differ by row, and positions are always given, so there is no one length."""
        return 0

    @property
    def num_bytes(self) -> int:
        """Memory taken so far."""
        return sum(pool.nbytes for pools in self._pools.values() for pool in pools)

    def _new_pool(self, states: Tensor) -> Tensor:
        heads, size = states.shape[1], states.shape[3]
        # Zeros, not empty: on the CPU such pages cost memory only once written.
        return torch.zeros(
            self.num_blocks * self.block_size, heads, size, dtype=states.dtype, device=states.device
        )
