"""The noise is a pure function of its place, has the right law, and draws follow the closed form."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from backend.request import MAX_SEED, SamplingParams
from backend.sampling import noise
from backend.sampling.pipeline import Pipeline, Place
from backend.sampling.processors import History

NOTHING = History((), 0)
NUM_DRAWS = 20_000
LEAST_P = 1e-4


def _gumbel(seed: int, sample: int, position: int, size: int) -> np.ndarray:
    return noise.gumbel(seed, sample, position, size).double().numpy()


# --- a pure function of (seed, sample, position, token id) ------------------------------------------


@pytest.mark.parametrize("place", [(0, 0, 0), (7, 3, 100), (2**31, 63, 8_191), (MAX_SEED, 63, 1_000_000)])
def test_the_same_place_has_the_same_noise_whatever_was_drawn_before(place: tuple[int, int, int]) -> None:
    first = noise.gumbel(*place, 300)
    torch.rand(5)
    np.random.rand(5)
    noise.gumbel(1, 2, 3, 17)
    assert torch.equal(noise.gumbel(*place, 300), first)
    assert (first.dtype, first.shape) == (torch.float32, (300,))


def test_the_noise_of_a_place_is_fixed_for_good() -> None:
    # Philox 4x64-10 with key (7, 1) and counter (1, 3, 0, 0), from numpy's raw output; see _exact.
    assert noise.gumbel(7, 1, 3, 8).tolist() == pytest.approx(_exact(7, 1, 3, 8), abs=1e-6)


def _exact(seed: int, sample: int, position: int, size: int, stream: int = 0) -> list[float]:
    """Gumbel noise from Philox 4x64-10 written out in Python integers (Salmon et al. 2011)."""
    mask = 2**64 - 1
    words: list[int] = []
    for block in range(1, size // 4 + 2):  # numpy raises the counter before it draws
        c, k = [block, position, stream, 0], [seed, sample]
        for _ in range(10):
            high0, low0 = divmod(0xD2E7470EE14C6C93 * c[0], 2**64)
            high1, low1 = divmod(0xCA5A826395121157 * c[2], 2**64)
            c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
            k = [(k[0] + 0x9E3779B97F4A7C15) & mask, (k[1] + 0xBB67AE8584CAA73B) & mask]
        words += c
    return [-math.log(-math.log(((word >> 12) + 0.5) / 2**52)) for word in words[:size]]


@pytest.mark.parametrize("place", [(0, 0, 0), (12345, 5, 678), (MAX_SEED, 63, 16_383)])
def test_noise_equals_philox_written_out(place: tuple[int, int, int]) -> None:
    assert noise.gumbel(*place, 101).tolist() == pytest.approx(_exact(*place, 101), abs=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 10, 63, 99])
def test_a_smaller_vocabulary_sees_a_prefix_of_the_noise(size: int) -> None:
    assert torch.equal(noise.gumbel(3, 1, 4, size), noise.gumbel(3, 1, 4, 100)[:size])


def test_seed_sample_and_position_all_matter_and_are_not_interchangeable() -> None:
    numbers = (0, 1, 2, 3)
    rows = {tuple(_gumbel(a, b, c, 4)) for a in numbers for b in numbers for c in numbers}
    assert len(rows) == 64


def test_no_two_places_share_a_number_by_overlap() -> None:
    seen = np.concatenate([_gumbel(5, 0, position, 2_000) for position in range(30)])
    # float32 noise collides now and then by chance; whole runs of it must not.
    pairs = Counter(zip(seen[:-1].tolist(), seen[1:].tolist(), strict=True))
    assert max(pairs.values()) == 1


def test_noise_is_finite_at_both_ends_of_the_random_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ends:
        def __init__(self, **_: object) -> None: ...

        def random_raw(self, size: int) -> np.ndarray:
            return np.array([0, 2**64 - 1], dtype=np.uint64)[:size]

    monkeypatch.setattr(noise.np.random, "Philox", Ends)
    assert torch.isfinite(noise.gumbel(0, 0, 0, 2)).all()


@pytest.mark.parametrize("stream", [noise.TOKEN, noise.DRAFT, noise.ACCEPT, noise.RESIDUAL])
def test_each_stream_is_philox_with_the_stream_in_the_third_word(stream: int) -> None:
    ours = noise.gumbel(7, 1, 3, 21, stream).tolist()
    assert ours == pytest.approx(_exact(7, 1, 3, 21, stream), abs=1e-5)
    # -log(-log(u)) of the single number is the noise of token 0.
    assert -math.log(-math.log(noise.uniform(7, 1, 3, stream))) == pytest.approx(ours[0], abs=1e-5)


def test_streams_of_one_place_are_uncorrelated() -> None:
    streams = (noise.TOKEN, noise.DRAFT, noise.ACCEPT, noise.RESIDUAL)
    rows = [noise.gumbel(7, 1, 3, 50_000, stream).numpy() for stream in streams]
    for first, second in itertools.combinations(rows, 2):
        assert stats.spearmanr(first, second).pvalue > LEAST_P


def test_single_numbers_are_uniform_over_positions() -> None:
    numbers = [noise.uniform(3, 0, position, noise.ACCEPT) for position in range(20_000)]
    assert stats.kstest(numbers, "uniform").pvalue > LEAST_P


def test_drawn_seeds_differ_and_stay_short() -> None:
    seeds = {noise.draw_seed() for _ in range(100)}
    assert len(seeds) > 95
    assert all(0 <= seed < 2**31 for seed in seeds)


# --- the law of the noise ---------------------------------------------------------------------------


def _many(kind: str) -> np.ndarray:
    """50,000 numbers that differ in one part of the place only."""
    if kind == "token":
        return _gumbel(11, 2, 3, 50_000)
    places = [(11, 2, n) if kind == "position" else (n, 2, 3) for n in range(12_500)]
    return np.concatenate([_gumbel(*place, 4) for place in places])


@pytest.mark.parametrize("kind", ["token", "position", "seed"])
def test_noise_is_standard_gumbel(kind: str) -> None:
    assert stats.kstest(_many(kind), "gumbel_r").pvalue > LEAST_P


def test_noise_at_one_token_over_all_samples_is_standard_gumbel() -> None:
    values = [_gumbel(seed, sample, 0, 1)[0] for seed in range(100) for sample in range(64)]
    assert stats.kstest(values, "gumbel_r").pvalue > LEAST_P


@pytest.mark.parametrize(
    "other", [(8, 2, 3), (7, 3, 3), (7, 2, 4), (7, 2, 3 + 2**20), (2, 7, 3), (7, 3, 2), (3, 2, 7)]
)
def test_neighbouring_places_are_uncorrelated(other: tuple[int, int, int]) -> None:
    here, there = _gumbel(7, 2, 3, 50_000), _gumbel(*other, 50_000)
    assert stats.spearmanr(here, there).pvalue > LEAST_P
    for lag in range(1, 9):
        assert stats.spearmanr(here[:-lag], there[lag:]).pvalue > LEAST_P


def test_tokens_at_one_place_are_uncorrelated() -> None:
    here = _gumbel(7, 2, 3, 50_000)
    for lag in (1, 2, 3, 4, 8, 1_000):
        assert stats.spearmanr(here[:-lag], here[lag:]).pvalue > LEAST_P


# --- draws of the whole pipeline against the closed form --------------------------------------------


def _chi_square_p(counts: Counter[int], expected: list[float]) -> float:
    """p-value of the counts; cells under 5 expected draws are merged. Impossible tokens must not occur."""
    assert all(expected[token_id] > 0 for token_id in counts)
    total = counts.total()
    cells = [(counts[i], total * p) for i, p in enumerate(expected) if p > 0]
    large = [cell for cell in cells if cell[1] >= 5]
    small = [cell for cell in cells if cell[1] < 5]
    if small:
        large.append((sum(seen for seen, _ in small), sum(mean for _, mean in small)))
    if len(large) == 1:
        return 1.0
    return float(stats.chisquare(*zip(*large, strict=True)).pvalue)


def _draw(
    params: SamplingParams, logits: torch.Tensor, history: History, places: Iterable[Place]
) -> Counter[int]:
    pipeline = Pipeline(params, str, num_candidates=0)
    return Counter(pipeline.choose(logits, history, place).token_id for place in places)


def _positions(seed: int = 20) -> Iterable[Place]:
    return (Place(seed, 0, position) for position in range(NUM_DRAWS))


def _seeds() -> Iterable[Place]:
    return (Place(seed, 0, 17) for seed in range(NUM_DRAWS))


def _samples() -> Iterable[Place]:
    return (Place(seed, sample, 17) for seed in range(NUM_DRAWS // 64 + 1) for sample in range(64))


PLAIN = SamplingParams()
# The closed form of each, by hand, for the probabilities 0.4, 0.3, 0.2, 0.1.
CLOSED_FORMS = [
    (PLAIN, [0.4, 0.3, 0.2, 0.1]),
    (SamplingParams(temperature=0.5), [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
    (SamplingParams(top_k=3), [4 / 9, 3 / 9, 2 / 9, 0]),
    (SamplingParams(temperature=0.5, top_p=0.8, min_p=0.1), [16 / 25, 9 / 25, 0, 0]),
]


@pytest.mark.parametrize(("params", "expected"), CLOSED_FORMS)
def test_draws_over_positions_follow_the_closed_form(params: SamplingParams, expected: list[float]) -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert _chi_square_p(_draw(params, logits, NOTHING, _positions()), expected) > LEAST_P


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_draws_from_half_precision_logits_follow_the_numbers_they_hold(dtype: torch.dtype) -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().to(dtype)
    expected = torch.softmax(logits.double(), -1).tolist()
    assert _chi_square_p(_draw(PLAIN, logits, NOTHING, _positions()), expected) > LEAST_P


@pytest.mark.parametrize("places", [_seeds, _samples])
def test_draws_over_seeds_and_samples_follow_the_closed_form(places: Callable[[], Iterable[Place]]) -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    params, expected = CLOSED_FORMS[3]
    for setting, chances in ((PLAIN, [0.4, 0.3, 0.2, 0.1]), (params, expected)):
        assert _chi_square_p(_draw(setting, logits, NOTHING, places()), chances) > LEAST_P


def test_draws_from_many_tokens_with_every_stage_on_follow_the_closed_form() -> None:
    size = 60
    logits = torch.linspace(3, -3, size)[torch.randperm(size, generator=torch.Generator().manual_seed(0))]
    history = History((5, 6, 5, 9, 5), 2)
    params = SamplingParams(
        temperature=1.5,
        top_k=40,
        top_p=0.95,
        min_p=0.05,
        repetition_penalty=1.2,
        frequency_penalty=0.5,
        presence_penalty=0.3,
        no_repeat_ngram_size=2,
        logit_bias={3: 2.0},
    )
    scores = logits.double().clone()
    for token_id, times in ((5, 2), (6, 0), (9, 1)):
        scores[token_id] = scores[token_id] / 1.2 if scores[token_id] > 0 else scores[token_id] * 1.2
        scores[token_id] -= 0.5 * times + 0.3 * (times > 0)
    scores[[6, 9]] = -math.inf  # the tokens that followed 5 before
    scores[3] += 2.0
    chances = torch.softmax(scores / 1.5, -1)
    chances[chances.argsort(descending=True)[40:]] = 0
    chances /= chances.sum()
    ranked = chances.argsort(descending=True)
    chances[ranked[int((chances[ranked].cumsum(-1) < 0.95).sum()) + 1 :]] = 0
    chances[chances < 0.05 * chances.max()] = 0
    expected = (chances / chances.sum()).tolist()
    assert 10 < sum(p > 0 for p in expected) < 40
    assert _chi_square_p(_draw(params, logits, history, _positions()), expected) > LEAST_P


def test_a_wrong_distribution_would_be_noticed() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    counts = _draw(PLAIN, logits, NOTHING, _positions())
    assert _chi_square_p(counts, [0.42, 0.28, 0.2, 0.1]) < LEAST_P


# --- shared luck ------------------------------------------------------------------------------------


def test_two_settings_under_one_seed_differ_only_where_a_stage_removed_the_winner() -> None:
    logits = torch.randn(200, generator=torch.Generator().manual_seed(1)) * 2
    plain = Pipeline(PLAIN, str)
    cut = Pipeline(SamplingParams(top_p=0.8), str)
    kept = set(torch.isfinite(cut.scores(logits, NOTHING)).nonzero().squeeze(-1).tolist())
    changed = 0
    for position in range(300):
        place = Place(3, 0, position)
        free, bound = plain.choose(logits, NOTHING, place), cut.choose(logits, NOTHING, place)
        assert bound.uncut_winner == free.token_id
        assert (bound.token_id == free.token_id) == (free.token_id in kept)
        changed += bound.token_id != free.token_id
    assert 20 < changed < 120


def test_the_luck_shown_is_the_noise_of_the_place_for_every_setting() -> None:
    logits = torch.randn(100, generator=torch.Generator().manual_seed(2))
    expected = noise.gumbel(9, 4, 77, 100)
    for params in (PLAIN, SamplingParams(temperature=0.3), SamplingParams(top_k=5, min_p=0.1)):
        choice = Pipeline(params, str).choose(logits, NOTHING, Place(9, 4, 77))
        assert choice.candidates is not None
        assert list(choice.candidates.luck) == expected[list(choice.candidates.token_ids)].tolist()
        assert choice.luck == float(expected[choice.token_id])


def test_the_chosen_token_has_the_greatest_sum_of_log_probability_and_luck() -> None:
    logits = torch.randn(100, generator=torch.Generator().manual_seed(3))
    pipeline = Pipeline(SamplingParams(temperature=0.9, top_k=20), str)
    for position in range(100):
        table = (choice := pipeline.choose(logits, NOTHING, Place(1, 1, position))).candidates
        assert table is not None
        sums = [a + b for a, b in zip(table.after[-1], table.luck, strict=True)]
        assert table.token_ids[sums.index(max(sums))] == choice.token_id


def test_samples_of_one_seed_differ_and_do_not_depend_on_how_many_there_are() -> None:
    logits = torch.zeros(1_000)
    pipeline = Pipeline(PLAIN, str, num_candidates=0)

    def texts(n: int) -> list[tuple[int, ...]]:
        return [
            tuple(pipeline.choose(logits, NOTHING, Place(7, sample, i)).token_id for i in range(5))
            for sample in range(n)
        ]

    eight = texts(8)
    assert len(set(eight)) == 8
    assert texts(8) == eight
    assert texts(4) == eight[:4]


def test_the_draw_of_a_row_does_not_depend_on_its_place_in_a_batch() -> None:
    batch = torch.randn(6, 301, generator=torch.Generator().manual_seed(4))
    pipeline = Pipeline(replace(PLAIN, top_p=0.9), str)
    for row in range(6):
        alone = pipeline.choose(batch[row].clone(), NOTHING, Place(1, 0, row))
        assert pipeline.choose(batch[row], NOTHING, Place(1, 0, row)) == alone
        assert pipeline.choose(batch.flip(0)[5 - row], NOTHING, Place(1, 0, row)) == alone
