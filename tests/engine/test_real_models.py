"""Models as people have them: odd end ids, broken chat templates, damaged weights."""

from __future__ import annotations

import pytest
import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM, GenerationConfig

from backend import Engine, Grammar
from backend.errors import ModelUnavailable, RequestError
from backend.model.catalogue import LoadedModel
from tests import models
from tests.running import finished, greedy

NAN, INFINITY = float("nan"), float("inf")


# End ids


@pytest.mark.parametrize(
    ("given", "outside"),
    [(50256, "50256"), (-1, "-1"), ([256, 400, 50256], "400, 50256"), (257, "257")],
)
def test_end_ids_outside_the_vocabulary_are_ignored_with_a_note(given, outside):
    model = models.gpt2()
    model.generation_config = GenerationConfig(eos_token_id=given)
    engine = models.engine(model)
    assert engine.notes == (f"end ids outside the vocabulary are ignored: {outside} (tiny has ids 0 to 256)",)
    trace = engine.generate(greedy("Ready?", 8, grammar=Grammar(regex="(yes|no)")))
    assert trace.text in ("yes", "no")
    engine.close()


def test_end_ids_inside_the_vocabulary_have_no_note():
    engine = models.engine(models.gpt2())
    assert engine.notes == ()
    engine.close()


# Chat templates


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('only with tools') }}", "TemplateError: only with tools"),
        ("{% if messages %}never closed", "TemplateSyntaxError: "),
        ({"rag": "{{ messages }}", "tool_use": "{{ messages }}"}, "chat templates (rag, tool_use)"),
        ("{{ messages[0].content.no_such.part }}", "UndefinedError: "),
        ("{{ messages + 1 }}", "TypeError: "),
    ],
)
def test_a_chat_template_that_fails_is_named_with_its_reason(template, message):
    tokenizer = models.byte_tokenizer()
    tokenizer.chat_template = template
    engine = Engine(LoadedModel("tiny", models.llama(), tokenizer), block_size=4, num_blocks=64)
    with pytest.raises(
        RequestError, match=r"of tiny cannot be used: .*; send the prompt without chat"
    ) as caught:
        engine.stream(greedy("Hi", chat=True))
    assert message in str(caught.value)
    assert finished(engine.generate(greedy("Hi", 2)).events).reason == "length"
    engine.close()


# Weights


@pytest.mark.parametrize(
    ("value", "kind", "tensor", "place"),
    [
        (NAN, "NaN", "model.layers.1.mlp.up_proj.weight", (3, 4)),
        (NAN, "NaN", "model.embed_tokens.weight", (255, 0)),
        (NAN, "NaN", "model.norm.weight", (7,)),
        (INFINITY, "infinity", "lm_head.weight", (0, 0)),
        (-INFINITY, "infinity", "model.layers.0.self_attn.q_proj.weight", (1, 1)),
    ],
)
def test_weights_that_are_no_numbers_are_named(value, kind, tensor, place):
    model = models.llama()
    with torch.no_grad():
        model.get_parameter(tensor)[place] = value
    with pytest.raises(ModelUnavailable, match=f"the weights hold {kind} in {tensor}[. ]"):
        models.engine(model)


def test_layers_that_fail_with_paged_attention_are_refused_by_name():
    model = models._seeded(DiffLlamaForCausalLM, DiffLlamaConfig(**models._common()))
    with pytest.raises(
        ModelUnavailable, match="DiffLlamaForCausalLM cannot be paged: its layers do not work"
    ):
        models.engine(model)
