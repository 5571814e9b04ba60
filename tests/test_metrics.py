"""Measures of text on literal texts, with values worked out by hand or by another library."""

from __future__ import annotations

import math

import pytest

from backend import metrics
from backend.metrics import Phrase
from tests.ui.steps import step


def test_perplexity_is_the_number_of_equally_likely_choices() -> None:
    assert metrics.perplexity([math.log(1 / 8)] * 5) == pytest.approx(8)
    # 1/2 and 1/8: the geometric mean is 1/4
    assert metrics.perplexity([math.log(0.5), math.log(0.125)]) == pytest.approx(4)
    assert metrics.perplexity([0.0, 0.0]) == 1
    assert metrics.perplexity([-math.inf, 0.0]) == math.inf
    assert metrics.perplexity([]) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x y a b a b a b", Phrase(2, 3)),
        ("x y a b a b", None),  # twice is no loop
        ("a b a b a b x", None),  # it has left the loop
        ("x a a a", None),  # a phrase has at least two tokens
        ("a a a a a a", Phrase(2, 3)),
        ("q a b c a b c a b c a b c", Phrase(3, 4)),
        ("a b a b c a b a b c a b a b c", Phrase(5, 3)),
        ("x b a b a b a b", Phrase(2, 3)),
        ("", None),
    ],
)
def test_a_phrase_that_keeps_repeating_at_the_end(text: str, found: Phrase | None) -> None:
    assert metrics.repeated_phrase(text.split()) == found


def test_a_phrase_of_ninety_tokens_is_still_found_and_one_of_ninety_one_is_not() -> None:
    assert metrics.repeated_phrase([*range(90)] * 3) == Phrase(90, 3)
    assert metrics.repeated_phrase([*range(91)] * 3) is None


def test_distinct_ngrams_are_counted_over_all() -> None:
    words = ["the", "cat", "the", "cat", "the", "dog"]
    assert metrics.distinct(words, 1) == 3 / 6
    assert metrics.distinct(words, 2) == 3 / 5  # the-cat, cat-the, the-dog of five
    assert metrics.distinct(words, 3) == 3 / 4
    assert metrics.distinct(words, 7) is None


def test_repeated_four_grams() -> None:
    # abcd bcda cdab dabc abcd: one of five occurred before
    assert metrics.repeated_ngrams([*"abcdabcd"]) == pytest.approx(1 / 5)
    assert metrics.repeated_ngrams([*"aaaaaaaa"]) == pytest.approx(4 / 5)
    assert metrics.repeated_ngrams([*"abcdefgh"]) == 0
    assert metrics.repeated_ngrams([*"abc"]) is None


def test_self_bleu_of_equal_and_of_unlike_texts() -> None:
    assert metrics.self_bleu(["the old man sat by the sea"] * 3) == pytest.approx(1)
    assert metrics.self_bleu(["a b c d e"]) is None
    assert metrics.self_bleu(["a b c d e", " \n", ""]) is None


def test_self_bleu_by_hand() -> None:
    # Both ways 4 of 5 words, 3 of 4 pairs, 2 of 3 triples, 1 of 2 quadruples; equal length.
    expected = (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    assert metrics.self_bleu(["a b c d e", "a b c d f"]) == pytest.approx(expected)


def test_an_order_without_a_match_counts_as_a_tenth_of_a_match() -> None:
    # 1 of 4 words; none of 3 pairs, 2 triples, 1 quadruple
    expected = (1 / 4 * 0.1 / 3 * 0.1 / 2 * 0.1 / 1) ** 0.25
    assert metrics.self_bleu(["a b c d", "a x y z"]) == pytest.approx(expected)


def test_zipf_coefficient_of_an_exact_power_law() -> None:
    frequencies = [720, 360, 240, 180, 144, 120]  # 720 / rank
    tokens = [rank for rank, count in enumerate(frequencies) for _ in range(count)]
    assert metrics.zipf_coefficient(tokens) == pytest.approx(1)
    assert metrics.zipf_coefficient([1, 2, 3, 1, 2, 3]) == pytest.approx(0, abs=1e-12)
    assert metrics.zipf_coefficient([7, 7, 7]) is None


def test_all_numbers_of_one_text() -> None:
    ids = [1, 2, 3, 1, 2, 3, 1, 2, 3]
    steps = [
        step(i, token_id=t, model_logprob=math.log(0.25), entropy=0.5 + i % 2) for i, t in enumerate(ids)
    ]
    found = metrics.describe(steps)
    assert found.num_tokens == 9
    assert found.perplexity == pytest.approx(4)
    assert found.mean_entropy == pytest.approx((5 * 0.5 + 4 * 1.5) / 9)
    assert found.phrase == Phrase(3, 3)
    assert (found.distinct_1, found.distinct_2, found.distinct_3) == (3 / 9, 3 / 8, 3 / 7)
    assert found.repeated_4grams == pytest.approx(1 - 3 / 6)


def test_the_end_of_text_is_no_word_of_the_text_but_counts_for_the_perplexity() -> None:
    steps = [step(i, token_id=t, model_logprob=math.log(0.5)) for i, t in enumerate([1, 2, 1, 2, 1, 2])]
    end = step(6, token_id=9, label="<|im_end|>", text="", model_logprob=math.log(0.5) * 8)
    found = metrics.describe([*steps, end])
    assert found.phrase == Phrase(2, 3)
    assert found.num_tokens == 7
    assert found.perplexity == pytest.approx(2 ** (14 / 7))


def test_a_text_without_tokens_has_no_numbers() -> None:
    found = metrics.describe([])
    assert (found.num_tokens, found.perplexity, found.distinct_1) == (0, None, None)
