"""Tokens per second of many requests at once: our engine, beside transformers, on the bundled model.

    python tests/benchmarks/throughput.py [--rounds 3] [--tokens 64]

Ours: 1, 2, 4, 8 and 16 concurrent requests of as many tokens each. Beside them the same 8 requests through
transformers' continuous batching, and through 8 `generate` calls one after the other. Contenders take turns
within a round; figures are medians over the rounds, after one round to warm up. Whatever computes does so in
a thread of its own that then ends, as on the page: a thread that idles keeps OpenMP's helpers from spinning.
"""

import sys
from pathlib import Path

# The repository, not this folder, must be searched for imports.
sys.path[0] = str(Path(__file__).resolve().parents[2])

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.utils import logging

from backend import Engine, Request, SamplingParams
from backend.events import Finished, TokenDecoded
from backend.model import bundled, catalogue
from tests.benchmarks.apart import in_thread

PROMPTS = [
    "Once upon a time there was a little fox who lived in a forest and",
    "The capital of France is",
    "A good teacher knows that",
    "The train stopped between two stations and everybody",
    "My favourite recipe for soup begins with",
    "Rain had fallen for nine days when the river",
    "The old map showed an island that nobody",
    "Mathematics is the art of",
    "The robot looked at the flower and said that",
    "On the table lay a knife, a lemon and",
    "When the power went out, the city",
    "The first rule of the library was",
    "Dear diary, today I found",
    "The bridge was built in 1887 by",
    "If cats could vote, they",
    "The last song of the evening was",
]
CONCURRENT = (1, 2, 4, 8, 16)


class Bench:
    """The contenders; each method returns tokens per second and the token ids of each request."""

    def __init__(self, device: str, precision: str, num_tokens: int):
        self.engine = Engine.load(bundled.NAME, device=device, precision=precision)
        dtype = getattr(torch, self.engine.precision)
        where = torch.device(self.engine.device)
        self.peer: Any = catalogue.load(bundled.NAME, device=where, dtype=dtype).model
        self.num_tokens = num_tokens
        self.prompts = [self.engine.encode(prompt) for prompt in PROMPTS]
        # No text may end early: lengths would differ.
        end = self.peer.generation_config.eos_token_id
        ends = [end] if isinstance(end, int) else end
        self.sampling = SamplingParams(temperature=0, logit_bias=dict.fromkeys(ends, -100.0))
        self.config = GenerationConfig(
            max_new_tokens=num_tokens, do_sample=False, suppress_tokens=ends, eos_token_id=-1, pad_token_id=0
        )

    def ours(self, count: int) -> tuple[float, list[list[int]]]:
        salt = str(time.perf_counter())  # nothing may be reused from an earlier round
        requests = [
            Request(
                tuple(prompt),
                sampling=self.sampling,
                max_new_tokens=self.num_tokens,
                num_candidates=0,
                cache_salt=salt,
            )
            for prompt in self.prompts[:count]
        ]
        started = time.perf_counter()
        streams = [self.engine.stream(request) for request in requests]
        events = [list(stream) for stream in streams]
        seconds = time.perf_counter() - started
        ids = [[event.token_id for event in own if isinstance(event, TokenDecoded)] for own in events]
        assert all(isinstance(own[-1], Finished) and own[-1].reason == "length" for own in events)
        return count * self.num_tokens / seconds, ids

    def sequential(self) -> tuple[float, list[list[int]]]:
        """Eight `generate` calls, one after the other."""
        started = time.perf_counter()
        ids = []
        for prompt in self.prompts[:8]:
            row = torch.tensor([prompt], device=self.peer.device)
            out = self.peer.generate(row, attention_mask=torch.ones_like(row), generation_config=self.config)
            ids.append(out[0, len(prompt) :].tolist())
        return 8 * self.num_tokens / (time.perf_counter() - started), ids

    def continuous(self) -> tuple[float, list[list[int]]]:
        """transformers' continuous batching, with a cache of the same block size."""
        started = time.perf_counter()
        found = self.peer.generate_batch(
            self.prompts[:8],
            generation_config=self.config,
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=16, num_blocks=256, max_batch_tokens=256, use_cuda_graph=False
            ),
            warmup=False,
        )
        seconds = time.perf_counter() - started
        rows = sorted(found.values(), key=lambda row: int(row.request_id.rsplit("_", 1)[-1]))
        ids = [list(row.generated_tokens) for row in rows]
        if len(ids) != 8 or any(len(row) != self.num_tokens for row in ids):
            raise RuntimeError(f"it returned {[len(row) for row in ids]} tokens")
        return 8 * self.num_tokens / seconds, ids


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="float32")
    args = parser.parse_args()

    logging.set_verbosity_error()  # it warns of an end of text that cannot come, which is what is wanted
    bench: Bench = in_thread(lambda: Bench(args.device, args.precision, args.tokens))
    rates: dict[str, list[float]] = {}
    texts: dict[str, list[list[int]]] = {}
    contenders: dict[str, Callable[[], Any]] = {
        **{f"ours, {count} at once": partial(bench.ours, count) for count in CONCURRENT},
        "transformers, continuous batching, 8 at once": lambda: in_thread(bench.continuous),
        "transformers, 8 generate calls in a row": lambda: in_thread(bench.sequential),
    }
    for number in range(args.rounds + 1):
        for name, contender in list(contenders.items()):
            try:
                rate, texts[name] = contender()
            except Exception as error:  # a peer that cannot run here is named and left out
                if name.startswith("ours"):
                    raise
                print(f"{name}: does not run here ({type(error).__name__}: {error})")
                del contenders[name]
                continue
            if number:  # the first round warms up
                rates.setdefault(name, []).append(rate)

    print(f"{bench.engine.model_name}, {bench.engine.device}, {bench.engine.precision}, "
          f"{args.rounds} rounds of {args.tokens} tokens a request")  # fmt: skip
    for name, values in rates.items():
        print(f"{statistics.median(values):8.1f} tokens per second   {name}")

    def ratio(first: str, second: str) -> float:
        return statistics.median(a / b for a, b in zip(rates[first], rates[second], strict=True))

    own = [f"ours, {count} at once" for count in CONCURRENT]
    for before, after in itertools.pairwise(own[:4]):
        print(f"{ratio(after, before):8.2f} x  {after} over {before} (target: above 1)")
    print(f"{ratio(own[3], own[0]):8.2f} x  8 at once over one (target: at least 4)")
    for name in rates:
        if not name.startswith("ours"):
            same = sum(a == b for a, b in zip(texts[own[3]], texts[name], strict=True))
            print(f"{ratio(own[3], name):8.2f} x  ours, 8 at once, over {name}; {same} of 8 texts the same")
    bench.engine.close()


if __name__ == "__main__":
    main()
