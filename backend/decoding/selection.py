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


def best(scores: Sequence[float]) -> int:
    """Index of the highest score, the first among equals."""
    return max(range(len(scores)), key=lambda index: (scores[index], -index))
