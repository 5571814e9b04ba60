"""A drafter that asks a forward for hidden states gets those of the last layer; nobody else pays for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from backend.decoding.forward import Context, Forward, Strategy
from backend.model.runner import Piece
from tests import models
from tests.running import audit, greedy


@pytest.mark.parametrize("family", models.MODELS)
@pytest.mark.parametrize("cached", [True, False])
def test_hidden_states_are_those_of_the_models_own_last_layer(family: str, cached: bool) -> None:
    model, ids = models.MODELS[family](), list(range(30, 70))
    reference = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0]
    runner = models.engine(models.MODELS[family](), block_size=4, inline=True)._runner
    tables = [list(range(10)), list(range(10, 20))] if cached else [None, None]
    asked, other = Piece(ids, 0, tables[0], 7, hidden_states=True), Piece(ids[:9], 0, tables[1], 1)
    logits, plain, hidden = runner.forward([asked, other])
    assert (logits.shape[0], plain.shape[0]) == (7, 1)
    assert torch.allclose(hidden, reference[-7:], atol=1e-4)
    assert torch.allclose(logits, model(torch.tensor([ids])).logits[0, -7:, : runner.vocab_size], atol=1e-4)


def test_without_being_asked_the_model_keeps_none() -> None:
    engine = models.engine(models.gpt2(), inline=True)
    seen: list[Any] = []
    engine._runner.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["output_hidden_states"]), with_kwargs=True
    )
    engine.generate(greedy("abc", 3))
    assert seen == [False] * 3


@pytest.mark.parametrize("length", [40, 300])
def test_a_strategy_gets_them_after_the_logits_also_of_a_prompt_read_in_parts(length: int) -> None:
    """What a draft head reads: hidden states of several last positions, of each sequence."""
    model, ids = models.llama(), [token_id % 250 for token_id in range(length)]
    reference = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0]
    engine, found = models.engine(model=models.llama(), block_size=16, inline=True), []

    def reading(context: Context) -> Strategy:
        try:
            found.extend((yield Forward((context.root,), num_logits=5, hidden_states=True)))
        finally:
            context.blocks.free(context.root)

    request = greedy(tuple(ids), 1)
    list(engine._start(request, ids, request.sampling, reading))
    logits, hidden = found
    assert logits.shape == (5, engine.vocab_size)
    assert torch.allclose(hidden, reference[-5:], atol=1e-4)
    audit(engine)
