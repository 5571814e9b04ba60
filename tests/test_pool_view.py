"""The grid is the block manager's own state: the fold of what a watch told, compared after every step."""

from __future__ import annotations

import random

import pytest

from backend import Engine, Request, Sample, SamplingParams
from backend.events import Finished, PoolChange, PoolState
from backend.kv.block_manager import BlockManager
from backend.pool_view import PoolView, fold
from backend.pool_watch import PoolWatch
from backend.request import BeamSearch, Speculative
from backend.sequence import Sequence
from tests import models
from tests.running import audit, greedy

EMPTY = PoolState(8, 4, (), (), (), ())


def assert_equal(pool: PoolView, blocks: BlockManager, living: list[Sequence]) -> None:
    """Everything the grid draws, against the manager and the sequences themselves."""
    holders = [sequence for sequence in living if sequence.block_table]
    size = blocks.block_size
    assert {s.sequence_id: s.block_table for s in holders} == {k: t for k, t in pool.tables.items() if t}
    for sequence in holders:
        assert pool.lengths[sequence.sequence_id] == sequence.num_computed_tokens
    counts = [blocks.ref_count(block_id) for block_id in range(blocks.num_blocks)]
    assert [pool.ref_counts[block_id] for block_id in range(blocks.num_blocks)] == counts
    assert list(pool.idle) == list(blocks.idle_contents())
    assert pool.num_free_blocks == blocks.num_free_blocks
    assert pool.findable == {b for b in range(blocks.num_blocks) if blocks.is_findable(b)}
    for block_id, (_, token_ids) in blocks.idle_contents().items():
        assert tuple(pool.contents[block_id]) == token_ids
    filled: dict[int, int] = {}
    for sequence in holders:
        for index, block_id in enumerate(sequence.block_table):
            tokens = sequence.token_ids[index * size : min((index + 1) * size, sequence.num_computed_tokens)]
            assert pool.contents[block_id][: len(tokens)] == tokens
            filled[block_id] = max(filled.get(block_id, 0), len(tokens))
    assert pool.filled == filled


