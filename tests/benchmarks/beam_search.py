"""Beam search beside transformers' generate, on the bundled model, in one run; ours records the full tree.

    python tests/benchmarks/beam_search.py [--rounds 5] [--tokens 64]

Contenders take turns within a round, so that a slow moment of the machine hits both; figures are medians over
the rounds, ratios are medians of the ratios within a round.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

import argparse
import statistics
import time
from functools import partial

import torch

from backend import BeamSearch, Engine, Request, SamplingParams
from backend.events import BeamStepped
from backend.model import bundled, catalogue
from tests.benchmarks.apart import in_thread

PROMPT = "Once upon a time there was a little fox who lived in a forest and"


class Bench:
    """The contenders; each method returns seconds for one whole search."""

    def __init__(self, device: str, precision: str, num_tokens: int):
        self.engine = Engine.load(bundled.NAME, device=device, precision=precision)
        dtype = getattr(torch, self.engine.precision)
        self.peer = catalogue.load(bundled.NAME, device=torch.device(self.engine.device), dtype=dtype)
        self.num_tokens = num_tokens
        # No text may end early: lengths would differ.
        end = self.peer.model.generation_config.eos_token_id
        self.no_end = dict.fromkeys([end] if isinstance(end, int) else end, -100.0)

    def generate(self, num_beams: int) -> float:
        ids = torch.tensor([self.engine.encode(PROMPT)], device=self.peer.model.device)
        started = time.perf_counter()
        out = self.peer.model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            num_beams=num_beams,
            do_sample=False,
            max_new_tokens=self.num_tokens,
            min_new_tokens=self.num_tokens,
        )
        seconds = time.perf_counter() - started
        assert out.shape[1] == ids.shape[1] + self.num_tokens
        return seconds

    def ours(self, num_beams: int) -> float:
        request = Request(
            PROMPT,
            sampling=SamplingParams(logit_bias=self.no_end),
            strategy=BeamSearch(num_beams),
            max_new_tokens=self.num_tokens,
            cache_salt=str(time.perf_counter()),  # nothing may be reused from an earlier round
        )
        started = time.perf_counter()
        trace = self.engine.generate(request)
        seconds = time.perf_counter() - started
        assert len(trace.token_ids) == self.num_tokens
        assert sum(isinstance(event, BeamStepped) for event in trace.events) == self.num_tokens
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--beams", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="float32")
    args = parser.parse_args()

    bench = in_thread(lambda: Bench(args.device, args.precision, args.tokens))
    times: dict[tuple[str, int], list[float]] = {}
    for round_number in range(args.rounds + 1):
        for num_beams in args.beams:
            theirs = in_thread(partial(bench.generate, num_beams))
            own = bench.ours(num_beams)
            if round_number:  # the first round warms up
                times.setdefault(("transformers", num_beams), []).append(theirs)
                times.setdefault(("ours", num_beams), []).append(own)

    engine = bench.engine
    print(
        f"{engine.model_name}, {engine.device}, {engine.precision}, "
        f"{args.tokens} tokens, {args.rounds} rounds"
    )
    for num_beams in args.beams:
        of_peer, of_ours = times["transformers", num_beams], times["ours", num_beams]
        ratio = statistics.median(a / b for a, b in zip(of_peer, of_ours, strict=True))
        print(f"{statistics.median(of_peer):8.2f} s  transformers, {num_beams} beams")
        print(f"{statistics.median(of_ours):8.2f} s  ours with the full tree, {num_beams} beams")
        print(f"{ratio:8.2f} x  time of transformers over ours, {num_beams} beams (target: at least 1.2)")


if __name__ == "__main__":
    main()
