"""Constrained decoding: python tests/benchmarks/grammar.py [--lessons NAME ...]

For each shipped grammar: what a mask costs, and the time of a run with the grammar over the time of a run of
as many tokens without it, taking turns in one process. Aims: 1 ms a mask, 1.1 times the time.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])  # the folder beside holds an inspect.py of its own

import argparse
import statistics
import time
from dataclasses import replace

from backend import Engine, Request
from backend.grammar.constraint import Constraint
from ui.presets.lessons import Lesson, load_lessons
from ui.tabs.lesson_bar import settings, values
from ui.tabs.structure import FOLDER, START, request

ROUNDS = 3


def seconds(engine: Engine, asked: Request) -> tuple[float, int]:
    """(time, tokens) of a run."""
    started = time.perf_counter()
    trace = engine.generate(asked)
    return time.perf_counter() - started, len(trace.token_ids)


def mask_times(engine: Engine, asked: Request) -> list[float]:
    """Time of each mask along the run, asked in order of a fresh state."""
    trace = engine.generate(asked)
    assert asked.grammar is not None
    constraint = Constraint(engine.check_grammar(asked.grammar), engine._tokens, 2)
    times = []
    for length in range(len(trace.token_ids)):
        started = time.perf_counter()
        constraint.mask(trace.token_ids[:length])
        times.append(time.perf_counter() - started)
    return times


def measure(engine: Engine, lesson: Lesson, jump_forward: bool) -> tuple[float, int]:
    """(time with the grammar over time without it, tokens), medians over rounds."""
    asked = request(lesson.prompt, settings(lesson), values(lesson, START), "")
    assert asked.grammar is not None
    grammar = replace(asked.grammar, jump_forward=jump_forward)
    with_grammar = replace(asked, grammar=grammar, use_cache=True)
    _, length = seconds(engine, with_grammar)
    # The same number of tokens: the end of the text is kept from coming earlier.
    bias = dict.fromkeys(engine._eos_ids, -100.0)
    plain = replace(
        asked, grammar=None, max_new_tokens=length, sampling=replace(asked.sampling, logit_bias=bias)
    )
    ratios = []
    for _ in range(ROUNDS):
        free, _ = seconds(engine, plain)
        bound, _ = seconds(engine, with_grammar)
        ratios.append(bound / free)
    return statistics.median(ratios), length


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lessons", nargs="*", help="names of grammars; all by default")
    chosen = parser.parse_args().lessons
    engine = Engine.load()
    print(
        f"{'grammar':12} {'tokens':>6} {'mask ms: median':>16} {'max':>6} {'time, one by one':>17} "
        f"{'jumping':>8}"
    )
    for lesson in load_lessons(FOLDER):
        if chosen and lesson.name not in chosen:
            continue
        times = mask_times(engine, request(lesson.prompt, settings(lesson), values(lesson, START), ""))
        plain, length = measure(engine, lesson, jump_forward=False)
        jumping, _ = measure(engine, lesson, jump_forward=True)
        median, most = statistics.median(times) * 1000, max(times) * 1000
        print(
            f"{lesson.name:12} {length:6} {median:16.2f} {most:6.2f} {plain:16.2f}x {jumping:7.2f}x",
            flush=True,
        )
    engine.close()


if __name__ == "__main__":
    main()
