"""The step loop under pressure: waiting, preemption, cancellation, chunks; the text never changes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from backend import Engine, Request, RequestError, Sample, SamplingParams, Trace
from backend.events import Finished, Preempted, Prefilled, Started, TokenDecoded, Waiting
from tests import models
from tests.running import FULL, audit, finished, greedy, guarded, kinds, together, token_ids


def random_request(rng: random.Random, longest: int, shared: bool = False) -> Request:
    """At most `longest` tokens, counting what samples share once if `shared`, else for each of them."""
    params = SamplingParams(
        temperature=rng.choice([0, 0.5, 1, 1.5]),
        top_p=rng.choice([1, 0.9, 0.5]),
        top_k=rng.choice([0, 0, 5]),
        min_p=rng.choice([0, 0.05]),
        repetition_penalty=rng.choice([1, 1.2]),
        frequency_penalty=rng.choice([0, 0.5]),
        no_repeat_ngram_size=rng.choice([0, 0, 3]),
    )
    # Some share a long beginning, so that blocks are reused, shared and evicted.
    prompt = rng.choice([(), tuple(range(40, 60))]) + tuple(
        rng.randrange(256) for _ in range(rng.randint(1, 25))
    )
    n = rng.choice([1, 1, 1, 2, 3])
    if not shared and n * len(prompt) >= longest:
        n = 1
    room = (longest - len(prompt)) // n if shared else longest // n - len(prompt)
    return Request(
        prompt,
        sampling=params,
        strategy=Sample(n),
        max_new_tokens=rng.randint(1, max(1, min(room, 60 if shared else 30))),
        seed=rng.randrange(1000),
        stop=rng.choice([(), ("a", "zz")]),
        use_cache=rng.random() > 0.1,
        cache_salt=rng.choice(["", "a"]),
        num_candidates=rng.choice([0, 3]),
    )


def start(events) -> Started:
    (event,) = [event for event in events if isinstance(event, Started)]
    return event


class Progress:
    """Fails a run in which the loop turns without anything happening."""

    def __init__(self, engine: Engine):
        self.steps = 0
        step = engine._loop._scheduler.step

        def counted() -> None:
            self.steps += 1
            assert self.steps < 500, "500 steps without an event: nothing moves any more"
            step()

        engine._loop._scheduler.step = counted  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("block_size", "shared", "count"),
    [
        (4, False, 200),
        (1, False, 200 if FULL else 80),
        (4, True, 200 if FULL else 80),
    ],
)
def test_random_requests_over_a_tiny_pool_equal_their_solo_runs(
    block_size: int, shared: bool, count: int
) -> None:
    rng = random.Random(7)
    num_slots = 100
    engine = models.engine(block_size=block_size, num_blocks=num_slots // block_size, inline=True)
    progress = Progress(engine)
    requests = [random_request(rng, num_slots - 12, shared) for _ in range(count)]
    solo_engine = models.engine(block_size=16, inline=True)
    solo = [solo_engine.generate(replace(request, use_cache=True)) for request in requests]
    cancelled_after = {number: rng.randint(1, 30) for number in range(count) if rng.random() < 0.15}

    collected: list[list] = [[] for _ in requests]
    live = []
    waiting = list(range(count))
    while live or waiting:
        while waiting and len(live) < 12:
            number = waiting.pop(0)
            live.append((number, engine.stream(requests[number])))
        number, stream = rng.choice(live)
        event = next(stream)
        progress.steps = 0
        collected[number].append(event)
        if isinstance(event, Finished) or len(collected[number]) == cancelled_after.get(number):
            stream.close()
            live.remove((number, stream))
        living = [
            sequence
            for run in (*engine._loop._scheduler._waiting, *engine._loop._scheduler._running)
            for sequence in run.strategy.gi_frame.f_locals["sequences"]
        ]
        engine.block_manager.check_integrity(living)
    audit(engine)

    everything = [event for events in collected for event in events]
    for kind in (Waiting, Preempted):
        assert sum(isinstance(event, kind) for event in everything) > 20, kind
    complete = 0
    for number in range(count):
        events = collected[number]
        expected = token_ids(solo[number])
        found = token_ids(Trace(requests[number], tuple(events)))
        if isinstance(events[-1], Finished) and events[-1].reason != "cancelled":
            complete += 1
            assert found == expected, requests[number]
            assert events[-1].reason == solo[number].finish_reason
            indices = [e.index for e in events if isinstance(e, TokenDecoded) and e.sample == 0]
            assert indices == list(range(len(indices)))
        else:
            assert all(ids == expected[sample][: len(ids)] for sample, ids in found.items())
    assert complete > 0.75 * count
    assert count - complete > 0.05 * count  # these were cancelled


def test_the_loop_thread_and_the_inline_loop_give_the_same_results() -> None:
    rng = random.Random(3)
    requests = [random_request(rng, 90) for _ in range(24)]
    results = []
    for inline in (False, True):
        engine = models.engine(block_size=4, num_blocks=40, inline=inline)
        results.append(
            [(t.finish_reason, token_ids(t)) for t in guarded(lambda e=engine: together(e, requests), 60)]
        )
        audit(engine)
        engine.close()
    assert results[0] == results[1]


def test_the_youngest_run_is_preempted_and_gives_the_same_text() -> None:
    engine = models.engine(block_size=4, num_blocks=12, inline=True)
    old, young = greedy("old " * 4, 30), greedy("young", 25, seed=5)
    alone = [engine.generate(request).text for request in (old, young)]
    traces = together(engine, [old, young])
    assert [trace.text for trace in traces] == alone
    assert "Preempted" not in kinds(traces[0].events)
    assert "Preempted" in kinds(traces[1].events)
    (preempted, *_) = [event for event in traces[1].events if isinstance(event, Preempted)]
    assert preempted.num_tokens > 0
    audit(engine)


@pytest.mark.parametrize(("num_blocks", "length"), [(12, 20), (13, 20), (30, 45), (180, 300)])
@pytest.mark.parametrize("n", [1, 2])
def test_of_many_that_arrive_at_once_none_is_admitted_only_to_be_preempted(
    num_blocks: int, length: int, n: int
) -> None:
    """The blocks of a run that was admitted are spoken for, also while its prompt is read in parts."""
    engine = models.engine(block_size=4, num_blocks=num_blocks, inline=True)
    requests = [replace(greedy((number,) * length, 4), strategy=Sample(n)) for number in range(1, 7)]
    for trace in together(engine, requests):
        told = kinds(trace.events)
        assert "Preempted" not in told[: told.index("TokenDecoded")]
    audit(engine)


def test_a_run_that_does_not_fit_waits_and_says_for_how_much() -> None:
    engine = models.engine(block_size=4, num_blocks=8, inline=True)
    first, second = greedy((1,) * 20, 8), greedy((2,) * 24, 4)
    traces = together(engine, [first, second])
    waits = [event for event in traces[1].events if isinstance(event, Waiting)]
    assert (waits[0].num_needed_blocks, waits[0].num_free_blocks) == (6, 3)
    assert [trace.finish_reason for trace in traces] == ["length", "length"]
    audit(engine)


def test_a_run_that_waits_touches_no_block_until_it_is_admitted() -> None:
    """Not even those it will find in the cache: they stay free, and in their place among the idle ones."""
    engine = models.engine(block_size=4, num_blocks=12, inline=True)
    engine.generate(greedy((2,) * 24, 2))
    idle = list(engine.block_manager.idle_contents())
    assert len(idle) == 6
    first = engine.stream(greedy((1,) * 20, 20))
    while not isinstance(next(first), TokenDecoded):
        pass
    second = engine.stream(greedy((2,) * 24 + (3,) * 9, 4))
    told = [next(second), next(second)]
    assert kinds(told) == ["Started", "Waiting"]
    # 9 blocks in all; what it finds is free as well, and there is one to spare for the other.
    assert (told[1].num_needed_blocks, told[1].num_free_blocks) == (9, 7)
    for _ in range(3):
        next(first)
    assert list(engine.block_manager.idle_contents()) == idle
    watch = engine.watch_pool("")
    first.close()
    rest = list(second)
    assert next(change.operation for change in watch.take() if change.run == second.number) == "reuse"
    assert finished(rest).num_cached_tokens == 24
    audit(engine)


def test_a_waiting_run_can_be_cancelled() -> None:
    engine = models.engine(block_size=4, num_blocks=8, inline=True)
    first = engine.stream(greedy((1,) * 20, 8))
    second = engine.stream(greedy((2,) * 24, 4))
    while not isinstance(next(second), Waiting):
        pass
    second.close()
    assert finished(list(first)).reason == "length"
    audit(engine)


def test_runs_that_wait_are_served_in_the_order_they_came() -> None:
    engine = models.engine(block_size=4, num_blocks=10, inline=True)
    requests = [greedy((number,) * 20, 10) for number in range(1, 8)]
    traces = together(engine, requests)
    firsts = [trace.finished.time + trace.finished.time_to_first_token for trace in traces]  # type: ignore[union-attr]
    assert firsts == sorted(firsts)
    assert [trace.finish_reason for trace in traces] == ["length"] * 7
    audit(engine)


def test_preempted_samples_run_again_although_their_prompt_was_evicted() -> None:
    """They share the prompt's blocks when admitted; recomputed, they must not need more than the pool has."""
    engine = models.engine(block_size=4, num_blocks=10, inline=True)
    old, young = greedy((1,) * 6, 33), Request((2,) * 17, strategy=Sample(4), max_new_tokens=3)
    expected = token_ids(engine.generate(young))
    first, second = engine.stream(old), engine.stream(young)
    events = [next(second)]
    while not isinstance(events[-1], TokenDecoded):
        events.append(next(second))
    (run,) = [run for run in engine._loop._scheduler._running if run.num_prompt_tokens == 17]
    engine._loop._scheduler._preempt(run)
    list(first)  # takes every block, so nothing of the prompt stays findable
    # Whatever is preempted must be admissible once it is alone.
    guarded(lambda: events.extend(second), 10)
    assert token_ids(Trace(young, tuple(events))) == expected


