"""What checking one drafted position costs: every use its own pass, as before, and all positions in one pass.

    python tests/benchmarks/pipeline.py [--drafts 4] [--vocab 49152] [--rounds 40] [--trace]

A check by rejection of drafts that are all accepted: of each position the target's distribution is read, the
drafted token is recorded, and after the last one a token is drawn. Prints microseconds of processor time per
position, medians over the rounds; both ways take turns.
"""

import sys
from pathlib import Path

# Run as a script: the repository goes on the path first, this folder off it.
sys.path[0] = str(Path(__file__).resolve().parents[2])

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from backend import SamplingParams
from backend.sampling.pipeline import Pipeline, Place
from backend.sampling.processors import History

SETTINGS = {
    "greedy": SamplingParams(temperature=0),
    "temperature": SamplingParams(temperature=0.8),
    "top-p": SamplingParams(temperature=0.8, top_p=0.95),
    "top-k, top-p, min-p": SamplingParams(temperature=0.8, top_k=50, top_p=0.95, min_p=0.02),
    "repetition penalty": SamplingParams(temperature=0.8, top_p=0.95, repetition_penalty=1.1),
}


def in_passes(pipeline: Pipeline, logits: Tensor, histories: list[History]) -> None:
    """One pass to read the distribution, another one to record."""
    last = len(histories) - 1
    for number, (row, history) in enumerate(zip(logits, histories, strict=True)):
        if number == last:
            pipeline.choose(row, history, Place(0, 0, number))
        else:
            pipeline.process(row, history).exp()
            pipeline.force(row, history, 7)


def in_one(pipeline: Pipeline, logits: Tensor, histories: list[History]) -> None:
    """One pass for all."""
    last = len(histories) - 1
    for number, position in enumerate(pipeline.positions(logits, histories)):
        if number == last:
            position.choose(Place(0, 0, number))
        else:
            position.logprobs.exp()
            position.force(7)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=49_152)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--trace", action="store_true", help="with tables of candidates")
    args = parser.parse_args()
    torch.set_num_threads(1)  # as the step loop does
    count = args.drafts + 1
    logits = torch.randn(count, args.vocab, generator=torch.Generator().manual_seed(0)) * 3
    histories = [History(tuple(range(200 + row)), 100) for row in range(count)]
    ways: dict[str, Callable[[Pipeline, Tensor, list[History]], None]] = {"passes": in_passes, "one": in_one}
    print(f"{count} positions of {args.vocab:,} tokens, microseconds per position")
    for name, params in SETTINGS.items():
        pipeline = Pipeline(params, str, 30 if args.trace else 0)
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(args.rounds):
            for way, check in ways.items():
                began = time.thread_time()
                check(pipeline, logits, histories)
                times[way].append((time.thread_time() - began) / count * 1e6)
        passes, one = (statistics.median(times[way]) for way in ways)
        print(f"{name:22} a pass per use {passes:8.0f}   one pass {one:8.0f}   {passes / one:.2f} x")


if __name__ == "__main__":
    main()