def watched(blocks: BlockManager, watch: PoolWatch, pool: PoolView) -> set[str]:
    """Pass on what happened; the kinds of operations."""
    for change in blocks.drain_journal():
        watch.add(change)
    changes = watch.take()
    for change in changes:
        pool.apply(change)
    return {change.operation for change in changes}


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_the_grid_equals_the_manager_after_every_one_of_three_thousand_operations(block_size: int) -> None:
    rng = random.Random(block_size)
    blocks = BlockManager(max(8, 48 // block_size), block_size)
    watch = PoolWatch("a", blocks, [])
    pool = fold(watch.start)
    living: list[Sequence] = []
    seen: set[str] = set()
    for _ in range(3000):
        operation = rng.choice(["begin", "grow", "grow", "grow", "fork", "share", "truncate", "free", "end"])
        if operation == "begin" or not living:
            known = [1, 0, 0] * block_size
            ids = known[: rng.randrange(3 * block_size)] + [
                rng.randrange(2) for _ in range(1 + rng.randrange(5))
            ]
            living.append(Sequence(ids, len(ids), "a"))
            blocks.reuse(living[-1], len(ids) - 1)
        owner = rng.choice(living)
        if operation == "grow":
            owner.token_ids += [rng.randrange(2) for _ in range(rng.randrange(5))]
            if blocks.num_needed(owner, len(owner)) <= blocks.num_free_blocks:
                blocks.reserve(owner, len(owner))
                seen |= watched(blocks, watch, pool)
                blocks.commit(owner, len(owner))
        elif operation == "fork" and owner.block_table:
            living.append(blocks.fork(owner))
        elif operation == "share" and owner.num_computed_tokens > 1:
            child = Sequence([*owner.token_ids[: rng.randint(1, len(owner))], 1], 1, "a")
            covered = blocks.share(child, owner)
            assert child.token_ids[:covered] == owner.token_ids[:covered]
            living.append(child)
        elif operation == "truncate":
            blocks.truncate(owner, rng.randint(0, len(owner)))
        elif operation == "free":
            blocks.free(owner)
        elif operation == "end" or len(living) > 9:
            blocks.free(owner)
            living.remove(owner)
        seen |= watched(blocks, watch, pool)
        assert_equal(pool, blocks, living)
    assert seen == {"allocate", "reuse", "fork", "truncate", "free", "evict", "write"} | (
        {"copy", "forget"} if block_size > 1 else set()
    )


def test_the_grid_equals_the_pool_at_every_step_of_mixed_runs_and_the_replay_ends_there() -> None:
    """Beams, samples, drafts and a fork in a pool that runs dry; a watch that begins late agrees."""
    engine = models.engine(block_size=4, num_blocks=24, inline=True)
    rng = random.Random(3)
    watch = engine.watch_pool("")
    pool, changes, late = fold(watch.start), [], None
    requests = [
        greedy((1,) * 20, 30),
        Request((2,) * 9, strategy=Sample(3), max_new_tokens=12),
        Request((3,) * 8, strategy=BeamSearch(num_beams=3), max_new_tokens=10),
        Request(tuple([5, 6, 7] * 4), strategy=Speculative(), max_new_tokens=20),
        Request((1,) * 20, sampling=SamplingParams(temperature=1.5), max_new_tokens=20, seed=3),
    ]
    streams = [engine.stream(request) for request in requests]
    ids: list[int] = []
    steps = 0
    while streams:
        stream = rng.choice(streams)
        event = next(stream)
        steps += 1
        if steps == 40:
            prefix = greedy((1,) * 20, 30, output_prefix=tuple(ids[:3]) if len(ids) > 3 else ())
            streams.append(engine.stream(prefix, parent=streams[0]))
        if steps == 60:
            late = engine.watch_pool("")
            late_pool = fold(late.start)
        if getattr(event, "token_id", None) is not None and stream is streams[0]:
            ids.append(event.token_id)
        if isinstance(event, Finished):
            streams.remove(stream)
        taken = watch.take()
        changes += taken
        for change in taken:
            pool.apply(change)
        scheduler = engine._loop._scheduler
        runs = (*scheduler._waiting, *scheduler._running)
        living = [s for run in runs for s, place in run.held.items() if place.blocks is engine.block_manager]
        assert_equal(pool, engine.block_manager, living)
        if late is not None:
            for change in late.take():
                late_pool.apply(change)
            assert_equal(late_pool, engine.block_manager, living)
    told = {change.operation for change in changes}
    assert {"allocate", "reuse", "fork", "copy", "free", "evict", "truncate", "preempt", "write"} <= told
    assert fold(watch.start, changes) == pool
    assert pool.used == 0
    assert pool.num_free_blocks == 24
    assert len(pool.idle) == engine.block_manager.num_reusable_blocks > 0
    audit(engine)


def test_another_visitor_shows_as_taken_blocks_and_as_nothing_else() -> None:
    """D06: no tokens, no runs, no forks, no findable content; sharing elsewhere looks like one use."""
    engine = models.engine(block_size=4, num_blocks=32, inline=True)
    watch = engine.watch_pool("b")
    secret = Request((7,) * 21, strategy=Sample(3), max_new_tokens=9, cache_salt="a")
    stream = engine.stream(secret)
    seen: list[PoolChange] = []
    pool = fold(watch.start)
    for _ in stream:
        for change in watch.take():
            seen.append(change)
            pool.apply(change)
        in_use = {b for b in range(32) if engine.block_manager.ref_count(b)}
        assert pool.taken == in_use
    assert {change.operation for change in seen} == {"taken", "returned"}
    assert all((c.run, c.sequence, c.num_tokens, c.token_ids) == (-1, -1, 0, ()) for c in seen)
    assert pool == fold(engine.watch_pool("b").start)
    assert engine.block_manager.num_reusable_blocks > 0  # there is something, and it is not told
    assert (pool.idle, pool.findable, pool.contents, pool.num_free_blocks) == ({}, set(), {}, 32)
    assert engine.find_blocks((7,) * 21, "b") == []
    assert len(engine.find_blocks((7,) * 21, "a")) == 5
    mine = engine.watch_pool("a")
    assert len(mine.start.idle) == engine.block_manager.num_reusable_blocks


def test_a_watch_that_begins_while_another_visitor_runs_sees_only_which_blocks_are_taken() -> None:
    engine = models.engine(block_size=4, num_blocks=32, inline=True)
    stream = engine.stream(Request((7,) * 21, max_new_tokens=9, cache_salt="a"))
    for event in stream:
        if type(event).__name__ == "TokenDecoded":
            break
    start = engine.watch_pool("b").start
    assert (start.sequences, start.findable, start.idle) == ((), (), ())
    assert set(start.taken) == {b for b in range(32) if engine.block_manager.ref_count(b)}
    stream.close()


def test_evicting_what_another_visitor_left_is_not_told() -> None:
    engine = models.engine(block_size=4, num_blocks=8, inline=True)
    engine.generate(greedy((7,) * 24, 2, cache_salt="a"))
    watch = engine.watch_pool("b")
    engine.generate(greedy((9,) * 28, 2, cache_salt="b"))
    assert "evict" not in {change.operation for change in watch.take()}
    engine.generate(greedy((8,) * 28, 2, cache_salt="b"))
    assert "evict" in {change.operation for change in watch.take()}


@pytest.mark.parametrize(("salt", "seen"), [("s", True), ("s:1", True), ("st", False), ("", False)])
def test_a_visitor_sees_runs_under_salts_made_from_its_own(salt: str, seen: bool) -> None:
    engine: Engine = models.engine(inline=True)
    watch = engine.watch_pool("s")
    engine.generate(greedy("abc", 2, cache_salt=salt))
    assert ("allocate" in {change.operation for change in watch.take()}) == seen


# The fold, change by change


def test_one_change_after_another() -> None:
    pool = fold(EMPTY)

    def told(
        operation: str, sequence: int, block_ids: tuple[int, ...], num: int = 0, ids: tuple = ()
    ) -> None:
        pool.apply(PoolChange(operation, 1, sequence, block_ids, num, ids))  # type: ignore[arg-type]

    told("allocate", 1, (0, 1))
    told("write", 1, (0,), 6, (10, 11, 12, 13, 14, 15))
    told("fork", 2, (0, 1), 6)
    assert (dict(pool.ref_counts), pool.filled) == ({0: 2, 1: 2}, {0: 4, 1: 2})
    told("copy", 2, (1, 2), 6)
    told("write", 2, (), 7, (99,))
    assert pool.tables == {1: [0, 1], 2: [0, 2]}
    assert pool.contents == {0: [10, 11, 12, 13], 1: [14, 15], 2: [14, 15, 99]}
    assert pool.owners(0) == [(1, 0), (2, 0)]
    told("truncate", 2, (2,), 4)
    told("free", 1, (0, 1))
    assert (pool.tables, pool.filled, list(pool.idle)) == ({2: [0]}, {0: 4}, [])
    told("free", 2, (0,))
    assert (pool.used, list(pool.idle), pool.num_free_blocks) == (0, [0], 8)
    told("taken", -1, (0, 5))
    assert (list(pool.idle), pool.contents, pool.taken, pool.num_free_blocks) == ([], {}, {0, 5}, 6)
    told("returned", -1, (5,))
    assert (pool.taken, pool.num_free_blocks) == ({0}, 7)


def test_usage_is_the_mean_over_the_steps_each_taken_once_all_its_tokens_are_written() -> None:
    pool = fold(EMPTY)
    changes = [
        PoolChange("allocate", 1, 1, (0, 1)),
        PoolChange("allocate", 2, 2, (2,)),
        PoolChange("write", 1, 1, (0,), 6, (1,) * 6),
        PoolChange("write", 2, 2, (), 3, (1,) * 3),  # the same step: 9 of 12 slots
        PoolChange("write", 1, 1, (), 8, (1,) * 2),
        PoolChange("write", 2, 2, (), 4, (1,)),  # 12 of 12
        PoolChange("free", 1, 1, (0, 1)),
    ]
    for change in changes:
        pool.apply(change)
    assert pool.usage.num_steps == 2
    assert pool.usage.waste == pytest.approx(1 - 21 / 24)
    assert pool.usage.contiguous_waste(buffer=20) == pytest.approx(1 - 21 / 80)
