"""The cache never shows: reuse, sharing, paging and its absence give the same tokens and numbers."""

from __future__ import annotations

import random

import pytest
import torch

from backend import Engine, Request, RequestError, Sample, SamplingParams, Trace, TraceError
from backend.events import Prefilled
from backend.sampling.pipeline import Pipeline
from backend.scheduler import Pool
from tests import models
from tests.running import audit, finished, greedy, together, token_ids

TEXT = "".join(chr(97 + random.Random(5).randrange(26)) for _ in range(300))
LENGTHS = [1, 15, 16, 17, 31, 32, 33]


def rows(trace: Trace) -> tuple[list[int], list[float]]:
    return [step.token_id for step in trace.steps()], [step.model_logprob for step in trace.steps()]


def assert_same(one: Trace, other: Trace) -> None:
    """Same tokens, and every probability within float noise."""
    (ids, logprobs), (other_ids, other_logprobs) = rows(one), rows(other)
    assert ids == other_ids
    assert logprobs == pytest.approx(other_logprobs, abs=1e-4)


@pytest.fixture(scope="module")
def oracle() -> Engine:
    return models.engine(inline=True, block_size=16)


@pytest.mark.parametrize("num_tokens", LENGTHS)
@pytest.mark.parametrize("block_size", [1, 16])
def test_first_run_rerun_and_another_tail_equal_the_uncached_run(
    num_tokens: int, block_size: int, oracle: Engine
) -> None:
    """D01."""
    engine = models.engine(inline=True, block_size=block_size)
    prompt = TEXT[:num_tokens]
    for text in (prompt, prompt, prompt + "!", prompt[:-1] + "?", prompt + " and a longer tail"):
        expected = oracle.generate(greedy(text, 12, use_cache=False))
        assert_same(engine.generate(greedy(text, 12)), expected)
    audit(engine)


@pytest.mark.parametrize("num_tokens", LENGTHS)
def test_the_hit_counter_is_what_whole_blocks_allow(num_tokens: int) -> None:
    engine = models.engine(inline=True, block_size=16)
    first, second = (engine.generate(greedy(TEXT[:num_tokens], 1)) for _ in range(2))
    assert finished(first.events).num_cached_tokens == 0
    expected = (num_tokens - 1) // 16 * 16
    assert finished(second.events).num_cached_tokens == expected
    (prefilled,) = [event for event in second.events if isinstance(event, Prefilled)]
    assert (prefilled.num_cached_tokens, prefilled.num_tokens) == (expected, num_tokens)


@pytest.mark.parametrize("num_tokens", [31, 32, 33, 64, 65, 66, 200])
@pytest.mark.parametrize("block_size", [1, 16])
def test_scores_are_complete_and_the_same_twice(num_tokens: int, block_size: int) -> None:
    """D02; the oracle is the model itself on the whole text."""
    model = models.llama()
    engine = models.engine(models.llama(), inline=True, block_size=block_size, num_blocks=512)
    text = TEXT[:num_tokens]
    ids = engine.encode(text)
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)
    expected = [float(logprobs[place - 1, ids[place]]) for place in range(1, num_tokens)]
    ranks = [
        1 + int((logprobs[place - 1] > logprobs[place - 1, ids[place]]).sum())
        for place in range(1, num_tokens)
    ]
    for _ in range(2):
        trace = engine.score(text)
        found, values = rows(trace)
        assert found == ids[1:]
        assert values == pytest.approx(expected, abs=1e-4)
        assert [step.rank for step in trace.steps()] == ranks
        assert all(step.forced for step in trace.steps())
        assert trace.text == text[1:]
    engine.generate(greedy(text, 3))
    assert rows(engine.score(text))[1] == pytest.approx(expected, abs=1e-4)
    audit(engine)


def test_another_salt_finds_nothing() -> None:
    """D06."""
    engine = models.engine(inline=True, block_size=16)
    secret = TEXT[:200]
    engine.generate(greedy(secret, 1, cache_salt="a"))
    hits = {
        salt: finished(engine.generate(greedy(secret, 1, cache_salt=salt)).events).num_cached_tokens
        for salt in ("b", "", "a")
    }
    assert hits == {"b": 0, "": 0, "a": 192}


def test_scores_keep_to_their_salt() -> None:
    engine = models.engine(inline=True, block_size=16)
    engine.score(TEXT[:100], cache_salt="a")
    assert finished(engine.generate(greedy(TEXT[:100], 1, cache_salt="b")).events).num_cached_tokens == 0