def test_a_long_prompt_is_computed_in_chunks_while_neighbours_decode() -> None:
    engine = models.engine(block_size=16, num_blocks=64, inline=True)
    prompt = tuple(random.Random(1).randrange(256) for _ in range(500))
    expected = engine.generate(greedy(prompt, 4, use_cache=False)).token_ids
    neighbour = engine.stream(greedy("neighbour", 40))
    for event in neighbour:
        if isinstance(event, TokenDecoded):
            break
    long = engine.stream(greedy(prompt, 4))
    events = [next(long)]
    while not isinstance(events[-1], Prefilled):
        events.append(next(long))
    decoded_meanwhile = 0
    while not neighbour._events.empty():
        decoded_meanwhile += isinstance(next(neighbour), TokenDecoded)
    assert decoded_meanwhile >= 1
    events.extend(long)
    parts = [event for event in events if isinstance(event, Prefilled)]
    assert [(e.num_computed_tokens, e.num_tokens, e.num_cached_tokens) for e in parts] == [
        (256, 500, 0),
        (500, 500, 0),
    ]
    assert Trace(greedy(prompt, 4), tuple(events)).token_ids == expected
    neighbour.close()
    audit(engine)


def test_a_run_preempted_while_its_prompt_is_computed_gives_the_same_text() -> None:
    engine = models.engine(block_size=4, num_blocks=100, inline=True)
    prompt = tuple(random.Random(2).randrange(256) for _ in range(300))
    young, old = greedy(prompt, 6), greedy("old" * 9, 6)
    expected = [engine.generate(replace(request, use_cache=False)).token_ids for request in (old, young)]
    first, second = engine.stream(old), engine.stream(young)
    events = []
    while not events or not isinstance(events[-1], Prefilled):
        events.append(next(second))
    (run,) = [run for run in engine._loop._scheduler._running if run.num_prompt_tokens == 300]
    assert 0 < run.pending.sequences[0].num_computed_tokens < 300
    engine._loop._scheduler._preempt(run)
    assert run.pending.sequences[0].block_table == []
    events.extend(second)
    assert "Preempted" in kinds(events)
    assert Trace(young, tuple(events)).token_ids == expected[1]
    assert Trace(old, tuple(first)).token_ids == expected[0]
    audit(engine)


