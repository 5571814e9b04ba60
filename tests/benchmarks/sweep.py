"""A sweep of 6 values x 8 seeds x 64 tokens beside the same runs one after another: prints the ratio.

    python tests/benchmarks/sweep.py

The two take turns, so that other work on the machine slows both: a third of the sweep, then some of its runs
alone, three times. `--all` makes every run alone as well (about two minutes on two quiet cores).
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from backend import Engine, Request, SamplingParams
from backend.sweep import WIDTH, Axis, Sweep, fold, requests

BASE = Request(
    "The old man looked at the sea and",
    # No end of text, so that every run has the same length.
    sampling=SamplingParams(top_p=0.95, logit_bias={0: -100.0, 2: -100.0}),
    max_new_tokens=64,
    seed=1,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="make every run alone, not two of each third")
    parser.add_argument("--width", type=int, default=WIDTH, help="runs in one batch")
    options = parser.parse_args()
    engine = _loaded()
    made = requests(BASE, [Axis("temperature", (0.4, 0.6, 0.8, 1.0, 1.2, 1.4))], 8)
    engine.generate(BASE)  # the prompt's blocks and the kernels are warm for both

    seconds, tokens = {"alone": 0.0, "batch": 0.0}, {"alone": 0, "batch": 0}
    for turn in range(3):
        third = made[turn::3]
        alone = third if options.all else third[:2]
        for name, run in (
            ("batch", lambda runs=third: list(Sweep(engine, runs, options.width))),
            ("alone", lambda runs=alone: [fold(0, iter(engine.stream(request))) for request in runs]),
        ):
            started = time.perf_counter()
            outcomes = run()
            seconds[name] += time.perf_counter() - started
            tokens[name] += sum(outcome.metrics.num_tokens for outcome in outcomes)
    each = {name: 1000 * seconds[name] / tokens[name] for name in seconds}
    print(f"{len(made)} runs of {BASE.max_new_tokens} tokens, {options.width} in a batch")
    print(f"one after another: {each['alone']:6.1f} ms a token ({tokens['alone'] // 64} runs)")
    print(f"as a sweep:        {each['batch']:6.1f} ms a token ({tokens['batch'] // 64} runs)")
    print(f"ratio:             {each['alone'] / each['batch']:6.2f}")
    engine.close()


def _loaded() -> Engine:
    """Loaded in a thread that ends, as app.py does it."""
    found: list[Engine] = []
    loader = threading.Thread(target=lambda: found.append(Engine.load()))
    loader.start()
    loader.join()
    return found[0]


if __name__ == "__main__":
    main()
