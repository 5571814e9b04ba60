"""Bookkeeping of the paged KV cache; no tensors.

The pool is `num_blocks` blocks of `block_size` token slots. A sequence's block table maps its tokens to
blocks: token t lies in block_table[t // block_size] at slot t % block_size. Blocks are shared by reference
count. A block that is full is findable by its content, which is the chain of all tokens up to its end; it
stays findable after its last owner has left, until the block is taken for something else (the least
recently used first). See Kwon et al. 2023 (PagedAttention).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from backend.errors import OutOfBlocks
from backend.events import PoolChange, PoolOperation
from backend.sequence import Sequence

# What makes a block's content: what precedes it (the number of that content; the salt before the first
# block) and its own tokens.
_Key = tuple[int | str, tuple[int, ...]]


@dataclass(slots=True)
class _Block:
    ref_count: int = 0
    key: _Key | None = None  # set while the block is findable
    chain: int = -1  # number of the content that ends with this block; -1 while it is not full
    salt: str = ""  # of the sequence that filled it


class BlockManager:
    """Gives blocks to sequences and takes them back.

    Every operation either completes or raises before it has changed anything.
    """

    def __init__(self, num_blocks: int, block_size: int = 16):
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs blocks and slots, got {num_blocks} blocks of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._blocks = [_Block() for _ in range(num_blocks)]
        self._empty: dict[int, None] = dict.fromkeys(range(num_blocks))
        self._idle: dict[int, None] = {}  # free but findable, least recently used first
        self._findable: dict[_Key, int] = {}
        self._next_chain = 0
        self._journal: list[PoolChange] = []

    @property
    def num_free_blocks(self) -> int:
        """Blocks nobody holds; those that are still findable count as free."""
        return len(self._empty) + len(self._idle)

    @property
    def num_reusable_blocks(self) -> int:
        """Free blocks that are still findable by their content."""
        return len(self._idle)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many tokens take, rounded up."""
        return -(-num_tokens // self.block_size)

    def ref_count(self, block_id: int) -> int:
        """Sequences whose tables hold the block."""
        return self._blocks[block_id].ref_count

    def reuse(self, sequence: Sequence, limit: int) -> int:
        """Give an empty-handed sequence the cached blocks that hold its first tokens.

        Only whole blocks that end at or before token `limit` are taken. Returns the tokens covered.
        """
        if sequence.block_table:
            raise ValueError(f"sequence {sequence.sequence_id} already has blocks")
        found = self._find(sequence, limit)
        for block_id in found:
            self._take_reference(block_id)
        sequence.block_table.extend(found)
        sequence.num_computed_tokens = sequence.num_cached_tokens = len(found) * self.block_size
        if found:
            self._record("reuse", sequence, found)
        return sequence.num_computed_tokens

    def share(self, sequence: Sequence, parent: Sequence) -> int:
        """Give an empty-handed sequence the blocks of a living one as far as their tokens agree.

        Unlike `reuse` this includes a block that is only partly filled. At least the last token stays to be
        computed. Returns the tokens covered.
        """
        if sequence.block_table or sequence.salt != parent.salt:
            raise ValueError(f"sequence {sequence.sequence_id} cannot share with {parent.sequence_id}")
        common = self.num_common(sequence, parent)
        shared = parent.block_table[: self.num_blocks_for(common)]
        for block_id in shared:
            self._take_reference(block_id)
        sequence.block_table.extend(shared)
        sequence.num_computed_tokens = sequence.num_cached_tokens = common
        if shared:
            self._record("fork", sequence, shared)
        return common

    def num_common(self, sequence: Sequence, parent: Sequence) -> int:
        """Tokens that `share` would cover."""
        limit = max(0, min(parent.num_computed_tokens, len(sequence) - 1))
        pairs = enumerate(zip(sequence.token_ids[:limit], parent.token_ids, strict=False))
        return next((place for place, (own, other) in pairs if own != other), limit)

    def find(self, token_ids: Iterable[int], salt: str) -> list[int]:
        """The full blocks that hold the first of these tokens now, in their order; nothing is taken."""
        probe = Sequence(list(token_ids), 0, salt)
        return self._find(probe, len(probe))

    def idle_contents(self) -> dict[int, tuple[str, tuple[int, ...]]]:
        """Salt and tokens of each free block that is still findable, least recently used first."""
        found = {}
        for block_id in self._idle:
            block = self._blocks[block_id]
            assert block.key is not None
            found[block_id] = (block.salt, block.key[1])
        return found

    def is_findable(self, block_id: int) -> bool:
        """Whether a later prompt can be given the block for its content."""
        return self._blocks[block_id].key is not None

    def num_needed(self, sequence: Sequence, num_tokens: int) -> int:
        """Free blocks that `reserve` would take."""
        grown = max(0, self.num_blocks_for(num_tokens) - len(sequence.block_table))
        return grown + (self._block_to_copy(sequence, num_tokens) is not None)

    def num_own_blocks(self, first: Sequence, others: Iterable[Sequence]) -> int:
        """Blocks that `others` need beside those whose content they share with `first` or each other."""
        seen: dict[_Key, int] = {}
        own = 0
        for number, sequence in enumerate((first, *others)):
            chain = 0
            for index in range(self.num_blocks_for(len(sequence))):
                content = self._content(sequence, index)
                is_new = len(content) < self.block_size or (chain, content) not in seen
                own += is_new and number > 0
                chain = seen.setdefault((chain, content), len(seen) + 1)
        return own

    def reserve(self, sequence: Sequence, num_tokens: int) -> list[tuple[int, int]]:
        """Make the slots from the first uncomputed token up to `num_tokens` exist and be private.

        Returns the (source, copy) blocks whose contents must be copied before anything is written.

        Raises:
            OutOfBlocks: fewer free blocks than needed; nothing was changed.
        """
        needed = self.num_needed(sequence, num_tokens)
        if needed > self.num_free_blocks:
            raise OutOfBlocks(f"{needed} blocks needed, {self.num_free_blocks} of {self.num_blocks} are free")
        shared = self._block_to_copy(sequence, num_tokens)
        copies = [] if shared is None else [self._copy(sequence, shared)]
        self._forget_overwritten(sequence, num_tokens)
        added = []
        for _ in range(self.num_blocks_for(num_tokens) - len(sequence.block_table)):
            added.append(self._allocate(sequence))
            sequence.block_table.append(added[-1])
        if added:
            self._record("allocate", sequence, added)
        return copies

    def commit(self, sequence: Sequence, num_tokens: int) -> None:
        """The first `num_tokens` tokens are now in the cache: make the blocks they fill findable."""
        start = sequence.num_computed_tokens
        sequence.num_computed_tokens = num_tokens
        filled = range(start // self.block_size, num_tokens // self.block_size)
        found = [sequence.block_table[index] for index in filled if self._make_findable(sequence, index)]
        if num_tokens > start:
            self._record("write", sequence, found, tuple(sequence.token_ids[start:num_tokens]))

    def fork(self, parent: Sequence) -> Sequence:
        """A new sequence with the same tokens that shares all of the parent's blocks.

        Raises:
            ValueError: the parent has room reserved that nothing is written to yet; two would write there.
        """
        if len(parent.block_table) > self.num_blocks_for(parent.num_computed_tokens):
            raise ValueError(f"sequence {parent.sequence_id} has reserved blocks that are not computed")
        child = Sequence(
            token_ids=list(parent.token_ids),
            num_prompt_tokens=parent.num_prompt_tokens,
            salt=parent.salt,
            block_table=list(parent.block_table),
            num_computed_tokens=parent.num_computed_tokens,
            num_cached_tokens=parent.num_computed_tokens,
            run=parent.run,
        )
        for block_id in child.block_table:
            self._blocks[block_id].ref_count += 1
        self._record("fork", child, child.block_table)
        return child

    def truncate(self, sequence: Sequence, num_tokens: int) -> None:
        """Drop all tokens from `num_tokens` on, and give back the blocks that only they used."""
        if not 0 <= num_tokens <= len(sequence):
            raise ValueError(f"cannot truncate {len(sequence)} tokens to {num_tokens}")
        del sequence.token_ids[num_tokens:]
        shrinks = sequence.num_computed_tokens > num_tokens
        sequence.num_computed_tokens = min(sequence.num_computed_tokens, num_tokens)
        sequence.num_cached_tokens = min(sequence.num_cached_tokens, num_tokens)
        keep = self.num_blocks_for(num_tokens)
        dropped = sequence.block_table[keep:]
        del sequence.block_table[keep:]
        self._release(dropped)
        if dropped or shrinks:
            self._record("truncate", sequence, dropped)

    def free(self, sequence: Sequence) -> None:
        """Give back every block. The tokens stay, so the sequence can be recomputed."""
        dropped = list(sequence.block_table)
        sequence.block_table.clear()
        sequence.num_computed_tokens = sequence.num_cached_tokens = 0
        self._release(dropped)
        if dropped:
            self._record("free", sequence, dropped)

    def note_preempted(self, sequence: Sequence) -> None:
        """Enter into the journal that its run is about to lose the blocks of this and its other sequences."""
        self._record("preempt", sequence, ())

    def drain_journal(self) -> list[PoolChange]:
        """What happened since the last call, in order."""
        journal, self._journal = self._journal, []
        return journal

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Audit counts, free lists and tables against all living sequences.

        Raises:
            AssertionError: the books do not balance.
        """
        owned = [0] * self.num_blocks
        for sequence in sequences:
            name = f"sequence {sequence.sequence_id}"
            _require(
                len(set(sequence.block_table)) == len(sequence.block_table), f"{name} holds a block twice"
            )
            room = len(sequence.block_table) * self.block_size
            _require(sequence.num_computed_tokens <= min(room, len(sequence)), f"{name} computed too much")
            for block_id in sequence.block_table:
                owned[block_id] += 1
        for block_id, block in enumerate(self._blocks):
            name = f"block {block_id}"
            _require(
                block.ref_count == owned[block_id], f"{name} counts {block.ref_count}, has {owned[block_id]}"
            )
            places = (block.ref_count > 0) + (block_id in self._empty) + (block_id in self._idle)
            _require(places == 1, f"{name} is in {places} of: used, empty, idle")
            _require(block_id not in self._empty or block.key is None, f"{name} is empty but findable")
            _require(block_id not in self._idle or block.key is not None, f"{name} is idle but not findable")
            if block.key is not None:
                _require(self._findable.get(block.key) == block_id, f"{name} cannot be found by its key")
        keyed = sum(block.key is not None for block in self._blocks)
        _require(keyed == len(self._findable), f"{len(self._findable)} keys for {keyed} findable blocks")

    def _find(self, sequence: Sequence, limit: int) -> list[int]:
        found = []
        chain: int | str = sequence.salt
        for index in range(min(limit, len(sequence)) // self.block_size):
            block_id = self._findable.get((chain, self._content(sequence, index)))
            if block_id is None:
                break
            found.append(block_id)
            chain = self._blocks[block_id].chain
        return found

    def _content(self, sequence: Sequence, index: int) -> tuple[int, ...]:
        return tuple(sequence.token_ids[index * self.block_size : (index + 1) * self.block_size])

    def _new_chain(self) -> int:
        self._next_chain += 1
        return self._next_chain

    def _make_findable(self, sequence: Sequence, index: int) -> bool:
        """Whether the block was not findable before and is now."""
        block = self._blocks[sequence.block_table[index]]
        if block.chain >= 0:
            return False
        before = self._blocks[sequence.block_table[index - 1]].chain if index else sequence.salt
        key = (before, self._content(sequence, index))
        twin = self._findable.get(key)
        if twin is not None:
            # Two sequences computed the same tokens at once. One copy is enough to be found; the other
            # carries the same number, so that what follows either of them is the same content.
            block.chain = self._blocks[twin].chain
            return False
        block.key, block.chain, block.salt = key, self._new_chain(), sequence.salt
        self._findable[key] = sequence.block_table[index]
        return True

    def _forget(self, block: _Block) -> None:
        if block.key is not None:
            del self._findable[block.key]
        block.key, block.chain = None, -1

    def _forget_overwritten(self, sequence: Sequence, num_tokens: int) -> None:
        """A block that was full before a truncation is about to get other tokens."""
        index = sequence.num_computed_tokens // self.block_size
        if num_tokens > sequence.num_computed_tokens and index < len(sequence.block_table):
            block_id = sequence.block_table[index]
            if self.is_findable(block_id):
                self._record("forget", sequence, (block_id,))
            self._forget(self._blocks[block_id])

    def _block_to_copy(self, sequence: Sequence, num_tokens: int) -> int | None:
        """Index in the table of the block that the next write would hit while others share it."""
        index = sequence.num_computed_tokens // self.block_size
        if num_tokens <= sequence.num_computed_tokens or index >= len(sequence.block_table):
            return None
        return index if self._blocks[sequence.block_table[index]].ref_count > 1 else None

    def _copy(self, sequence: Sequence, index: int) -> tuple[int, int]:
        source = sequence.block_table[index]
        copy = self._allocate(sequence)
        self._blocks[source].ref_count -= 1
        sequence.block_table[index] = copy
        self._record("copy", sequence, (source, copy))
        return source, copy

    def _allocate(self, sequence: Sequence) -> int:
        block_id = self._choose(sequence)
        if block_id in self._empty:
            del self._empty[block_id]
        else:
            del self._idle[block_id]
            self._forget(self._blocks[block_id])
            self._record("evict", sequence, (block_id,))
        block = self._blocks[block_id]
        block.ref_count, block.chain = 1, -1
        return block_id

    def _choose(self, sequence: Sequence) -> int:
        """A free block, in physical order with the sequence's last one where possible.

        A sequence that lies in one piece can be attended to without gathering its blocks first. A new one
        therefore starts in the middle of the widest empty gap, with room to grow.
        """
        following = sequence.block_table[-1] + 1 if sequence.block_table else -1
        if following in self._empty:
            return following
        if self._empty:
            return self._middle_of_widest_gap()
        return next(iter(self._idle))

    def _middle_of_widest_gap(self) -> int:
        best_start, best_length = 0, 0
        start, previous = 0, -2
        for block_id in sorted(self._empty):
            if block_id != previous + 1:
                start = block_id
            previous = block_id
            if block_id - start + 1 > best_length:
                best_start, best_length = start, block_id - start + 1
        # The pool's very first block needs no distance from a neighbour before it.
        return best_start if best_start == 0 else best_start + best_length // 2

    def _take_reference(self, block_id: int) -> None:
        self._idle.pop(block_id, None)
        self._blocks[block_id].ref_count += 1

    def _release(self, block_ids: list[int]) -> None:
        # The tail first, so that it is evicted first: a prefix without its tail is still of use.
        for block_id in reversed(block_ids):
            block = self._blocks[block_id]
            block.ref_count -= 1
            if block.ref_count > 0:
                continue
            if block.key is None:
                block.chain = -1
                self._empty[block_id] = None
            else:
                self._idle[block_id] = None

    def _record(
        self,
        operation: PoolOperation,
        sequence: Sequence,
        block_ids: Iterable[int],
        token_ids: tuple[int, ...] = (),
    ) -> None:
        self._journal.append(
            PoolChange(
                operation=operation,
                run=sequence.run,
                sequence=sequence.sequence_id,
                block_ids=tuple(block_ids),
                num_tokens=sequence.num_computed_tokens,
                token_ids=token_ids,
                time=time.perf_counter(),
                salt=sequence.salt,
            )
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
