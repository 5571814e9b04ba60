"""What a buffer per request wastes and what blocks waste, in literal numbers."""

from __future__ import annotations

import random

import pytest

from backend import contiguous, in_blocks, kv_cache_bytes


def test_320_tokens_in_a_buffer_of_4096() -> None:
    kept = contiguous([320], 4096)
    assert (kept.used, kept.reserved, kept.waste) == (320, 4096, 0.921875)
    assert in_blocks([320], 16).waste == 0
    assert in_blocks([321], 16).reserved == 336
    assert in_blocks([321], 16).waste == pytest.approx(15 / 336)


def test_100_tokens_in_a_buffer_of_4096_waste_97_5_percent() -> None:
    assert contiguous([100], 4096).waste == pytest.approx(0.976, abs=0.001)
    assert in_blocks([100], 16).waste == pytest.approx(12 / 112)


def test_a_mix_of_lengths_over_200_wastes_less_than_4_percent_in_blocks() -> None:
    rng = random.Random(0)
    lengths = [rng.randrange(200, 2000) for _ in range(200)]
    assert in_blocks(lengths, 16).waste < 0.04
    assert contiguous(lengths, 2048).waste > 0.4
    # The longest case of each length class: 15 of 16 slots of the last block are empty.
    assert in_blocks([201], 16).waste == pytest.approx(7 / 208)


def test_nothing_reserved_wastes_nothing() -> None:
    assert in_blocks([], 16).waste == 0
    assert contiguous([], 4096).waste == 0


def test_a_sequence_longer_than_its_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="5,000 tokens do not fit into a buffer of 4,096"):
        contiguous([10, 5000], 4096)


def test_batch_and_element_size_multiply() -> None:
    assert kv_cache_bytes(30, 3, 64, 16, 4) == 737_280  # one block of the bundled model in float32
    assert kv_cache_bytes(30, 3, 64, 16, 2, batch_size=8) == 737_280 * 4
