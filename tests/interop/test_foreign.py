"""Settings of other engines read into ours."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from transformers import GenerationConfig

from backend import SamplingParams
from backend.errors import RequestError
from backend.interop.foreign import read


def test_a_generation_config_as_transformers_writes_it() -> None:
    config = GenerationConfig(
        do_sample=True,
        temperature=0.6,
        top_p=0.9,
        top_k=40,
        repetition_penalty=1.1,
        max_new_tokens=99,
        eos_token_id=2,
    )
    found = read(config.to_json_string())
    assert found.source == "transformers"
    assert found.sampling == SamplingParams(
        temperature=0.6, top_p=0.9, top_k=40, repetition_penalty=1.1, order="transformers"
    )
    assert found.values == {"max_new_tokens": 99}


def test_a_generation_config_without_do_sample_is_greedy() -> None:
    found = read('{"temperature": 0.6, "top_p": 0.9, "transformers_version": "5"}')
    assert found.sampling == SamplingParams(temperature=0, order="transformers")
    assert "greedily" in found.notes[0]


def test_an_unset_top_k_of_transformers_is_fifty() -> None:
    found = read('{"do_sample": true, "sequence_bias": [[[5], -1.5], [[1, 2], 3]], "num_beams": 1}')
    assert found.sampling.top_k == 50
    assert dict(found.sampling.logit_bias) == {5: -1.5}
    assert found.notes == (
        "A bias on a sequence of several tokens was left out.",
        "top_k is not set; transformers then takes 50.",
        "Not taken over: num_beams.",
    )


def test_what_a_llama_cpp_body_leaves_out_has_its_default() -> None:
    found = read('{"prompt": "Hi", "n_predict": -1, "repeat_penalty": 1.1, "seed": -1}')
    assert found.sampling == SamplingParams(
        temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repetition_penalty=1.1, order="llama.cpp"
    )
    assert found.values == {"prompt": "Hi"}
    assert "repeat_last_n is 64" in found.notes[1]


def test_the_extra_fields_of_vllm_are_understood() -> None:
    found = read('{"model": "m", "prompt": "Hi", "max_tokens": 5, "top_k": -1, "min_p": 0.1, "best_of": 3}')
    assert found.sampling == SamplingParams(min_p=0.1)
    assert found.values == {"max_new_tokens": 5, "prompt": "Hi"}
    assert found.notes == ("Not taken over: best_of.",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[1]", "must be a JSON object"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"temperature": NaN}', "holds NaN"),
        ('{"colour": 1}', "no setting of transformers.* the names are colour"),
        ('{"top_p": 3}', "top_p must be a number between 0 and 1, got 3"),
        ('{"temperature": "hot"}', "temperature must be a number .* got 'hot'"),
        ('{"top_p": 0.5, "logit_bias": {"x": 1}}', "logit_bias must have token ids"),
        ('{"n_predict": 0}', "max_new_tokens must be a whole number from 1"),
        ('{"max_tokens": 5, "stop": 7}', "stop"),
        ('{"max_tokens": 5, "seed": -3}', "seed must be"),
        ('{"n_predict": 5, "logit_bias": [[5, "x"]]}', "logit_bias"),
        ('{"do_sample": true, "sequence_bias": [[[[1]], 2]], "top_k": 1.5}', "top_k must be a whole number"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read(text)


def test_hostile_shapes_do_not_crash() -> None:
    shapes: list[Any] = [{}, [], [[]], "x", 3, True, None, {"a": {}}, [[[1], [2]]]]
    names = (
        "samplers",
        "logit_bias",
        "messages",
        "stop",
        "prompt",
        "seed",
        "sequence_bias",
        "top_k",
        "do_sample",
    )
    for base in ({"n_predict": 3}, {"max_tokens": 3}, {"transformers_version": "5"}):
        for name in names:
            for shape in shapes:
                with contextlib.suppress(RequestError):  # read or refused, nothing else
                    read(json.dumps({**base, name: shape}))


def test_top_n_sigma_of_llama_cpp_is_off_at_minus_one() -> None:
    assert read('{"n_predict": 5, "top_n_sigma": -1}').sampling.top_n_sigma == 0
    assert read('{"n_predict": 5, "top_n_sigma": 1.5}').sampling.top_n_sigma == 1.5


# llama.cpp's samplers


BODY = {"prompt": "x", "n_predict": 5, "top_k": 40, "top_p": 0.5, "min_p": 0.3, "temperature": 0.7}


def body(**changes: Any) -> str:
    return json.dumps({**BODY, **changes})


@pytest.mark.parametrize(
    ("samplers", "expected"),
    [
        (["top_k", "temperature"], {"top_k": 40, "temperature": 0.7}),
        (["top_k", "temp"], {"top_k": 40, "temperature": 0.7}),
        (["top-k", "temp"], {"top_k": 40, "temperature": 0.7}),
        (["nucleus", "min-p"], {"top_p": 0.5, "min_p": 0.3}),
        ([], {}),
        ("", {}),
        ("kt", {"top_k": 40, "temperature": 0.7}),
        ("kpt", {"top_k": 40, "top_p": 0.5, "temperature": 0.7}),
        ("m", {"min_p": 0.3}),
        (None, {"top_k": 40, "top_p": 0.5, "min_p": 0.3, "temperature": 0.7}),
    ],
)
def test_a_sampler_of_llama_cpp_that_is_not_listed_is_off(samplers: Any, expected: dict[str, Any]) -> None:
    found = read(body(samplers=samplers))
    used = {name: getattr(found.sampling, name) for name in found.sampling.switched_on}
    assert used == expected
    given = {"top_k", "top_p", "min_p", "temperature"} - set(expected)
    (note,) = [note for note in found.notes if note.startswith("Off")] or [""]
    assert all(name in note for name in given)


@pytest.mark.parametrize(
    ("samplers", "order"),
    [
        ("tk", ["temperature", "top_k"]),
        ("kt", ["top_k", "temperature"]),
        (["temp", "top-p"], ["temperature", "top_p"]),
    ],
)
def test_samplers_of_llama_cpp_give_the_order(samplers: Any, order: list[str]) -> None:
    assert list(read(body(samplers=samplers)).sampling.switched_on) == order


@pytest.mark.parametrize("samplers", [["top_k", "mirostat"], ["dry", "top_k"], "kx", "k?", ["top_k", 7]])
def test_samplers_that_are_not_known_are_named(samplers: Any) -> None:
    found = read(body(samplers=samplers))
    assert list(found.sampling.switched_on) == ["top_k"]
    assert any("is not known here" in note for note in found.notes)


@pytest.mark.parametrize("top_k", [-1, 0, -7])
def test_a_top_k_of_llama_cpp_below_one_is_off(top_k: int) -> None:
    assert read(body(top_k=top_k)).sampling.top_k == 0


@pytest.mark.parametrize(
    ("bias", "expected", "note"),
    [
        ([["Hello", -0.5]], {}, "'Hello' was left out"),
        ([["Hello", -0.5], [7, 1.5]], {7: 1.5}, "'Hello' was left out"),
        ({"Hello": -0.5, "8": 2}, {8: 2}, "'Hello' was left out"),
        ([[9, False]], {9: -100}, ""),
        ([[9, 1, 2], 4], {}, "no pair of token and number"),
    ],
)
def test_biases_of_llama_cpp_are_read_or_named(bias: Any, expected: dict[int, float], note: str) -> None:
    found = read(body(logit_bias=bias))
    assert dict(found.sampling.logit_bias) == expected
    assert note in " ".join(found.notes)


# Presets


def test_a_preset_of_sillytavern() -> None:
    found = read('{"temp":1.25,"rep_pen":1.15,"freq_pen":0.2,"min_p":0.1,"do_sample":true}')
    assert found.source == "SillyTavern"
    assert found.sampling == SamplingParams(
        temperature=1.25,
        repetition_penalty=1.15,
        frequency_penalty=0.2,
        min_p=0.1,
        order="transformers",
    )
    assert found.notes == ()


@pytest.mark.parametrize(
    ("text", "expected", "left"),
    [
        (
            '{"temp": 0.7, "temperature_last": true, "top_k": -1}',
            {"temperature": 0.7, "order": "llama.cpp"},
            "",
        ),
        (
            '{"temp": 0.7, "top_a": 0.2, "tfs": 0.9, "rep_pen_range": 512}',
            {"temperature": 0.7, "order": "transformers"},
            "Not taken over: top_a, tfs, rep_pen_range.",
        ),
        (
            '{"temp": 0.7, "do_sample": false, "top_p": 0.5, "presence_pen": 1}',
            {"temperature": 0, "presence_penalty": 1, "order": "transformers"},
            "temperature 0",
        ),
        (
            '{"temperature": 1.3, "temperature_last": true, "repetition_penalty": 1.1, "typical_p": 0.9}',
            {"temperature": 1.3, "repetition_penalty": 1.1, "typical_p": 0.9, "order": "llama.cpp"},
            "",
        ),
    ],
)
def test_other_presets(text: str, expected: dict[str, Any], left: str) -> None:
    found = read(text)
    assert found.sampling == SamplingParams(**expected)
    assert left in " ".join(found.notes)


# Chat bodies


@pytest.mark.parametrize(
    "extra",
    [
        {"no_repeat_ngram_size": 3},
        {"do_sample": True, "no_repeat_ngram_size": 3},
        {"repetition_penalty": 1.1},
    ],
)
def test_a_chat_body_with_extras_stays_a_chat_body(extra: dict[str, Any]) -> None:
    document = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0.7, "max_tokens": 20}
    found = read(json.dumps({**document, **extra}))
    assert found.source == "OpenAI-style"
    assert found.sampling.temperature == 0.7
    assert found.values == {"max_new_tokens": 20, "prompt": "Hi", "chat": True}
    for name, value in extra.items():
        assert getattr(found.sampling, name, value) == value


@pytest.mark.parametrize(
    ("extra", "values", "note"),
    [
        ({"seed": -1}, {}, ""),
        ({"max_tokens": -1}, {}, ""),
        ({"n": 4}, {}, "Not taken over: n."),
        ({"n": 1}, {}, ""),
        ({"top_k": -1, "max_completion_tokens": 9}, {"max_new_tokens": 9}, ""),
        ({"best_of": 2, "n": 2}, {}, "Not taken over: best_of, n."),
    ],
)
def test_unlimited_numbers_and_counts(extra: dict[str, Any], values: dict[str, Any], note: str) -> None:
    found = read(json.dumps({"temperature": 0.5, "top_p": 0.9, **extra}))
    assert found.values == values
    assert found.notes == ((note,) if note else ())


def message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("messages", "prompt", "note"),
    [
        ([message("user", "Hi")], "Hi", ""),
        ([message("user", [{"type": "text", "text": "Hi"}])], "Hi", ""),
        ([message("system", "Be kind")], None, "the last one is by 'system'"),
        ([message("user", "Hi"), message("assistant", "Yes,")], None, "the last one is by 'assistant'"),
        (
            [message("system", "Be kind"), message("user", "Hi")],
            "Hi",
            "the 1 before the last (system)",
        ),
        ([message("user", [{"type": "image_url", "image_url": {}}])], None, "has no text"),
        ([], None, "has no text"),
        ("Hi", None, "has no text"),
    ],
)
def test_messages_keep_their_roles_or_are_named(messages: Any, prompt: str | None, note: str) -> None:
    found = read(json.dumps({"messages": messages, "temperature": 0.5}))
    assert found.values == ({} if prompt is None else {"prompt": prompt, "chat": True})
    assert note in " ".join(found.notes)
    assert bool(found.notes) == bool(note)
