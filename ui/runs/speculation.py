"""What speculative runs come to: rates, timings, and the runs measured beside each other. No drawing.

A target call is one round: all drafted tokens of it are checked together. Rates count rounds and drafts.
Speed is measured from the end of the first round to the end of the last: reading the prompt is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from backend.comparison import first_unequal
from backend.errors import RequestError
from backend.events import DraftVerified, Event, Finished, Started, TokenDecoded
from backend.experiments import Proof, expected_tokens
from backend.model.catalogue import CATALOGUE
from ui.runs.log import Log

Kind = Literal["speculative", "plain"]

# Every model that drafts stays in memory, so visitors choose from a list and name no folder.
SOURCES = {
    "prompt_lookup": "prompt lookup: what followed before",
    "layer_skip": "layer skip: a sixth left out",
    "layer_skip_half": "layer skip: half left out",
    **{name: f"model: {entry.title}" for name, entry in CATALOGUE.items()},
}


def source(name: Any, num_layers: int) -> dict[str, Any]:
    """Fields of Speculative for one of SOURCES, drafting for a model of so many layers.

    Raises:
        RequestError: it is none of them.
    """
    if not isinstance(name, str) or name not in SOURCES:
        raise RequestError(f"draft must be one of {', '.join(SOURCES)}, got {str(name)[:80]!r}")
    if name != "layer_skip_half":
        return {"draft": name}
    quarter = num_layers // 4
    return {"draft": "layer_skip", "skip_layers": tuple(range(quarter, quarter + num_layers // 2))}


@dataclass(frozen=True)
class Rates:
    """Counts over rounds.

    Attributes:
        num_checked: drafts that were accepted or rejected; those after a rejection were not looked at.
        num_tokens: what the rounds gave: accepted drafts, recovered and bonus tokens.
    """

    num_rounds: int
    num_drafted: int
    num_checked: int
    num_accepted: int
    num_tokens: int
    draft_lengths: tuple[int, ...]

    @property
    def named(self) -> dict[str, int | float | None]:
        """The counts and what follows from them, by name."""
        counts = ("num_rounds", "num_drafted", "num_checked", "num_accepted", "num_tokens")
        return {name: getattr(self, name) for name in (*counts, "acceptance", "tokens_per_call", "predicted")}

    @property
    def acceptance(self) -> float | None:
        """Share of the checked drafts that were accepted; None where nothing was checked."""
        return self.num_accepted / self.num_checked if self.num_checked else None

    @property
    def tokens_per_call(self) -> float | None:
        return self.num_tokens / self.num_rounds if self.num_rounds else None

    @property
    def predicted(self) -> float | None:
        """The formula at the measured acceptance, averaged over the draft lengths there were."""
        if not self.num_rounds:
            return None
        acceptance = self.acceptance or 0.0
        return statistics.mean(expected_tokens(acceptance, length) for length in self.draft_lengths)


def rounds(events: Iterable[Event]) -> list[DraftVerified]:
    return [event for event in events if isinstance(event, DraftVerified)]


def rates(checks: Sequence[DraftVerified]) -> Rates:
    checked = sum(token.status != "unused" for check in checks for token in check.drafted)
    return Rates(
        num_rounds=len(checks),
        num_drafted=sum(len(check.drafted) for check in checks),
        num_checked=checked,
        num_accepted=sum(check.num_accepted for check in checks),
        num_tokens=sum(num_tokens(check) for check in checks),
        draft_lengths=tuple(len(check.drafted) for check in checks),
    )


def num_tokens(check: DraftVerified) -> int:
    """Tokens a round gave."""
    return check.num_accepted + (check.next_is != "none")


@dataclass(frozen=True)
class Timing:
    """Seconds spent on `num_tokens` tokens; draft and verify are 0 in plain decoding, which has no rounds."""

    num_tokens: int
    seconds: float
    draft: float = 0.0
    verify: float = 0.0

    @property
    def overhead(self) -> float:
        """Neither drafting nor waiting for the target: checking, sampling, bookkeeping."""
        return max(0.0, self.seconds - self.draft - self.verify)

    @property
    def milliseconds(self) -> float:
        """Per token."""
        return self.seconds / self.num_tokens * 1000


def timing(events: Sequence[Event]) -> Timing | None:
    """None where a run has less than two rounds (plain: two tokens) to measure between."""
    checks = rounds(events)
    if checks:
        later = checks[1:]
        count, seconds = sum(map(num_tokens, later)), checks[-1].time - checks[0].time
        if not count or seconds <= 0:
            return None
        draft, verify = sum(c.draft_seconds for c in later), sum(c.verify_seconds for c in later)
        return Timing(count, seconds, draft, verify)
    steps = [event for event in events if isinstance(event, TokenDecoded)]
    if len(steps) < 2 or steps[-1].time <= steps[0].time:
        return None
    return Timing(len(steps) - 1, steps[-1].time - steps[0].time)


@dataclass
class Measured(Log):
    """One run of a measurement; `timing` is there once it has ended by itself."""

    kind: Kind
    timing: Timing | None = None

    @property
    def ended(self) -> bool:
        """Whether it has, by itself."""
        return self.finished is not None and self.finished.reason not in ("cancelled", "error")


@dataclass
class Speculation:
    """What the tab holds besides its View.

    Attributes:
        lossless: whether every run of this request must give the same text: greedy, or a coupled check.
        planned: the kinds of the runs still to come. runs: those begun.
        selected: (round, place in it) that the reader chose.
        proof: the draws of one step, and which step that was, as (round, place). num_proofs counts them.
    """

    lossless: bool = False
    planned: list[Kind] = field(default_factory=list)
    runs: list[Measured] = field(default_factory=list)
    selected: tuple[int, int] | None = None
    proof: Proof | None = None
    proof_of: tuple[int, int] | None = None
    proof_note: str = ""
    proving: bool = False
    num_proofs: int = 0

    def take(self, event: Event) -> bool:
        """Take in the next event of the planned runs; True if it belongs to the first, the one shown."""
        if isinstance(event, Started):
            self.runs.append(Measured(self.planned.pop(0)))
        run = self.runs[-1]
        run.events.append(event)
        if isinstance(event, Finished) and run.ended:
            run.timing = timing(run.events)
        return len(self.runs) == 1

    @property
    def pairs(self) -> list[tuple[Timing, Timing]]:
        """(plain, speculative) of each completed pair, in the order measured."""
        plain = [run.timing for run in self.runs if run.kind == "plain" and run.timing]
        speculative = [run.timing for run in self.runs if run.kind == "speculative" and run.timing]
        return list(zip(plain, speculative, strict=False))

    @property
    def speedup(self) -> float | None:
        """Plain time per token over speculative time per token, the median of the pairs."""
        ratios = [plain.milliseconds / fast.milliseconds for plain, fast in self.pairs]
        return statistics.median(ratios) if ratios else None

    @property
    def first_difference(self) -> int | None:
        """Where the first finished plain text leaves the speculative one; None while equal or unknown."""
        for run in self.runs:
            if run.kind == "plain" and run.ended:
                return first_unequal(self.runs[0].tokens, run.tokens)
        return None

    @property
    def compared(self) -> bool:
        """Whether both texts are complete."""
        done = {run.kind for run in self.runs if run.ended}
        return done == {"speculative", "plain"}


def telling_round(checks: Sequence[DraftVerified]) -> tuple[int, int] | None:
    """(round, place) worth showing first: the first rejection, best after accepted drafts; else the last."""
    rejected = [check for check in checks if check.next_is == "recovered"]
    mixed = [check for check in rejected if check.num_accepted]
    for check in (*mixed[:1], *rejected[:1]):
        return check.number, check.num_accepted
    drafted = [check for check in checks if check.drafted]
    for check in (*drafted[-1:], *checks[-1:]):
        return check.number, 0
    return None
