"""Settings as code: the transformers program is executed, the others are parsed."""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import json
import math
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers

from backend import BeamSearch, BestOf, Engine, Request, SamplingParams, Speculative
from backend.errors import RequestError
from backend.interop.export import TARGETS, export
from backend.interop.foreign import read
from tests import models

NASTY = "a 'quoted' \"prompt\"\n{with} $(rm -rf) \\ `x` ${y} % ü"
EVERYTHING = SamplingParams(
    temperature=0.7,
    top_k=20,
    top_p=0.9,
    min_p=0.02,
    repetition_penalty=1.2,
    logit_bias={65: 2.0, 66: -100.0},
    no_repeat_ngram_size=3,
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    loaded = models.engine()
    yield loaded
    loaded.close()


def executed(monkeypatch: pytest.MonkeyPatch, request: Request) -> tuple[str, dict[str, Any], Any]:
    """Run the exported program against the tiny model: what it prints, and how it called generate."""
    model, tokenizer = models.llama(), models.byte_tokenizer()
    calls: list[dict[str, Any]] = []
    real = model.generate

    def generate(**kwargs: Any) -> Any:
        calls.append(kwargs)
        return real(**kwargs)

    monkeypatch.setattr(model, "generate", generate)
    loaders = {"AutoModelForCausalLM": model, "AutoTokenizer": tokenizer}
    for name, made in loaders.items():
        monkeypatch.setattr(getattr(transformers, name), "from_pretrained", lambda _, made=made: made)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(export(request, "transformers", "some/model").code, "exported", "exec"), {})
    return printed.getvalue(), calls[0], real


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, repetition_penalty=1.5, no_repeat_ngram_size=2),
        SamplingParams(temperature=0, logit_bias={101: 4.0, 32: -100.0}),
    ],
)
@pytest.mark.parametrize("prompt", ["Once upon", NASTY, (72, 101, 9)])
def test_the_transformers_program_gives_our_greedy_text(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, sampling: SamplingParams, prompt: Any
) -> None:
    request = Request(prompt, sampling=sampling, max_new_tokens=12)
    printed, _, _ = executed(monkeypatch, request)
    trace = engine.generate(request)
    tokens = [t for t in trace.token_ids if t != models.EOS_ID]
    assert printed == models.byte_tokenizer().decode(tokens) + "\n"


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(top_k=7, typical_p=0.8),
        EVERYTHING,
    ],
)
def test_the_transformers_program_draws_from_our_distribution(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, sampling: SamplingParams
) -> None:
    request = Request(
        "AB AB Once",
        sampling=SamplingParams(**{**vars(sampling), "order": "transformers"}),
        max_new_tokens=1,
        seed=1,
    )
    _, call, generate = executed(monkeypatch, request)
    scores = generate(**call, return_dict_in_generate=True, output_scores=True).scores[0][0]
    theirs = torch.softmax(scores, -1)
    table = engine.evaluate(Request(**{**vars(request), "num_candidates": 200})).candidates
    assert table is not None
    final = table.after[-1] if table.after else table.model_logprobs
    ours = {i: math.exp(value) for i, value in zip(table.token_ids, final, strict=True)}
    for token_id, probability in ours.items():
        assert float(theirs[token_id]) == pytest.approx(probability, abs=1e-5)
    assert sum(ours.values()) == pytest.approx(float(sum(theirs[i] for i in ours)), abs=1e-4)


