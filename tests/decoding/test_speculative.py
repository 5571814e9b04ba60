"""Speculative decoding over toy models: same distribution, same text, right counters."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from backend.decoding.drafters.drafter import Drafter
from backend.decoding.drafters.model_draft import ModelDraft
from backend.decoding.drafters.prompt_lookup import PromptLookup
from backend.decoding.sample import sample
from backend.decoding.speculative import speculative
from backend.events import DraftVerified, Event, SampleFinished, TokenDecoded
from backend.kv.block_manager import BlockManager
from backend.request import Request, SamplingParams, Speculative
from backend.sampling.pipeline import Pipeline
from backend.sampling.processors import History
from tests.decoding.tables import context, drive, random_table
from tests.running import FULL

SIZE = 6
EOS = 5
PROMPT = (0, 1, 2, 0, 1, 2, 0, 1)
TARGET = random_table(SIZE, 1, places=60)
SOURCES = ["prompt_lookup", "weak", "equal"]
TABLES = {"weak": random_table(SIZE, 2, places=60), "equal": TARGET}


def run(params: Speculative, source: str, eos_ids: set[int] | None = None, **request: Any) -> list[Event]:
    asked = Request(PROMPT, strategy=params, **({"max_new_tokens": 12, "num_candidates": 5} | request))
    where = context(asked, {EOS} if eos_ids is None else eos_ids)
    blocks = BlockManager(100, 4)
    drafter: Drafter = PromptLookup()
    if source in TABLES:
        drafter = ModelDraft(where, "draft", blocks, params.verify == "coupled", where.context_length)
    draft = (TABLES[source], blocks) if source in TABLES else None
    events = drive(where, speculative(where, params, drafter), TARGET, draft)
    assert blocks.num_free_blocks == 100
    return events


def plain(eos_ids: set[int] | None = None, **request: Any) -> list[Event]:
    asked = Request(PROMPT, **({"max_new_tokens": 12, "num_candidates": 5} | request))
    where = context(asked, {EOS} if eos_ids is None else eos_ids)
    return drive(where, sample(where, 1), TARGET)


def tokens(events: list[Event]) -> list[TokenDecoded]:
    return [event for event in events if isinstance(event, TokenDecoded)]


def ids(events: list[Event]) -> list[int]:
    return [event.token_id for event in tokens(events)]


def rounds(events: list[Event]) -> list[DraftVerified]:
    return [event for event in events if isinstance(event, DraftVerified)]


SAMPLING = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0, repetition_penalty=1.5, frequency_penalty=1.0, no_repeat_ngram_size=2),
    SamplingParams(temperature=0, presence_penalty=0.7, logit_bias={2: 1.0}),
]


@pytest.mark.parametrize("sampling", SAMPLING, ids=["plain", "penalties", "bias"])
@pytest.mark.parametrize("verify", ["rejection", "coupled"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("k", range(1, 9))
def test_greedy_text_is_that_of_plain_greedy(
    k: int, source: str, verify: Any, sampling: SamplingParams
) -> None:
    """C08, C10: penalties and bans see the tokens drafted earlier in the block."""
    for eos_ids in (set[int](), {EOS}, {3}):
        expected = plain(eos_ids, sampling=sampling)
        assert ids(
            run(Speculative(num_draft_tokens=k, verify=verify), source, eos_ids, sampling=sampling)
        ) == ids(expected)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("adaptive", [False, True])
def test_coupled_text_is_that_of_plain_sampling_under_the_same_seed(source: str, adaptive: bool) -> None:
    sampling = SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.2)
    for seed in range(100):
        spoken = run(Speculative(verify="coupled", adaptive=adaptive), source, sampling=sampling, seed=seed)
        assert ids(spoken) == ids(plain(sampling=sampling, seed=seed))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("k", [1, 4])
def test_rows_carry_the_numbers_of_plain_decoding(source: str, k: int) -> None:
    """C15: log-probabilities, ranks and stages of accepted, recovered and bonus tokens alike."""
    sampling = SamplingParams(temperature=0, top_p=0.9, frequency_penalty=0.5)
    spoken = tokens(run(Speculative(num_draft_tokens=k), source, sampling=sampling))
    for ours, theirs in zip(spoken, tokens(plain(sampling=sampling)), strict=True):
        assert ours.model_logprob == pytest.approx(theirs.model_logprob, abs=1e-5)
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)
        assert (ours.rank, ours.index, ours.position) == (theirs.rank, theirs.index, theirs.position)
        assert [stage.num_kept for stage in ours.stages] == [stage.num_kept for stage in theirs.stages]


@pytest.mark.parametrize("source", SOURCES)
def test_two_successive_tokens_have_the_joint_distribution_of_plain_sampling(source: str) -> None:
    """3,000 runs, 20,000 in the full grid, cuts on, against the closed form."""
    sampling = SamplingParams(temperature=1.3, top_k=4, top_p=0.95)
    pipeline = Pipeline(sampling, str, 0)

    def after(text: list[int]) -> Tensor:
        place = len(text) - 1
        return pipeline.process(TARGET[place, text[-1]], History(text, len(PROMPT))).exp()

    first = after(list(PROMPT))
    expected = {
        (a, b): float(first[a] * after([*PROMPT, a])[b]) for a, b in itertools.product(range(SIZE), repeat=2)
    }
    draws = 20_000 if FULL else 3_000
    counts = dict.fromkeys(expected, 0)
    params = Speculative(num_draft_tokens=3)
    for seed in range(draws):
        pair = ids(
            run(params, source, set(), sampling=sampling, seed=seed, max_new_tokens=2, num_candidates=0)
        )
        counts[pair[0], pair[1]] += 1
    assert all(counts[pair] == 0 for pair, p in expected.items() if p == 0)
    common = [pair for pair, p in expected.items() if p * draws >= 5]
    observed = [counts[pair] for pair in common]
    predicted = [expected[pair] * draws for pair in common]
    rest = draws - sum(predicted)
    if rest > 1e-6 * draws:
        observed, predicted = [*observed, draws - sum(observed)], [*predicted, rest]
    assert chisquare(observed, [p * sum(observed) / sum(predicted) for p in predicted]).pvalue > 1e-4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", range(1, 9))
def test_a_draft_equal_to_the_target_is_always_accepted(k: int, temperature: float) -> None:
    """C04."""
    events = run(
        Speculative(num_draft_tokens=k), "equal", set(), sampling=SamplingParams(temperature=temperature)
    )
    assert all(check.num_accepted == len(check.drafted) for check in rounds(events))
    assert {check.next_is for check in rounds(events)} == {"bonus"}


@pytest.mark.parametrize("k", range(1, 7))
@pytest.mark.parametrize("source", SOURCES)
def test_text_ends_at_the_first_end_token_wherever_it_stands_in_a_block(source: str, k: int) -> None:
    """C05."""
    text = ids(plain(set(), sampling=SamplingParams(temperature=0)))
    for eos in set(text):
        events = run(Speculative(num_draft_tokens=k), source, {eos}, sampling=SamplingParams(temperature=0))
        assert ids(events) == text[: text.index(eos) + 1]
        assert sum(check.num_accepted + (check.next_is != "none") for check in rounds(events)) == len(
            ids(events)
        )


@pytest.mark.parametrize("limit", range(1, 9))
def test_the_limit_is_exact_inside_a_block(limit: int) -> None:
    events = run(Speculative(num_draft_tokens=5), "equal", set(), max_new_tokens=limit)
    assert len(ids(events)) == limit
    assert [event.reason for event in events if isinstance(event, SampleFinished)] == ["length"]


def test_a_stop_string_inside_a_block_ends_the_rows_there() -> None:
    free = ids(plain(set(), sampling=SamplingParams(temperature=0)))
    letters = "".join(chr(ord("a") + token_id) for token_id in free)
    stop = letters[4:6]
    events = run(
        Speculative(num_draft_tokens=8), "equal", set(), sampling=SamplingParams(temperature=0), stop=(stop,)
    )
    shown = "".join(event.text for event in tokens(events))
    assert shown == letters[: letters.find(stop)]
    assert len(tokens(events)) == len(shown)


def test_counters_add_up() -> None:
    """C18."""
    events = run(Speculative(num_draft_tokens=4), "weak", set(), seed=3)
    for check in rounds(events):
        statuses = [token.status for token in check.drafted]
        accepted = check.num_accepted
        assert statuses[:accepted] == ["accepted"] * accepted
        assert statuses[accepted : accepted + 1] in ([], ["rejected"])
        assert set(statuses[accepted + 1 :]) <= {"unused"}
        for token in check.drafted[: accepted + 1]:
            assert token.threshold == pytest.approx(min(1.0, (token.p or 0) / token.q))
            assert (token.uniform or 0) < (token.threshold or 0) or token.status == "rejected"
        assert (check.residual is not None) == (check.next_is == "recovered")
    assert sum(check.num_accepted + 1 for check in rounds(events)) == len(ids(events))


def test_the_residual_shown_is_what_the_recovered_token_was_drawn_from() -> None:
    recovered = 0
    for seed in range(20):
        for check in rounds(run(Speculative(num_draft_tokens=4), "weak", set(), seed=seed)):
            if check.residual is None:
                continue
            recovered += 1
            rejected = check.drafted[check.num_accepted]
            left = check.residual
            assert left.token_ids[0] == rejected.token_id
            assert check.next_token_id in left.token_ids
            raw = [max(0.0, p - q) for p, q in zip(left.p, left.q, strict=True)]
            assert left.residual == pytest.approx([value / sum(raw) for value in raw], abs=1e-5)
    assert recovered >= 20


def drafted(lookup: PromptLookup, token_ids: list[int], count: int) -> list[int]:
    with pytest.raises(StopIteration) as done:
        next(lookup.draft(token_ids, count))
    return list(done.value.value.token_ids)


def test_prompt_lookup_takes_what_followed_the_longest_end_last_time() -> None:
    lookup = PromptLookup()
    assert drafted(lookup, [1, 2, 3, 9, 1, 2, 4, 9, 1, 2], 3) == [4, 9, 1]
    assert drafted(lookup, [1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 3], 2) == [9, 1]
    assert drafted(lookup, [1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 3, 7], 2) == []
    assert drafted(lookup, [1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 3, 7, 9], 2) == []


def test_a_copy_goes_on_behind_a_word_that_was_replaced() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 0, 1, 2]
    lookup = PromptLookup()
    assert drafted(lookup, text, 4) == [3, 4, 5, 6]
    assert drafted(lookup, [*text, 3, 9], 4) == [5, 6, 7, 0]  # 9 stands for 4
    assert drafted(lookup, [*text, 3, 9, 5, 6, 8], 4) == [0, 1, 2, 3]  # and 8 for 7
    assert drafted(lookup, [*text, 3, 9, 5, 6, 8, 5], 4) == []  # not the copy it was


def test_a_long_match_goes_before_the_copy_and_a_short_one_behind_it() -> None:
    copied = [1, 2, 3, 4, 5, 0, 1, 2]
    for before, follows in (([6, 3, 9, 8, 8], 5), ([2, 3, 9, 8, 8], 5), ([1, 2, 3, 9, 8, 8], 8)):
        lookup = PromptLookup()
        assert drafted(lookup, [*before, 0, *copied], 2) == [3, 4]
        assert drafted(lookup, [*before, 0, *copied, 3, 9], 1) == [follows]


def test_where_no_draft_was_made_no_copy_goes_on() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 0, 1, 2]
    lookup = PromptLookup()
    assert drafted(lookup, text, 4) == [3, 4, 5, 6]
    assert drafted(lookup, [*text, 3, 9], 0) == []
    assert drafted(lookup, [*text, 3, 9, 8], 4) == []


def test_no_match_costs_one_token_per_round_and_is_still_right() -> None:
    request = {"sampling": SamplingParams(temperature=0)}
    asked = Request((0, 1, 2, 3), strategy=Speculative(), max_new_tokens=6, **request)  # type: ignore[arg-type]
    where = context(asked, set())
    events = drive(where, speculative(where, Speculative(), PromptLookup()), TARGET)
    where = context(asked, set())
    assert ids(events) == ids(drive(where, sample(where, 1), TARGET))
    first = rounds(events)[0]
    assert (first.drafted, first.num_accepted, first.next_is) == ((), 0, "bonus")


def test_tables_differ_by_place_so_that_a_wrong_position_shows() -> None:
    assert not torch.allclose(TARGET[3, 1], TARGET[4, 1])
