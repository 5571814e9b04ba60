"""The calculators on the numbers that textbooks on decoding work out by hand."""

from __future__ import annotations

import math

import pytest

from backend import worked
from backend.errors import RequestError

SIX = [0.35, 0.25, 0.15, 0.12, 0.08, 0.05]


@pytest.mark.parametrize(
    ("logits", "temperature", "expected"),
    [
        ([2.0, 1.0, 0.1], 1.0, [0.6590, 0.2424, 0.0986]),
        ([2.0, 1.0, 0.1], 0.5, [0.8638, 0.1169, 0.0193]),
        ([2.0, 1.0, 0.1], 2.0, [0.5017, 0.3043, 0.1940]),
        ([2.0, 1.0, 0.0], 1.0, [7.39 / 11.11, 2.72 / 11.11, 1 / 11.11]),
        ([2.0, 1.0, 0.1], 0.0, [1.0, 0.0, 0.0]),
    ],
)
def test_softmax_with_temperature(logits: list[float], temperature: float, expected: list[float]) -> None:
    assert worked.softmax(logits, temperature) == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize(("p", "kept", "mass"), [(0.8, 4, 0.87), (0.5, 2, 0.60)])
def test_the_nucleus_of_six_tokens(p: float, kept: int, mass: float) -> None:
    found = worked.nucleus(SIX, p)
    assert found.cumulative == pytest.approx([0.35, 0.60, 0.75, 0.87, 0.95, 1.00])
    assert (found.num_kept, found.kept_mass) == (kept, pytest.approx(mass))
    assert sum(found.after) == pytest.approx(1)


def test_the_nucleus_beside_a_long_tail() -> None:
    found = worked.nucleus([0.40, 0.25, 0.15, 0.12, 0.05], 0.9)
    assert found.num_kept == 4
    assert found.cumulative[3] == pytest.approx(0.92)


@pytest.mark.parametrize(("best", "cutoff"), [(0.4, 0.04), (0.05, 0.005)])
def test_the_min_p_cutoff(best: float, cutoff: float) -> None:
    listed = [best, cutoff * 1.1, cutoff * 0.9]
    found_cutoff, found = worked.min_p(listed, 0.1)
    assert found_cutoff == pytest.approx(cutoff)
    assert found.num_kept == 2


@pytest.mark.parametrize(
    ("a", "k", "tokens"),
    [
        (0.6, 4, 2.31),
        (0.7, 4, 2.77),
        (0.8, 4, 3.36),
        (0.9, 4, 4.10),
        (0.6, 8, 2.47),
        (0.7, 8, 3.20),
        (0.8, 8, 4.33),
        (0.9, 8, 6.13),
        (0.75, 6, 3.47),
    ],
)
def test_expected_tokens_per_round(a: float, k: int, tokens: float) -> None:
    assert worked.rounds(a, k).tokens == pytest.approx(tokens, abs=6e-3)


def test_longer_drafts_saturate() -> None:
    assert pytest.approx(0.1335, abs=5e-5) == 0.75**7
    found = worked.rounds(0.75, 6)
    assert found.ceiling == 4.0
    assert found.share == pytest.approx(0.87, abs=5e-3)
    assert worked.rounds(1.0, 4).tokens == 5
    assert worked.rounds(1.0, 4).ceiling == math.inf


def test_block_waste() -> None:
    found = worked.waste(320, 4096, 16)
    assert found.reserved_share == pytest.approx(0.922, abs=5e-4)
    assert (found.num_blocks, found.last_used, found.block_share) == (20, 16, 0)
    assert found.worst_share == pytest.approx(0.047, abs=5e-4)
    assert worked.waste(100, 4096, 16).reserved_share == pytest.approx(0.975, abs=1e-3)
    assert worked.waste(1, 16, 16).worst_share == pytest.approx(15 / 16)
    assert 15 / 16 == 0.9375


def test_a_longer_text_wins_once_its_length_is_divided_out() -> None:
    short, long = (-2.0, 2), (-5.0, 10)
    assert worked.beam_score(*short, 0.0) > worked.beam_score(*long, 0.0)
    assert (worked.beam_score(*short, 1.0), worked.beam_score(*long, 1.0)) == (-1.0, -0.5)
    assert worked.beam_score(-5.0, 10, 0.6) == pytest.approx(-5 / 10**0.6)


def test_numbers_are_read_and_refused_by_name() -> None:
    assert worked.numbers("2, 1.5  -3e-1") == [2, 1.5, -0.3]
    for text, message in (
        ("", "give 1 to 50 numbers, got 0"),
        ("1 x", "'x' is not a number"),
        ("nan", "'nan' is not between"),
        ("1 " * 51, "got 51"),
    ):
        with pytest.raises(RequestError, match=message):
            worked.numbers(text)


@pytest.mark.parametrize(
    "call",
    [
        lambda: worked.nucleus([0.9, 0.9], 0.5),
        lambda: worked.nucleus([-0.1, 0.5], 0.5),
        lambda: worked.softmax([1.0], -1),
        lambda: worked.rounds(1.5, 4),
        lambda: worked.waste(50, 40, 16),
        lambda: worked.waste(50, 100, 0),
        lambda: worked.beam_score(-1, 0, 1),
    ],
)
def test_impossible_inputs_are_refused(call) -> None:
    with pytest.raises(RequestError):
        call()
