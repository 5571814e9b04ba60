"""Beam search through the engine: equal to transformers on the bundled model, paged, and tidy with blocks.

PLAYGROUND_FULL_GRID=1 runs every combination of the grid instead of one per prompt.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from backend import BeamSearch, Engine, Request, RequestError, SamplingParams, Trace
from backend.events import BeamNode, BeamStepped, SampleFinished
from backend.model.catalogue import LoadedModel
from tests import models
from tests.running import FULL, audit, token_ids

NEW_TOKENS = 48
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
# Most of these texts end within 48 tokens, so that length penalty and early stopping decide something.
PROMPTS = [
    CHAT.format("Translate to Spanish: The house is big."),
    CHAT.format("Tell me a joke."),
    CHAT.format("What is the capital of Norway?"),
    CHAT.format("Name the baker: Paul Meyer sold all his bread in Hamburg."),
    "The old man looked at the sea and",
    "Text: Maria, a nurse, moved to Oslo.\nName: Maria\nText: Ahmed, a chemist, won a prize.\nName:",
]
BEAMS = (1, 2, 4, 8)
PENALTIES = (0.6, 1.0, 1.4)
EARLY = (True, False, "never")
GRID = list(itertools.product(range(len(PROMPTS)), BEAMS, PENALTIES, EARLY))
# Every prompt, width, penalty and stop rule at least once.
FEW = [
    (0, 4, 0.6, "never"),
    (1, 8, 1.4, False),
    (2, 2, 1.0, True),
    (3, 4, 1.4, "never"),
    (4, 2, 0.6, False),
    (5, 1, 1.0, False),
    (0, 2, 1.4, True),
]
CASES = GRID if FULL else FEW


def generated(bundled: LoadedModel, ids: list[int], **options: Any) -> tuple[list[list[int]], list[float]]:
    """Ids of transformers' texts up to their end, best first, and their scores (none for one beam)."""
    out = bundled.model.generate(  # type: ignore[operator]
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        output_scores=True,
        return_dict_in_generate=True,
        **options,
    )
    end = bundled.model.generation_config.eos_token_id
    ends = {end} if isinstance(end, int) else set(end)
    texts = []
    for row in out.sequences[:, len(ids) :].tolist():
        stop = next((place + 1 for place, token_id in enumerate(row) if token_id in ends), len(row))
        texts.append(row[:stop])
    return texts, [] if out.get("sequences_scores") is None else out.sequences_scores.tolist()


def results(trace: Trace) -> tuple[list[list[int]], list[float]]:
    """Ids and scores of the returned texts, best first."""
    by_sample = token_ids(trace)
    ends = [event for event in trace.events if isinstance(event, SampleFinished)]
    return [by_sample[end.sample] for end in ends], [end.score or 0.0 for end in ends]


@pytest.mark.slow
@pytest.mark.parametrize(("prompt", "beams", "penalty", "early"), CASES)
def test_the_bundled_model_gives_the_texts_and_scores_of_transformers(
    bundled: LoadedModel, bundled_engine: Engine, prompt: int, beams: int, penalty: float, early: Any
) -> None:
    ids = bundled_engine.encode(PROMPTS[prompt])
    strategy = BeamSearch(beams, penalty, early, num_return_sequences=beams)
    asked = Request(tuple(ids), strategy=strategy, max_new_tokens=NEW_TOKENS, num_candidates=0)
    texts, scores = results(bundled_engine.generate(asked))
    options = {"length_penalty": penalty, "early_stopping": early} if beams > 1 else {}
    expected, their_scores = generated(bundled, ids, num_beams=beams, num_return_sequences=beams, **options)
    assert texts == expected
    if beams > 1:
        assert scores == pytest.approx(their_scores, abs=1e-4)


