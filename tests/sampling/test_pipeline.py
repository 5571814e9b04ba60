"""The pipeline as a whole: orders, the trace's numbers, and a slow reference in plain float64 Python."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import transformers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from backend.errors import PlaygroundError
from backend.events import Candidates, StageSetting
from backend.request import SamplingParams
from backend.sampling import noise
from backend.sampling.pipeline import Choice, Pipeline, Place
from backend.sampling.processors import History
from backend.stages import ORDERS

INF = math.inf
NOTHING = History((), 0)
PLACE = Place(seed=7, sample=0, position=3)


def _label(token_id: int) -> str:
    return f"<{token_id}>"


def _logits_of(probabilities: list[float]) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log().float()


def _random_logits(size: int, scale: float = 3.0, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale


def _chances(params: SamplingParams, logits: Tensor, history: History = NOTHING) -> list[float]:
    return torch.softmax(Pipeline(params, _label).scores(logits, history), -1).tolist()


def _table(choice: Choice) -> Candidates:
    assert choice.candidates is not None
    return choice.candidates


# --- a slow reference -------------------------------------------------------------------------------


@dataclass
class _Reference:
    """What every stage did to every token, in float64."""

    names: list[str]
    rows: list[list[float]]  # log-probabilities before the first stage and after each one
    uncut: list[float]
    cut_by: list[int]


def _log_softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    total = math.fsum(math.exp(value - top) for value in logits)
    return [value - top - math.log(total) for value in logits]


def _reshape(name: str, params: SamplingParams, logits: list[float], history: History) -> list[float]:
    ids, output = list(history.token_ids), list(history.token_ids)[history.num_prompt_tokens :]
    if name == "repetition_penalty":
        rho = params.repetition_penalty
        return [(x / rho if x > 0 else x * rho) if i in ids else x for i, x in enumerate(logits)]
    if name == "frequency_penalty":
        return [x - params.frequency_penalty * output.count(i) for i, x in enumerate(logits)]
    if name == "presence_penalty":
        return [x - params.presence_penalty * (i in output) for i, x in enumerate(logits)]
    if name == "logit_bias":
        return [x + params.logit_bias.get(i, 0.0) for i, x in enumerate(logits)]
    return [x / params.temperature for x in logits]


def _survivors(name: str, params: SamplingParams, logits: list[float], history: History) -> set[int]:
    everyone = set(range(len(logits)))
    best_first = sorted(everyone, key=lambda i: (-logits[i], i))
    chance = [math.exp(x) for x in _log_softmax(logits)]
    if name == "no_repeat_ngram_size":
        n, ids = params.no_repeat_ngram_size, list(history.token_ids)
        grams = {tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)}
        return {i for i in everyone if (*ids[len(ids) - n + 1 :], i) not in grams or len(ids) < n - 1}
    if name == "temperature":
        return {best_first[0]}
    if name == "top_k":
        return set(best_first[: params.top_k])
    if name == "min_p":
        top = max(chance)
        assume(all(abs(c - params.min_p * top) > 1e-5 * top for c in chance if params.min_p < 1))
        return {i for i in everyone if chance[i] >= params.min_p * top * (1 - 1e-7)}
    mass, order = params.top_p, best_first
    if name == "typical_p":
        entropy = -math.fsum(c * math.log(c) for c in chance if c > 0)
        distance = [abs(-math.log(c) - entropy) if c > 0 else INF for c in chance]
        for x, d in zip(logits, distance, strict=True):
            # Unequal tokens that are equally typical: float32 may order them either way.
            assume(
                all(
                    y == x or abs(d - e) > 1e-4 or d == e == INF
                    for y, e in zip(logits, distance, strict=True)
                )
            )
        mass, order = params.typical_p, sorted(everyone, key=lambda i: (round(distance[i], 6), i))
    kept: set[int] = set()
    total = 0.0
    for i in order:
        kept.add(i)
        total += chance[i]
        assume(abs(total - mass) < 1e-9 or abs(total - mass) > 1e-5)
        if total > mass - 1e-6:
            break
    return kept


def _is_neutral(name: str, params: SamplingParams) -> bool:
    neutral: Mapping[str, Any] = {
        "temperature": 1, "top_p": 1, "typical_p": 1, "repetition_penalty": 1, "logit_bias": {}
    }  # fmt: skip
    return bool(getattr(params, name) == neutral.get(name, 0))


def _refer(params: SamplingParams, given_logits: list[float], history: History) -> _Reference:
    logits = list(given_logits)
    uncut = list(given_logits)
    reference = _Reference([], [_log_softmax(logits)], [], [-1] * len(logits))
    for name in params.stage_order:
        if _is_neutral(name, params):
            continue
        cuts = name in ("no_repeat_ngram_size", "top_k", "top_p", "min_p", "typical_p")
        if cuts or (name == "temperature" and params.temperature == 0):
            kept = _survivors(name, params, logits, history)
            for i, x in enumerate(logits):
                if i not in kept and x > -INF:
                    reference.cut_by[i] = len(reference.names)
                    logits[i] = -INF
            if max(logits) == -INF:
                raise PlaygroundError(name)
        else:
            logits, uncut = (_reshape(name, params, row, history) for row in (logits, uncut))
        reference.names.append(name)
        reference.rows.append(_log_softmax(logits))
    reference.uncut = _log_softmax(uncut)
    return reference


def _check_against_reference(
    params: SamplingParams, logits: list[float], history: History, place: Place
) -> None:
    pipeline = Pipeline(params, _label)
    try:
        reference = _refer(params, logits, history)
    except PlaygroundError as error:
        with pytest.raises(PlaygroundError, match=f"{error} = .* left no token"):
            pipeline.choose(torch.tensor(logits), history, place)
        return
    choice = pipeline.choose(torch.tensor(logits), history, place)
    size = len(logits)
    gumbel = noise.gumbel(place.seed, place.sample, place.position, size).tolist()
    luck = [0.0] * size if params.temperature == 0 else gumbel
    model, final = reference.rows[0], reference.rows[-1]

    scores = [value + lucky for value, lucky in zip(final, luck, strict=True)]
    uncut_scores = [value + lucky for value, lucky in zip(reference.uncut, luck, strict=True)]
    for row in (scores, uncut_scores):
        first, *others = sorted(row, reverse=True)
        assume(not others or first == others[0] or first - others[0] > 1e-5)
    assert choice.token_id == scores.index(max(scores))
    assert choice.uncut_winner == uncut_scores.index(max(uncut_scores))
    best_first = sorted(range(size), key=lambda i: (-model[i], i))
    assert choice.rank == best_first.index(choice.token_id) + 1
    assert choice.model_logprob == pytest.approx(model[choice.token_id], abs=2e-5)
    assert choice.logprob == pytest.approx(final[choice.token_id], abs=2e-5)
    assert choice.luck == pytest.approx(luck[choice.token_id], abs=1e-6)
    entropy = -math.fsum(math.exp(x) * x for x in model if x > -INF)
    assert choice.entropy == pytest.approx(entropy, abs=1e-5)

    table = _table(choice)
    assert list(table.token_ids) == best_first  # a small vocabulary is listed whole
    assert list(table.labels) == [_label(i) for i in best_first]
    assert [table.cut_by[best_first.index(i)] for i in range(size)] == reference.cut_by
    assert list(table.luck) == pytest.approx([luck[i] for i in best_first], abs=1e-6)
    columns = (table.model_logprobs, *table.after)
    for column, expected in zip(columns, reference.rows, strict=True):
        assert list(column) == pytest.approx([expected[i] for i in best_first], abs=2e-5)
        assert math.fsum(map(math.exp, column)) == pytest.approx(1, abs=1e-5)

    assert [outcome.stage for outcome in choice.stages] == reference.names
    for index, outcome in enumerate(choice.stages):
        before, after = reference.rows[index], reference.rows[index + 1]
        cut = [i for i in range(size) if reference.cut_by[i] == index]
        assert outcome.num_kept == sum(value > -INF for value in after)
        assert outcome.cut_mass == pytest.approx(math.fsum(math.exp(before[i]) for i in cut), abs=1e-5)
        assert outcome.changed >= any(
            a != b and not math.isclose(a, b, abs_tol=1e-5) for a, b in zip(before, after, strict=True)
        )
        _check_cutoff(params, outcome.stage, outcome.threshold, table, index, before, after)


def _check_cutoff(
    params: SamplingParams,
    stage: str,
    threshold: float | None,
    table: Candidates,
    index: int,
    before: list[float],
    after: list[float],
) -> None:
    """The threshold of a stage, and the margin of each token that it cut."""
    chance = [math.exp(x) for x in before]
    reached = math.fsum(c for c, x in zip(chance, after, strict=True) if x > -INF)
    expected = {
        "top_k": float(params.top_k),
        "top_p": reached,
        "typical_p": reached,
        "min_p": params.min_p * max(chance),
    }.get(stage)
    assert threshold == (None if expected is None else pytest.approx(expected, abs=1e-5))
    entropy = -math.fsum(c * math.log(c) for c in chance if c > 0)
    distance = [round(abs(-x - entropy), 6) for x in before]
    by_chance = sorted(range(len(before)), key=lambda i: (-before[i], i))
    by_typicality = sorted(range(len(before)), key=lambda i: (distance[i], i))
    for place, token_id in enumerate(table.token_ids):
        if table.cut_by[place] == -1:
            assert table.margins[place] is None
        if table.cut_by[place] != index:
            continue
        earlier = by_typicality if stage == "typical_p" else by_chance
        rank = earlier.index(token_id)
        ahead = math.fsum(chance[i] for i in earlier[:rank])
        margin = {
            "top_k": rank + 1 - params.top_k,
            "top_p": ahead - params.top_p,
            "typical_p": ahead - params.typical_p,
            "min_p": params.min_p * max(chance) - chance[token_id],
        }.get(stage)
        assert table.margins[place] == (None if margin is None else pytest.approx(margin, abs=1e-5))
        assert margin is None or margin > -1e-6


# Every operand is a multiple of a power of two, so that equal logits stay equal in float32 and float64.
_QUARTERS = st.integers(-8, 8).map(lambda n: n / 4)
_MASS = st.integers(0, 40).map(lambda n: n / 40)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[SamplingParams, list[float], History, Place]:
    size = draw(st.integers(1, 9))
    logits = draw(st.lists(st.integers(-24, 24).map(lambda n: n / 4), min_size=size, max_size=size))
    token = st.integers(0, size - 1)
    ids = tuple(draw(st.lists(token, max_size=10)))
    order = draw(st.one_of(st.none(), st.sampled_from(sorted(ORDERS)), st.permutations(ORDERS["default"])))
    params = SamplingParams(
        temperature=draw(st.sampled_from([0, 0.25, 0.5, 1, 1, 2, 4])),
        top_k=draw(st.sampled_from([0, 0, 1, 2, 3, 5, 100])),
        top_p=draw(st.one_of(st.just(1.0), _MASS)),
        min_p=draw(st.one_of(st.just(0.0), _MASS)),
        typical_p=draw(st.one_of(st.just(1.0), _MASS)),
        repetition_penalty=draw(st.sampled_from([1, 0.5, 2, 4])),
        frequency_penalty=draw(_QUARTERS),
        presence_penalty=draw(_QUARTERS),
        no_repeat_ngram_size=draw(st.sampled_from([0, 0, 1, 2, 3])),
        logit_bias=draw(st.dictionaries(token, _QUARTERS, max_size=3)),
        order=order if order is None or isinstance(order, str) else tuple(order),
    )
    place = Place(draw(st.integers(0, 2**63 - 1)), draw(st.integers(0, 63)), draw(st.integers(0, 10_000)))
    return params, logits, History(ids, draw(st.integers(0, len(ids)))), place


@settings(max_examples=400, deadline=None)
@given(_cases())
def test_every_number_of_a_choice_equals_the_slow_reference(
    case: tuple[SamplingParams, list[float], History, Place],
) -> None:
    _check_against_reference(*case)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(-24, 24).map(lambda n: n / 4), min_size=1, max_size=9),
    st.sampled_from(["top_k", "top_p", "min_p", "typical_p"]),
    _MASS,
    st.sampled_from([0.5, 1, 2]),
)
def test_every_number_of_one_cut_equals_the_slow_reference(
    logits: list[float], stage: str, mass: float, temperature: float
) -> None:
    knob: dict[str, Any] = {stage: int(mass * 10) if stage == "top_k" else mass}
    params = SamplingParams(temperature=temperature, **knob)
    _check_against_reference(params, logits, NOTHING, PLACE)


@settings(max_examples=200, deadline=None)
@given(_cases())
def test_a_choice_without_candidates_has_the_same_numbers(
    case: tuple[SamplingParams, list[float], History, Place],
) -> None:
    params, logits, history, place = case
    try:
        traced = Pipeline(params, _label).choose(torch.tensor(logits), history, place)
    except PlaygroundError as error:
        with pytest.raises(PlaygroundError, match=re.escape(str(error))):
            Pipeline(params, _label, 0).choose(torch.tensor(logits), history, place)
        return
    plain = Pipeline(params, _label, 0).choose(torch.tensor(logits), history, place)
    assert plain == replace(traced, stages=(), candidates=None)


def test_a_large_vocabulary_has_the_same_numbers_with_and_without_candidates() -> None:
    params = SamplingParams(temperature=0.8, top_p=0.9, min_p=0.01, repetition_penalty=1.1)
    logits, history = _random_logits(50_000), History(tuple(range(0, 500, 7)), 30)
    for position in range(20):
        place = Place(1, 0, position)
        traced = Pipeline(params, _label).choose(logits, history, place)
        plain = Pipeline(params, _label, 0).choose(logits, history, place)
        assert plain == replace(traced, stages=(), candidates=None)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.7, top_k=40, top_p=0.9, min_p=0.02),
        SamplingParams(temperature=1.3, typical_p=0.8, logit_bias={3: 2.0, 900: -5.0}),
        SamplingParams(top_k=5_000, top_p=0.3, order="vllm"),
        SamplingParams(temperature=0.9, repetition_penalty=1.2, no_repeat_ngram_size=3, top_p=0.9),
    ],
)
@pytest.mark.parametrize("num_candidates", [0, 10])
def test_a_batch_of_positions_gives_bit_for_bit_what_each_row_gives_alone(
    params: SamplingParams, num_candidates: int
) -> None:
    """Over random rows and rows full of ties."""
    pipeline = Pipeline(params, _label, num_candidates)
    logits = torch.randn(9, 3_001, generator=torch.Generator().manual_seed(5)) * 4
    logits[3:6] = logits[3:6].round()
    logits[6] = 0.0
    histories = [History(tuple(range(0, 10 * row, 3)), 2 * row) for row in range(9)]
    for row, position in enumerate(pipeline.positions(logits, histories)):
        alone, place = pipeline.position(logits[row], histories[row]), Place(1, 0, row)
        assert torch.equal(position.logprobs, alone.logprobs)
        assert torch.equal(position.logprobs, pipeline.process(logits[row], histories[row]))
        assert position.choose(place) == pipeline.choose(logits[row], histories[row], place)
        assert position.force(17) == pipeline.force(logits[row], histories[row], 17)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(repetition_penalty=1.1)])
def test_a_bad_row_fails_only_when_it_is_reached(params: SamplingParams) -> None:
    logits = torch.stack([_random_logits(50), _random_logits(50, seed=1), torch.full((50,), math.nan)])
    positions = Pipeline(params, _label).positions(logits, [NOTHING] * 3)
    for row in range(2):
        assert torch.equal(next(positions).logprobs, Pipeline(params, _label).process(logits[row], NOTHING))
    with pytest.raises(PlaygroundError, match="no distribution"):
        next(positions)


# --- orders -----------------------------------------------------------------------------------------

FOUR = [0.05, 0.15, 0.35, 0.45]


def _order(*first: str) -> tuple[str, ...]:
    """Every stage once, `first` ahead of the rest."""
    return (*first, *(name for name in ORDERS["default"] if name not in first))


def test_top_k_before_top_p_renormalises_before_the_nucleus_is_measured() -> None:
    assert _chances(SamplingParams(top_k=2, top_p=0.5), _logits_of(FOUR)) == pytest.approx([0, 0, 0, 1])


def test_top_p_before_top_k_keeps_more() -> None:
    params = SamplingParams(top_k=2, top_p=0.5, order=_order("top_p", "top_k"))
    assert _chances(params, _logits_of(FOUR)) == pytest.approx([0, 0, 0.4375, 0.5625])


@pytest.mark.parametrize("order", [None, *sorted(ORDERS), _order("top_p", "top_k"), _order("typical_p")])
def test_no_order_empties_the_set(order: Any) -> None:
    params = SamplingParams(temperature=0.01, top_k=1, top_p=0.8, min_p=0.5, order=order)
    assert _chances(params, _logits_of(FOUR)) == pytest.approx([0, 0, 0, 1])


def test_llama_cpp_order_cuts_before_temperature_and_the_default_after() -> None:
    # A nucleus of 0.85 needs three tokens at T = 2 and two at T = 1.
    logits = torch.tensor([2.0, 1.0, 0.1])
    warm = SamplingParams(temperature=2, top_p=0.85)
    assert _chances(warm, logits) == pytest.approx([0.5017, 0.3043, 0.1940], abs=5e-5)
    cut_first = _chances(replace(warm, order="llama.cpp"), logits)
    assert cut_first == pytest.approx([1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(0.5)), 0], abs=1e-6)


def test_vllm_order_measures_min_p_before_top_k_and_the_default_after() -> None:
    # The order of these two cuts does not change the kept set, so the trace tells them apart.
    logits = _logits_of([0.5, 0.3, 0.15, 0.05])
    params = SamplingParams(min_p=0.5, top_k=3)
    default = Pipeline(params, _label).choose(logits, NOTHING, PLACE)
    vllm = Pipeline(replace(params, order="vllm"), _label).choose(logits, NOTHING, PLACE)
    assert [(o.stage, o.num_kept) for o in default.stages] == [("top_k", 3), ("min_p", 2)]
    assert [(o.stage, o.num_kept) for o in vllm.stages] == [("min_p", 2), ("top_k", 2)]


def test_transformers_order_adds_the_bias_before_the_penalties() -> None:
    logits, history = torch.tensor([-1.0, 0.5]), History((0,), 1)
    params = SamplingParams(repetition_penalty=2, logit_bias={0: 3})
    # -1 * 2 + 3 = 1 by default; (-1 + 3) / 2 = 1 there. So take a bias that tells them apart.
    params = replace(params, logit_bias={0: 4})
    default = _chances(params, logits, history)
    assert default == pytest.approx(torch.softmax(torch.tensor([2.0, 0.5]), -1).tolist(), abs=1e-6)
    theirs = _chances(replace(params, order="transformers"), logits, history)
    assert theirs == pytest.approx(torch.softmax(torch.tensor([1.5, 0.5]), -1).tolist(), abs=1e-6)


def test_each_order_names_every_stage_once() -> None:
    for order in ORDERS.values():
        assert sorted(order) == sorted(ORDERS["default"])


ALL_ON = SamplingParams(
    temperature=0.7,
    top_k=40,
    top_p=0.9,
    min_p=0.02,
    typical_p=0.95,
    top_n_sigma=50,
    repetition_penalty=1.2,
    frequency_penalty=0.3,
    presence_penalty=0.2,
    no_repeat_ngram_size=2,
    logit_bias={3: 1.5, 11: -2.0},
)


@pytest.mark.parametrize("order", [None, *sorted(ORDERS), tuple(reversed(ORDERS["default"]))])
def test_the_trace_lists_the_stages_in_the_order_they_ran(order: Any) -> None:
    params = replace(ALL_ON, order=order)
    pipeline = Pipeline(params, _label)
    choice = pipeline.choose(_random_logits(300), History((1, 2, 1), 1), PLACE)
    assert tuple(setting.stage for setting in pipeline.settings) == params.stage_order
    assert tuple(outcome.stage for outcome in choice.stages) == params.stage_order
    assert len(_table(choice).after) == len(params.stage_order)


def _transformers_processors(params: SamplingParams) -> Any:
    """The list that transformers itself would run for these settings."""
    config = transformers.GPT2Config(vocab_size=8, n_positions=8, n_embd=4, n_layer=1, n_head=1)
    generation = transformers.GenerationConfig(
        do_sample=True,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p or None,
        typical_p=params.typical_p,
        repetition_penalty=params.repetition_penalty,
        no_repeat_ngram_size=params.no_repeat_ngram_size,
        sequence_bias={(key,): value for key, value in params.logit_bias.items()} or None,
    )
    model: Any = transformers.GPT2LMHeadModel(config)
    return model._get_logits_processor(generation, input_ids_seq_length=4)


@pytest.mark.parametrize("size", [30, 300, 20_000])
def test_the_transformers_order_equals_the_list_transformers_runs(size: int) -> None:
    params = replace(ALL_ON, frequency_penalty=0, presence_penalty=0, order="transformers")
    theirs = _transformers_processors(params)
    assert len(theirs) == 8
    pipeline = Pipeline(params, _label)
    for seed in range(25):
        logits = _random_logits(size, 2.0, seed)
        ids = torch.randint(0, 12, (20,), generator=torch.Generator().manual_seed(seed))
        expected = torch.softmax(theirs(ids[None], logits.double()[None])[0], -1)
        ours = torch.softmax(pipeline.scores(logits, History(tuple(ids.tolist()), 9)), -1)
        assert ours.gt(0).tolist() == expected.gt(0).tolist()
        torch.testing.assert_close(ours.double(), expected, rtol=1e-4, atol=1e-8)


# --- neutral values ---------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [None, *sorted(ORDERS)])
def test_neutral_values_leave_no_stage_behind(order: str | None) -> None:
    pipeline = Pipeline(SamplingParams(order=order), _label)
    choice = pipeline.choose(_random_logits(50), NOTHING, PLACE)
    assert pipeline.settings == ()
    assert choice.stages == ()
    assert set(_table(choice).cut_by) == {-1}
    assert choice.logprob == choice.model_logprob
    assert choice.token_id == choice.uncut_winner


@pytest.mark.parametrize(
    ("params", "setting"),
    [
        ({"temperature": 0.7}, StageSetting("temperature", 0.7)),
        ({"temperature": 0}, StageSetting("temperature", 0)),
        ({"top_k": 40}, StageSetting("top_k", 40)),
        ({"top_p": 0.95}, StageSetting("top_p", 0.95)),
        ({"top_p": 0}, StageSetting("top_p", 0)),
        ({"min_p": 0.05}, StageSetting("min_p", 0.05)),
        ({"typical_p": 0.2}, StageSetting("typical_p", 0.2)),
        ({"top_n_sigma": 1.5}, StageSetting("top_n_sigma", 1.5)),
        ({"repetition_penalty": 1.1}, StageSetting("repetition_penalty", 1.1)),
        ({"frequency_penalty": -0.5}, StageSetting("frequency_penalty", -0.5)),
        ({"presence_penalty": 0.25}, StageSetting("presence_penalty", 0.25)),
        ({"no_repeat_ngram_size": 3}, StageSetting("no_repeat_ngram_size", 3)),
    ],
)
def test_one_knob_is_one_stage(params: dict[str, Any], setting: StageSetting) -> None:
    assert Pipeline(SamplingParams(**params), _label).settings == (setting,)


# --- the candidate table ----------------------------------------------------------------------------


def test_ten_alternatives_are_shown_though_three_are_kept() -> None:
    pipeline = Pipeline(SamplingParams(top_k=3), _label, num_candidates=10)
    table = _table(pipeline.choose(_random_logits(500), NOTHING, Place(0, 0, 0)))
    best = _random_logits(500).argsort(descending=True)[:10].tolist()
    assert list(table.token_ids)[:10] == best
    assert [place for place, cut in enumerate(table.cut_by) if cut == -1] == [0, 1, 2]
    assert [value > -INF for value in table.after[0][:10]] == [True] * 3 + [False] * 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("top_p", [0.5, 0.95])
def test_shown_probabilities_never_exceed_one_and_kept_ones_sum_to_one(
    dtype: torch.dtype, top_p: float
) -> None:
    pipeline = Pipeline(SamplingParams(top_p=top_p), _label, num_candidates=10)
    for seed in range(10):
        choice = pipeline.choose(_random_logits(400, 4.0, seed).to(dtype), NOTHING, PLACE)
        table = _table(choice)
        assert math.fsum(map(math.exp, table.model_logprobs)) <= 1 + 1e-6
        assert choice.stages[0].num_kept < 200
        kept = [math.exp(value) for value in table.after[0] if value > -INF]
        assert len(kept) == choice.stages[0].num_kept
        assert math.fsum(kept) == pytest.approx(1, abs=2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_treated_as_the_float32_numbers_they_are(dtype: torch.dtype) -> None:
    logits = _random_logits(400).to(dtype)
    pipeline = Pipeline(ALL_ON, _label)
    assert pipeline.choose(logits, NOTHING, PLACE) == pipeline.choose(logits.float(), NOTHING, PLACE)


@pytest.mark.parametrize("num_candidates", [1, 10, 30, 200])
@pytest.mark.parametrize("top_k", [1, 3, 50, 150, 250])
def test_candidates_are_the_best_all_kept_up_to_200_and_the_two_winners(
    num_candidates: int, top_k: int
) -> None:
    logits = _random_logits(1_000, 0.5)
    pipeline = Pipeline(SamplingParams(top_k=top_k), _label, num_candidates)
    by_model = logits.argsort(descending=True).tolist()
    for position in range(20):
        choice = pipeline.choose(logits, NOTHING, Place(3, 0, position))
        assert choice.uncut_winner is not None
        expected = {*by_model[: max(num_candidates, min(top_k, 200))], choice.token_id, choice.uncut_winner}
        table = _table(choice)
        assert set(table.token_ids) == expected
        assert list(table.token_ids) == [i for i in by_model if i in expected]
        assert {len(column) for column in (table.labels, table.model_logprobs, table.cut_by)} == {
            len(expected)
        }
        assert {len(column) for column in (table.margins, table.luck, *table.after)} == {len(expected)}


def test_kept_candidates_are_chosen_by_the_final_distribution() -> None:
    # A bias lifts the last token of the model to the top: it is listed though far beyond the best 30.
    logits = torch.linspace(5, -5, 1_000)
    pipeline = Pipeline(SamplingParams(logit_bias={999: 100}, top_k=1), _label, 30)
    choice = pipeline.choose(logits, NOTHING, PLACE)
    table = _table(choice)
    assert choice.token_id == 999
    assert choice.rank == 1_000
    assert table.token_ids[-1] == 999
    assert table.cut_by[-1] == -1
    assert set(table.cut_by[:30]) == {1}


@pytest.mark.parametrize("params", [{}, {"top_k": 3}, {"top_k": 150}, {"logit_bias": {7: 9, 950: 30}}])
@pytest.mark.parametrize("num_candidates", [1, 30])
def test_each_candidate_tells_its_rank_among_all_tokens(params: dict[str, Any], num_candidates: int) -> None:
    """Ties included: lower ids come first."""
    logits = (_random_logits(1_000, 2.0) * 4).round() / 4
    pipeline = Pipeline(SamplingParams(**params), _label, num_candidates)
    order = sorted(range(1_000), key=lambda token_id: (-float(logits[token_id]), token_id))
    place = {token_id: number for number, token_id in enumerate(order, start=1)}
    for position in range(10):
        choice = pipeline.choose(logits, NOTHING, Place(3, 0, position))
        table = _table(choice)
        assert table.ranks == tuple(place[token_id] for token_id in table.token_ids)
        assert table.ranks[table.token_ids.index(choice.token_id)] == choice.rank
    far = order[411]
    forced = pipeline.force(logits, NOTHING, far)
    assert (forced.rank, _table(forced).ranks[_table(forced).token_ids.index(far)]) == (412, 412)


def test_the_vocabulary_says_which_candidates_are_special() -> None:
    pipeline = Pipeline(SamplingParams(), _label, 3, is_special=lambda token_id: token_id == 2)
    assert _table(pipeline.choose(torch.tensor([0.0, 2.0, 1.0]), NOTHING, PLACE)).special == (
        False,
        True,
        False,
    )


def test_candidates_with_equal_probability_are_listed_by_id() -> None:
    logits = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0])
    assert _table(Pipeline(SamplingParams(), _label).choose(logits, NOTHING, PLACE)).token_ids == (
        1,
        3,
        0,
        2,
        4,
    )


def test_a_masked_token_is_minus_infinity_from_its_cut_on() -> None:
    params = SamplingParams(temperature=0.5, top_k=3, top_p=0.7, min_p=0.01)
    table = _table(Pipeline(params, _label).choose(_random_logits(50), NOTHING, PLACE))
    assert len(table.after) == 4
    for place, cut in enumerate(table.cut_by):
        column = [row[place] for row in table.after]
        assert not any(value is None or math.isnan(value) for value in column)
        seen = [value > -INF for value in column]
        assert seen == [True] * len(column) if cut == -1 else seen == [True] * cut + [False] * (4 - cut)


def test_uncut_winner_is_drawn_with_the_penalties_but_without_any_cut() -> None:
    params = SamplingParams(temperature=2, top_k=1, logit_bias={4: 5.0}, top_p=0.5)
    free = replace(params, top_k=0, top_p=1)
    logits = _random_logits(20, 1.0)
    cut, uncut = Pipeline(params, _label), Pipeline(free, _label)
    different = 0
    for position in range(50):
        place = Place(5, 0, position)
        choice = cut.choose(logits, NOTHING, place)
        assert choice.uncut_winner == uncut.choose(logits, NOTHING, place).token_id
        different += choice.uncut_winner != choice.token_id
    assert different > 5


def test_greedy_has_no_luck_and_takes_the_best_of_the_processed_logits() -> None:
    params = SamplingParams(temperature=0, repetition_penalty=2.0)
    choice = Pipeline(params, _label).choose(torch.tensor([2.0, 1.5, 0.0]), History((0,), 1), PLACE)
    assert (choice.token_id, choice.rank, choice.luck, choice.logprob) == (1, 2, 0.0, 0.0)
    assert choice.uncut_winner == 1
    assert _table(choice).luck == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("order", [None, *sorted(ORDERS)])
def test_greedy_is_the_same_for_every_seed(order: str | None) -> None:
    pipeline = Pipeline(SamplingParams(temperature=0, order=order), _label)
    logits = _random_logits(100)
    drawn = {pipeline.choose(logits, NOTHING, Place(seed, 0, seed)).token_id for seed in range(20)}
    assert drawn == {int(logits.argmax())}


def test_a_forced_token_is_described_but_not_drawn() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0])
    choice = Pipeline(SamplingParams(top_k=1), _label).force(logits, NOTHING, 2)
    assert (choice.token_id, choice.rank, choice.luck, choice.uncut_winner) == (2, 3, 0.0, None)
    assert choice.model_logprob == pytest.approx(-2.40761, abs=1e-5)
    assert choice.logprob == -INF
    assert _table(choice).cut_by == (-1, 0, 0)
    assert _table(choice).margins == (None, 1.0, 2.0)


def test_margins_are_in_the_unit_of_each_threshold() -> None:
    logits = _logits_of([0.4, 0.3, 0.2, 0.1])

    def margins(**params: Any) -> tuple[float | None, float | None, tuple[float | None, ...]]:
        choice = Pipeline(SamplingParams(**params), _label).choose(logits, NOTHING, PLACE)
        return choice.stages[0].threshold, choice.stages[0].cut_mass, _table(choice).margins

    assert margins(top_k=2) == (2.0, pytest.approx(0.3), (None, None, 1.0, 2.0))
    near = pytest.approx
    assert margins(top_p=0.6) == (near(0.7), near(0.3), (None, None, near(0.1), near(0.3)))
    assert margins(min_p=0.6) == (near(0.24), near(0.3), (None, None, near(0.04), near(0.14)))
    # Most typical first: ids 1, 2, 0, 3.
    assert margins(typical_p=0.45) == (near(0.5), near(0.5), (near(0.05), None, None, near(0.45)))


def test_a_cut_that_removes_nothing_changed_nothing() -> None:
    params = SamplingParams(top_k=50, top_p=0.999, min_p=1e-6, no_repeat_ngram_size=4)
    choice = Pipeline(params, _label).choose(_logits_of([0.4, 0.3, 0.2, 0.1]), History((1, 2), 1), PLACE)
    assert [(o.changed, o.cut_mass, o.num_kept) for o in choice.stages] == [(False, 0.0, 4)] * 4


def test_a_penalty_on_nothing_changed_nothing() -> None:
    params = SamplingParams(repetition_penalty=1.3, frequency_penalty=1, presence_penalty=1)
    choice = Pipeline(params, _label).choose(torch.tensor([1.0, 2.0]), NOTHING, PLACE)
    assert [outcome.changed for outcome in choice.stages] == [False, False, False]


def test_without_a_stage_the_table_has_no_row_of_stages() -> None:
    choice = Pipeline(SamplingParams(), _label).choose(_random_logits(50), NOTHING, PLACE)
    assert _table(choice).after == ()


# --- what a stage is not credited with, and logits without a distribution ------------------------


def test_a_stage_that_alters_no_probability_is_not_counted_as_acting() -> None:
    params = SamplingParams(temperature=0.5, top_k=1, order="llama.cpp")
    choice = Pipeline(params, _label).choose(torch.tensor([2.0, 1.0, 0.0]), NOTHING, PLACE)
    assert [(o.stage, o.changed) for o in choice.stages] == [("top_k", True), ("temperature", False)]


def test_a_token_the_model_rules_out_is_cut_by_no_stage() -> None:
    params = SamplingParams(temperature=0.5, top_k=3)
    choice = Pipeline(params, _label).choose(torch.tensor([2.0, 1.0, -INF]), NOTHING, PLACE)
    assert [(o.changed, o.num_kept) for o in choice.stages] == [(True, 2), (False, 2)]
    assert 0 not in _table(choice).cut_by
    assert 1 not in _table(choice).cut_by


def test_the_greedy_token_of_an_unmodified_model_has_rank_one() -> None:
    logits = torch.zeros(1_000)
    logits[5] = 1e-8
    choice = Pipeline(SamplingParams(temperature=0), _label).choose(logits, NOTHING, PLACE)
    assert (choice.token_id, choice.rank) == (5, 1)


@pytest.mark.parametrize("logits", [[1.0, math.nan, 0.0], [1.0, INF, 0.0], [-INF, -INF, -INF]])
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0.5)])
def test_logits_without_a_distribution_are_refused(logits: list[float], params: SamplingParams) -> None:
    with pytest.raises(PlaygroundError):
        Pipeline(params, _label).choose(torch.tensor(logits), NOTHING, PLACE)


def _spike_on_a_plateau() -> Tensor:
    """Five likely tokens over 99,995 equal ones that share 3 %."""
    tail = torch.full((99_995,), 0.03 / 99_995, dtype=torch.float64)
    head = torch.tensor([0.40, 0.25, 0.15, 0.12, 0.05], dtype=torch.float64)
    return torch.cat([head, tail]).log().float()


def test_probabilities_over_a_long_flat_tail_are_exact() -> None:
    choice = Pipeline(SamplingParams(top_p=0.9), _label).choose(_spike_on_a_plateau(), NOTHING, PLACE)
    assert math.exp(_table(choice).model_logprobs[0]) == pytest.approx(0.4, abs=1e-6)
    assert choice.stages[0].threshold == pytest.approx(0.92, abs=1e-6)
    assert choice.stages[0].cut_mass == pytest.approx(0.08, abs=1e-6)
