"""Beam search against transformers, full enumeration and worked numbers."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.decoding.beam_search import beam_search, length_normalised
from backend.decoding.stochastic_beams import stochastic_beams, truncated_gumbel
from backend.events import BeamStepped, SampleFinished, TokenDecoded
from backend.request import BeamSearch, Request, SamplingParams
from tests.decoding.tables import TableModel, context, drive, random_table, table

# S, A, B, eos: the toy model of which the expected numbers below are known from enumeration.
S, A, B, EOS = range(4)
LM_B = table([[0, 0.55, 0.45, 0], [0, 0.5, 0.35, 0.15], [0, 0.15, 0.05, 0.8], [0.25, 0.25, 0.25, 0.25]])


def search(
    params: BeamSearch,
    logprobs: Tensor = LM_B,
    prompt: tuple[int, ...] = (S,),
    eos_ids: set[int] | None = None,
    **request: Any,
) -> list[tuple[list[int], float]]:
    """(ids, score) of every returned text."""
    asked = Request(prompt, strategy=params, **({"max_new_tokens": 5} | request))
    where = context(asked, {EOS} if eos_ids is None else eos_ids)
    events = drive(where, beam_search(where, params), logprobs)
    ends = [event for event in events if isinstance(event, SampleFinished)]
    return [(ids(events, end.sample), end.score or 0.0) for end in ends]


def ids(events: list[Any], sample: int) -> list[int]:
    return [e.token_id for e in events if isinstance(e, TokenDecoded) and e.sample == sample]


def enumerated(
    logprobs: Tensor, start: int, eos_ids: set[int], length: int, alpha: float
) -> list[tuple[list[int], float]]:
    """Every text of at most `length` tokens that ends in EOS or at the limit, best score first."""
    found: list[tuple[list[int], float]] = []

    def walk(text: list[int], total: float) -> None:
        last = text[-1] if text else start
        for token_id, logprob in enumerate(logprobs[len(text), last].tolist()):
            longer, summed = [*text, token_id], total + logprob
            if token_id in eos_ids or len(longer) == length:
                found.append((longer, summed / len(longer) ** alpha))
            else:
                walk(longer, summed)

    walk([], 0.0)
    return sorted(found, key=lambda each: -each[1])


def by_transformers(
    logprobs: Tensor, params: BeamSearch, prompt: tuple[int, ...], eos_ids: set[int], length: int
) -> list[tuple[list[int], float]]:
    """What generate returns, without the filler it gives for hypotheses it does not have."""
    out = TableModel(logprobs).generate(
        torch.tensor([prompt]),
        num_beams=params.num_beams,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        num_return_sequences=params.num_return_sequences,
        max_new_tokens=length,
        do_sample=False,
        use_cache=False,
        eos_token_id=sorted(eos_ids),
        pad_token_id=min(eos_ids),
        return_dict_in_generate=True,
        output_scores=True,
    )
    found = []
    for row, score in zip(out.sequences.tolist(), out.sequences_scores.tolist(), strict=True):
        text = row[len(prompt) :]
        end = next((place for place, token_id in enumerate(text) if token_id in eos_ids), len(text))
        if score > -1e8:
            found.append((text[: end + 1], score))
    return found


def assert_same(ours: list[tuple[list[int], float]], theirs: list[tuple[list[int], float]]) -> None:
    assert [text for text, _ in ours] == [text for text, _ in theirs]
    for (_, a), (_, b) in zip(ours, theirs, strict=True):
        assert a == pytest.approx(b, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("before", [0, 3, 50])
def test_the_prompt_never_counts_in_the_length_penalty(before: int) -> None:
    """B01."""
    prompt = (*[A] * before, S)
    found = search(BeamSearch(2, num_return_sequences=2), prompt=prompt)
    assert_same(found, [([B, EOS], -0.51083), ([A, B, EOS], -0.62360)])


@pytest.mark.parametrize(
    ("early_stopping", "text", "score"),
    [
        (True, [A, B, EOS], -0.20787),
        (False, [A, A, A, B, EOS], -0.13028),
        ("never", [A, A, A, B, EOS], -0.13028),
    ],
)
def test_each_stop_rule_ends_where_it_should(early_stopping: Any, text: list[int], score: float) -> None:
    """B03."""
    found = search(BeamSearch(2, length_penalty=2.0, early_stopping=early_stopping))
    assert_same(found, [(text, score)])


def test_every_end_id_ends_a_text() -> None:
    """B05."""
    found = search(BeamSearch(2, length_penalty=0.0, num_return_sequences=2), eos_ids={EOS, B})
    assert_same(found, [([B], -0.79851), ([A, B], -1.64766)])


def test_parents_replay_the_text_and_step_scores_sum_to_the_final_score() -> None:
    """B08."""
    params = BeamSearch(3, num_return_sequences=3)
    where = context(Request((S,), strategy=params, max_new_tokens=5), {EOS})
    events = drive(where, beam_search(where, params), LM_B)
    steps = [event.nodes for event in events if isinstance(event, BeamStepped)]
    for end in (event for event in events if isinstance(event, SampleFinished)):
        text = ids(events, end.sample)
        beam = 0
        total = 0.0
        for place, token_id in enumerate(text):
            status = "finished" if place == len(text) - 1 else "kept"
            chosen = [
                node
                for node in steps[place]
                if node.token_id == token_id
                and node.status == status
                and node.parent in (beam, *[0] * (not place))
            ]
            node = next(node for node in chosen if _leads_to(steps, place, node, text))
            total += node.logprob
            beam = node.beam
        assert end.score == pytest.approx(total / len(text), abs=1e-5)
        assert end.cum_logprob == pytest.approx(total, abs=1e-5)


def _leads_to(steps: list[Any], place: int, node: Any, text: list[int]) -> bool:
    if place == len(text) - 1:
        return True
    status = "finished" if place + 1 == len(text) - 1 else "kept"
    return any(
        _leads_to(steps, place + 1, later, text)
        for later in steps[place + 1]
        if later.parent == node.beam and later.token_id == text[place + 1] and later.status == status
    )


@pytest.mark.parametrize("seed", range(200))
def test_random_tables_give_what_transformers_gives(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def pick(*options: Any) -> Any:
        return options[int(torch.randint(len(options), (1,), generator=generator))]

    size = pick(3, 4, 6, 12)
    logprobs = random_table(size, seed)
    eos_ids = set(range(size - pick(1, 1, 2), size))
    beams = pick(2, 3, 4, 8)
    params = BeamSearch(
        beams,
        length_penalty=pick(-1.0, 0.0, 0.6, 1.0, 1.4, 2.0),
        early_stopping=pick(True, False, "never"),
        num_return_sequences=pick(1, beams),
    )
    length = pick(1, 4, 9)
    ours = search(params, logprobs, (0, 1, 0), eos_ids, max_new_tokens=length)
    assert_same(ours, by_transformers(logprobs, params, (0, 1, 0), eos_ids, length))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_with_room_for_every_text_the_best_of_all_is_found(seed: int, alpha: float) -> None:
    logprobs = random_table(3, seed)
    every = enumerated(logprobs, 0, {2}, 4, alpha)
    found = search(
        BeamSearch(40, alpha, "never", num_return_sequences=5), logprobs, (0,), {2}, max_new_tokens=4
    )
    assert_same(found, every[:5])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_one_beam_is_greedy(seed: int, early_stopping: Any) -> None:
    logprobs = random_table(6, seed)
    text: list[int] = []
    while len(text) < 9 and 5 not in text:
        text.append(int(logprobs[len(text), text[-1] if text else 0].argmax()))
    found = search(BeamSearch(1, early_stopping=early_stopping), logprobs, (0,), {5}, max_new_tokens=9)
    assert [each for each, _ in found] == [text]


def test_missing_hypotheses_are_absent() -> None:
    """A model with two texts gives two, however many are asked for."""
    two = table([[0, 0.6, 0.4, 0], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1]])
    found = search(BeamSearch(8, num_return_sequences=8), two, max_new_tokens=5)
    real = [text for text, score in found if score > -100]
    assert real == [[A, EOS], [B, EOS]]


def test_a_ban_holds_for_each_beam_by_its_own_past() -> None:
    """A15: after `A B A` the pair `A B` is banned for that beam alone."""
    found = search(
        BeamSearch(4, num_return_sequences=4),
        random_table(4, 3),
        sampling=SamplingParams(no_repeat_ngram_size=2),
        max_new_tokens=6,
    )
    assert len(found) == 4
    for text, _ in found:
        pairs = list(itertools.pairwise([S, *text]))
        assert len(pairs) == len(set(pairs))


@pytest.mark.parametrize("penalty", [0.5, 50.0])
def test_groups_avoid_what_earlier_groups_chose(penalty: float) -> None:
    flat = torch.log_softmax(torch.tensor([0.0, 0.3, 0.2, 0.1, -9.0]).repeat(5, 1), -1)
    params = BeamSearch(3, num_return_sequences=3, num_beam_groups=3, diversity_penalty=penalty)
    found = search(params, flat, (0,), {4}, max_new_tokens=1)
    assert {text[0] for text, _ in found} == {1, 2, 3}
    for text, score in found:
        assert score == pytest.approx(float(flat[0][text[0]]), abs=1e-5)


def test_one_group_without_penalty_is_plain_beam_search() -> None:
    logprobs = random_table(8, 1)
    plain = search(BeamSearch(4, num_return_sequences=4), logprobs, (0,), {7}, max_new_tokens=6)
    grouped = search(
        BeamSearch(4, num_return_sequences=4, num_beam_groups=1, diversity_penalty=3.0),
        logprobs,
        (0,),
        {7},
        max_new_tokens=6,
    )
    assert_same(grouped, plain)


@pytest.mark.parametrize(
    ("length", "alpha", "score"), [(4, 1.0, -1.0), (4, 0.0, -4.0), (4, 0.5, -2.0), (2, -1.0, -8.0)]
)
def test_length_normalised_scores(length: int, alpha: float, score: float) -> None:
    assert length_normalised(-4.0, length, alpha) == pytest.approx(score)


def test_truncated_gumbels_have_the_given_maximum_and_keep_their_order() -> None:
    values = torch.tensor([0.3, -2.0, 5.0, 1.0], dtype=torch.float64)
    shifted = truncated_gumbel(values, 0.7)
    assert float(shifted.max()) == pytest.approx(0.7)
    assert shifted.argsort().tolist() == values.argsort().tolist()
    maximum = torch.tensor(0.7, dtype=torch.float64)
    expected = -torch.log((-maximum).exp() - (-values.max()).exp() + (-values).exp())
    assert torch.allclose(shifted, expected)


def test_stochastic_beams_are_a_sample_without_replacement() -> None:
    """Pairs come up as p(a) p(b) / (1 - p(a)), by chi-square over all pairs of texts."""
    from scipy.stats import chisquare

    logprobs = random_table(3, 5)
    every = {tuple(text): math.exp(total) for text, total in enumerated(logprobs, 0, {2}, 2, 0.0)}
    draws = 4_000
    counts: dict[tuple[Any, Any], int] = {}
    params = BeamSearch(2, num_return_sequences=2, stochastic=True)
    for seed in range(draws):
        where = context(Request((0,), strategy=params, max_new_tokens=2, seed=seed, num_candidates=0), {2})
        events = drive(where, stochastic_beams(where, params), logprobs)
        pair = (tuple(ids(events, 0)), tuple(ids(events, 1)))
        counts[pair] = counts.get(pair, 0) + 1
    expected = {
        (a, b): draws * every[a] * every[b] / (1 - every[a]) for a, b in itertools.permutations(every, 2)
    }
    assert set(counts) <= set(expected)
    common = [pair for pair, number in expected.items() if number >= 5]
    rare = draws - sum(expected[pair] for pair in common)
    observed = [counts.get(pair, 0) for pair in common]
    merged = ([*observed, draws - sum(observed)], [*(expected[pair] for pair in common), rare])
    assert chisquare(*merged).pvalue > 1e-4