def search(prompt: tuple[int, ...], beams: int, tokens: int, **fields: Any) -> Request:
    own = {name: fields.pop(name) for name in list(fields) if hasattr(BeamSearch(), name)}
    return Request(
        prompt,
        strategy=BeamSearch(beams, num_return_sequences=beams, **own),
        max_new_tokens=tokens,
        num_candidates=0,
        **fields,
    )


def ancestry(steps: list[BeamStepped], end: tuple[int, int]) -> list[BeamNode]:
    """The nodes from the first token to node `end[1]` of step `end[0]`, by following the parents."""
    step, place = end
    nodes = [steps[step].nodes[place]]
    while step:
        step -= 1
        parent = nodes[0].parent
        nodes.insert(0, next(each for each in steps[step].nodes if each.beam == parent))
    return nodes


def replayed(steps: list[BeamStepped], end: tuple[int, int]) -> list[int]:
    return [node.token_id for node in ancestry(steps, end)]


def summed(steps: list[BeamStepped], end: tuple[int, int]) -> float:
    return sum(node.logprob for node in ancestry(steps, end))


def stepped(trace: Trace) -> list[BeamStepped]:
    return [event for event in trace.events if isinstance(event, BeamStepped)]


def finished_nodes(steps: list[BeamStepped]) -> Iterator[tuple[tuple[int, int], BeamNode]]:
    for number, step in enumerate(steps):
        for place, node in enumerate(step.nodes):
            if node.status == "finished":
                yield (number, place), node


def test_the_parents_in_the_trace_replay_each_returned_text() -> None:
    engine = models.engine(inline=True)
    trace = engine.generate(search((5, 6, 7), 4, 20))
    steps = stepped(trace)
    ends = list(finished_nodes(steps))
    texts, scores = results(trace)
    assert len(texts) == 4
    for text, score in zip(texts, scores, strict=True):
        (end,) = [place for place, node in ends if node.score == score]
        assert replayed(steps, end) == text
        assert summed(steps, end) / len(text) == pytest.approx(score, abs=1e-5)
    audit(engine)


def paged_and_recomputed(engine: Engine, asked: Request) -> tuple[Trace, Trace]:
    return engine.generate(asked), engine.generate(replace(asked, use_cache=False))


def assert_same_steps(first: Trace, second: Trace) -> None:
    """The same beams win at every step and each candidate's log-probability agrees."""
    assert results(first)[0] == results(second)[0]
    for ours, other in zip(stepped(first), stepped(second), strict=True):
        assert [(n.parent, n.token_id, n.status) for n in ours.nodes if n.status != "pruned"] == [
            (n.parent, n.token_id, n.status) for n in other.nodes if n.status != "pruned"
        ]
        known = {(n.parent, n.token_id): n.logprob for n in other.nodes}
        for node in ours.nodes:
            if (node.parent, node.token_id) in known:
                assert node.logprob == pytest.approx(known[node.parent, node.token_id], abs=1e-3)


@pytest.mark.parametrize("name", models.MODELS)
def test_paged_beams_equal_a_recompute_at_every_step(name: str) -> None:
    engine = models.engine(models.MODELS[name](), inline=True)
    assert_same_steps(*paged_and_recomputed(engine, search(tuple(range(40, 57)), 4, 40)))
    audit(engine)


@pytest.mark.slow
def test_paged_beams_equal_a_recompute_on_the_bundled_model(bundled_engine: Engine) -> None:
    ids = tuple(bundled_engine.encode(PROMPTS[4]))
    assert_same_steps(*paged_and_recomputed(bundled_engine, search(ids, 4, 24)))


def distinct_blocks(steps: list[BeamStepped], prompt: int, block_size: int) -> int:
    """Blocks that the beams after the last of `steps` need if every shared beginning is held once.

    The last token of a beam is not in the cache yet. Two beams share a block where they have the same tokens
    up to its end.
    """
    held = set()
    last = len(steps) - 1
    for place, node in enumerate(steps[last].nodes):
        if node.status != "kept":
            continue
        text = replayed(steps, (last, place))
        cached = prompt + len(text) - 1
        for start in range(0, cached, block_size):
            end = min(start + block_size, cached)
            held.add((start, tuple(text[: max(0, end - prompt)])))
    return len(held)


