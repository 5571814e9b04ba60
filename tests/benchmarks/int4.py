"""Time per token of the bundled model in int4, with its trace and without, over transformers in float32.

    python tests/benchmarks/int4.py [--rounds 5] [--tokens 64]

Beside it our own float32 with its trace. Contenders take turns within a round; figures are medians over the
rounds, after one round to warm up. transformers keeps the logits of every token, as a trace needs them.
"""

import sys
from pathlib import Path
from typing import Any

# The repository, not this folder, must be searched for imports.
sys.path[0] = str(Path(__file__).resolve().parents[2])

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import GenerationConfig
from transformers.utils import logging

from backend import Engine, Request, SamplingParams
from backend.events import TokenDecoded
from backend.model import bundled, catalogue
from tests.benchmarks.apart import in_thread

PROMPT = "Once upon a time there was a little fox who lived in a forest and"
TARGETS = {"int4, full trace": 0.45, "int4, no trace": 0.35}


class Bench:
    """The contenders; each method returns seconds per token."""

    def __init__(self, num_tokens: int):
        self.num_tokens = num_tokens
        self.peer: Any = catalogue.load(bundled.NAME, device=torch.device("cpu"), dtype=torch.float32).model
        self.engines = {name: Engine.load(bundled.NAME, device="cpu", precision=name, num_blocks=256)
                        for name in ("float32", "int4")}  # fmt: skip
        self.prompt = tuple(self.engines["int4"].encode(PROMPT))
        # No text may end early: lengths would differ.
        end = self.peer.generation_config.eos_token_id
        self.ends = [end] if isinstance(end, int) else end
        self.sampling = SamplingParams(temperature=0, logit_bias=dict.fromkeys(self.ends, -100.0))

    def ours(self, precision: str, traced: bool) -> float:
        request = Request(
            self.prompt,
            sampling=self.sampling,
            max_new_tokens=self.num_tokens,
            cache_salt=str(time.perf_counter()),  # nothing may be reused from an earlier round
            num_candidates=30 if traced else 0,
        )
        started = time.perf_counter()
        events = list(self.engines[precision].stream(request))
        seconds = time.perf_counter() - started
        assert sum(isinstance(event, TokenDecoded) for event in events) == self.num_tokens
        return seconds / self.num_tokens

    def generate(self) -> float:
        row = torch.tensor([self.prompt])
        config = GenerationConfig(
            max_new_tokens=self.num_tokens,
            do_sample=False,
            suppress_tokens=self.ends,
            eos_token_id=-1,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        started = time.perf_counter()
        out = self.peer.generate(row, attention_mask=torch.ones_like(row), generation_config=config)
        seconds = time.perf_counter() - started
        assert len(out.logits) == self.num_tokens
        return seconds / self.num_tokens


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()

    logging.set_verbosity_error()  # it warns of an end of text that cannot come, which is what is wanted
    bench: Bench = in_thread(lambda: Bench(args.tokens))
    peer = "transformers float32 generate with logits"
    contenders: dict[str, Callable[[], float]] = {
        peer: lambda: in_thread(bench.generate),
        "float32, full trace": lambda: bench.ours("float32", traced=True),
        "float32, no trace": lambda: bench.ours("float32", traced=False),
        "int4, full trace": lambda: bench.ours("int4", traced=True),
        "int4, no trace": lambda: bench.ours("int4", traced=False),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(args.rounds + 1):
        for name, contender in contenders.items():
            value = contender()
            if number:  # the first round warms up
                seconds[name].append(value)

    print(f"{bundled.NAME}, {torch.get_num_threads()} threads, {args.rounds} rounds of {args.tokens} tokens")
    print(f"weights: {bench.engines['int4'].packing}")
    for name, values in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(values, seconds[peer], strict=True))
        target = f" (target: at most {TARGETS[name]})" if name in TARGETS else ""
        print(f"{1000 * statistics.median(values):8.1f} ms a token, {ratio:5.2f} x   {name}{target}")
    for engine in bench.engines.values():
        engine.close()


if __name__ == "__main__":
    main()
