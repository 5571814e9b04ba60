"""Choosing one of several samples; pure functions of texts and numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import regex
from sacrebleu.metrics.chrf import CHRF

# A pattern comes from a visitor; one that never ends must not hold up everybody's step loop.
ANSWER_SECONDS = 0.2
LAST_NUMBER = r"(-?\d[\d,]*(?:\.\d+)?)(?!.*\d)"


def extract_answer(text: str, pattern: str | None) -> str | None:
    """The first group of the pattern's first match, by default the last number; None without a match.

    Thousands separators are dropped from numbers, so that 1,000 and 1000 are one answer.
    """
    try:
        match = regex.search(pattern or LAST_NUMBER, text, flags=regex.DOTALL, timeout=ANSWER_SECONDS)
    except TimeoutError:
        return None
    if match is None or match[1] is None:
        return None
    return match[1].replace(",", "") if pattern is None else match[1].strip()


def majority(answers: Sequence[str | None]) -> tuple[float, ...]:
    """Share of all samples that gave the same answer, 0 without one (self-consistency, Wang et al. 2023)."""
    votes = Counter(answer for answer in answers if answer is not None)
    return tuple(votes[answer] / len(answers) if answer is not None else 0.0 for answer in answers)


def similarities(texts: Sequence[str]) -> tuple[tuple[float, ...], ...]:
    """chrF of text i with text j as its reference, 0 to 100; [n][n] (sacrebleu, Popović 2015)."""
    chrf = CHRF()
    return tuple(tuple(chrf.sentence_score(text, [reference]).score for reference in texts) for text in texts)


def expected_similarity(matrix: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Mean similarity of each text to the others: its minimum Bayes risk score (Eikema & Aziz 2020)."""
    others = max(len(matrix) - 1, 1)
    return tuple((sum(row) - row[index]) / others for index, row in enumerate(matrix))


def length_normalised(cum_logprob: float, length: int, length_penalty: float) -> float:
    """Sum of log-probabilities over length ** length_penalty; length counts generated tokens, EOS included.

    A positive penalty favours long texts, a negative one short texts; 0 leaves the sum (transformers).
    """
    return cum_logprob / length**length_penalty


def scores(
    rule: str,
    cum_logprobs: Sequence[float],
    lengths: Sequence[int],
    answers: Sequence[str | None],
    matrix: Sequence[Sequence[float]],
) -> tuple[float, ...]:
    """Each sample's score by a rule of BestOf.select; the highest wins.

    Args:
        cum_logprobs: sums of the model's log-probabilities, of `lengths` tokens; the mean of no token is 0.
        matrix: see `similarities`; only "mbr" looks at it.
    """
    if rule == "sum":
        return tuple(cum_logprobs)
    if rule == "mean":
        pairs = zip(cum_logprobs, lengths, strict=True)
        return tuple(length_normalised(total, max(length, 1), 1.0) for total, length in pairs)
    return majority(answers) if rule == "vote" else expected_similarity(matrix)


def best(scores: Sequence[float]) -> int:
    """Index of the highest score, the first among equals."""
    return max(range(len(scores)), key=lambda index: (scores[index], -index))
