"""PoolWatch: what one visitor may see of the pool, in the order it happens."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace

from backend.events import PoolChange, PoolState, SequenceState
from backend.kv.block_manager import BlockManager
from backend.pool_view import fold
from backend.sequence import Sequence

# A watch that nobody reads keeps this many changes and then says that it has lost some.
MAX_CHANGES = 200_000

_TAKES = ("allocate", "reuse", "fork")
_GIVES = ("free", "truncate")


def may_see(visitor: str, salt: str) -> bool:
    """Whether a sequence's salt is the visitor's, or one made from it ("salt:more")."""
    return salt == visitor or salt.startswith(f"{visitor}:")


class PoolWatch:
    """Collects the changes of a pool for one visitor; of other visitors only which blocks they use.

    Filled by the loop, read by anyone.

    Attributes:
        start: the pool when the watch began. pool: as of the last `take`.
        lost: changes fell out since nobody read them.
    """

    def __init__(self, visitor: str, blocks: BlockManager, living: Iterable[tuple[int, Sequence]]):
        """`living` are the run number and sequence of all that may hold blocks."""
        self._visitor = visitor
        self._changes: deque[PoolChange] = deque()
        self._elsewhere: Counter[int] = Counter()
        own, findable = [], []
        for run, sequence in living:
            if not sequence.block_table:
                continue
            if not may_see(visitor, sequence.salt):
                self._elsewhere.update(sequence.block_table)
                continue
            tokens = tuple(sequence.token_ids[: sequence.num_computed_tokens])
            own.append(SequenceState(run, sequence.sequence_id, tuple(sequence.block_table), tokens))
            findable += [block_id for block_id in sequence.block_table if blocks.is_findable(block_id)]
        idle = [
            (block_id, token_ids)
            for block_id, (salt, token_ids) in blocks.idle_contents().items()
            if may_see(visitor, salt)
        ]
        self._own_content = set(findable) | {block_id for block_id, _ in idle}
        self.lost = False
        self.start = PoolState(
            num_blocks=blocks.num_blocks,
            block_size=blocks.block_size,
            sequences=tuple(own),
            findable=tuple(dict.fromkeys(findable)),
            idle=tuple(idle),
            taken=tuple(sorted(self._elsewhere)),
        )
        self.pool = fold(self.start)

    def take(self) -> list[PoolChange]:
        """What happened since the last call, in order."""
        taken = []
        while self._changes:
            taken.append(self._changes.popleft())
            self.pool.apply(taken[-1])
        return taken

    def add(self, change: PoolChange) -> None:
        """Take in an entry of the pool's journal."""
        if not may_see(self._visitor, change.salt):
            self._add_foreign(change)
            return
        if change.operation == "evict":
            # That another visitor had something findable there is not told.
            own = tuple(block_id for block_id in change.block_ids if block_id in self._own_content)
            if not own:
                return
            change = replace(change, block_ids=own)
        if change.operation in ("evict", "forget"):
            self._own_content.difference_update(change.block_ids)
        elif change.operation == "write":
            self._own_content.update(change.block_ids)
        self._put(change)

    def _add_foreign(self, change: PoolChange) -> None:
        takes = change.block_ids if change.operation in _TAKES else ()
        gives = change.block_ids if change.operation in _GIVES else ()
        if change.operation == "copy":
            gives, takes = change.block_ids[:1], change.block_ids[1:]
        self._elsewhere.update(takes)
        self._elsewhere.subtract(gives)
        taken = tuple(block_id for block_id in takes if self._elsewhere[block_id] == 1)
        returned = tuple(block_id for block_id in gives if self._elsewhere[block_id] == 0)
        self._own_content.difference_update(taken)
        if taken:
            self._put(PoolChange("taken", -1, -1, taken, time=change.time))
        if returned:
            self._put(PoolChange("returned", -1, -1, returned, time=change.time))

    def _put(self, change: PoolChange) -> None:
        if len(self._changes) >= MAX_CHANGES:
            self._changes.popleft()
            self.lost = True
        self._changes.append(change)
