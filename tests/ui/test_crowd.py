"""Many requests at once: same texts as alone, little waste, forks that share, nothing left behind."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest

from backend import Engine, Request, RequestError, SamplingParams
from backend.events import Finished, Preempted, TokenDecoded, Waiting
from backend.pool_view import fold
from tests import models
from tests.running import audit, guarded
from ui.runs.crowd import MAX_MEMBERS, Ask, Crowd, Member


def sampled(ask: Ask) -> Request:
    """Prompts of a tiny model's alphabet; each line has a seed of its own."""
    return Request(
        ask.prompt,
        sampling=SamplingParams(temperature=0.8, logit_bias={models.EOS_ID: -100}),
        max_new_tokens=ask.max_new_tokens,
        seed=len(ask.prompt),
    )


def letters(rng: random.Random, count: int) -> str:
    return "".join(chr(97 + rng.randrange(26)) for _ in range(count))


def started(engine: Engine, asks: list[Ask], stagger: float = 0.0) -> Crowd:
    crowd = Crowd()
    crowd.fill(asks)
    crowd.begin(engine, sampled, stagger)
    return crowd


def until(crowd: Crowd, holds: Callable[[], bool]) -> None:
    """Follow the run until something holds."""
    for _ in crowd:
        if holds():
            return
    pytest.fail("the run ended first")


@pytest.fixture
def engine():
    made = models.engine(block_size=16, num_blocks=300)
    yield made
    made.close()


def test_eight_staggered_requests_equal_their_solo_runs_and_waste_under_4_percent(engine: Engine) -> None:
    rng = random.Random(0)
    asks = [Ask(letters(rng, rng.randrange(210, 400)), rng.randrange(40, 100)) for _ in range(8)]
    alone = models.engine(block_size=16, num_blocks=300, inline=True)
    solo = [alone.generate(sampled(ask)) for ask in asks]
    watch = engine.watch_pool("")
    crowd = started(engine, asks, stagger=0.02)
    guarded(lambda: list(crowd), 60)
    assert [member.text for member in crowd.members] == [trace.text for trace in solo]
    assert [member.state for member in crowd.members] == ["length"] * 8
    offsets = [member.offset for member in crowd.members]
    assert offsets == sorted(offsets)
    assert offsets[-1] >= 0.14
    pool = fold(watch.start, watch.take())
    waste, buffers = pool.usage.waste, pool.usage.contiguous_waste(512)
    assert waste is not None
    assert buffers is not None
    print(f"waste in 16-token blocks {waste:.1%}, in one buffer of 512 tokens per request {buffers:.1%}")
    assert waste < 0.04
    assert buffers > 0.2
    assert pool.usage.num_steps > 100
    assert (pool.used, pool.num_free_blocks) == (0, 300)
    audit(engine)