def test_eight_beams_hold_a_prompt_of_300_tokens_once() -> None:
    engine = models.engine(block_size=16, num_blocks=200, inline=True)
    rng = torch.Generator().manual_seed(3)
    prompt = tuple(torch.randint(0, 256, (300,), generator=rng).tolist())
    start = engine.block_manager.num_free_blocks
    steps: list[BeamStepped] = []
    counted = 0
    for event in engine.stream(search(prompt, 8, 40)):
        if not isinstance(event, BeamStepped):
            continue
        steps.append(event)
        in_use = start - engine.block_manager.num_free_blocks
        kept = sum(node.status == "kept" for node in event.nodes)
        if not kept:
            continue
        counted += 1
        own = len(steps) + 12  # tokens of a beam behind the 18 full blocks of the prompt
        assert in_use <= 18 + kept * -(-own // 16) < kept * 19
        assert in_use == distinct_blocks(steps, 300, 16), f"step {event.step}"
    assert counted > 20
    audit(engine)


@pytest.mark.parametrize("after", [1, 3, 10])
@pytest.mark.parametrize(
    "changes", [{}, {"num_beam_groups": 2, "diversity_penalty": 1.0}, {"stochastic": True}]
)
def test_a_cancelled_search_frees_every_block(after: int, changes: dict[str, Any]) -> None:
    engine = models.engine(inline=True)
    stream = engine.stream(search(tuple(range(40, 57)), 6, 40, **changes))
    seen = 0
    for event in stream:
        seen += isinstance(event, BeamStepped)
        if seen == after:
            break
    stream.close()
    audit(engine)


@pytest.mark.parametrize(
    "changes", [{}, {"num_beam_groups": 2, "diversity_penalty": 1.0}, {"stochastic": True}]
)
def test_a_finished_search_frees_every_block(changes: dict[str, Any]) -> None:
    engine = models.engine(inline=True)
    trace = engine.generate(search(tuple(range(40, 57)), 6, 20, **changes))
    assert len(results(trace)[0]) == 6
    audit(engine)


def test_one_beam_is_greedy() -> None:
    engine = models.engine(inline=True)
    prompt = tuple(range(40, 57))
    plain = Request(prompt, sampling=SamplingParams(temperature=0), max_new_tokens=40)
    assert engine.generate(search(prompt, 1, 40)).token_ids == engine.generate(plain).token_ids


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_beams": 0}, "num_beams must be a whole number from 1 to 64, got 0"),
        ({"num_beams": 500}, "num_beams must be a whole number from 1 to 64, got 500"),
        ({"num_beams": 2.5}, "num_beams must be a whole number from 1 to 64, got 2.5"),
        (
            {"num_beams": 3, "num_return_sequences": 4},
            "num_return_sequences is 4, there are only 3 beams",
        ),
        ({"num_beams": 4, "num_beam_groups": 3}, "4 beams cannot be split into 3 equal groups"),
        ({"length_penalty": float("nan")}, "length_penalty must be a number between -10 and 10, got nan"),
        ({"early_stopping": "soon"}, "early_stopping must be true, false or 'never', got 'soon'"),
    ],
)
def test_bad_settings_are_refused_with_the_numbers(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as refused:
        BeamSearch(**fields)
    assert str(refused.value) == message


def test_a_pool_too_small_for_the_beams_is_named_and_nothing_is_lost() -> None:
    engine = models.engine(block_size=4, num_blocks=40, inline=True)
    with pytest.raises(RequestError) as refused:
        engine.generate(search(tuple(range(40, 60)), 8, 30))
    assert "8 x 30 new" in str(refused.value)
    assert "the pool has 40" in str(refused.value)
    audit(engine)
    assert len(results(engine.generate(search(tuple(range(40, 60)), 2, 8)))[0]) == 2