def test_samples_share_the_prompt_and_copy_the_last_block_once_per_writer(oracle: Engine) -> None:
    """D07: three samples of a prompt that ends at slot 5 of 16."""
    engine = models.engine(inline=True, block_size=16)
    request = Request(TEXT[:5], strategy=Sample(3), max_new_tokens=30, seed=4)
    watch = engine.watch_pool("")
    trace = engine.generate(request)
    changes = watch.take()
    copies = [event.block_ids for event in changes if event.operation == "copy"]
    assert len(copies) == 2  # the last writer has the block to itself
    assert len({source for source, _ in copies}) == 1
    assert len({copy for _, copy in copies}) == 2
    assert sum(event.operation == "fork" for event in changes) == 2
    assert token_ids(trace) == token_ids(
        oracle.generate(Request(TEXT[:5], strategy=Sample(3), max_new_tokens=30, seed=4, use_cache=False))
    )
    audit(engine)


@pytest.mark.parametrize("family", models.MODELS)
@pytest.mark.parametrize("block_size", [1, 16])
def test_3_and_40_tokens_in_one_batch_equal_their_solo_runs(family: str, block_size: int) -> None:
    """D11: absolute and rotary positions, with and without a window."""
    engine = models.engine(models.MODELS[family](), inline=True, block_size=block_size)
    requests = [greedy(TEXT[:3], 20), greedy(TEXT[50:90], 20)]
    solo = [engine.generate(request) for request in requests]
    for request, trace, alone in zip(requests, together(engine, requests), solo, strict=True):
        assert len(trace.token_ids) > 1, request
        assert_same(trace, alone)


@pytest.mark.parametrize("family", models.MODELS)
def test_cached_and_uncached_runs_travel_in_one_batch_and_agree(family: str) -> None:
    engine = models.engine(models.MODELS[family](), inline=True)
    requests = [greedy(TEXT[:30], 25, use_cache=use_cache) for use_cache in (True, False, True)]
    traces = together(engine, requests)
    assert_same(traces[0], traces[1])
    assert_same(traces[0], traces[2])
    assert finished(traces[1].events).num_cached_tokens == 0
    audit(engine)


def test_the_context_fills_up_and_says_so() -> None:
    """D14: context 256, prompt 250, 100 asked for."""
    engine = models.engine(models.llama(max_position_embeddings=256), inline=True)
    for prompt, reason, count in ((250, "context_full", 6), (255, "context_full", 1)):
        trace = engine.generate(greedy(tuple(range(prompt)), 100))
        assert (trace.finish_reason, len(trace.token_ids)) == (reason, count)
    assert engine.generate(greedy(tuple(range(250)), 6)).finish_reason == "length"
    with pytest.raises(RequestError, match="256 tokens; tiny holds 256"):
        engine.stream(greedy((1,) * 256, 1))
    audit(engine)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_last_position_of_the_context_is_right(family: str) -> None:
    changes = {"n_positions": 64} if family == "gpt2" else {"max_position_embeddings": 64}
    oracle = models.MODELS[family](**changes)
    engine = models.engine(models.MODELS[family](**changes), inline=True)
    trace = engine.generate(greedy(tuple(range(100, 150)), 100))
    sequence = list(range(100, 150))
    for step in trace.steps():
        with torch.no_grad():
            logits = oracle(torch.tensor([sequence])).logits[0, -1]
        assert step.token_id == int(logits.argmax())
        sequence.append(step.token_id)
    assert len(sequence) == 64
    assert trace.finish_reason == "context_full"


# Branches


@pytest.mark.parametrize("index", [0, 1, 7, 12, 13])
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_branch_that_takes_the_same_token_is_the_same_run(index: int, temperature: float) -> None:
    engine = models.engine(inline=True)
    request = Request(TEXT[:9], sampling=SamplingParams(temperature=temperature), max_new_tokens=14, seed=6)
    trace = engine.generate(request)
    assert len(trace.token_ids) == 14
    if index == 13:  # no room for a token after it, so the branch may be one longer
        assert engine.generate(trace.branch(13, trace.token_ids[13])).token_ids[:14] == trace.token_ids
        return
    branch = engine.generate(trace.branch(index, trace.token_ids[index]))
    assert branch.token_ids == trace.token_ids
    assert branch.steps()[0].index == index + 1
    kept = trace.steps()[index + 1 :]
    assert [step.logprob for step in branch.steps()] == pytest.approx([s.logprob for s in kept], abs=1e-4)
    assert [step.luck for step in branch.steps()] == [step.luck for step in kept]
    assert [step.position for step in branch.steps()] == [step.position for step in kept]