def test_a_fork_shares_every_block_of_its_parent_copies_one_and_goes_its_own_way(engine: Engine) -> None:
    crowd = started(engine, [Ask(letters(random.Random(1), 40), 60)])
    parent = crowd.members[0]
    until(crowd, lambda: len(parent.tokens) >= 5)
    watch = engine.watch_pool("")
    fork = crowd.fork(parent)
    guarded(lambda: list(crowd), 60)
    assert fork.forked_from == "A"
    assert fork.request is not None
    assert len(fork.request.output_prefix) >= 5
    changes = watch.take()
    operations = [change for change in changes if change.run == fork.run]
    assert operations[0].operation == "fork"
    assert len(operations[0].block_ids) == -(-(40 + len(fork.request.output_prefix) - 1) // 16)
    copies = [change for change in changes if change.operation == "copy"]
    assert len(copies) <= 1  # whoever wrote first to the last block, unless it was full
    alone = models.engine(block_size=16, num_blocks=300, inline=True)
    expected = alone.generate(fork.request)
    assert [token.token_id for token in fork.tokens] == [step.token_id for step in expected.steps()]
    assert fork.text != parent.text[-len(fork.text) :]
    audit(engine)


def test_a_fork_of_a_parent_that_has_ended_by_then_still_gives_the_right_text() -> None:
    engine = models.engine(block_size=4, inline=True)
    request = sampled(Ask("abcdefghij", 30))
    trace = engine.generate(request)
    stream = engine.stream(request)
    events = [next(stream)]
    while not isinstance(events[-1], TokenDecoded):
        events.append(next(stream))
    child = Request(
        request.prompt,
        sampling=request.sampling,
        seed=3,
        max_new_tokens=30,
        output_prefix=trace.token_ids[:1],
    )
    branch = engine.stream(child, parent=stream)
    list(stream)
    assert [e.token_id for e in branch if isinstance(e, TokenDecoded)] == [
        step.token_id for step in engine.generate(child).steps()
    ]
    audit(engine)


def test_two_visitors_cannot_share_by_a_fork() -> None:
    engine = models.engine(block_size=4, inline=True)
    stream = engine.stream(Request("abcdefghijkl", max_new_tokens=9, cache_salt="a"))
    while not isinstance(next(stream), TokenDecoded):
        pass
    watch = engine.watch_pool("b")
    stranger = engine.stream(Request("abcdefghijkl", max_new_tokens=9, cache_salt="b"), parent=stream)
    list(stranger)
    operations = {change.operation for change in watch.take() if change.run == stranger.number}
    assert "allocate" in operations
    assert operations.isdisjoint({"fork", "reuse", "copy"})
    list(stream)
    audit(engine)


def test_cancel_frees_the_blocks_of_one_and_the_others_go_on(engine: Engine) -> None:
    rng = random.Random(2)
    crowd = started(engine, [Ask(letters(rng, 60), 80) for _ in range(3)])
    second = crowd.members[1]
    until(crowd, lambda: all(len(member.tokens) >= 3 for member in crowd.members))
    used = 300 - engine.block_manager.num_free_blocks
    crowd.cancel(second)
    assert 300 - engine.block_manager.num_free_blocks < used
    guarded(lambda: list(crowd), 60)
    assert [member.state for member in crowd.members] == ["length", "cancelled", "length"]
    audit(engine)


def test_a_request_added_meanwhile_runs_in_the_same_batch(engine: Engine) -> None:
    crowd = started(engine, [Ask(letters(random.Random(3), 30), 120)])
    until(crowd, lambda: len(crowd.members[0].tokens) >= 2)
    added = crowd.add(Ask("hello", 5))
    guarded(lambda: list(crowd), 60)
    assert (added.name, added.state, len(added.tokens)) == ("B", "length", 5)
    assert added.offset > 0
    assert crowd.members[0].state == "length"
    audit(engine)


def test_what_can_never_fit_is_refused_at_once_with_numbers_and_the_rest_runs() -> None:
    """D13."""
    engine = models.engine(block_size=16, num_blocks=10)
    crowd = started(engine, [Ask("small", 5), Ask("x" * 200, 200), Ask("last", 5)], stagger=0.01)
    assert [member.state for member in crowd.members] == ["not started", "refused", "not started"]
    guarded(lambda: list(crowd), 60)
    assert [member.state for member in crowd.members] == ["length", "refused", "length"]
    assert "may need 25 blocks of 16 tokens" in crowd.members[1].error
    assert "the pool has 10" in crowd.members[1].error
    audit(engine)
    engine.close()


def test_closing_ends_everything_that_runs_waits_or_has_not_started(engine: Engine) -> None:
    crowd = started(engine, [Ask("one", 400), Ask("two", 400), Ask("late", 5)], stagger=0.05)
    with crowd:
        until(crowd, lambda: bool(crowd.members[1].tokens))
    crowd.members[2].due = 1e9
    guarded(lambda: list(crowd), 30)
    assert [member.state for member in crowd.members[:2]] == ["cancelled", "cancelled"]
    audit(engine)


def test_closing_while_another_thread_reads_leaves_every_last_event_at_its_member(engine: Engine) -> None:
    crowd = started(engine, [Ask(f"number {number}", 400) for number in range(6)])
    reader = threading.Thread(target=lambda: list(crowd))
    reader.start()
    while not all(member.tokens for member in crowd.members):
        time.sleep(0.005)
    crowd.close()
    assert [member.state for member in crowd.members] == ["cancelled"] * 6
    reader.join()
    audit(engine)


def test_a_list_can_be_run_again_without_its_forks_and_finds_its_prompts_in_the_cache(engine: Engine) -> None:
    crowd = started(engine, [Ask(letters(random.Random(5), 50), 30)])
    until(crowd, lambda: len(crowd.members[0].tokens) >= 2)
    crowd.fork(crowd.members[0])
    guarded(lambda: list(crowd), 60)
    crowd.begin(engine, sampled, 0.0)
    guarded(lambda: list(crowd), 60)
    (member,) = crowd.members
    assert member.finished is not None
    assert member.finished.num_cached_tokens == 48


def test_the_list_names_its_members_and_refuses_what_it_cannot_do(engine: Engine) -> None:
    crowd = Crowd()
    with pytest.raises(RequestError, match="the list is empty"):
        crowd.begin(engine, sampled, 0.0)
    crowd.fill([Ask("a") for _ in range(MAX_MEMBERS)])
    assert [member.name for member in crowd.members][25:28] == ["Z", "A2", "B2"]
    with pytest.raises(RequestError, match=f"at most {MAX_MEMBERS}"):
        crowd.add(Ask("a"))
    with pytest.raises(RequestError, match="A does not run"):
        crowd.fork(crowd.members[0])
    crowd.remove(crowd.members[0])
    assert crowd.members[0].name == "B"
    assert crowd.add(Ask("a")).name == "A"


def test_a_line_that_makes_no_request_starts_nothing(engine: Engine) -> None:
    crowd = Crowd()
    crowd.fill([Ask("a", 5), Ask("b", 0)])
    with pytest.raises(RequestError, match="max_new_tokens"):
        crowd.begin(engine, sampled, 0.0)
    assert [member.state for member in crowd.members] == ["not started", "not started"]


def test_two_hundred_arrivals_with_cancels_and_forks_in_a_small_pool_all_end_with_the_right_text() -> None:
    """No deadlock, no leak, no starvation: whatever is not cancelled finishes, forks of forks included."""
    rng = random.Random(11)
    engine = models.engine(block_size=4, num_blocks=26, inline=True)
    alone = models.engine(block_size=16, num_blocks=64, inline=True)
    waiting = [sampled(Ask(letters(rng, rng.randrange(1, 40)), rng.randrange(1, 50))) for _ in range(150)]
    live: list[tuple[Request, object, list]] = []
    ended: list[tuple[Request, list]] = []
    num_forks = num_cancelled = steps = 0
    kinds: set[type] = set()
    while live or waiting:
        if waiting and len(live) < 9 and rng.random() < 0.3:
            request = waiting.pop()
            live.append((request, engine.stream(request), []))
        if not live:
            continue
        request, stream, events = rng.choice(live)
        event = next(stream)  # type: ignore[call-overload]
        events.append(event)
        kinds.add(type(event))
        steps += 1
        tokens = [e.token_id for e in events if isinstance(e, TokenDecoded)]
        prefix = (*request.output_prefix, *tokens)
        if (
            isinstance(event, TokenDecoded)
            and num_forks < 50
            and rng.random() < 0.03
            and len(prefix) < request.max_new_tokens
        ):
            num_forks += 1
            child = Request(
                request.prompt,
                sampling=request.sampling,
                max_new_tokens=request.max_new_tokens,
                seed=1000 + num_forks,
                output_prefix=prefix,
            )
            live.append((child, engine.stream(child, parent=stream), []))  # type: ignore[arg-type]
        elif rng.random() < 0.002:
            stream.close()  # type: ignore[attr-defined]
            events.extend(stream)  # type: ignore[call-overload]
            num_cancelled += 1
        if isinstance(events[-1], Finished):
            ended.append((request, events))
            live = [entry for entry in live if entry[1] is not stream]
    assert num_forks == 50
    assert len(ended) == 200
    assert num_cancelled > 5
    assert {Waiting, Preempted} <= kinds
    complete = 0
    for request, events in ended:
        found = [e.token_id for e in events if isinstance(e, TokenDecoded)]
        expected = [step.token_id for step in alone.generate(request).steps()]
        if events[-1].reason == "cancelled":
            assert found == expected[: len(found)]
        else:
            complete += 1
            assert found == expected
            assert events[-1].reason == "length"
    assert complete > 150
    audit(engine)


def test_adding_cancelling_and_forking_from_other_threads_loses_nothing(engine: Engine) -> None:
    rng = random.Random(6)
    crowd = started(engine, [Ask(letters(rng, 30), 60) for _ in range(4)], stagger=0.01)
    made: list[Member] = []

    def busy() -> None:
        for _ in range(6):
            made.append(crowd.add(Ask(letters(rng, 10), 20)))
            time.sleep(0.005)
            crowd.cancel(crowd.members[rng.randrange(len(crowd.members))])
            for member in list(crowd.members):
                if member.is_live and member.started is not None:
                    made.append(crowd.fork(member))
                    break

    def run() -> None:
        helper = threading.Thread(target=busy)
        helper.start()
        list(crowd)
        helper.join()

    guarded(run, 60)
    assert all(member.finished is not None for member in crowd.members if member.stream is not None)
    audit(engine)
