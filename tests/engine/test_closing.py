"""Ending runs early: closed streams, dropped streams, closed engines, and the end of the process."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend import Engine, PlaygroundError, Request, RequestError, SamplingParams, Trace
from backend.events import Prefilled, TokenDecoded
from tests import models
from tests.running import audit, finished, greedy, guarded, kinds

LONG = 300


@pytest.fixture(params=[False, True], ids=["thread", "inline"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = models.engine(inline=request.param)
    yield engine
    guarded(engine.close)


class Gate:
    """Holds the loop inside a model call until it is opened."""

    def __init__(self, engine: Engine):
        self.inside, self.opened = threading.Event(), threading.Event()
        forward = engine._runner.forward

        def held(pieces):
            self.inside.set()
            assert self.opened.wait(20)
            return forward(pieces)

        engine._runner.forward = held  # type: ignore[method-assign]


def test_close_in_mid_run_frees_every_block_before_it_returns(engine: Engine) -> None:
    stream = engine.stream(greedy("hello", LONG))
    for event in stream:
        if isinstance(event, TokenDecoded) and event.index == 5:
            break
    assert engine.block_manager.num_free_blocks < engine.block_manager.num_blocks
    stream.close()
    audit(engine)
    assert engine.generate(greedy("hello", 3)).finish_reason == "length"


def test_close_twice_and_after_the_end(engine: Engine) -> None:
    stream = engine.stream(greedy("hello", LONG))
    next(stream)
    stream.close()
    stream.close()
    whole = engine.stream(greedy("hello", 3))
    events = list(whole)
    whole.close()
    assert finished(events).reason == "length"
    audit(engine)


def test_close_before_the_first_event(engine: Engine) -> None:
    engine.stream(greedy("hello", LONG)).close()
    audit(engine)


def test_what_happened_until_a_close_can_still_be_read(engine: Engine) -> None:
    stream = engine.stream(greedy("hello", LONG))
    next(stream)
    stream.close()
    rest = list(stream)
    assert finished(rest).reason == "cancelled"
    assert list(stream) == []


def test_nothing_follows_the_last_event(engine: Engine) -> None:
    stream = engine.stream(greedy("hello", 3))
    assert kinds(stream)[-1] == "Finished"
    assert list(stream) == []
    with pytest.raises(StopIteration):
        next(stream)


def test_a_stream_is_a_context_manager(engine: Engine) -> None:
    with engine.stream(greedy("hello", LONG)) as stream:
        assert kinds([next(stream)]) == ["Started"]
    audit(engine)


def test_an_error_in_the_consumer_cancels_the_run(engine: Engine) -> None:
    def consume() -> None:
        with engine.stream(greedy("hello", LONG)) as stream:
            for event in stream:
                if isinstance(event, TokenDecoded):
                    raise KeyError("consumer")

    with pytest.raises(KeyError, match="consumer"):
        consume()
    audit(engine)


def test_a_dropped_stream_cancels_its_run(engine: Engine) -> None:
    stream = engine.stream(greedy("hello", LONG))
    next(stream)
    del stream
    gc.collect()
    # Whatever is left of the cancel is done before a run that comes after it.
    engine.generate(greedy("next", 1))
    audit(engine)


def test_a_loop_left_with_break_cancels_its_run(engine: Engine) -> None:
    for event in engine.stream(greedy("hello", LONG)):
        if isinstance(event, TokenDecoded):
            break
    gc.collect()
    engine.generate(greedy("next", 1))
    audit(engine)


def test_cancelled_a_hundred_times_at_prefill_and_in_mid_decode(engine: Engine) -> None:
    """D09: the free blocks are back at their start value each time."""
    start = engine.block_manager.num_free_blocks
    for number in range(100):
        stream = engine.stream(greedy(f"{number}" + "x" * 60, LONG))
        stop_at = "Prefilled" if number % 2 else "TokenDecoded"
        for event in stream:
            if type(event).__name__ == stop_at:
                break
        stream.close()
        assert engine.block_manager.num_free_blocks == start
        engine.block_manager.check_integrity([])


def test_cancelling_between_the_chunks_of_a_long_prompt(engine: Engine) -> None:
    prompt = (7,) * 500
    stream = engine.stream(greedy(prompt, 3))
    for event in stream:
        if isinstance(event, Prefilled):
            assert event.num_computed_tokens < event.num_tokens
            break
    stream.close()
    audit(engine)


def test_cancelling_one_leaves_its_neighbours_alone(engine: Engine) -> None:
    expected = engine.generate(greedy("neighbour", 40)).text
    neighbour = engine.stream(greedy("neighbour", 40))
    other = engine.stream(greedy("other", LONG))
    for event in other:
        if isinstance(event, TokenDecoded) and event.index == 7:
            break
    other.close()
    assert Trace(greedy("neighbour", 40), tuple(neighbour)).text == expected
    audit(engine)


def test_close_from_another_thread_ends_the_wait_for_an_event() -> None:
    engine = models.engine()
    stream = engine.stream(greedy("hello", LONG))
    events = [next(stream)]
    reader = threading.Thread(target=lambda: events.extend(stream))
    gate = Gate(engine)
    reader.start()
    assert gate.inside.wait(20)
    closer = threading.Thread(target=stream.close)
    closer.start()
    gate.opened.set()
    for thread in (closer, reader):
        thread.join(20)
        assert not thread.is_alive()
    assert finished(events).reason == "cancelled"
    audit(engine)
    engine.close()


def test_many_threads_start_and_close_runs_at_once() -> None:
    engine = models.engine()
    errors: list[BaseException] = []

    def visitor(number: int) -> None:
        try:
            for turn in range(6):
                stream = engine.stream(greedy(f"{number} {turn}", 30))
                for event in stream:
                    if isinstance(event, TokenDecoded) and event.index == number + turn:
                        break
                if (number + turn) % 2:
                    stream.close()
                else:
                    list(stream)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=visitor, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []
    audit(engine)
    engine.close()


def test_several_threads_drive_one_inline_loop() -> None:
    engine = models.engine(inline=True)
    expected = {prompt: engine.generate(greedy(prompt, 20)).text for prompt in "abcd"}
    found: dict[str, str] = {}

    def visitor(prompt: str) -> None:
        found[prompt] = engine.generate(greedy(prompt, 20)).text

    threads = [threading.Thread(target=visitor, args=(prompt,)) for prompt in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert found == expected
    audit(engine)


# The engine itself


@pytest.mark.parametrize(
    "inline",
    [
        False,
        True,
    ],
    ids=["thread", "inline"],
)
def test_closing_the_engine_cancels_what_still_runs(inline: bool) -> None:
    engine = models.engine(inline=inline)
    stream = engine.stream(greedy("hello", LONG))
    next(stream)
    engine.close()
    assert finished(guarded(lambda: list(stream))).reason == "cancelled"
    audit(engine)


def test_a_closed_engine_refuses_requests(engine: Engine) -> None:
    engine.close()
    engine.close()
    with pytest.raises(PlaygroundError, match="closed"):
        engine.stream(greedy("hello"))


def test_a_request_that_the_loop_had_not_seen_yet_ends_with_the_engine() -> None:
    engine = models.engine()
    gate = Gate(engine)
    first = engine.stream(greedy("hello", LONG))
    assert gate.inside.wait(20)
    second = engine.stream(greedy("late", 5))  # it stays in the inbox while the model works
    closer = threading.Thread(target=engine.close)
    closer.start()
    while not engine._closed:
        pass
    gate.opened.set()
    closer.join(20)
    assert finished(guarded(lambda: list(first))).reason == "cancelled"
    assert finished(guarded(lambda: list(second), 5)).reason == "cancelled"


def test_a_request_that_is_being_prepared_while_the_engine_closes_ends() -> None:
    engine = models.engine()
    engine.generate(greedy("first", 1))
    label = engine._vocabulary.label

    def closing_label(token_id: int) -> str:
        if not engine._closed:
            engine.close()
        return label(token_id)

    engine._vocabulary.label = closing_label  # type: ignore[method-assign]

    def run() -> str:
        try:
            return finished(list(engine.stream(greedy("late", 5)))).reason
        except PlaygroundError:
            return "refused"

    assert guarded(run, 5) in ("cancelled", "refused")


def test_a_stream_may_be_closed_after_its_engine(engine: Engine) -> None:
    stream = engine.stream(greedy("hello", LONG))
    next(stream)
    engine.close()
    guarded(stream.close)


COLLECTED_IN_A_STEP = """
import gc
from tests.models import engine
from tests.running import greedy, kinds