def test_the_transformers_program_searches_and_samples(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    beams = Request("Once", strategy=BeamSearch(3, length_penalty=0.5), max_new_tokens=6)
    printed, call, _ = executed(monkeypatch, beams)
    assert call["generation_config"].num_beams == 3
    assert printed.rstrip("\n") == models.byte_tokenizer().decode(
        [t for t in engine.generate(beams).token_ids if t != models.EOS_ID]
    ).rstrip("\n")
    best = Request("Once", strategy=BestOf(3), max_new_tokens=2, stop=("zzz",))
    _, call, _ = executed(monkeypatch, best)
    assert call["generation_config"].num_return_sequences == 3
    assert call["generation_config"].stop_strings == ["zzz"]


def keywords(code: str, name: str) -> dict[str, Any]:
    """The literal keyword arguments of the one call of `name`."""
    (found,) = [
        node
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    ]
    return {word.arg: ast.literal_eval(word.value) for word in found.keywords if word.arg}


def test_the_vllm_program_holds_every_setting() -> None:
    request = Request(NASTY, sampling=EVERYTHING, max_new_tokens=9, seed=5, stop=("END",))
    code = export(request, "vllm", "some/model").code
    assert keywords(code, "SamplingParams") == {
        "temperature": 0.7,
        "max_tokens": 9,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.02,
        "repetition_penalty": 1.2,
        "logit_bias": {65: 2.0, 66: -100.0},
        "stop": ["END"],
        "seed": 5,
    }
    assert NASTY in [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
    beams = export(Request("x", strategy=BeamSearch(5), max_new_tokens=9), "vllm", "m").code
    assert keywords(beams, "BeamSearchParams") == {"beam_width": 5, "max_tokens": 9, "length_penalty": 1.0}
    chat = export(Request(NASTY, chat=True), "vllm", "m").code
    assert ".chat(" in chat
    ast.parse(chat)
    ast.parse(export(Request((1, 2)), "vllm", "m").code)


def test_the_llama_cpp_body_names_every_setting_and_reads_back() -> None:
    sampling = SamplingParams(
        temperature=0.7, top_k=20, min_p=0.02, frequency_penalty=0.5, logit_bias={65: -2.0}
    )
    request = Request(NASTY, sampling=sampling, max_new_tokens=9, seed=5, stop=("END",))
    body = json.loads(export(request, "llama.cpp-server", "m").code)
    assert body == {
        "prompt": NASTY,
        "n_predict": 9,
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 1.0,
        "min_p": 0.02,
        "typical_p": 1.0,
        "top_n_sigma": -1,
        "repeat_penalty": 1.0,
        "repeat_last_n": -1,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.0,
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p", "typ_p", "top_n_sigma"],
        "logit_bias": [[65, -2.0]],
        "stop": ["END"],
        "seed": 5,
    }
    again = read(json.dumps(body))
    assert {**vars(again.sampling), "order": None} == vars(sampling)
    assert [s for s in again.sampling.stage_order if s in ("temperature", "top_k", "min_p")] == [
        "temperature",
        "top_k",
        "min_p",
    ]
    assert again.values == {"max_new_tokens": 9, "stop": ["END"], "seed": 5, "prompt": NASTY}


def test_the_order_of_llama_cpp_is_expressed_by_its_samplers() -> None:
    body = json.loads(
        export(Request("x", sampling=SamplingParams(order="llama.cpp")), "llama.cpp-server", "m").code
    )
    assert body["samplers"] == ["penalties", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "temperature"]


def test_the_command_line_survives_a_shell() -> None:
    request = Request(
        NASTY, sampling=SamplingParams(top_p=0.9, logit_bias={7: 1.5, 8: -3}), seed=4, stop=("a b",)
    )
    words = shlex.split(export(request, "llama.cpp-cli", "m").code)
    options = dict(itertools.pairwise(words))
    assert words[0] == "llama-cli"
    assert options["-p"] == NASTY
    assert (options["--top-p"], options["--top-k"], options["--seed"], options["-n"]) == (
        "0.9",
        "0",
        "4",
        "64",
    )
    assert [words[i + 1] for i, word in enumerate(words) if word == "--logit-bias"] == ["7+1.5", "8-3"]
    assert options["--reverse-prompt"] == "a b"


def test_the_openai_body_holds_what_the_api_has_and_reads_back() -> None:
    sampling = SamplingParams(temperature=0.7, top_p=0.9, presence_penalty=0.3, logit_bias={65: -2.0})
    request = Request(NASTY, chat=True, sampling=sampling, max_new_tokens=9, seed=5, stop=("END",))
    body = json.loads(export(request, "openai", "some/model").code)
    assert body == {
        "model": "some/model",
        "messages": [{"role": "user", "content": NASTY}],
        "max_completion_tokens": 9,
        "temperature": 0.7,
        "top_p": 0.9,
        "presence_penalty": 0.3,
        "logit_bias": {"65": -2.0},
        "stop": ["END"],
        "seed": 5,
    }
    again = read(json.dumps(body))
    assert again.source == "OpenAI-style"
    assert again.sampling == sampling
    assert again.values == {"max_new_tokens": 9, "stop": ["END"], "seed": 5, "prompt": NASTY, "chat": True}
    assert again.notes == ()


def notes(target: str, **fields: Any) -> str:
    return " ".join(export(Request("x", **fields), target, "m").notes)


def test_what_differs_is_noted_and_what_does_not_is_not() -> None:
    plain = SamplingParams(temperature=0)
    for target in TARGETS:
        assert notes(target, sampling=plain) == ""
    frequent = SamplingParams(frequency_penalty=0.5)
    assert "no frequency_penalty" in notes("transformers", sampling=frequent)
    assert "counts prompt and output" in notes("llama.cpp-server", sampling=frequent)
    assert "frequency" not in notes("vllm", sampling=frequent)
    assert "no typical_p" in notes("vllm", sampling=SamplingParams(typical_p=0.5))
    assert "no top_k" in notes("openai", sampling=SamplingParams(top_k=5))
    late = SamplingParams(temperature=2, min_p=0.1, order="llama.cpp")
    assert "Order: transformers applies temperature, min_p; here it was min_p, temperature" in notes(
        "transformers", sampling=late
    )
    assert "Order" not in notes("llama.cpp-server", sampling=late)
    assert "other random numbers" in notes("vllm")
    assert "no beam search" in notes("openai", strategy=BeamSearch(2))
    assert "Speculation is left out" in notes("vllm", strategy=Speculative())
    assert "stop string" in notes("transformers", sampling=plain, stop=("a",))


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(RequestError, match=r"target must be one of transformers, vllm, .* got 'tgi'"):
        export(Request("x"), "tgi", "m")
