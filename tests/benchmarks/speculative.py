"""What speculation brings: each draft source beside plain decoding, on the bundled model, in one run.

    python tests/benchmarks/speculative.py [--rounds 5] [--threads 0] [--presets copy,chat] [--drafts ...]

The prompts and settings are those of the presets. Contenders take turns within a round, so that a slow
moment of the machine hits all of them. A ratio is plain time over speculative time per token, both from the
end of the first target call to the end of the last; figures are medians over the rounds, ratios medians of
the ratios within a round. Every run reads its prompt anew, without a trace.
"""

import sys
from pathlib import Path

# Run as a script: the repository goes on the path first, this folder off it.
sys.path[0] = str(Path(__file__).resolve().parents[2])

import argparse
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from backend import Engine, Request, Sample, Speculative
from backend.model import bundled
from ui.presets.lessons import Lesson, load_lessons
from ui.runs.speculation import Rates, Timing, rates, rounds, source, timing
from ui.tabs.speculate import FOLDER

EDITING = ("copy", "edit", "code")
CHAT = ("chat",)
# (source, k): the lookup costs nothing, so it may guess far ahead.
DRAFTS = (("prompt_lookup", 8), ("prompt_lookup", 4), ("layer_skip", 3), ("layer_skip_half", 8))


@dataclass
class Contender:
    """One draft source on one preset; `pairs` are (plain, speculative) of each round."""

    name: str
    request: Request
    pairs: list[tuple[Timing, Timing]] = field(default_factory=list)
    counted: Rates | None = None

    @property
    def ratio(self) -> float:
        return statistics.median(plain.milliseconds / fast.milliseconds for plain, fast in self.pairs)


def requests(engine: Engine, lesson: Lesson, drafts: Sequence[str]) -> list[Contender]:
    """The preset's own draft first. Greedy presets stay greedy, so that all their texts are the same."""
    asked = Request(
        lesson.prompt,
        chat=lesson.chat,
        sampling=lesson.settings,
        max_new_tokens=lesson.max_new_tokens,
        seed=lesson.seed or 0,
        num_candidates=0,
    )
    own = str(lesson.fields["draft"]), int(lesson.fields["num_draft_tokens"])
    found = []
    for name, k in dict.fromkeys((own, *DRAFTS)):
        if name in drafts:
            strategy = Speculative(num_draft_tokens=k, **source(name, engine.num_layers))
            title = f"{name}, k = {k}" + (" (preset)" if (name, k) == own else "")
            found.append(Contender(title, replace(asked, strategy=strategy)))
    return found


def run(engine: Engine, request: Request) -> tuple[Timing, Rates]:
    trace = engine.generate(replace(request, cache_salt=str(time.perf_counter())))
    took = timing(trace.events)
    assert took is not None, "too few tokens to time"
    return took, rates(rounds(trace.events))


def measure(engine: Engine, contenders: list[Contender], num_rounds: int) -> None:
    for number in range(num_rounds + 1):
        for place, contender in enumerate(contenders):
            plain = replace(contender.request, strategy=Sample())
            # Who goes first changes from round to round.
            if (number + place) % 2:
                slow = run(engine, plain)[0]
                fast, contender.counted = run(engine, contender.request)
            else:
                fast, contender.counted = run(engine, contender.request)
                slow = run(engine, plain)[0]
            if number:  # the first round warms up
                contender.pairs.append((slow, fast))


def report(lesson: Lesson, contenders: Iterable[Contender]) -> None:
    print(f"\n{lesson.title} (temperature {lesson.settings.temperature:g}, {lesson.max_new_tokens} tokens)")
    print(f"  {'draft':30s} {'ratio':>6s} {'accept':>7s} {'tok/call':>9s} {'formula':>8s}"
          f" {'plain':>7s} {'spec.':>7s} {'draft':>7s} {'verify':>7s} {'other':>6s}  ms a token")  # fmt: skip
    for contender in contenders:
        counted = contender.counted
        assert counted is not None
        slow = statistics.median(plain.milliseconds for plain, _ in contender.pairs)
        fast = [timed for _, timed in contender.pairs]
        parts = [
            statistics.median(value(timed) / timed.num_tokens * 1000 for timed in fast)
            for value in (lambda t: t.draft, lambda t: t.verify, lambda t: t.overhead)
        ]
        acceptance = "-" if counted.acceptance is None else f"{counted.acceptance:.2f}"
        quick = statistics.median(timed.milliseconds for timed in fast)
        print(f"  {contender.name:30s} {contender.ratio:6.2f} {acceptance:>7s} {counted.tokens_per_call:9.2f}"
              f" {counted.predicted:8.2f} {slow:7.1f} {quick:7.1f} {parts[0]:7.1f} {parts[1]:7.1f}"
              f" {parts[2]:6.1f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0 leaves its choice")
    parser.add_argument("--presets", default=",".join((*EDITING, *CHAT, "hot")))
    parser.add_argument("--drafts", default="prompt_lookup,layer_skip,layer_skip_half")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="float32")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    engine = Engine.load(bundled.NAME, device=args.device, precision=args.precision, num_blocks=256)
    lessons = {lesson.name: lesson for lesson in load_lessons(FOLDER)}
    print(f"{engine.model_name}, {engine.device}, {engine.precision}, {torch.get_num_threads()} threads, "
          f"{args.rounds} rounds")  # fmt: skip
    own: dict[str, Contender] = {}
    for name in args.presets.split(","):
        contenders = requests(engine, lessons[name], args.drafts.split(","))
        measure(engine, contenders, args.rounds)
        report(lessons[name], contenders)
        own[name] = contenders[0]
        sys.stdout.flush()
    print()
    for names, target in ((EDITING, "at least 2.0"), (CHAT, "at least 0.9")):
        for name in names:
            if name in own:
                print(f"{own[name].ratio:6.2f} x  {name!r}, {own[name].name}, over plain (target: {target})")


if __name__ == "__main__":
    main()
