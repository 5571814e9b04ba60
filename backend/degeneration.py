"""The experiment of Holtzman et al. (2019), Table 1, on the model at hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from backend.metrics import self_bleu, zipf_coefficient
from backend.request import BeamSearch, Request, Sample, SamplingParams, Strategy
from backend.sweep import Outcome

MIN_PROMPTS = 20
ONE = Sample()


@dataclass(frozen=True)
class Method:
    """One way to decode."""

    title: str
    sampling: SamplingParams
    strategy: Strategy = ONE


METHODS: dict[str, Method] = {
    "greedy": Method("Greedy", SamplingParams(temperature=0)),
    "beam": Method("Beam search (b=4)", SamplingParams(), BeamSearch(4)),
    "pure": Method("Pure sampling", SamplingParams()),
    "top_k": Method("Top-k (k=40)", SamplingParams(top_k=40)),
    "nucleus": Method("Nucleus (p=0.95)", SamplingParams(top_p=0.95)),
    "min_p": Method("Min-p (0.05)", SamplingParams(min_p=0.05)),
}


@dataclass(frozen=True)
class Published:
    """A row of the paper's table: perplexity, share of texts that end in a loop, self-BLEU-4, Zipf."""

    title: str
    perplexity: float
    loops: float
    self_bleu: float
    zipf: float


SOURCE = "Holtzman et al. 2019, Table 1: GPT-2 Large (762M), 5,000 texts of up to 200 tokens"
PUBLISHED: dict[str, Published] = {
    "human": Published("Human text", 12.38, 0.0028, 0.31, 0.93),
    "greedy": Published("Greedy", 1.50, 0.7366, 0.50, 1.00),
    "beam": Published("Beam search (b=16)", 1.48, 0.2894, 0.44, 0.94),
    "pure": Published("Pure sampling", 22.73, 0.0022, 0.28, 0.93),
    "top_k": Published("Top-k (k=40)", 6.88, 0.0078, 0.39, 0.96),
    "nucleus": Published("Nucleus (p=0.95)", 13.13, 0.0036, 0.32, 0.95),
}


@dataclass(frozen=True)
class Measured:
    """One method over all prompts so far.

    Attributes:
        perplexity: exp of the mean surprise over all tokens of all texts.
        loops: share of the texts that end in a repeated phrase. repeated_4grams: mean over the texts.
        self_bleu: BLEU-4 of each text against the others. zipf: over the words of all texts.
    """

    num_texts: int
    perplexity: float | None
    loops: float | None
    repeated_4grams: float | None
    self_bleu: float | None
    zipf: float | None


def requests(prompts: Sequence[str], max_new_tokens: int, seed: int, salt: str) -> list[Request]:
    """Every prompt by every method; prompt by prompt, so that a part already compares all methods."""
    base = Request(prompts[0], max_new_tokens=max_new_tokens, seed=seed, cache_salt=salt, num_candidates=0)
    return [
        replace(base, prompt=prompt, seed=seed + place, sampling=method.sampling, strategy=method.strategy)
        for place, prompt in enumerate(prompts)
        for method in METHODS.values()
    ]


def method_of(index: int) -> str:
    """Which method the request at `index` of `requests` follows."""
    return list(METHODS)[index % len(METHODS)]


def measured(outcomes: Sequence[Outcome]) -> Measured:
    """The table row of one method's texts."""
    counted = [(o.metrics.num_tokens, o.metrics.perplexity) for o in outcomes if o.metrics.perplexity]
    num_tokens = sum(count for count, _ in counted)
    surprise = sum(count * math.log(value) for count, value in counted if value is not None)
    repeats = [o.metrics.repeated_4grams for o in outcomes if o.metrics.repeated_4grams is not None]
    texts = [o.text for o in outcomes]
    return Measured(
        num_texts=len(outcomes),
        perplexity=math.exp(surprise / num_tokens) if num_tokens else None,
        loops=sum(o.metrics.phrase is not None for o in outcomes) / len(outcomes) if outcomes else None,
        repeated_4grams=sum(repeats) / len(repeats) if repeats else None,
        self_bleu=self_bleu(texts),
        zipf=zipf_coefficient(word for text in texts for word in text.split()),
    )


def trap_shows(rows: dict[str, Measured]) -> bool | None:
    """Whether greedy and beams both repeat more than nucleus sampling and both have a lower perplexity.

    Repetition is the share of repeated 4-grams: unlike the share of loops it tells short texts apart. None
    before each of the three has a text.
    """
    likely, nucleus = [rows.get("greedy"), rows.get("beam")], rows.get("nucleus")
    if nucleus is None or nucleus.repeated_4grams is None or nucleus.perplexity is None:
        return None
    for row in likely:
        if row is None or row.repeated_4grams is None or row.perplexity is None:
            return None
        if row.repeated_4grams <= nucleus.repeated_4grams or row.perplexity >= nucleus.perplexity:
            return False
    return True
