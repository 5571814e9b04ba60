"""What the page costs: our engine beside transformers' generate, on the bundled model, in one run.

    python tests/benchmarks/inspect.py [--rounds 5] [--tokens 64]

Contenders take turns within a round, so that a slow moment of the machine hits all of them; figures are
medians over the rounds, ratios are medians of the ratios within a round.
"""

import sys
from pathlib import Path

# This file shares its name with a standard module; its own folder must not be searched for imports.
sys.path[0] = str(Path(__file__).resolve().parents[2])

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from backend import Engine, Request, Sample, SamplingParams
from backend.model import bundled, catalogue
from tests.benchmarks.apart import in_thread

PROMPT = "Once upon a time there was a little fox who lived in a forest and"
GREEDY = SamplingParams(temperature=0)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95)


class Bench:
    """The contenders; each method returns milliseconds per token."""

    def __init__(self, device: str, precision: str, num_tokens: int):
        self.engine = Engine.load(bundled.NAME, device=device, precision=precision)
        dtype = getattr(torch, self.engine.precision)
        self.peer: Any = catalogue.load(bundled.NAME, device=torch.device(self.engine.device), dtype=dtype)
        self.num_tokens = num_tokens
        # No text may end early: lengths would differ.
        end = self.peer.model.generation_config.eos_token_id
        self.no_end = dict.fromkeys([end] if isinstance(end, int) else end, -100.0)

    def generate(self, sampled: bool = False) -> float:
        ids = torch.tensor([self.engine.encode(PROMPT)], device=self.peer.model.device)
        drawn = {"do_sample": True, "temperature": 0.8, "top_p": 0.95} if sampled else {"do_sample": False}
        started = time.perf_counter()
        out = self.peer.model.generate(
            ids,
            max_new_tokens=self.num_tokens,
            min_new_tokens=self.num_tokens,
            output_logits=True,
            return_dict_in_generate=True,
            **drawn,
        )
        seconds = time.perf_counter() - started
        assert out.sequences.shape[1] == ids.shape[1] + self.num_tokens
        return seconds / self.num_tokens * 1000

    def ours(self, sampling: SamplingParams, num_candidates: int, lanes: int = 1) -> float:
        return self._timed(
            tuple(self.engine.encode(PROMPT)), sampling, num_candidates, self.num_tokens, lanes
        )

    def at_context(self, length: int) -> float:
        """Decoding only: milliseconds from token to token behind `length` tokens."""
        generator = torch.Generator().manual_seed(0)
        prompt = tuple(torch.randint(100, 40_000, (length,), generator=generator).tolist())
        trace = self.engine.generate(self._request(prompt, GREEDY, 0, 32, 1))
        assert trace.finished is not None
        return trace.finished.decode_seconds / (trace.finished.num_output_tokens - 1) * 1000

    def _timed(
        self, prompt: tuple[int, ...], sampling: SamplingParams, candidates: int, tokens: int, lanes: int
    ) -> float:
        request = self._request(prompt, sampling, candidates, tokens, lanes)
        started = time.perf_counter()
        trace = self.engine.generate(request)
        seconds = time.perf_counter() - started
        assert trace.finished is not None
        assert trace.finished.num_output_tokens == tokens * lanes
        return seconds / (tokens * lanes) * 1000

    def _request(
        self, prompt: tuple[int, ...], sampling: SamplingParams, candidates: int, tokens: int, lanes: int
    ) -> Request:
        params = SamplingParams(sampling.temperature, sampling.top_p, logit_bias=self.no_end)
        salt = str(time.perf_counter())  # nothing may be reused from an earlier round
        return Request(
            prompt,
            sampling=params,
            strategy=Sample(lanes),
            max_new_tokens=tokens,
            num_candidates=candidates,
            cache_salt=salt,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="float32")
    args = parser.parse_args()

    bench = in_thread(lambda: Bench(args.device, args.precision, args.tokens))
    contenders: dict[str, Callable[[], float]] = {
        "transformers generate(output_logits=True), greedy": lambda: in_thread(lambda: bench.generate()),
        "our engine, greedy, no trace": lambda: bench.ours(GREEDY, 0),
        "our engine, greedy, full trace": lambda: bench.ours(GREEDY, 30),
        "transformers generate(output_logits=True), T 0.8 top-p 0.95": lambda: in_thread(
            lambda: bench.generate(sampled=True)
        ),
        "our engine, T 0.8 top-p 0.95, no trace": lambda: bench.ours(SAMPLED, 0),
        "our engine, T 0.8 top-p 0.95, full trace": lambda: bench.ours(SAMPLED, 30),
        "our engine, 8 lanes, T 0.8 top-p 0.95, no trace": lambda: bench.ours(SAMPLED, 0, lanes=8),
        "our engine, 8 lanes, T 0.8 top-p 0.95, full trace": lambda: bench.ours(SAMPLED, 30, lanes=8),
        "our engine, decoding at 100 tokens of context": lambda: bench.at_context(100),
        "our engine, decoding at 2000 tokens of context": lambda: bench.at_context(2000),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for round_number in range(args.rounds + 1):
        for name, contender in contenders.items():
            value = contender()
            if round_number:  # the first round warms up
                times[name].append(value)

    print(f"{bench.engine.model_name}, {bench.engine.device}, {bench.engine.precision}, {args.rounds} rounds")
    for name, values in times.items():
        print(f"{statistics.median(values):8.2f} ms a token   {name}")

    def ratio(first: str, second: str) -> float:
        return statistics.median(a / b for a, b in zip(times[first], times[second], strict=True))

    greedy, sampled, lanes, traced_lanes = (
        ("our engine, greedy, full trace", "transformers generate(output_logits=True), greedy"),
        (
            "our engine, T 0.8 top-p 0.95, full trace",
            "transformers generate(output_logits=True), T 0.8 top-p 0.95",
        ),
        ("our engine, T 0.8 top-p 0.95, no trace", "our engine, 8 lanes, T 0.8 top-p 0.95, no trace"),
        ("our engine, T 0.8 top-p 0.95, full trace", "our engine, 8 lanes, T 0.8 top-p 0.95, full trace"),
    )
    contexts = (
        "our engine, decoding at 2000 tokens of context",
        "our engine, decoding at 100 tokens of context",
    )
    print(f"{ratio(*greedy):8.2f} x  time of a full trace over generate, greedy (target: at most 1.15)")
    print(f"{ratio(*sampled):8.2f} x  the same, T 0.8 top-p 0.95 (target: at most 1.15)")
    print(f"{ratio(*lanes):8.2f} x  tokens per second, 8 lanes over one, no trace (target: at least 4)")
    print(f"{ratio(*traced_lanes):8.2f} x  the same, full trace (target: at least 4)")
    print(f"{ratio(*contexts):8.2f} x  time per token, 2000 over 100 of context (target: at most 1.4)")


if __name__ == "__main__":
    main()
