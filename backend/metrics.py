"""Numbers that describe generated text. Pure functions of token ids, log-probabilities and strings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from sacrebleu.metrics.bleu import BLEU

from backend.events import TokenDecoded

MAX_PHRASE = 90  # the longest phrase looked for at the end of a text, in tokens


@dataclass(frozen=True)
class Phrase:
    """A phrase that a text ends in over and over: its length in tokens and how often it stands there."""

    num_tokens: int
    num_times: int


@dataclass(frozen=True)
class TextMetrics:
    """One text in numbers; None where it is too short to say.

    Attributes:
        num_tokens: generated tokens, the end of text included.
        perplexity: under the unmodified model, see `perplexity`.
        mean_entropy: of the model's distribution over the steps, nats.
        phrase: what the text keeps repeating at its end, None if nothing.
        repeated_4grams, distinct_1, distinct_2, distinct_3: shares from 0 to 1.
    """

    num_tokens: int
    perplexity: float | None
    mean_entropy: float | None
    phrase: Phrase | None
    repeated_4grams: float | None
    distinct_1: float | None
    distinct_2: float | None
    distinct_3: float | None


def describe(steps: Sequence[TokenDecoded]) -> TextMetrics:
    """All numbers of one text. An end-of-text token counts for the perplexity, but is no word of the text."""
    entropies = [step.entropy for step in steps]
    ids = [step.token_id for step in steps]
    if steps and not steps[-1].text and steps[-1].label.startswith("<"):
        ids.pop()
    return TextMetrics(
        num_tokens=len(steps),
        perplexity=perplexity([step.model_logprob for step in steps]),
        mean_entropy=sum(entropies) / len(entropies) if entropies else None,
        phrase=repeated_phrase(ids),
        repeated_4grams=repeated_ngrams(ids, 4),
        distinct_1=distinct(ids, 1),
        distinct_2=distinct(ids, 2),
        distinct_3=distinct(ids, 3),
    )


def perplexity(logprobs: Sequence[float]) -> float | None:
    """exp(-mean(log p)), natural log-probabilities of the tokens under the unmodified model.

    From 1 (every token was certain) upwards; infinite if one was impossible; None without tokens. How many
    equally likely tokens the model was, on average, choosing from (Jelinek et al. 1977).
    """
    if not logprobs:
        return None
    mean = -sum(logprobs) / len(logprobs)
    return math.exp(mean) if mean < 700 else math.inf


def repeated_phrase(tokens: Sequence[Hashable], min_length: int = 2, min_times: int = 3) -> Phrase | None:
    """The phrase that the text repeats up to its end, None if there is none.

    After Holtzman et al. (2019): a phrase of at least `min_length` tokens that stands at least
    `min_times` times in a row at the end. Of several, the one that covers most tokens, then the shortest.
    """
    best: Phrase | None = None
    for length in range(min_length, min(MAX_PHRASE, len(tokens) // min_times) + 1):
        phrase, times = tokens[-length:], 1
        while tokens[-length * (times + 1) : -length * times] == phrase:
            times += 1
        if times >= min_times and (best is None or length * times > best.num_tokens * best.num_times):
            best = Phrase(length, times)
    return best


def _ngrams(tokens: Sequence[Hashable], n: int) -> list[tuple[Hashable, ...]]:
    return [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]


def distinct(tokens: Sequence[Hashable], n: int) -> float | None:
    """Distinct n-grams over all n-grams: just above 0 (always the same) to 1 (no two alike).

    distinct-n of Li et al. (2016). None for a text shorter than n. Long texts score lower.
    """
    grams = _ngrams(tokens, n)
    return len(set(grams)) / len(grams) if grams else None


def repeated_ngrams(tokens: Sequence[Hashable], n: int = 4) -> float | None:
    """Share of n-grams that occurred before in the text: 1 - distinct-n (seq-rep-n, Welleck et al. 2020)."""
    share = distinct(tokens, n)
    return None if share is None else 1 - share


def self_bleu(texts: Sequence[str]) -> float | None:
    """Mean BLEU-4 of each text against all others as its references, 0 to 1; lower is more diverse.

    Zhu et al. (2018), computed by sacrebleu: its tokenizer 13a, add-0.1 smoothing of orders without a match
    (as NLTK's method 1, which Holtzman et al. 2019 used). None for fewer than two texts that hold anything.
    """
    present = [text for text in texts if text.strip()]
    if len(present) < 2:
        return None
    bleu = _bleu()
    scores = [
        bleu.sentence_score(text, [*present[:number], *present[number + 1 :]]).score
        for number, text in enumerate(present)
    ]
    return sum(scores) / len(scores) / 100


@cache
def _bleu() -> BLEU:
    return BLEU(smooth_method="floor", smooth_value=0.1, effective_order=True)


def zipf_coefficient(tokens: Iterable[Hashable], max_rank: int = 5_000) -> float | None:
    """s of Zipf's law, frequency ~ rank ** -s: minus the least-squares slope of log frequency on log rank.

    0 where all tokens are equally frequent, about 1 for human text (0.93 in Holtzman et al. 2019), larger
    where few tokens dominate. None for fewer than two distinct tokens.
    """
    counts = sorted(Counter(tokens).values(), reverse=True)[:max_rank]
    if len(counts) < 2:
        return None
    ranks = np.arange(1, len(counts) + 1)
    return -float(np.polyfit(np.log(ranks), np.log(counts), 1)[0]) + 0.0
