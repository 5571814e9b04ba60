"""Each stage against transformers' processor of that name, written formulas, and literal vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
import transformers
from torch import Tensor

from backend.errors import PlaygroundError, RequestError
from backend.request import SamplingParams
from backend.sampling.pipeline import Pipeline, Place
from backend.sampling.processors import (
    FrequencyPenalty,
    Greedy,
    History,
    LogitBias,
    MinP,
    NoRepeatNgram,
    PresencePenalty,
    RepetitionPenalty,
    Stage,
    Temperature,
    TopK,
    TopNSigma,
    TopP,
    TypicalP,
    build,
)

INF = math.inf
NOTHING = History((), 0)
# A border nearer than this may be decided differently in float32 and float64.
CLEAR = 5e-6
SIZES = (5, 17, 300, 4_000, 50_000)
SCALES = (0.1, 1.0, 4.0, 20.0)
VECTORS = [(size, scale) for size in SIZES for scale in SCALES]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _random_logits(size: int, scale: float, seed: int = 0) -> Tensor:
    """Normal logits without equal values."""
    generator = torch.Generator().manual_seed(1000 * seed + size)
    logits = torch.randn(size, generator=generator) * scale
    while logits.unique().numel() < size:
        values, counts = logits.unique(return_counts=True)
        doubled = torch.isin(logits, values[counts > 1])
        logits[doubled] = torch.randn(int(doubled.sum()), generator=generator) * scale
    return logits


def _history(size: int, length: int = 40, prompt: int = 15) -> History:
    ids = torch.randint(0, size, (length,), generator=torch.Generator().manual_seed(size)).tolist()
    return History(tuple(ids), prompt)


def _reference(processor: Callable[..., Tensor], logits: Tensor, history: History = NOTHING) -> Tensor:
    """What transformers makes of the logits, in float64."""
    ids = torch.tensor([list(history.token_ids)], dtype=torch.long)
    return processor(ids, logits.double()[None])[0]


def _kept(logits: Tensor) -> list[int]:
    return torch.isfinite(logits).nonzero().squeeze(-1).tolist()


def _probabilities(logits: Tensor) -> list[float]:
    return torch.softmax(logits, -1).tolist()


def _assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert _kept(ours) == _kept(theirs)
    torch.testing.assert_close(
        torch.softmax(ours.double(), -1), torch.softmax(theirs, -1), rtol=2e-5, atol=1e-9
    )


def _final(params: SamplingParams, logits: Tensor, history: History = NOTHING) -> Tensor:
    """Log-probabilities after all stages."""
    return torch.log_softmax(Pipeline(params, str).scores(logits, history), -1)


def _drawn_from(params: SamplingParams, logits: Tensor) -> list[float]:
    """The probabilities that the trace of a draw shows after the last stage, by id."""
    table = Pipeline(params, str).choose(logits, NOTHING, Place(0, 0, 0)).candidates
    assert table is not None
    by_id = dict(zip(table.token_ids, table.after[-1], strict=True))
    return [math.exp(by_id[token_id]) for token_id in range(logits.numel())]


def _from(probabilities: Sequence[float], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log().to(dtype)


# --- against transformers ---------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "scale"), VECTORS)
@pytest.mark.parametrize("penalty", [0.7, 1.3, 2.0])
def test_repetition_penalty_equals_transformers(size: int, scale: float, penalty: float) -> None:
    logits, history = _random_logits(size, scale), _history(size)
    theirs = _reference(transformers.RepetitionPenaltyLogitsProcessor(penalty), logits, history)
    _assert_same(RepetitionPenalty(penalty).apply(logits, history), theirs)


@pytest.mark.parametrize(("size", "scale"), VECTORS)
@pytest.mark.parametrize("ngram", [1, 2, 3])
def test_no_repeat_ngram_equals_transformers(size: int, scale: float, ngram: int) -> None:
    logits = _random_logits(size, scale)
    # Few distinct ids, so that n-grams do recur.
    history = History(tuple(token_id % 4 for token_id in _history(size).token_ids), 15)
    theirs = _reference(transformers.NoRepeatNGramLogitsProcessor(ngram), logits, history)
    ours = NoRepeatNgram(ngram).apply(logits, history)
    assert len(_kept(ours)) < size
    _assert_same(ours, theirs)


@pytest.mark.parametrize(("size", "scale"), VECTORS)
def test_logit_bias_equals_transformers(size: int, scale: float) -> None:
    bias = {0: 2.5, size - 1: -3.0, size // 2: 100.0}
    logits = _random_logits(size, scale)
    pairs: list[list[list[int] | float]] = [[[key], value] for key, value in bias.items()]
    processor = transformers.SequenceBiasLogitsProcessor(pairs)
    _assert_same(LogitBias(bias).apply(logits, NOTHING), _reference(processor, logits))


@pytest.mark.parametrize(("size", "scale"), VECTORS)
@pytest.mark.parametrize("temperature", [0.1, 0.8, 1.7, 50.0])
def test_temperature_equals_transformers(size: int, scale: float, temperature: float) -> None:
    logits = _random_logits(size, scale)
    theirs = _reference(transformers.TemperatureLogitsWarper(temperature), logits)
    _assert_same(Temperature(temperature).apply(logits, NOTHING), theirs)


@pytest.mark.parametrize(("size", "scale"), VECTORS)
@pytest.mark.parametrize("k", [1, 3, 50, 10_000, 60_000])
def test_top_k_equals_transformers(size: int, scale: float, k: int) -> None:
    logits = _random_logits(size, scale)
    theirs = _reference(transformers.TopKLogitsWarper(k), logits)
    assert len(_kept(theirs)) == min(k, size)
    _assert_same(TopK(k).apply(logits, NOTHING), theirs)


def _clear_mass(weights_in_order: Tensor, mass: float) -> float | None:
    """The mass in the middle of the token that crosses `mass`, None if that token is very light."""
    cumulative = weights_in_order.cumsum(-1)
    crossing = min(int((cumulative < mass).sum()), cumulative.numel() - 1)
    if weights_in_order[crossing] < 2 * CLEAR:
        return None
    return float(cumulative[crossing] - weights_in_order[crossing] / 2)


def _masses(weights: Tensor, by: Tensor) -> list[float]:
    """Masses from 0.01 to 0.999 whose border lies inside a token; `by` ranks, best first."""
    in_order = weights[torch.argsort(by, descending=True)]
    wanted = (0.01, 0.1, 0.3, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999)
    masses = [clear for mass in wanted if (clear := _clear_mass(in_order, mass)) is not None]
    assert masses
    return masses


@pytest.mark.parametrize(("size", "scale"), VECTORS)
@pytest.mark.parametrize("seed", range(3))
def test_top_p_equals_transformers(size: int, scale: float, seed: int) -> None:
    logits = _random_logits(size, scale, seed)
    exact = torch.softmax(logits.double(), -1)
    for p in _masses(exact, exact):
        theirs = _reference(transformers.TopPLogitsWarper(p), logits)
        _assert_same(TopP(p).apply(logits, NOTHING), theirs)


@pytest.mark.parametrize(("size", "scale"), VECTORS)
@pytest.mark.parametrize("min_p", [1e-6, 0.01, 0.05, 0.1, 0.5, 0.9, 1.0])
def test_min_p_equals_transformers(size: int, scale: float, min_p: float) -> None:
    for seed in range(5):
        logits = _random_logits(size, scale, seed)
        below = logits.double().max() - logits.double()
        if (below + math.log(min_p)).abs().min() > CLEAR or min_p == 1:
            theirs = _reference(transformers.MinPLogitsWarper(min_p), logits)
            _assert_same(MinP(min_p).apply(logits, NOTHING), theirs)
            return
    pytest.fail("every vector had a token on the border")


@pytest.mark.parametrize(("size", "scale"), VECTORS)
@pytest.mark.parametrize("seed", range(3))
def test_typical_p_equals_transformers(size: int, scale: float, seed: int) -> None:
    logits = _random_logits(size, scale, seed)
    logprobs = torch.log_softmax(logits.double(), -1)
    entropy = -(logprobs * logprobs.exp()).sum()
    nearness = -(-logprobs - entropy).abs()
    ordered = nearness.sort(descending=True).values
    compared = 0
    for p in _masses(logprobs.exp(), nearness):
        theirs = _reference(transformers.TypicalLogitsWarper(p), logits)
        count = len(_kept(theirs))
        # Near the border two tokens on either side of the entropy may swap places in float32.
        if count < size and ordered[count - 1] - ordered[count] < 1e-4 * max(1.0, scale):
            continue
        compared += 1
        _assert_same(TypicalP(p).apply(logits, NOTHING), theirs)
    assert compared or size == 50_000


# --- penalties by formula ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("penalty", [-2.0, -0.5, 0.3, 2.0])
def test_frequency_penalty_subtracts_once_per_output_occurrence(size: int, penalty: float) -> None:
    logits, history = _random_logits(size, 2.0), _history(size)
    output = history.token_ids[15:]
    expected = [value - penalty * output.count(i) for i, value in enumerate(logits.double().tolist())]
    ours = FrequencyPenalty(penalty).apply(logits, history)
    torch.testing.assert_close(ours.double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("penalty", [-2.0, -0.5, 0.3, 2.0])
def test_presence_penalty_subtracts_once_if_in_the_output(size: int, penalty: float) -> None:
    logits, history = _random_logits(size, 2.0), _history(size)
    output = set(history.token_ids[15:])
    expected = [value - penalty * (i in output) for i, value in enumerate(logits.double().tolist())]
    ours = PresencePenalty(penalty).apply(logits, history)
    torch.testing.assert_close(ours.double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-5)


def _frequency_and_presence(logits: Tensor, history: History, frequency: float, presence: float) -> Tensor:
    for stage in build(SamplingParams(frequency_penalty=frequency, presence_penalty=presence)):
        logits = stage.apply(logits, history)
    return logits


def test_frequency_and_presence_count_the_output_and_add_up() -> None:
    ours = _frequency_and_presence(torch.ones(3), History((0, 1, 0, 0), 0), 0.5, 0.2)
    assert ours.tolist() == pytest.approx([-0.7, 0.3, 1.0], abs=1e-6)


def test_frequency_and_presence_do_not_count_the_prompt() -> None:
    ours = _frequency_and_presence(torch.ones(3), History((2,) * 9 + (0, 0, 0, 1), 9), 0.5, 0.2)
    assert ours.tolist() == pytest.approx([-0.7, 0.3, 1.0], abs=1e-6)


def test_negative_frequency_penalty_raises_the_logit() -> None:
    ours = _frequency_and_presence(torch.ones(3), History((0, 0, 0, 1), 0), -0.5, 0.0)
    assert ours.tolist() == [2.5, 1.5, 1.0]


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits_once_per_id() -> None:
    ours = RepetitionPenalty(2.0).apply(torch.tensor([2.0, -1.0, 0.5, 0.0]), History((0, 1, 0, 3), 2))
    assert ours.tolist() == [1.0, -2.0, 0.5, 0.0]


def test_repetition_penalty_covers_the_prompt() -> None:
    params = SamplingParams(temperature=0, repetition_penalty=1.5)
    penalty, _ = build(params)
    logits, history = torch.tensor([1.5, 1.2]), History((0,), 1)
    assert penalty.apply(logits, history).tolist() == pytest.approx([1.0, 1.2], abs=1e-6)
    assert _final(params, logits, history).argmax() == 1
    assert _final(params, logits).argmax() == 0


@pytest.mark.parametrize("stage", [RepetitionPenalty(1.5), FrequencyPenalty(1.0), PresencePenalty(1.0)])
def test_penalties_leave_logits_alone_without_history(stage: Stage) -> None:
    logits = _random_logits(17, 1.0)
    assert torch.equal(stage.apply(logits, NOTHING), logits)


@pytest.mark.parametrize(
    ("size", "ids", "banned"),
    [
        (2, (1, 2, 3, 1), {2}),
        (3, (1, 2, 3, 1, 2), {3}),
        (1, (1, 2, 3, 1), {1, 2, 3}),
        (5, (1, 2, 3, 1), set()),
        (4, (1, 2, 3), set()),
        (3, (), set()),
        (1, (), set()),
        (2, (4, 4), {4}),
        (2, (1, 2, 1, 3, 1), {2, 3}),
    ],
)
def test_no_repeat_ngram_bans_exactly_the_completions(
    size: int, ids: tuple[int, ...], banned: set[int]
) -> None:
    ours = NoRepeatNgram(size).apply(torch.zeros(6), History(ids, len(ids)))
    assert set(range(6)) - set(_kept(ours)) == banned


def test_no_repeat_ngram_bans_by_each_history_of_its_own() -> None:
    stage = NoRepeatNgram(2)
    first = stage.apply(torch.zeros(5), History((1, 2, 1), 1))
    second = stage.apply(torch.zeros(5), History((1, 4, 3, 1), 1))
    assert (_kept(first), _kept(second)) == ([0, 1, 3, 4], [0, 1, 2, 3])


def test_no_repeat_ngram_counts_prompt_and_output() -> None:
    ours = NoRepeatNgram(2).apply(torch.zeros(5), History((1, 2, 3, 1), 3))
    assert _kept(ours) == [0, 1, 3, 4]


# --- literal vectors of the cuts --------------------------------------------------------------------


def test_top_p_stops_where_the_sum_lands_exactly_on_p() -> None:
    ours = TopP(0.75).apply(_from([0.25, 0.125, 0.5, 0.125]), NOTHING)
    assert _kept(ours) == [0, 2]
    assert _probabilities(ours) == pytest.approx([1 / 3, 0, 2 / 3, 0], abs=1e-6)


@pytest.mark.parametrize("p", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
def test_top_p_lands_exactly_on_p_for_ten_equal_tokens(p: float) -> None:
    assert _kept(TopP(p).apply(torch.zeros(10), NOTHING)) == list(range(round(10 * p)))


@pytest.mark.parametrize(
    ("p", "kept"), [(0.0, [2]), (1e-9, [2]), (0.999999, [0, 1, 2, 3]), (1.0, [0, 1, 2, 3])]
)
def test_top_p_at_its_edges_is_never_empty(p: float, kept: list[int]) -> None:
    given = [0.25, 0.125, 0.5, 0.125]
    ours = _final(SamplingParams(top_p=p), _from(given))
    assert _kept(ours) == kept
    assert ours.exp().tolist() == pytest.approx(given if p > 0.5 else [0, 0, 1, 0], abs=1e-6)


def test_top_p_of_one_is_no_stage() -> None:
    assert build(SamplingParams(top_p=1.0)) == ()


@pytest.mark.parametrize("p", [0.0, 1e-9])
def test_typical_p_of_zero_keeps_the_most_typical_token(p: float) -> None:
    # Surprises 0.92, 1.20, 1.61, 2.30 around an entropy of 1.28: id 1 is nearest.
    assert _kept(TypicalP(p).apply(_from([0.4, 0.3, 0.2, 0.1]), NOTHING)) == [1]


def test_typical_p_may_cut_the_most_likely_token() -> None:
    # In order of typicality: ids 1, 2, 0, 3; 0.3 + 0.2 lands on 0.5.
    assert _kept(TypicalP(0.5).apply(_from([0.4, 0.3, 0.2, 0.1]), NOTHING)) == [1, 2]


@pytest.mark.parametrize(("temperature", "kept"), [(0.5, [0, 1]), (1.0, [0, 1, 2]), (2.0, [0, 1, 2, 3])])
def test_min_p_measures_after_temperature_by_default(temperature: float, kept: list[int]) -> None:
    params = SamplingParams(temperature=temperature, min_p=0.1)
    assert _kept(_final(params, torch.tensor([2.0, 1.0, 0.0, -1.0]))) == kept


def test_min_p_compares_probabilities_when_all_logits_are_negative() -> None:
    assert _kept(MinP(0.5).apply(torch.tensor([-1.0, -1.2, -5.0]), NOTHING)) == [0, 1]


def test_min_p_of_one_keeps_all_of_the_likeliest() -> None:
    assert _kept(MinP(1.0).apply(torch.tensor([1.0, 3.0, 2.0, 3.0]), NOTHING)) == [1, 3]


def test_min_p_keeps_a_token_exactly_on_the_border() -> None:
    assert _kept(MinP(0.25).apply(_from([0.5, 0.125, 0.25, 0.125]), NOTHING)) == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", DTYPES)
def test_greedy_puts_all_probability_on_the_best_token(dtype: torch.dtype) -> None:
    logits = torch.tensor([10000.0, 9999.0, 0.0], dtype=dtype)
    assert _drawn_from(SamplingParams(temperature=0), logits) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("temperature", [1e-6, 1e-4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tiny_temperature_is_finite_in_every_precision(temperature: float, dtype: torch.dtype) -> None:
    # 9920 is the nearest number below 10000 that all three precisions tell apart from it.
    logits = torch.tensor([10000.0, 9920.0, 0.0], dtype=dtype)
    assert _drawn_from(SamplingParams(temperature=temperature), logits) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("temperature", [1e-6, 1e-4])
def test_tiny_temperature_separates_neighbours_in_float32(temperature: float) -> None:
    logits = torch.tensor([10000.0, 9999.0, 0.0])
    assert _drawn_from(SamplingParams(temperature=temperature), logits) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("temperature", [1e-6, 1e-4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tiny_temperature_shares_between_logits_that_half_precision_makes_equal(
    temperature: float, dtype: torch.dtype
) -> None:
    logits = torch.tensor([10000.0, 9999.0, 0.0], dtype=dtype)
    assert _drawn_from(SamplingParams(temperature=temperature), logits) == pytest.approx(
        [0.5, 0.5, 0.0], abs=1e-7
    )


def test_log_probabilities_by_stage_are_the_written_ones() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0])
    model = _final(SamplingParams(), logits)
    assert model.tolist() == pytest.approx([-0.40761, -1.40761, -2.40761], abs=1e-5)
    cooled = _final(SamplingParams(temperature=0.5), logits)
    assert cooled.tolist() == pytest.approx([-0.14293, -2.14293, -4.14293], abs=1e-5)
    cut = _final(SamplingParams(top_k=2), logits)
    assert cut.tolist() == pytest.approx([-0.31326, -1.31326, -INF], abs=1e-5)


# --- ties at a border: the lower id wins ------------------------------------------------------------


def _brute_top_k(logits: list[float], k: int) -> list[int]:
    return sorted(sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:k])


def _brute_covering(values: list[float], weights: list[float], mass: float) -> list[int]:
    kept: list[int] = []
    total = 0.0
    for i in sorted(range(len(values)), key=lambda i: (-values[i], i)):
        kept.append(i)
        total += weights[i]
        if total >= mass - 1e-6:
            break
    return sorted(kept)


def _tied_logits(size: int, levels: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, levels, (size,), generator=generator).float() / 2


TIED = [(size, levels, seed) for size in (3, 10, 1_000, 5_000) for levels in (1, 2, 5) for seed in (0, 1)]


@pytest.mark.parametrize(("size", "levels", "seed"), TIED)
@pytest.mark.parametrize("share", [0.0, 0.003, 0.2, 0.5, 0.9])
def test_top_k_keeps_exactly_k_and_the_lower_ids_of_a_tie(
    size: int, levels: int, seed: int, share: float
) -> None:
    logits = _tied_logits(size, levels, seed)
    k = max(1, int(share * size))
    assert _kept(TopK(k).apply(logits, NOTHING)) == _brute_top_k(logits.tolist(), k)


@pytest.mark.parametrize(("size", "levels", "seed"), TIED)
@pytest.mark.parametrize("p", [0.0, 0.1003, 0.4007, 0.77123, 0.9501])
def test_top_p_keeps_the_lower_ids_of_a_tie(size: int, levels: int, seed: int, p: float) -> None:
    logits = _tied_logits(size, levels, seed)
    weights = torch.softmax(logits.double(), -1)
    mass = _clear_mass(weights.sort(descending=True).values, p)
    assert mass is not None
    assert _kept(TopP(mass).apply(logits, NOTHING)) == _brute_covering(
        logits.tolist(), weights.tolist(), mass
    )


@pytest.mark.parametrize(("size", "levels", "seed"), TIED)
@pytest.mark.parametrize("p", [0.0, 0.1003, 0.4007, 0.77123, 0.9501])
def test_typical_p_keeps_the_lower_ids_of_a_tie(size: int, levels: int, seed: int, p: float) -> None:
    logits = _tied_logits(size, levels, seed)
    logprobs = torch.log_softmax(logits.double(), -1)
    entropy = -(logprobs * logprobs.exp()).sum()
    # Rounded, so that float64 sees equal what has the same logit.
    nearness = (-(-logprobs - entropy).abs()).mul(1e9).round()
    mass = _clear_mass(logprobs.exp()[nearness.argsort(descending=True)], p)
    assert mass is not None
    expected = _brute_covering(nearness.tolist(), logprobs.exp().tolist(), mass)
    assert _kept(TypicalP(mass).apply(logits, NOTHING)) == expected


def test_greedy_takes_the_lower_id_of_a_tie() -> None:
    for size in (2, 9, 1_000, 50_000):
        logits = torch.zeros(size)
        logits[size // 2 :] = 1.0
        assert _kept(Greedy().apply(logits, NOTHING)) == [size // 2]


@pytest.mark.parametrize("stage", [TopK(7), TopP(0.613), TypicalP(0.613), MinP(0.4), Greedy()])
def test_a_row_is_cut_the_same_alone_and_as_a_view_into_a_batch(stage: Stage) -> None:
    batch = torch.stack([_tied_logits(501, 4, seed) for seed in range(6)])
    alone = [stage.apply(row.clone(), NOTHING) for row in batch]
    shuffled = batch[[3, 0, 5, 1, 4, 2]]
    for row, original in zip(shuffled, (3, 0, 5, 1, 4, 2), strict=True):
        assert torch.equal(stage.apply(row, NOTHING), alone[original])
    columns = batch.T.contiguous().T
    for row, expected in zip(columns, alone, strict=True):
        assert torch.equal(stage.apply(row, NOTHING), expected)


# --- edges ------------------------------------------------------------------------------------------

ALL_STAGES: tuple[Stage, ...] = (
    RepetitionPenalty(1.3),
    FrequencyPenalty(0.5),
    PresencePenalty(0.5),
    NoRepeatNgram(3),
    LogitBias({0: 1.5}),
    Temperature(0.5),
    Greedy(),
    TopK(2),
    TopP(0.9),
    MinP(0.1),
    TypicalP(0.9),
)


@pytest.mark.parametrize("stage", ALL_STAGES, ids=lambda stage: type(stage).__name__)
class TestEveryStage:
    def test_returns_new_logits_and_leaves_its_input(self, stage: Stage) -> None:
        logits = _random_logits(30, 2.0)
        before = logits.clone()
        stage.apply(logits, _history(30))
        assert torch.equal(logits, before)

    def test_works_on_a_vocabulary_of_one(self, stage: Stage) -> None:
        ours = stage.apply(torch.tensor([0.7]), History((), 0))
        assert _probabilities(ours) == [1.0]

    def test_never_revives_a_token_that_is_already_out(self, stage: Stage) -> None:
        logits = torch.tensor([1.0, -INF, 0.5, -INF, 0.25])
        ours = stage.apply(logits, History((1, 2, 1, 0), 1))
        assert set(_kept(ours)) <= {0, 2, 4}
        assert not ours.isnan().any()
        assert _kept(ours)

    @pytest.mark.parametrize("factor", [1e-30, 1e-6, 1e6, 1e30])
    def test_stays_finite_on_extreme_logits(self, stage: Stage, factor: float) -> None:
        ours = stage.apply(torch.tensor([-1.0, 2.0, 0.5, -3.0]) * factor, History((1, 3), 1))
        assert torch.softmax(ours, -1).sum() == pytest.approx(1.0, abs=1e-6)

    def test_keeps_the_type_and_shape(self, stage: Stage) -> None:
        ours = stage.apply(_random_logits(300, 2.0), _history(300))
        assert (ours.dtype, ours.shape) == (torch.float32, (300,))


def test_top_k_beyond_the_vocabulary_keeps_all() -> None:
    logits = _random_logits(17, 1.0)
    for k in (17, 18, 1_000_000):
        assert torch.equal(TopK(k).apply(logits, NOTHING), logits)


@pytest.mark.parametrize(
    ("stage", "kept"),
    [
        (TopK(3), [0, 1, 2]),
        (TopP(0.5), [0, 1, 2, 3]),
        (TypicalP(0.5), [0, 1, 2, 3]),
        (MinP(1.0), list(range(8))),
        (Greedy(), [0]),
    ],
)
def test_equal_logits_are_cut_from_the_high_ids(stage: Stage, kept: list[int]) -> None:
    assert _kept(stage.apply(torch.full((8,), -2.5), NOTHING)) == kept


@pytest.mark.parametrize("stage", [TopK(3), TopP(0.9999), TypicalP(0.9999), MinP(1e-9)])
def test_cuts_count_only_tokens_that_are_still_in(stage: Stage) -> None:
    logits = torch.tensor([-INF, 1.0, -INF, 2.0, -INF])
    assert _kept(stage.apply(logits, NOTHING)) == [1, 3]


def test_banning_everything_is_an_error_that_names_the_stage() -> None:
    pipeline = Pipeline(SamplingParams(no_repeat_ngram_size=1), str)
    with pytest.raises(PlaygroundError, match="no_repeat_ngram_size = 1 left no token"):
        pipeline.choose(torch.zeros(3), History((0, 1, 2), 1), Place(0, 0, 0))


# --- request validation that the stages rely on -----------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e-7),
        ("temperature", 100.5),
        ("temperature", math.nan),
        ("temperature", INF),
        ("temperature", True),
        ("temperature", "0.7"),
        ("top_p", -0.01),
        ("top_p", 1.01),
        ("top_k", -1),
        ("top_k", 2.5),
        ("min_p", 1.1),
        ("typical_p", math.nan),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("frequency_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("no_repeat_ngram_size", -1),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1.5: 1.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: 101}),
        ("logit_bias", [1, 2]),
        ("order", "openai"),
        ("order", ("temperature",)),
        ("order", 5),
    ],
)
def test_a_bad_knob_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["temperature", "top_k", "logit_bias"])
def test_an_integer_too_large_for_a_float_is_refused_by_name(name: str) -> None:
    huge = 10**400
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: {1: huge} if name == "logit_bias" else huge})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0.9999999, 0.12345678])
def test_the_setting_shown_is_the_setting_used(value: float) -> None:
    assert float(TopP(value).setting) == value


@pytest.mark.parametrize(
    ("n", "logits", "kept"),
    [
        (1, [0.0, 2.0], [1]),  # mean 1, deviation 1: the border is 1
        (2, [0.0, 2.0], [0, 1]),  # the border is 0, and a logit on it stays
        (1, [4.0, 2.0, 0.0, 2.0], [0]),  # deviation 1.414: the border is 2.586
        (1.5, [4.0, 2.0, 0.0, 2.0], [0, 1, 3]),  # 1.879
        (
            1,
            [4.0, -INF, 2.0, -INF, 0.0, 2.0],
            [0],
        ),  # cut tokens do not count
        (1, [3.0, 3.0, 3.0], [0, 1, 2]),  # no deviation: all are the best
        (0.001, [-INF, 7.0], [1]),
    ],
)
def test_top_n_sigma_keeps_logits_near_the_largest(n: float, logits: list[float], kept: list[int]) -> None:
    rows = torch.tensor([logits, logits])
    assert _kept(TopNSigma(n).apply(rows[0], NOTHING)) == kept
    assert _kept(TopNSigma(n).apply(rows[0] / 8 + 1, NOTHING)) == kept  # at every temperature
    assert torch.equal(TopNSigma(n).apply(rows, NOTHING)[1], TopNSigma(n).apply(rows[0], NOTHING))


def test_top_n_sigma_tells_its_border_and_what_was_missing_as_probabilities() -> None:
    logits = torch.tensor([0.0, 2.0])
    probabilities = torch.softmax(logits.double(), -1)
    border = float(probabilities[1]) / math.e  # one deviation of 1 below the best
    stage = TopNSigma(1)
    before = torch.log_softmax(logits, -1)
    assert stage.threshold(before, stage.apply(before, NOTHING)) == pytest.approx(border, abs=1e-6)
    assert stage.margins(logits, torch.tensor([0])) == [
        pytest.approx(border - float(probabilities[0]), abs=1e-6)
    ]
