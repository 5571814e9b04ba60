"""The pool's books: literal cases, then random operations against a model of what each slot holds."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from backend.errors import OutOfBlocks
from backend.kv.block_manager import BlockManager
from backend.sequence import Sequence


def sequence(*token_ids: int, salt: str = "") -> Sequence:
    return Sequence(list(token_ids), len(token_ids), salt)


def compute(blocks: BlockManager, owner: Sequence, num_tokens: int | None = None) -> list[tuple[int, int]]:
    """Reserve and commit, as one step of the loop does; returns the copies."""
    end = len(owner) if num_tokens is None else num_tokens
    copies = blocks.reserve(owner, end)
    blocks.commit(owner, end)
    return copies


def operations(blocks: BlockManager) -> list[str]:
    return [change.operation for change in blocks.drain_journal()]


# Allocation


@pytest.mark.parametrize(
    ("block_size", "num_tokens", "expected"),
    [(16, 1, 1), (16, 15, 1), (16, 16, 1), (16, 17, 2), (16, 32, 2), (16, 33, 3), (1, 3, 3), (4, 0, 0)],
)
def test_blocks_for_a_number_of_tokens(block_size: int, num_tokens: int, expected: int) -> None:
    assert BlockManager(8, block_size).num_blocks_for(num_tokens) == expected


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (4, 0), (-1, 4)])
def test_a_pool_without_slots_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match=f"{num_blocks} blocks of {block_size}"):
        BlockManager(num_blocks, block_size)


def test_reserve_takes_a_new_block_only_at_the_border() -> None:
    blocks = BlockManager(4, 4)
    a = sequence(1, 2, 3)
    compute(blocks, a)
    assert (len(a.block_table), blocks.num_free_blocks) == (1, 3)
    a.append(4)
    assert blocks.num_needed(a, 4) == 0
    compute(blocks, a)
    assert len(a.block_table) == 1
    a.append(5)
    assert blocks.num_needed(a, 5) == 1
    compute(blocks, a)
    assert (len(a.block_table), blocks.num_free_blocks) == (2, 2)
    blocks.check_integrity([a])


def test_a_growing_sequence_lies_in_one_piece_while_it_can() -> None:
    blocks = BlockManager(32, 2)
    a = sequence(1)
    for token_id in range(12):
        compute(blocks, a)
        a.append(token_id)
    first = a.block_table[0]
    assert a.block_table == list(range(first, first + len(a.block_table)))


def test_out_of_blocks_changes_nothing() -> None:
    blocks = BlockManager(3, 4)
    a, b = sequence(*range(8)), sequence(*range(9))
    compute(blocks, a)
    blocks.drain_journal()
    with pytest.raises(OutOfBlocks, match="3 blocks needed, 1 of 3 are free"):
        blocks.reserve(b, 9)
    assert b.block_table == []
    assert blocks.num_free_blocks == 1
    assert blocks.drain_journal() == []
    blocks.check_integrity([a, b])


def test_out_of_blocks_for_a_copy_changes_nothing() -> None:
    blocks = BlockManager(1, 4)
    a = sequence(1, 2)
    compute(blocks, a)
    b = blocks.fork(a)
    b.append(3)
    with pytest.raises(OutOfBlocks, match="1 blocks needed, 0 of 1 are free"):
        blocks.reserve(b, 3)
    assert b.block_table == a.block_table
    assert blocks.ref_count(a.block_table[0]) == 2
    blocks.check_integrity([a, b])


# Reuse


@pytest.mark.parametrize(
    ("num_tokens", "reused"), [(1, 0), (15, 0), (16, 0), (17, 16), (31, 16), (32, 16), (33, 32)]
)
def test_a_rerun_finds_whole_blocks_and_leaves_one_token_to_compute(num_tokens: int, reused: int) -> None:
    blocks = BlockManager(8, 16)
    a = sequence(*range(num_tokens))
    compute(blocks, a)
    table = list(a.block_table)
    blocks.free(a)
    b = sequence(*range(num_tokens))
    assert blocks.reuse(b, num_tokens - 1) == reused
    assert b.block_table == table[: reused // 16]
    assert b.num_computed_tokens == b.num_cached_tokens == reused
    blocks.check_integrity([b])


def test_reuse_while_the_first_owner_still_lives_shares_the_blocks() -> None:
    blocks = BlockManager(8, 4)
    a = sequence(*range(9))
    compute(blocks, a)
    b = sequence(*range(9))
    assert blocks.reuse(b, 8) == 8
    assert b.block_table == a.block_table[:2]
    assert [blocks.ref_count(block_id) for block_id in a.block_table] == [2, 2, 1]
    assert blocks.num_free_blocks == 5
    blocks.check_integrity([a, b])


def test_a_block_is_found_only_behind_the_same_beginning() -> None:
    blocks = BlockManager(8, 2)
    compute(blocks, sequence(1, 2, 3, 4))
    other = sequence(9, 9, 3, 4, 5)
    assert blocks.reuse(other, 4) == 0


def test_a_partial_block_is_never_found() -> None:
    blocks = BlockManager(8, 4)
    compute(blocks, sequence(1, 2, 3, 4, 5, 6))
    b = sequence(1, 2, 3, 4, 5, 6, 7)
    assert blocks.reuse(b, 6) == 4


def test_uncommitted_tokens_are_never_found() -> None:
    blocks = BlockManager(8, 2)
    a = sequence(1, 2, 3, 4)
    blocks.reserve(a, 4)
    assert blocks.reuse(sequence(1, 2, 3, 4), 4) == 0
    blocks.commit(a, 2)
    assert blocks.reuse(sequence(1, 2, 3, 4), 4) == 2


def test_equal_tokens_under_different_salts_are_strangers() -> None:
    blocks = BlockManager(16, 4)
    secret = list(range(9))
    a = sequence(*secret, salt="a")
    compute(blocks, a)
    blocks.free(a)
    assert blocks.reuse(sequence(*secret, salt="b"), 8) == 0
    assert blocks.reuse(sequence(*secret), 8) == 0
    assert blocks.reuse(sequence(*secret, salt="a"), 8) == 8


def test_two_that_computed_the_same_at_once_leave_one_findable_chain() -> None:
    blocks = BlockManager(16, 2)
    a, b = sequence(1, 2, 3, 4, 5, 6), sequence(1, 2, 3, 4, 7, 8)
    blocks.reserve(a, 6)
    blocks.reserve(b, 6)
    blocks.commit(a, 6)
    blocks.commit(b, 6)
    assert not set(a.block_table) & set(b.block_table)
    c, d = sequence(1, 2, 3, 4, 5, 6, 0), sequence(1, 2, 3, 4, 7, 8, 0)
    assert blocks.reuse(c, 6) == 6
    assert blocks.reuse(d, 6) == 6
    assert c.block_table == a.block_table
    # The branch of b is found behind the common beginning that a holds.
    assert d.block_table == [*a.block_table[:2], b.block_table[2]]
    blocks.check_integrity([a, b, c, d])


def test_reuse_needs_an_empty_handed_sequence() -> None:
    blocks = BlockManager(4, 2)
    a = sequence(1, 2, 3)
    compute(blocks, a)
    with pytest.raises(ValueError, match="already has blocks"):
        blocks.reuse(a, 2)


# Fork and copy-on-write


def test_fork_at_5_of_16_slots_into_3_copies_the_shared_block_once_per_writer() -> None:
    blocks = BlockManager(8, 16)
    a = sequence(1, 2, 3, 4, 5)
    compute(blocks, a)
    b, c = blocks.fork(a), blocks.fork(a)
    (shared,) = a.block_table
    assert blocks.ref_count(shared) == 3
    assert blocks.num_free_blocks == 7
    for token_id, branch in enumerate((a, b, c), start=10):
        branch.append(token_id)
    assert [blocks.num_needed(branch, 6) for branch in (a, b, c)] == [1, 1, 1]
    assert compute(blocks, a) == [(shared, a.block_table[0])]
    assert compute(blocks, b) == [(shared, b.block_table[0])]
    assert blocks.num_needed(c, 6) == 0  # the last writer has the block to itself
    assert compute(blocks, c) == []
    assert c.block_table == [shared]
    assert len({a.block_table[0], b.block_table[0], shared}) == 3
    blocks.check_integrity([a, b, c])
    for branch in (b, c, a):  # a mixed order
        blocks.free(branch)
    assert [blocks.ref_count(block_id) for block_id in range(8)] == [0] * 8
    assert blocks.num_free_blocks == 8
    blocks.check_integrity([])


def test_a_fork_at_a_block_border_copies_nothing() -> None:
    blocks = BlockManager(8, 4)
    a = sequence(1, 2, 3, 4)
    compute(blocks, a)
    b = blocks.fork(a)
    for branch, token_id in ((a, 5), (b, 6)):
        branch.append(token_id)
        assert compute(blocks, branch) == []
    assert a.block_table[0] == b.block_table[0]
    assert a.block_table[1] != b.block_table[1]
    assert blocks.num_free_blocks == 5


def test_a_fork_is_equal_but_independent() -> None:
    blocks = BlockManager(8, 4)
    a = Sequence([1, 2, 3], 2, "salt")
    compute(blocks, a)
    a.run = 7
    b = blocks.fork(a)
    assert (b.token_ids, b.num_prompt_tokens, b.salt) == ([1, 2, 3], 2, "salt")
    assert (b.num_computed_tokens, b.run) == (3, 7)
    assert b.sequence_id != a.sequence_id
    b.append(9)
    assert a.token_ids == [1, 2, 3]


def test_a_fork_outlives_its_parent() -> None:
    blocks = BlockManager(4, 4)
    a = sequence(1, 2)
    compute(blocks, a)
    b = blocks.fork(a)
    (shared,) = a.block_table
    blocks.free(a)
    assert blocks.ref_count(shared) == 1
    b.append(3)
    assert compute(blocks, b) == []
    assert b.block_table == [shared]


def test_a_copied_block_is_found_under_its_own_content() -> None:
    blocks = BlockManager(8, 4)
    a = sequence(1, 2, 3)
    compute(blocks, a)
    b = blocks.fork(a)
    a.append(4)
    b.append(5)
    compute(blocks, a)
    compute(blocks, b)
    c, d = sequence(1, 2, 3, 4, 0), sequence(1, 2, 3, 5, 0)
    assert blocks.reuse(c, 4) == 4
    assert blocks.reuse(d, 4) == 4
    assert c.block_table == a.block_table
    assert d.block_table == b.block_table


# Truncation


def test_truncate_gives_back_what_lies_behind() -> None:
    blocks = BlockManager(8, 4)
    a = sequence(*range(14))
    compute(blocks, a)
    blocks.truncate(a, 5)
    assert a.token_ids == [0, 1, 2, 3, 4]
    assert (len(a.block_table), a.num_computed_tokens, blocks.num_free_blocks) == (2, 5, 6)
    blocks.check_integrity([a])


@pytest.mark.parametrize("kept", [4, 8])
def test_truncate_to_a_border_keeps_no_empty_block(kept: int) -> None:
    blocks = BlockManager(8, 4)
    a = sequence(*range(12))
    compute(blocks, a)
    blocks.truncate(a, kept)
    assert len(a.block_table) == kept // 4


def test_truncate_to_nothing_and_regrow() -> None:
    blocks = BlockManager(4, 4)
    a = sequence(*range(6))
    compute(blocks, a)
    blocks.truncate(a, 0)
    assert (a.block_table, a.token_ids, blocks.num_free_blocks) == ([], [], 4)
    a.append(7)
    compute(blocks, a)
    blocks.check_integrity([a])


@pytest.mark.parametrize("num_tokens", [-1, 4])
def test_truncate_outside_the_sequence_is_refused(num_tokens: int) -> None:
    blocks = BlockManager(4, 4)
    a = sequence(1, 2, 3)
    with pytest.raises(ValueError, match=f"cannot truncate 3 tokens to {num_tokens}"):
        blocks.truncate(a, num_tokens)


def test_truncate_into_a_full_block_keeps_it_findable_until_it_is_overwritten() -> None:
    blocks = BlockManager(8, 4)
    a = sequence(1, 2, 3, 4, 5, 6, 7, 8)
    compute(blocks, a)
    blocks.truncate(a, 6)
    before = sequence(1, 2, 3, 4, 5, 6, 7, 8, 0)
    assert blocks.reuse(before, 8) == 8  # nothing was written yet
    blocks.free(before)
    a.token_ids += [70, 80]
    assert compute(blocks, a) == []
    old, new = sequence(1, 2, 3, 4, 5, 6, 7, 8, 0), sequence(1, 2, 3, 4, 5, 6, 70, 80, 0)
    assert blocks.reuse(old, 8) == 4
    assert blocks.reuse(new, 8) == 8
    blocks.check_integrity([a, old, new])


def test_truncate_into_a_full_shared_block_leaves_the_others_content_alone() -> None:
    blocks = BlockManager(8, 4)
    a = sequence(1, 2, 3, 4)
    compute(blocks, a)
    b = blocks.fork(a)
    blocks.truncate(b, 2)
    b.append(9)
    (shared,) = a.block_table
    assert compute(blocks, b) == [(shared, b.block_table[0])]
    assert a.block_table == [shared]
    found = sequence(1, 2, 3, 4, 0)
    assert blocks.reuse(found, 4) == 4
    assert found.block_table == [shared]


def test_a_block_overwritten_in_part_is_not_found_at_all() -> None:
    blocks = BlockManager(8, 4)
    a = sequence(1, 2, 3, 4)
    compute(blocks, a)
    blocks.truncate(a, 2)
    a.append(9)
    compute(blocks, a)
    assert blocks.reuse(sequence(1, 2, 3, 4, 0), 4) == 0
    blocks.free(a)
    assert blocks.num_reusable_blocks == 0


def test_truncating_drafts_never_computed_keeps_the_computed_ones() -> None:
    blocks = BlockManager(8, 4)
    a = sequence(1, 2, 3)
    compute(blocks, a)
    a.token_ids += [4, 5, 6]
    blocks.truncate(a, 4)
    assert (a.num_computed_tokens, a.token_ids, len(a.block_table)) == (3, [1, 2, 3, 4], 1)


# Freeing and eviction


def test_free_keeps_the_tokens_for_recomputation() -> None:
    blocks = BlockManager(4, 4)
    a = sequence(1, 2, 3, 4, 5)
    compute(blocks, a)
    blocks.free(a)
    assert (a.token_ids, a.block_table, a.num_computed_tokens) == ([1, 2, 3, 4, 5], [], 0)
    assert (blocks.num_free_blocks, blocks.num_reusable_blocks) == (4, 1)
    blocks.free(a)  # a second time does nothing
    assert blocks.num_free_blocks == 4


def test_never_used_blocks_go_before_findable_ones() -> None:
    blocks = BlockManager(3, 2)
    a = sequence(1, 2, 3, 4)
    compute(blocks, a)
    blocks.free(a)
    b = sequence(8, 9)
    compute(blocks, b)
    assert "evict" not in operations(blocks)
    assert blocks.reuse(sequence(1, 2, 3, 4, 0), 4) == 4


def test_the_least_recently_freed_is_evicted_first() -> None:
    blocks = BlockManager(3, 2)
    for token_id in (1, 2, 3):
        owner = sequence(token_id, token_id)
        compute(blocks, owner)
        blocks.free(owner)
    touched = sequence(1, 1, 0)
    assert blocks.reuse(touched, 2) == 2  # now 2 is the oldest
    blocks.free(touched)
    compute(blocks, sequence(7))
    assert [blocks._find(sequence(t, t, 0), 2) != [] for t in (1, 2, 3)] == [True, False, True]


def test_the_tail_of_a_sequence_is_evicted_before_its_beginning() -> None:
    blocks = BlockManager(3, 2)
    a = sequence(1, 2, 3, 4, 5, 6)
    compute(blocks, a)
    blocks.free(a)
    found = []
    for token_id in (7, 8, 9):
        compute(blocks, sequence(token_id))
        found.append(len(blocks._find(sequence(1, 2, 3, 4, 5, 6, 0), 6)))
    assert found == [2, 1, 0]


def test_a_block_in_use_is_never_evicted() -> None:
    blocks = BlockManager(2, 2)
    a = sequence(1, 2)
    compute(blocks, a)
    compute(blocks, sequence(3, 4))
    with pytest.raises(OutOfBlocks):
        blocks.reserve(sequence(5, 6), 2)
    assert blocks.reuse(sequence(1, 2, 0), 2) == 2


# Journal


def test_the_journal_tells_each_change_once_with_its_blocks() -> None:
    blocks = BlockManager(4, 2)
    a = sequence(1, 2, 3)
    compute(blocks, a)
    b = blocks.fork(a)
    b.append(4)
    compute(blocks, b)
    b.append(5)
    compute(blocks, b)
    blocks.truncate(b, 4)
    blocks.free(a)
    first, second = 0, 1
    copy, tail = b.block_table[1], 3
    journal = [
        (c.operation, c.sequence, c.block_ids) for c in blocks.drain_journal() if c.operation != "write"
    ]
    assert journal == [
        ("allocate", a.sequence_id, (first, second)),
        ("fork", b.sequence_id, (first, second)),
        ("copy", b.sequence_id, (second, copy)),
        ("allocate", b.sequence_id, (tail,)),
        ("truncate", b.sequence_id, (tail,)),
        ("free", a.sequence_id, (first, second)),
    ]
    assert blocks.drain_journal() == []


def test_the_journal_tells_evictions_and_reuse() -> None:
    blocks = BlockManager(2, 2)
    a = sequence(1, 2, 3, 4)
    compute(blocks, a)
    table = tuple(a.block_table)
    blocks.free(a)
    blocks.drain_journal()
    b = sequence(1, 2, 9)
    blocks.reuse(b, 2)
    compute(blocks, b)
    journal = [(c.operation, c.block_ids) for c in blocks.drain_journal() if c.operation != "write"]
    assert journal == [
        ("reuse", table[:1]),
        ("evict", table[1:]),
        ("allocate", table[1:]),
    ]


# The audit itself


@pytest.mark.parametrize(
    "damage",
    [
        lambda blocks, a: setattr(blocks._blocks[a.block_table[0]], "ref_count", 2),
        lambda blocks, a: blocks._empty.pop(next(iter(blocks._empty))),
        lambda blocks, a: blocks._empty.setdefault(a.block_table[0]),
        lambda blocks, a: a.block_table.append(a.block_table[0]),
        lambda blocks, a: blocks._findable.clear(),
        lambda blocks, a: setattr(a, "num_computed_tokens", 99),
    ],
    ids=["count", "lost", "used and empty", "twice in a table", "keys", "computed too much"],
)
def test_the_audit_notices_damage(damage) -> None:
    blocks = BlockManager(4, 2)
    a = sequence(1, 2, 3)
    compute(blocks, a)
    blocks.check_integrity([a])
    damage(blocks, a)
    with pytest.raises(AssertionError):
        blocks.check_integrity([a])


def test_the_audit_notices_a_sequence_that_was_forgotten() -> None:
    blocks = BlockManager(4, 2)
    a = sequence(1, 2, 3)
    compute(blocks, a)
    with pytest.raises(AssertionError):
        blocks.check_integrity([])


# Random operations against a model of the contents


class Contents:
    """What the tensors would hold: per slot the salt and all tokens up to it, as one number.

    The keys and values of a token depend on everything before it, so that is what a slot must hold.
    """

    def __init__(self, num_blocks: int, block_size: int):
        self.blocks = BlockManager(num_blocks, block_size)
        self.slots: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.living: list[Sequence] = []

    def begin(self, token_ids: list[int], salt: str) -> Sequence:
        owner = Sequence(list(token_ids), len(token_ids), salt)
        self.living.append(owner)
        return owner

    def reuse(self, owner: Sequence) -> int:
        return self.blocks.reuse(owner, max(0, len(owner) - 1))

    def compute(self, owner: Sequence, end: int) -> None:
        """May raise OutOfBlocks, and has then changed nothing."""
        for source, copy in self.blocks.reserve(owner, end):
            self.slots[copy] = list(self.slots[source])
        for place in range(owner.num_computed_tokens, end):
            block_id = owner.block_table[place // self.blocks.block_size]
            assert self.blocks.ref_count(block_id) == 1, "a write into a shared block"
            self.slots[block_id][place % self.blocks.block_size] = self._content(owner, place)
        self.blocks.commit(owner, end)

    def fork(self, owner: Sequence) -> None:
        self.living.append(self.blocks.fork(owner))

    def end(self, owner: Sequence) -> None:
        self.blocks.free(owner)
        self.living.remove(owner)

    def check(self) -> None:
        self.blocks.check_integrity(self.living)
        size = self.blocks.block_size
        for owner in self.living:
            held = [
                self.slots[owner.block_table[t // size]][t % size] for t in range(owner.num_computed_tokens)
            ]
            assert held == [self._content(owner, t) for t in range(owner.num_computed_tokens)]

    def snapshot(self) -> tuple:
        tables = [(tuple(s.block_table), s.num_computed_tokens, tuple(s.token_ids)) for s in self.living]
        counts = [self.blocks.ref_count(block_id) for block_id in range(self.blocks.num_blocks)]
        return tables, counts, self.blocks.num_free_blocks, self.blocks.num_reusable_blocks

    @staticmethod
    def _content(owner: Sequence, place: int) -> int:
        return hash((owner.salt, tuple(owner.token_ids[: place + 1])))


def _random_operation(pool: Contents, rng: random.Random) -> str:
    """One operation; its name, with a mark where the pool was too full or something was found."""
    kind = rng.choices(["begin", "grow", "fork", "truncate", "end", "preempt"], [3, 8, 2, 3, 2, 1])[0]
    if kind == "begin" or not pool.living:
        # Few ids and salts, and often the start of one fixed text, so that equal beginnings are common.
        size = pool.blocks.block_size
        known = rng.choice([0, 1]) * rng.randint(1, 3 * size)
        tail = [rng.randrange(2) for _ in range(rng.randint(1, size + 3))]
        owner = pool.begin([*([1, 0, 0] * size)[:known], *tail], rng.choice(["", "a"]))
        return "begin, found" if pool.reuse(owner) else "begin"
    owner = rng.choice(pool.living)
    if kind == "grow":
        owner.token_ids += [rng.randrange(2) for _ in range(rng.randint(0, 5))]
        before = pool.snapshot()
        try:
            pool.compute(owner, rng.randint(owner.num_computed_tokens, len(owner)))
        except OutOfBlocks:
            assert pool.snapshot() == before
            return "grow, too full"
    elif kind == "fork":
        pool.fork(owner)
    elif kind == "truncate":
        pool.blocks.truncate(owner, rng.randint(0, len(owner)))
    elif kind == "end":
        pool.end(owner)
    else:
        pool.blocks.free(owner)
        return "preempt, found" if pool.reuse(owner) else "preempt"
    return kind


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 16])
def test_ten_thousand_random_operations_keep_books_and_contents(block_size: int) -> None:
    rng = random.Random(block_size)
    pool = Contents(num_blocks=max(6, 60 // block_size), block_size=block_size)
    seen: dict[str, int] = {}
    copies = evictions = 0
    for _ in range(10_000):
        name = _random_operation(pool, rng)
        seen[name] = seen.get(name, 0) + 1
        changes = [change.operation for change in pool.blocks.drain_journal()]
        copies += changes.count("copy")
        evictions += changes.count("evict")
        pool.check()
        if len(pool.living) > 12:
            pool.end(rng.choice(pool.living))
    for owner in list(pool.living):
        pool.end(owner)
    pool.check()
    assert pool.blocks.num_free_blocks == pool.blocks.num_blocks
    # The run was worth something only if all of this happened.
    for name in ("begin, found", "grow", "grow, too full", "fork", "truncate", "end", "preempt"):
        assert seen.get(name, 0) > 20, seen
    assert evictions > 20
    assert (copies > 20) == (block_size > 1)


class PoolMachine(RuleBasedStateMachine):
    """The same model, with failing runs shrunk to the shortest one."""

    owners = Bundle("owners")

    def __init__(self) -> None:
        super().__init__()
        self.pool = Contents(num_blocks=6, block_size=3)

    @rule(
        target=owners,
        token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=10),
        salt=st.sampled_from("ab"),
    )
    def begin(self, token_ids: list[int], salt: str) -> Sequence:
        owner = self.pool.begin(token_ids, salt)
        self.pool.reuse(owner)
        return owner

    @rule(owner=owners, token_ids=st.lists(st.integers(0, 1), max_size=4))
    def grow(self, owner: Sequence, token_ids: list[int]) -> None:
        owner.token_ids += token_ids
        before = self.pool.snapshot()
        try:
            self.pool.compute(owner, len(owner))
        except OutOfBlocks:
            assert self.pool.snapshot() == before

    @precondition(lambda self: len(self.pool.living) < 8)
    @rule(target=owners, owner=owners)
    def fork(self, owner: Sequence) -> Sequence:
        self.pool.fork(owner)
        return self.pool.living[-1]

    @rule(owner=owners, share=st.floats(0, 1))
    def truncate(self, owner: Sequence, share: float) -> None:
        self.pool.blocks.truncate(owner, int(share * len(owner)))

    @rule(owner=consumes(owners))
    def end(self, owner: Sequence) -> None:
        self.pool.end(owner)

    @invariant()
    def books_and_contents_agree(self) -> None:
        self.pool.check()


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