class Cycle: ...

gc.disable()
engine = engine(inline={inline})
cycle = Cycle()
cycle.me, cycle.stream = cycle, engine.stream(greedy("dropped", 300))
other = engine.stream(greedy("other", 20))
next(other)
del cycle
forward = engine._runner.forward

def once(pieces):
    engine._runner.forward = forward
    gc.collect()
    return forward(pieces)

engine._runner.forward = once
events = list(other)
engine.generate(greedy("next", 1))
engine.block_manager.check_integrity([])
print(type(events[-1]).__name__, events[-1].reason)
engine.close()
"""


def run_script(script: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, cwd=root, check=False)


@pytest.mark.parametrize("inline", [False, True], ids=["thread", "inline"])
def test_a_stream_collected_in_the_middle_of_a_step_does_not_block_the_loop(inline: bool) -> None:
    """The garbage collector runs in whatever thread allocates, so also inside the loop."""
    done = run_script(COLLECTED_IN_A_STEP.format(inline=inline))
    assert (done.returncode, done.stdout) == (0, "Finished length\n"), done.stderr


SCRIPT = """
from tests.models import engine
from tests.running import greedy
engine = engine()
stream = engine.stream(greedy("hello", 400))
next(stream)
print("end of script")
"""


def test_a_script_may_end_while_a_run_goes_on() -> None:
    done = run_script(SCRIPT)
    assert (done.returncode, done.stdout) == (0, "end of script\n"), done.stderr


# Failures inside a run


def fail_at(engine: Engine, token_id: int, call: int) -> None:
    """From its `call`-th model call on, a batch that holds a sequence starting with `token_id` raises."""
    forward = engine._runner.forward
    seen: dict[int, int] = {}

    def failing(pieces):
        for piece in pieces:
            if piece.start == 0 and piece.token_ids[0] == token_id:
                seen[piece.block_table[0]] = 0
            elif piece.start == 0:
                seen.pop(piece.block_table[0], None)  # the block has gone to another run
            table = piece.block_table[0]
            if table in seen:
                seen[table] += 1
                if seen[table] >= call:
                    raise RuntimeError("device lost")
        return forward(pieces)

    engine._runner.forward = failing  # type: ignore[method-assign]


def test_a_model_that_raises_at_its_fifth_step_fails_only_its_own_request(engine: Engine) -> None:
    """F12."""
    good = greedy("good", 12)
    expected = engine.generate(good).text
    fail_at(engine, engine.encode("!")[0], call=5)
    streams = [engine.stream(request) for request in (good, greedy("!bad", 12), good)]
    first, bad, last = (guarded(lambda s=stream: list(s)) for stream in streams)
    end = finished(bad)
    assert (end.reason, end.message) == ("error", "RuntimeError: device lost")
    assert end.num_output_tokens == 4 == kinds(bad).count("TokenDecoded")
    assert Trace(good, tuple(first)).text == Trace(good, tuple(last)).text == expected
    audit(engine)
    with pytest.raises(PlaygroundError, match="device lost"):
        engine.generate(greedy("!bad", 12))
    assert engine.generate(good).text == expected


def test_a_stage_that_leaves_no_token_is_a_readable_error_of_its_run(engine: Engine) -> None:
    expected = engine.generate(greedy("good", 40)).text
    starving = Request(
        (models.EOS_ID, *range(engine.vocab_size - 3)),  # all but two
        sampling=SamplingParams(temperature=0, no_repeat_ngram_size=1),
        max_new_tokens=10,
    )
    streams = [engine.stream(greedy("good", 40)), engine.stream(starving)]
    good, starved = (guarded(lambda s=stream: list(s)) for stream in streams)
    end = finished(starved)
    assert (end.reason, end.message) == ("error", "no_repeat_ngram_size = 1 left no token to choose from")
    assert kinds(starved).count("TokenDecoded") == 2
    assert Trace(greedy("good", 40), tuple(good)).text == expected
    audit(engine)


def test_every_run_ends_if_the_loop_itself_fails() -> None:
    engine = models.engine()
    original = engine._loop._scheduler._plan

    def broken():
        raise ZeroDivisionError("a bug")

    engine._loop._scheduler._plan = broken  # type: ignore[method-assign]
    events = guarded(lambda: list(engine.stream(greedy("hello", 5))))
    assert finished(events).message == "ZeroDivisionError: a bug"
    engine._loop._scheduler._plan = original  # type: ignore[method-assign]
    assert engine.generate(greedy("hello", 5)).finish_reason == "length"
    audit(engine)
    engine.close()


def test_a_refused_request_starts_nothing(engine: Engine) -> None:
    with pytest.raises(RequestError):
        engine.stream(greedy((99_999,)))
    audit(engine)
