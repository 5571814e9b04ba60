"""The pool as a fold of what a watch tells of it: which block holds what, for whom; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from backend.events import PoolChange, PoolState


@dataclass
class Usage:
    """Slots summed over the steps of the loop, each as it was once its tokens were written.

    Attributes:
        num_steps: how many. allocated, filled: slots of the visitor's blocks, those that hold a token.
        sequences: living ones that hold blocks; each would have a buffer of its own.
        tokens: of all sequences, what they share counted for each.
    """

    num_steps: int = 0
    allocated: int = 0
    filled: int = 0
    sequences: int = 0
    tokens: int = 0

    @property
    def waste(self) -> float | None:
        """Share of allocated slots that held nothing, as a mean over the run."""
        return 1 - self.filled / self.allocated if self.allocated else None

    def contiguous_waste(self, buffer: int) -> float | None:
        """The same if every sequence had one buffer of that many tokens (more, where it was longer)."""
        return 1 - self.tokens / (self.sequences * buffer) if self.sequences else None


@dataclass
class PoolView:
    """The state after some changes.

    Attributes:
        tables: block table of each living sequence. lengths: its tokens in the cache. runs: its run.
        contents: token ids of each block that the visitor filled, where they are still there.
        ref_counts: owners of each block that has any.
        findable: blocks that can be found by content. idle: of those the free ones, next to be evicted first.
        taken: blocks that other visitors use.
        left: the last block table of each sequence that gave its blocks back.
        longest: most tokens each sequence had in the cache.
    """

    num_blocks: int
    block_size: int
    tables: dict[int, list[int]] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    runs: dict[int, int] = field(default_factory=dict)
    contents: dict[int, list[int]] = field(default_factory=dict)
    ref_counts: Counter[int] = field(default_factory=Counter)
    findable: set[int] = field(default_factory=set)
    idle: dict[int, None] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    left: dict[int, list[int]] = field(default_factory=dict)
    longest: dict[int, int] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    _written: set[int] = field(default_factory=set)  # sequences written to since usage was last taken

    @property
    def used(self) -> int:
        """Blocks of the visitor that have an owner."""
        return len(self.ref_counts)

    @property
    def filled(self) -> dict[int, int]:
        """Slots in use of each block that has an owner."""
        found = dict.fromkeys(self.ref_counts, 0)
        for sequence, table in self.tables.items():
            for index, block_id in enumerate(table):
                inside = min(self.block_size, self.lengths[sequence] - index * self.block_size)
                found[block_id] = max(found[block_id], inside)
        return found

    @property
    def num_free_blocks(self) -> int:
        """Blocks without an owner; those that can be found again count as free."""
        return self.num_blocks - self.used - len(self.taken)

    def owners(self, block_id: int) -> list[tuple[int, int]]:
        """(sequence, index in its table) of each sequence that holds the block."""
        return [(name, table.index(block_id)) for name, table in self.tables.items() if block_id in table]

    def block_of(self, sequence: int, token_ids: Sequence[int], position: int) -> int | None:
        """The block that holds the token at this position of a sequence, also after it has ended."""
        table = self.tables.get(sequence) or self.left.get(sequence, [])
        index, slot = divmod(position, self.block_size)
        if index >= len(table):
            return None
        first = index * self.block_size
        held = self.contents.get(table[index], [])[: slot + 1]
        return table[index] if held == list(token_ids[first : position + 1]) else None

    def apply(self, change: PoolChange) -> None:
        """Take in the next change."""
        # In one step every sequence is written at most once, and all writes follow what makes room for them.
        if self._written and (change.operation != "write" or change.sequence in self._written):
            self._measure()
        getattr(self, f"_{change.operation}")(change)

    def _preempt(self, change: PoolChange) -> None:
        """The frees that follow say what it does."""

    def _allocate(self, change: PoolChange) -> None:
        for block_id in change.block_ids:
            self.contents[block_id] = []
        self._hold(change)

    def _hold(self, change: PoolChange) -> None:
        """The sequence has these blocks at the end of its table."""
        table = self.tables.setdefault(change.sequence, [])
        self.runs[change.sequence], self.lengths[change.sequence] = change.run, change.num_tokens
        table += change.block_ids
        self.ref_counts.update(change.block_ids)
        for block_id in change.block_ids:
            self.idle.pop(block_id, None)

    _reuse = _fork = _hold

    def _copy(self, change: PoolChange) -> None:
        source, copy = change.block_ids
        table = self.tables[change.sequence]
        index = table.index(source)
        table[index] = copy
        held = max(0, change.num_tokens - index * self.block_size)
        self.contents[copy] = self.contents.get(source, [])[:held]
        self.ref_counts[copy] += 1
        self._release([source])

    def _write(self, change: PoolChange) -> None:
        table = self.tables[change.sequence]
        first = change.num_tokens - len(change.token_ids)
        for place, token_id in enumerate(change.token_ids, start=first):
            block_id, slot = table[place // self.block_size], place % self.block_size
            self.contents[block_id][slot:] = [token_id]
        self.lengths[change.sequence] = change.num_tokens
        self.longest[change.sequence] = max(self.longest.get(change.sequence, 0), change.num_tokens)
        self.findable.update(change.block_ids)
        self._written.add(change.sequence)

    def _truncate(self, change: PoolChange) -> None:
        table = self.tables[change.sequence]
        if change.block_ids:
            del table[-len(change.block_ids) :]
        self.lengths[change.sequence] = change.num_tokens
        self._release(change.block_ids)

    def _free(self, change: PoolChange) -> None:
        self.left[change.sequence] = self.tables[change.sequence]
        for state in (self.tables, self.lengths, self.runs):
            state.pop(change.sequence, None)
        self._release(change.block_ids)

    def _release(self, block_ids: Sequence[int]) -> None:
        for block_id in reversed(block_ids):
            self.ref_counts[block_id] -= 1
            if self.ref_counts[block_id]:
                continue
            del self.ref_counts[block_id]
            if block_id in self.findable:
                self.idle[block_id] = None
            else:
                self.contents.pop(block_id, None)

    def _evict(self, change: PoolChange) -> None:
        for block_id in change.block_ids:
            self.idle.pop(block_id, None)
            self.findable.discard(block_id)
            self.contents.pop(block_id, None)

    def _forget(self, change: PoolChange) -> None:
        self.findable.difference_update(change.block_ids)

    def _taken(self, change: PoolChange) -> None:
        self._evict(change)
        self.taken.update(change.block_ids)

    def _returned(self, change: PoolChange) -> None:
        self.taken.difference_update(change.block_ids)

    def _measure(self) -> None:
        self._written.clear()
        usage = self.usage
        usage.num_steps += 1
        usage.allocated += self.used * self.block_size
        usage.filled += sum(self.filled.values())
        usage.sequences += sum(bool(table) for table in self.tables.values())
        usage.tokens += sum(self.lengths.values())


def fold(start: PoolState, changes: Iterable[PoolChange] = ()) -> PoolView:
    """The pool as it was at `start`, with the changes since, which PoolWatch.take told in this order."""
    pool = PoolView(start.num_blocks, start.block_size)
    pool.taken, pool.findable = set(start.taken), set(start.findable)
    for sequence in start.sequences:
        pool.runs[sequence.sequence] = sequence.run
        pool.tables[sequence.sequence] = list(sequence.block_ids)
        pool.lengths[sequence.sequence] = len(sequence.token_ids)
        pool.ref_counts.update(sequence.block_ids)
        for index, block_id in enumerate(sequence.block_ids):
            tokens = sequence.token_ids[index * pool.block_size : (index + 1) * pool.block_size]
            if len(tokens) >= len(pool.contents.get(block_id, [])):
                pool.contents[block_id] = list(tokens)
    for block_id, token_ids in start.idle:
        pool.idle[block_id] = None
        pool.findable.add(block_id)
        pool.contents[block_id] = list(token_ids)
    for change in changes:
        pool.apply(change)
    return pool
