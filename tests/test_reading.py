"""Numbers worked out by hand in textbooks on decoding, put through the stages and the block arithmetic."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.kv.block_manager import BlockManager
from backend.kv.size import kv_cache_bytes
from backend.request import SamplingParams
from backend.sampling.pipeline import Choice, Pipeline, Place
from backend.sampling.processors import History

NOTHING = History((), 0)
# The worked numbers are given to four decimals.
FOUR_DECIMALS = 5e-5


def _choose(logits: Tensor | list[float], history: History = NOTHING, **knobs: Any) -> Choice:
    pipeline = Pipeline(SamplingParams(**knobs), str, num_candidates=30)
    return pipeline.choose(torch.as_tensor(logits), history, Place(0, 0, 0))


def _by_id(choice: Choice, column: tuple[float, ...]) -> list[float]:
    assert choice.candidates is not None
    pairs = sorted(zip(choice.candidates.token_ids, column, strict=True))
    return [math.exp(value) for _, value in pairs]


def _after(logits: Tensor | list[float], history: History = NOTHING, **knobs: Any) -> list[float]:
    """The probabilities shown after the last stage, by token id."""
    choice = _choose(logits, history, **knobs)
    assert choice.candidates is not None
    return _by_id(choice, choice.candidates.after[-1])


def _model(logits: Tensor | list[float]) -> list[float]:
    choice = _choose(logits, temperature=0.5)
    assert choice.candidates is not None
    return _by_id(choice, choice.candidates.model_logprobs)


def _num_kept(choice: Choice) -> int:
    return choice.stages[-1].num_kept


def _near(*values: float) -> Any:
    return pytest.approx(list(values), abs=FOUR_DECIMALS)


# --- softmax, temperature, top-k, top-p on three logits ---------------------------------------------

THREE = [2.0, 1.0, 0.1]


def test_softmax_of_two_one_zero() -> None:
    assert [math.exp(z) for z in (2, 1, 0)] == pytest.approx([7.39, 2.72, 1], abs=5e-3)
    assert _model([2.0, 1.0, 0.0]) == pytest.approx([7.389 / 11.107, 2.718 / 11.107, 1 / 11.107], abs=1e-4)


def test_the_model_column_at_temperature_one() -> None:
    assert _model(THREE) == _near(0.6590, 0.2424, 0.0986)


def test_half_the_temperature_is_sharper() -> None:
    assert _after(THREE, temperature=0.5) == _near(0.8638, 0.1169, 0.0193)


def test_twice_the_temperature_is_flatter() -> None:
    assert _after(THREE, temperature=2.0) == _near(0.5017, 0.3043, 0.1940)


def test_the_best_two_of_three() -> None:
    assert _after(THREE, top_k=2) == _near(0.7311, 0.2689, 0.0)


def test_the_nucleus_of_eighty_percent_is_the_first_two() -> None:
    choice = _choose(THREE, top_p=0.8)
    assert choice.stages[0].threshold == pytest.approx(0.9014, abs=FOUR_DECIMALS)
    assert _after(THREE, top_p=0.8) == _near(0.7311, 0.2689, 0.0)


# --- the nucleus ------------------------------------------------------------------------------------


def test_a_nucleus_of_ninety_percent_takes_four_of_a_hundred_thousand_tokens() -> None:
    tail = torch.full((99_995,), 0.03 / 99_995, dtype=torch.float64)
    head = torch.tensor([0.40, 0.25, 0.15, 0.12, 0.05], dtype=torch.float64)
    (outcome,) = _choose(torch.cat([head, tail]).log().float(), top_p=0.9).stages
    assert outcome.num_kept == 4
    assert outcome.threshold == pytest.approx(0.92, abs=5e-3)
    assert outcome.cut_mass == pytest.approx(0.08, abs=5e-3)


@pytest.mark.parametrize(("p", "kept", "mass"), [(0.8, 4, 0.87), (0.5, 2, 0.60)])
def test_the_nucleus_of_six_tokens(p: float, kept: int, mass: float) -> None:
    six = torch.tensor([0.35, 0.25, 0.15, 0.12, 0.08, 0.05]).log()
    choice = _choose(six, top_p=p)
    assert _num_kept(choice) == kept
    assert choice.stages[0].threshold == pytest.approx(mass, abs=1e-6)
    assert [p > 0 for p in _after(six, top_p=p)] == [True] * kept + [False] * (6 - kept)


# --- min-p ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("top", "cutoff"), [(0.4, 0.04), (0.05, 0.005)])
def test_the_min_p_cutoff_follows_the_likeliest_token(top: float, cutoff: float) -> None:
    others = [1.05 * cutoff, 0.95 * cutoff]
    # What is left is spread so that nobody overtakes the likeliest token.
    left = 1 - top - sum(others)
    num_fillers = math.ceil(left / (0.9 * top))
    chances = torch.tensor([top, *others, *[left / num_fillers] * num_fillers])
    choice = _choose(chances.log(), min_p=0.1)
    assert choice.stages[0].threshold == pytest.approx(cutoff, abs=1e-7)
    assert choice.candidates is not None
    fate = dict(zip(choice.candidates.token_ids, choice.candidates.cut_by, strict=True))
    assert (fate[0], fate[1], fate[2]) == (-1, -1, 0)
    assert _num_kept(choice) == 2 + num_fillers


# --- penalties --------------------------------------------------------------------------------------


def test_the_repetition_penalty_makes_a_seen_token_less_likely_whatever_its_sign() -> None:
    logits = [1.0, -1.0, 0.5]
    before = _model(logits)
    for seen in (0, 1):
        after = _after(logits, History((seen,), 1), repetition_penalty=1.1)
        assert after[seen] < before[seen]
    expected = torch.softmax(torch.tensor([1.0 / 1.1, -1.0 * 1.1, 0.5]), -1).tolist()
    assert _after(logits, History((0, 1, 0, 1), 1), repetition_penalty=1.1) == pytest.approx(
        expected, abs=1e-6
    )


def test_presence_is_subtracted_once_and_frequency_for_every_occurrence() -> None:
    logits, history = [1.0, 1.0, 1.0], History((2, 0, 0, 0, 1), 1)
    presence = torch.softmax(torch.tensor([1 - 0.6, 1 - 0.6, 1.0]), -1).tolist()
    assert _after(logits, history, presence_penalty=0.6) == pytest.approx(presence, abs=1e-6)
    frequency = torch.softmax(torch.tensor([1 - 3 * 0.6, 1 - 0.6, 1.0]), -1).tolist()
    assert _after(logits, history, frequency_penalty=0.6) == pytest.approx(frequency, abs=1e-6)


# --- memory of keys and values ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_tokens", "batch_size", "gigabytes", "tolerance"),
    [
        (4_096, 1, 1.3, 0.05),
        (32_768, 1, 10.7, 0.05),
        (131_072, 1, 42.9, 0.05),
        (4_096, 32, 42, 1.0),
        (32_768, 32, 343, 1.0),
    ],
)
def test_kv_cache_of_a_seventy_billion_model_in_sixteen_bits(
    num_tokens: int, batch_size: int, gigabytes: float, tolerance: float
) -> None:
    size = kv_cache_bytes(
        num_layers=80,
        num_kv_heads=8,
        head_size=128,
        num_tokens=num_tokens,
        bytes_per_element=2,
        batch_size=batch_size,
    )
    assert size / 1e9 == pytest.approx(gigabytes, abs=tolerance)


def test_kv_cache_of_one_token_counts_keys_and_values_of_every_layer() -> None:
    assert kv_cache_bytes(80, 8, 128, 1, 2) == 327_680


def test_blocks_waste_at_most_one_block_less_one_token() -> None:
    manager = BlockManager(num_blocks=64, block_size=16)
    assert manager.num_blocks_for(320) == 20
    assert BlockManager(1, 4_096).num_blocks_for(320) == 1
    unused = 4_096 - 320
    assert unused / 4_096 == pytest.approx(0.922, abs=5e-4)
    waste = [manager.num_blocks_for(n) * 16 - n for n in range(305, 321)]
    assert max(waste) == 15
    assert max(waste) / (20 * 16) == pytest.approx(0.047, abs=5e-4)
