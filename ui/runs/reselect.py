"""Choosing among recorded samples by any rule, without a new run. Pure functions of a run's events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from backend import selection
from backend.events import Event, FinishReason, SampleFinished, SampleSelected, TokenDecoded

RULES = ("sum", "mean", "vote", "mbr")


@dataclass(frozen=True)
class Choice:
    """The rule by which the reader wants one sample selected, one of RULES."""

    rule: str = "vote"


@dataclass
class RecordedSample:
    """One sample so far. `cum_logprob` sums the model's log-probabilities of its tokens."""

    tokens: list[TokenDecoded] = field(default_factory=list)
    cum_logprob: float = 0.0
    reason: FinishReason | None = None
    text: str = ""
    answer: str | None = None

    @property
    def mean_logprob(self) -> float:
        """Per token; 0 without tokens."""
        return selection.length_normalised(self.cum_logprob, max(len(self.tokens), 1), 1.0)


@dataclass
class Recorded:
    """All samples of a run. `matrix` holds their similarities where the run recorded them."""

    samples: list[RecordedSample] = field(default_factory=list)
    selected: SampleSelected | None = None

    @property
    def matrix(self) -> tuple[tuple[float, ...], ...]:
        return self.selected.similarities if self.selected else ()


def recorded(events: Iterable[Event], num_samples: int) -> Recorded:
    """What the events of a run say of each of its `num_samples` samples."""
    found = Recorded([RecordedSample() for _ in range(num_samples)])
    for event in events:
        if isinstance(event, TokenDecoded):
            sample = found.samples[event.sample]
            sample.tokens.append(event)
            sample.cum_logprob += event.model_logprob
            sample.text += event.text
        elif isinstance(event, SampleFinished):
            sample = found.samples[event.sample]
            sample.reason, sample.cum_logprob = event.reason, event.cum_logprob
        elif isinstance(event, SampleSelected):
            found.selected = event
            for sample, answer in zip(found.samples, event.answers, strict=True):
                sample.answer = answer
    return found


def scores(found: Recorded, rule: str) -> list[float] | None:
    """Each sample's score by the rule, the highest wins; None where the run did not record what it needs."""
    if (rule == "vote" and found.selected is None) or (rule == "mbr" and not found.matrix):
        return None
    sums, lengths = [each.cum_logprob for each in found.samples], [len(each.tokens) for each in found.samples]
    answers = [each.answer for each in found.samples]
    return list(selection.scores(rule, sums, lengths, answers, found.matrix))


def votes(found: Recorded) -> Counter[str]:
    """How many samples gave each answer."""
    return Counter(sample.answer for sample in found.samples if sample.answer is not None)


def winner(found: Recorded, rule: str) -> int | None:
    """Number of the sample the rule selects, the first among equals; None while any still grows."""
    by_rule = scores(found, rule)
    if by_rule is None or any(sample.reason is None for sample in found.samples):
        return None
    return selection.best(by_rule)


def num_tied(found: Recorded, rule: str) -> int:
    """How many different answers (of other rules: texts) share the highest score; 1 where one wins alone."""
    chosen, by_rule = winner(found, rule), scores(found, rule)
    if chosen is None or by_rule is None:
        return 0
    best = [sample for sample, score in zip(found.samples, by_rule, strict=True) if score == by_rule[chosen]]
    return len({sample.answer if rule == "vote" else sample.text for sample in best})
