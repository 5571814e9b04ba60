"""Greedy text equals transformers' own generate, token for token, whatever else is in the batch."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from backend import Engine, Request, Trace
from backend.model.catalogue import LoadedModel
from backend.model.runner import ModelRunner, Piece
from tests import models
from tests.running import FULL, audit, greedy, together

NEW_TOKENS = 64
TOLERANCE = 1e-4  # in logits; two best that are nearer than this are a tie

STORY = (
    "The old lighthouse keeper climbed the spiral stairs every evening, counting the steps aloud as his "
    "father had done. One winter night a ship appeared on the horizon without lights, and the fog "
    "swallowed its name. "
)
CODE = "def fibonacci(n: int) -> int:\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + "
PROMPTS = [
    "A",
    "The capital of France is",
    "Once upon a time, there was a",
    "1, 2, 3, 5, 8, 13,",
    "Q: What is 12 times 12?\nA:",
    CODE,
    "import torch\n\nclass Attention(torch.nn.Module):\n",
    "| name | age |\n|---|---|\n| Ann | 31 |\n| Bob |",
    "漢字とひらがなの違いは",
    "Привет, меня зовут",
    "Repeat: 👩‍🚀漢字नमस्ते🇫🇷",
    '{"id": 7, "tags": ["a", "b"], "price":',
    "   leading spaces and\ttabs\n\n\nand blank lines",
    "na na na na na na na na na na",
    "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
    STORY,
    STORY * 2 + "And then",
    STORY * 3,
    CODE * 6,
    STORY * 7 + "In the end",
]


@dataclass(frozen=True)
class Reference:
    """What generate did, and the log-probabilities of its 60 best tokens at each step."""

    token_ids: list[int]
    gaps: list[float]
    best: list[dict[int, float]]


def reference(model: PreTrainedModel, prompt_ids: list[int], new_tokens: int) -> Reference:
    out = model.generate(
        torch.tensor([prompt_ids]),
        attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long),
        do_sample=False,
        max_new_tokens=new_tokens,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    logits: Tensor = torch.cat(out.logits)  # [T, V]
    top = logits.topk(2).values
    values, ids = torch.log_softmax(logits, -1).topk(60)
    return Reference(
        out.sequences[0, len(prompt_ids) :].tolist(),
        (top[:, 0] - top[:, 1]).tolist(),
        [dict(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)],
    )


def assert_equal_to(expected: Reference, trace: Trace) -> None:
    """Up to the first tie of the reference, if there is one."""
    found = list(trace.token_ids)
    for place, (token_id, gap) in enumerate(zip(expected.token_ids, expected.gaps, strict=True)):
        step = trace.steps()[place]
        assert step.candidates is not None
        common = 0
        for candidate, logprob in zip(step.candidates.token_ids, step.candidates.model_logprobs, strict=True):
            if candidate in expected.best[place]:
                common += 1
                assert abs(logprob - expected.best[place][candidate]) < TOLERANCE
        assert common >= 25
        if found[place] != token_id:
            assert gap < TOLERANCE, (
                f"token {place}: {found[place]} for {token_id}, the two best are {gap} apart"
            )
            return
    assert len(found) == len(expected.token_ids)


# The bundled model


@pytest.fixture(scope="module")
def prompt_ids(bundled: LoadedModel) -> list[list[int]]:
    ids = [bundled.tokenizer.encode(prompt) for prompt in PROMPTS]
    assert len(ids) == 20
    assert min(map(len, ids)) == 1
    assert 250 <= max(map(len, ids)) <= 300
    return ids


@pytest.fixture(scope="module")
def references(bundled: LoadedModel, prompt_ids: list[list[int]]) -> list[Reference]:
    return [reference(bundled.model, ids, NEW_TOKENS) for ids in prompt_ids]


@pytest.fixture(scope="module", params=[16, 1, 32], ids=lambda size: f"blocks of {size}")
def sized_engine(request: pytest.FixtureRequest) -> Engine:
    return Engine.load(
        "smollm2-135m",
        precision="float32",
        block_size=request.param,
        num_blocks=8192 // request.param,
        inline=True,
    )


@pytest.mark.slow
def test_prompts_alone_equal_generate(sized_engine: Engine, references: list[Reference]) -> None:
    numbers = range(20) if sized_engine.block_size == 16 else (0, 10)
    for number in numbers:
        assert_equal_to(references[number], sized_engine.generate(greedy(PROMPTS[number], NEW_TOKENS)))
    audit(sized_engine)


@pytest.mark.slow
def test_prompts_in_shuffled_batches_of_eight_equal_generate(
    sized_engine: Engine, references: list[Reference]
) -> None:
    order = random.Random(sized_engine.block_size).sample(range(20), 20)
    batches = [order[:8], order[12:], order[8:16]]
    for batch in batches if FULL or sized_engine.block_size == 16 else batches[:2]:
        requests = [greedy(PROMPTS[number], NEW_TOKENS) for number in batch]
        for number, trace in zip(batch, together(sized_engine, requests), strict=True):
            assert_equal_to(references[number], trace)
    audit(sized_engine)


@pytest.mark.slow
def test_raw_logits_of_every_position_equal_the_model(bundled: LoadedModel, sized_engine: Engine) -> None:
    ids = sized_engine.encode(STORY)
    with torch.no_grad():
        expected = bundled.model(torch.tensor([ids])).logits[0]
    size = sized_engine.block_size
    table = list(range(-(-len(ids) // size)))[::-1]  # backwards: nothing lies in one piece
    pieces = [(0, 7), (7, 8), (8, 33), (33, len(ids))]
    found = torch.cat(
        [
            sized_engine._runner.forward([Piece(ids[start:end], start, table, end - start)])[0]
            for start, end in pieces
        ]
    )
    assert float((found - expected).abs().max()) < TOLERANCE


# Tiny random models


def _prompts() -> list[tuple[int, ...]]:
    rng = random.Random(11)
    lengths = [1, 2, 3, 12, 13, 14, 15, 16, 17, 31, 32, 33, 48, 64, 77, 100, 128, 200, 257, 300]
    return [tuple(rng.randrange(256) for _ in range(length)) for length in lengths]


@pytest.fixture(scope="module")
def tiny_references() -> dict[str, list[Reference]]:
    return {}


@pytest.mark.parametrize("block_size", [1, 16, 32])
@pytest.mark.parametrize("family", models.MODELS)
def test_tiny_models_alone_and_in_batches_equal_generate(
    family: str, block_size: int, tiny_references: dict[str, list[Reference]]
) -> None:
    prompts = _prompts()
    if family not in tiny_references:
        oracle = models.MODELS[family]()
        tiny_references[family] = [reference(oracle, list(prompt), NEW_TOKENS) for prompt in prompts]
    expected = tiny_references[family]
    engine = models.engine(
        models.MODELS[family](), block_size=block_size, num_blocks=4096 // block_size, inline=True
    )
    requests = [greedy(prompt, NEW_TOKENS) for prompt in prompts]
    for number in range(20) if block_size == 16 else (0, 4, 10, 19):
        assert_equal_to(expected[number], engine.generate(requests[number]))
    order = random.Random(block_size).sample(range(20), 20)
    for batch in (order[:8], order[8:16], order[12:]):
        salted = [Request(**{**vars(requests[number]), "cache_salt": "batch"}) for number in batch]
        for number, trace in zip(batch, together(engine, salted), strict=True):
            assert_equal_to(expected[number], trace)
    audit(engine)


def test_a_window_smaller_than_the_text_matters_for_the_oracle() -> None:
    """Else the Mistral cases above would prove nothing."""
    ids = torch.tensor([list(range(60))])
    with torch.no_grad():
        windowed = models.mistral()(ids).logits[0, -1]
        unlimited = models.mistral(sliding_window=None)(ids).logits[0, -1]
    assert float((windowed - unlimited).abs().max()) > 0.1


@pytest.mark.parametrize("family", models.MODELS)
def test_uncached_pieces_equal_cached_ones(family: str) -> None:
    runner = ModelRunner(models.MODELS[family](), 64, 4, models.VOCAB_SIZE)
    ids = list(range(40))
    with torch.no_grad():
        expected = models.MODELS[family]()(torch.tensor([ids])).logits[0]
    mixed = runner.forward(
        [Piece(ids, 0, None, 40), Piece(ids, 0, list(range(20, 30)), 40), Piece(ids[:9], 0, None, 1)]
    )
    assert float((mixed[0] - expected).abs().max()) < TOLERANCE
    assert float((mixed[1] - expected).abs().max()) < TOLERANCE
    assert float((mixed[2][0] - expected[8]).abs().max()) < TOLERANCE
