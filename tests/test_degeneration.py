"""The table of Holtzman et al. on literal texts; the real one is run in the Lab."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from backend import BeamSearch
from backend.degeneration import METHODS, PUBLISHED, Measured, measured, method_of, requests, trap_shows
from backend.metrics import Phrase, TextMetrics
from backend.sweep import Outcome


def outcome(num_tokens: int, perplexity: float, text: str, loop: bool, repeats: float) -> Outcome:
    phrase = Phrase(2, 3) if loop else None
    numbers = TextMetrics(num_tokens, perplexity, 1.0, phrase, repeats, 1.0, 1.0, 1.0)
    return Outcome(0, text, "length", numbers, None, {}, None)


def test_every_prompt_runs_by_every_method_under_one_seed() -> None:
    made = requests(["a", "b"], 5, 100, "salt")
    assert [(request.prompt, request.seed) for request in made] == [("a", 100)] * 6 + [("b", 101)] * 6
    assert [method_of(index) for index in range(12)] == [*METHODS] * 2
    for index, request in enumerate(made):
        assert request.sampling == METHODS[method_of(index)].sampling
    assert made[1].strategy == BeamSearch(4)


def test_the_perplexity_of_several_texts_weighs_their_tokens() -> None:
    # 10 tokens at 2 and 30 at 8: exp of (10 ln 2 + 30 ln 8) / 40 = 2 ** 2.5
    row = measured([outcome(10, 2.0, "a b c d", True, 0.5), outcome(30, 8.0, "a b c d", False, 0.1)])
    assert row.perplexity == pytest.approx(2**2.5)
    assert (row.num_texts, row.loops, row.repeated_4grams) == (2, 0.5, pytest.approx(0.3))
    assert row.self_bleu == pytest.approx(1)
    assert row.zipf == pytest.approx(0, abs=1e-9)


def test_nothing_measured_yet() -> None:
    assert measured([]) == Measured(0, None, None, None, None, None)


def test_the_trap_shows_only_if_both_searches_repeat_more_and_surprise_less() -> None:
    def row(perplexity: float, repeats: float) -> Measured:
        return Measured(20, perplexity, 0.0, repeats, 0.1, 1.0)

    rows = {"greedy": row(2, 0.3), "beam": row(1.5, 0.4), "nucleus": row(13, 0.01)}
    assert trap_shows(rows) is True
    assert trap_shows({**rows, "beam": row(1.5, 0.005)}) is False
    assert trap_shows({**rows, "greedy": row(14, 0.3)}) is False
    assert trap_shows({"greedy": rows["greedy"]}) is None
    assert trap_shows({**rows, "beam": replace(rows["beam"], perplexity=None)}) is None


def test_the_published_table() -> None:
    """Holtzman et al. 2019, Table 1."""
    assert {name: (row.perplexity, row.loops, row.self_bleu) for name, row in PUBLISHED.items()} == {
        "human": (12.38, 0.0028, 0.31),
        "greedy": (1.50, 0.7366, 0.50),
        "beam": (1.48, 0.2894, 0.44),
        "pure": (22.73, 0.0022, 0.28),
        "top_k": (6.88, 0.0078, 0.39),
        "nucleus": (13.13, 0.0036, 0.32),
    }
    assert math.isclose(PUBLISHED["human"].zipf, 0.93)