def test_a_branch_continues_as_a_run_in_which_that_token_came_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Penalties and positions count the branch as output; a bias at one step forces the same token."""
    engine = models.engine(inline=True)
    params = SamplingParams(
        temperature=1, frequency_penalty=1.5, presence_penalty=0.5, repetition_penalty=1.3
    )
    request = Request(TEXT[:9], sampling=params, max_new_tokens=20, seed=2)
    trace = engine.generate(request)
    step = trace.steps()[4]
    assert step.candidates is not None
    other = next(token_id for token_id in step.candidates.token_ids if token_id != step.token_id)
    branch = engine.generate(trace.branch(4, other))

    class Forced(Pipeline):
        def draw(self, position, place):
            if len(position.history.output_ids) == 4:
                return position.force(other)
            return super().draw(position, place)

    monkeypatch.setattr("backend.engine.Pipeline", Forced)
    forced = engine.generate(request)
    assert forced.token_ids[4] == other
    assert branch.token_ids == forced.token_ids
    assert [s.logprob for s in branch.steps()] == pytest.approx(
        [s.logprob for s in forced.steps()[5:]], abs=1e-4
    )


def test_a_branch_recomputes_at_most_one_block() -> None:
    engine = models.engine(inline=True, block_size=4)
    trace = engine.generate(greedy(TEXT[:18], 40))
    assert len(trace.token_ids) == 40
    branch = engine.generate(trace.branch(30, trace.token_ids[30]))
    end = finished(branch.events)
    assert 18 + 31 - end.num_cached_tokens <= 4


@pytest.mark.parametrize("index", [-1, 14, 99])
def test_a_branch_outside_the_run_is_refused(index: int) -> None:
    engine = models.engine(inline=True)
    trace = engine.generate(greedy(TEXT[:9], 14))
    with pytest.raises(TraceError, match=f"token {index}: the run has 14 tokens"):
        trace.branch(index, 5)


def test_a_branch_to_the_end_of_text_ends_there() -> None:
    engine = models.engine(inline=True)
    trace = engine.generate(greedy(TEXT[:9], 14))
    branch = engine.generate(trace.branch(3, models.EOS_ID))
    assert (branch.finish_reason, branch.token_ids) == ("eos", (*trace.token_ids[:3], models.EOS_ID))


def test_evaluate_is_the_step_the_run_would_take() -> None:
    engine = models.engine(inline=True)
    request = Request(TEXT[:9], max_new_tokens=10, seed=3)
    trace = engine.generate(request)
    for index in (0, 4, 8):
        branch = Request(TEXT[:9], max_new_tokens=10, seed=3, output_prefix=trace.token_ids[:index])
        step = engine.evaluate(branch)
        assert (step.token_id, step.index, step.luck) == (
            trace.token_ids[index],
            index,
            trace.steps()[index].luck,
        )
    audit(engine)


def test_the_hit_counter_leaves_out_what_a_preempted_run_computed_itself() -> None:
    engine = models.engine(inline=True, block_size=4, num_blocks=64)
    stream = engine.stream(greedy(TEXT[:20], 20))
    events = []
    while sum(type(event).__name__ == "TokenDecoded" for event in events) < 9:
        events.append(next(stream))
    (run,) = engine._loop._scheduler._running
    engine._loop._scheduler._preempt(run)
    events.extend(stream)
    assert finished(events).num_cached_tokens == 0


class Copied:
    """Stands for a runner: blocks are numbers in a list."""

    def __init__(self, contents: list[str]):
        self.contents = contents

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        before = list(self.contents)
        for source, copy in pairs:
            self.contents[copy] = before[source]


def test_copies_of_a_step_are_done_together_as_if_one_after_another() -> None:
    runner = Copied(list("abcde"))
    pool = Pool(runner, None)  # type: ignore[arg-type]
    pool.copy_later([(0, 1)])
    pool.copy_later([(2, 3)])
    assert runner.contents == list("abcde")
    pool.copy_later([(4, 3)])  # the block was given to another meanwhile
    pool.copy_later([(1, 2)])  # a copy of a copy
    pool.copy_now()
    assert runner.contents == list("aaaee")
    pool.copy_now()
    assert runner.contents == list("aaaee")