def test_a_preempted_score_gives_the_same_numbers() -> None:
    """Its forwards want the logits of many positions, some of them already reusable."""
    engine = models.engine(block_size=4, num_blocks=100, inline=True)
    text = "".join(chr(97 + random.Random(3).randrange(26)) for _ in range(200))
    expected = engine.score(text, "other").steps()
    scheduler, original = engine._loop._scheduler, engine._loop._scheduler.step
    preempted = []

    def step() -> None:
        original()
        for run in list(scheduler._running):
            scheduler._preempt(run)
            preempted.append(run)

    scheduler.step = step  # type: ignore[method-assign]
    found = engine.score(text).steps()
    assert len(preempted) >= 3
    assert [step.token_id for step in found] == [step.token_id for step in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.model_logprob == pytest.approx(other.model_logprob, abs=1e-4)
    audit(engine)


def test_a_request_larger_than_the_pool_is_refused_with_numbers_and_the_next_runs() -> None:
    """D13."""
    engine = models.engine(block_size=16, num_blocks=10)
    with pytest.raises(
        RequestError, match=r"may need 21 blocks of 16 tokens \(320 prompt tokens.*the pool has 10"
    ):
        engine.stream(greedy((5,) * 320, 16))
    assert engine.generate(greedy("small", 4)).finish_reason == "length"
    audit(engine)
    engine.close()


def test_a_request_that_just_fits_runs_alone() -> None:
    engine = models.engine(block_size=4, num_blocks=10, inline=True)
    # The last token's own keys and values are never needed.
    assert engine.generate(greedy((5,) * 30, 11)).finish_reason == "length"
    with pytest.raises(RequestError, match="may need 11 blocks"):
        engine.stream(greedy((5,) * 30, 12))
    samples = Request((5,) * 17, strategy=Sample(4), max_new_tokens=7)  # 4 shared + 4 x 2 = 12
    with pytest.raises(RequestError, match="may need 12 blocks"):
        engine.stream(samples)
    four = engine.generate(replace(samples, max_new_tokens=3))  # 4 shared + 4 x 1
    assert sorted(token_ids(four)) == [0, 1, 2, 3]
    audit(engine)


def test_scoring_needs_room_for_the_text_alone() -> None:
    engine = models.engine(block_size=4, num_blocks=10, inline=True)
    assert len(engine.score("x" * 40).steps()) == 39


@pytest.mark.parametrize(
    ("block_size", "num_blocks"),
    [
        (1, 8),
        (4, 2),
        (16, 1),
    ],
)
def test_the_smallest_pools_work(block_size: int, num_blocks: int) -> None:
    engine: Engine = models.engine(block_size=block_size, num_blocks=num_blocks, inline=True)
    assert engine.generate(greedy("ab", 6)).finish_reason == "length"
    audit(engine)
