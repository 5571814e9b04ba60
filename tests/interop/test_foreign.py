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
