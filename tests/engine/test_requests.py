"""Bad input is refused by name and limit, and never harms the next run; traces as strict JSON."""

from __future__ import annotations

import json
import math
import pickle
import random
from typing import Any

import pytest

from backend import (
    BeamSearch,
    BestOf,
    Engine,
    Grammar,
    ModelUnavailable,
    Request,
    RequestError,
    Sample,
    SamplingParams,
    Speculative,
    Trace,
    TraceError,
)
from backend.events import TokenDecoded
from tests import models
from tests.running import audit, greedy

NAN, INF = math.nan, math.inf


@pytest.fixture(scope="module")
def engine() -> Engine:
    return models.engine(inline=True)


# Knobs

RANGES = {
    "temperature": (-0.1, 100.1, 1e-7),
    "top_p": (-0.1, 1.1),
    "min_p": (-0.1, 1.1),
    "typical_p": (-0.1, 1.1),
    "top_n_sigma": (-0.1, 101),
    "top_k": (-1, 1_000_001, 2.5),
    "repetition_penalty": (0, -1, 10.5),
    "frequency_penalty": (-2.1, 2.1),
    "presence_penalty": (-2.1, 2.1),
    "no_repeat_ngram_size": (-1, 1_001, 1.5),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name, values in RANGES.items()
        for value in (*values, NAN, INF, -INF, None, "9", True, [1])
    ],
)
def test_a_knob_out_of_range_or_of_the_wrong_type_is_named_with_its_value(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)
    assert any(digit in str(caught.value) for digit in "0123456789")  # a limit


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("max_new_tokens", 0, "from 1 to 16384, got 0"),
        ("max_new_tokens", 16_385, "from 1 to 16384, got 16385"),
        ("max_new_tokens", 2.5, "got 2.5"),
        ("max_new_tokens", NAN, "got nan"),
        ("max_new_tokens", True, "got True"),
        ("max_new_tokens", "9", "got '9'"),
        ("max_new_tokens", None, "got None"),
        ("max_new_tokens", 1e9, "got 1000000000.0"),
        ("seed", -1, "got -1"),
        ("seed", 2**63, f"got {2**63}"),
        ("seed", 1.5, "got 1.5"),
        ("seed", "7", "got '7'"),
        ("chat", 1, "got 1"),
        ("use_cache", None, "got None"),
        ("num_candidates", 201, "from 0 to 200, got 201"),
        ("num_candidates", -1, "got -1"),
        ("cache_salt", "x" * 257, "256"),
        ("cache_salt", None, "cache_salt"),
        ("stop", tuple(f"s{n}" for n in range(17)), "17 stop strings given, at most 16"),
        ("stop", ("x" * 201,), "201 characters, at most 200"),
        ("stop", (1,), "holds 1"),
        ("stop", 5, "got 5"),
        ("output_prefix", (-1,), "holds -1"),
        ("output_prefix", (1.0,), "holds 1.0"),
        ("output_prefix", tuple(range(64)), "64 tokens, max_new_tokens is 64"),
        ("sampling", None, "sampling"),
        ("sampling", {"top_p": 1}, "sampling"),
        ("strategy", "sample", "strategy"),
        ("grammar", "a*", "grammar"),
    ],
)
def test_a_request_field_that_cannot_be_is_named(name: str, value: Any, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        Request(**({"prompt": "a"} | {name: value}))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "prompt is empty"),
        ((), "prompt is empty"),
        ([], "prompt is empty"),
        ("x" * 200_001, "200,001 characters, at most 200,000"),
        (None, "got None"),
        (5, "got 5"),
        (b"abc", "got b'abc'"),
        ((1, -1), "holds -1"),
        ((1, "2"), "holds '2'"),
        ((True,), "holds True"),
        ((1.0,), "holds 1.0"),
    ],
)
def test_a_prompt_that_cannot_be_is_refused(prompt: Any, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        Request(prompt)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("bias", "said"),
    [
        ({-1: 1.0}, "-1"),
        ({"a": 1.0}, "'a'"),
        ({1: 101}, "logit_bias[1] must be a number between -100 and 100, got 101"),
        ({1: NAN}, "got nan"),
        ({1: None}, "got None"),
        ([1], "got [1]"),
        (dict.fromkeys(range(1025), 1.0), "1025 entries, at most 1024"),
    ],
)
def test_a_bias_that_cannot_be_is_refused(bias: Any, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(logit_bias=bias)
    assert said in str(caught.value)


@pytest.mark.parametrize("order", ["vllm2", ("top_p",), ("top_p",) * 10, 5, (1, 2)])
def test_an_order_that_is_none_is_refused(order: Any) -> None:
    with pytest.raises(RequestError, match="order must"):
        SamplingParams(order=order)


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        (Sample, {"n": 0}, "from 1 to 64, got 0"),
        (Sample, {"n": 65}, "got 65"),
        (BestOf, {"n": 2.5}, "got 2.5"),
        (BestOf, {"select": "best"}, "got 'best'"),
        (BeamSearch, {"num_beams": 65}, "got 65"),
        (BeamSearch, {"num_beams": 2, "num_return_sequences": 3}, "is 3, there are only 2 beams"),
        (BeamSearch, {"length_penalty": NAN}, "got nan"),
        (BeamSearch, {"early_stopping": "maybe"}, "got 'maybe'"),
        (Speculative, {"num_draft_tokens": 0}, "got 0"),
        (Speculative, {"verify": "x"}, "got 'x'"),
        (Grammar, {}, "exactly one"),
        (Grammar, {"regex": "a", "ebnf": "b"}, "exactly one"),
    ],
)
def test_a_strategy_that_cannot_be_is_refused(kind: Any, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        kind(**fields)
    assert said in str(caught.value)


# Limits that depend on the model


@pytest.mark.parametrize(
    ("request_fields", "said"),
    [
        ({"prompt": (257,)}, "prompt holds token id 257; tiny has ids 0 to 256"),
        ({"prompt": (10**12,)}, "prompt holds token id 1000000000000"),
        ({"prompt": "a", "output_prefix": (300,)}, "output_prefix holds token id 300"),
        ({"prompt": "a", "sampling": SamplingParams(logit_bias={257: 1})}, "logit_bias holds token id 257"),
        ({"prompt": "a" * 512}, "the prompt has 512 tokens; tiny holds 512"),
        ({"prompt": "a" * 510, "output_prefix": (1, 2)}, "the prompt has 512 tokens; tiny holds 512"),
        ({"prompt": "a", "chat": True}, "tiny has no chat template"),
        ({"prompt": "half \ud83d"}, "half of a surrogate pair"),
    ],
)
def test_what_the_model_cannot_do_is_refused_and_the_next_run_works(
    engine: Engine, request_fields: dict[str, Any], said: str
) -> None:
    """A24 among them: ids outside the vocabulary never reach the model."""
    with pytest.raises(RequestError) as caught:
        engine.stream(Request(**request_fields))
    assert said in str(caught.value)
    assert engine.generate(greedy("next", 3)).finish_reason == "length"
    audit(engine)


@pytest.mark.parametrize("text", ["", "a", "x" * 513, "half \ud83d"])
def test_a_text_that_cannot_be_scored_is_refused(engine: Engine, text: str) -> None:
    with pytest.raises(RequestError):
        engine.score(text)
    audit(engine)


@pytest.mark.parametrize(
    "text",
    ["${alert(1)}", "<script>alert(1)</script>", "{{7*7}}", "\x00\x1b[31m", "<eos>", "a\u202eb", "\ufeff"],
)
def test_hostile_prompts_are_just_text(engine: Engine, text: str) -> None:
    trace = engine.generate(greedy(text, 3))
    assert len(trace.token_ids) == 3
    assert Trace.from_json(trace.to_json()) == trace


def test_an_unknown_model_says_what_was_tried() -> None:
    with pytest.raises(ModelUnavailable, match=r"'no-such-model'.*catalogue.*smollm2-135m"):
        Engine.load("no-such-model")


@pytest.mark.parametrize("fields", [{"device": "tpu"}, {"precision": "int3"}])
def test_an_unknown_device_or_precision_is_refused(fields: dict[str, str]) -> None:
    (value,) = fields.values()
    with pytest.raises(RequestError, match=f"got '{value}'"):
        Engine.load(**fields)


# Plain data


REQUESTS = [
    greedy("plain", 6),
    Request("drawn", seed=None, max_new_tokens=8),
    Request(
        "all stages",
        sampling=SamplingParams(
            temperature=0.8,
            top_p=0.9,
            min_p=0.01,
            top_k=40,
            typical_p=0.95,
            repetition_penalty=1.2,
            frequency_penalty=0.1,
            presence_penalty=-0.1,
            no_repeat_ngram_size=2,
            logit_bias={65: 1.5, 66: -100},
            order="llama.cpp",
        ),
        max_new_tokens=12,
        stop=("zz", "q"),
    ),
    Request((1, 2, 3), strategy=Sample(3), max_new_tokens=5, num_candidates=0),
    Request("branch", output_prefix=(65, 66), max_new_tokens=6, use_cache=False),
]


@pytest.fixture(scope="module")
def traces(engine: Engine) -> list[Trace]:
    return [*(engine.generate(request) for request in REQUESTS), engine.score("a scored text")]


def refuse(constant: str) -> None:
    raise AssertionError(f"bare {constant}")


def test_real_traces_survive_the_round_trip_in_strict_json(traces: list[Trace]) -> None:
    for trace in traces:
        text = trace.to_json()
        json.loads(text, parse_constant=refuse)
        back = Trace.from_json(text)
        assert back == trace
        assert back.to_json() == text
        assert (back.text, back.token_ids, back.finish_reason) == (
            trace.text,
            trace.token_ids,
            trace.finish_reason,
        )


def test_minus_infinity_is_neither_null_nor_a_number(traces: list[Trace]) -> None:
    assert '"-Infinity"' in traces[2].to_json()
    back = Trace.from_json(traces[2].to_json())
    values = [v for s in back.steps() if s.candidates for row in s.candidates.after for v in row]
    assert -math.inf in values
    assert not any(math.isnan(value) for value in values)


def test_the_cache_salt_is_never_in_the_file(engine: Engine) -> None:
    trace = engine.generate(greedy("a", 2, cache_salt="secret-of-a-visitor"))
    assert "secret-of-a-visitor" not in trace.to_json()
    assert "cache_salt" not in trace.to_json()
    assert Trace.from_json(trace.to_json()).request.cache_salt == ""


def test_requests_and_events_are_plain_data(traces: list[Trace]) -> None:
    """H18: they cross a process border."""
    for trace in traces:
        assert pickle.loads(pickle.dumps(trace.request)) == trace.request
        for event in trace.events:
            assert pickle.loads(pickle.dumps(event)) == event


REQUEST = '{"prompt":"a"}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        '"text"',
        "[" * 100_000,
        "{}",
        '{"version":3,"request":{"prompt":"a"},"events":[]}',
        '{"version":true,"request":{"prompt":"a"},"events":[]}',
        '{"version":"1","request":{"prompt":"a"},"events":[]}',
        '{"version":1,"events":[]}',
        f'{{"version":1,"request":{REQUEST}}}',
        f'{{"version":1,"request":{REQUEST},"events":{{}}}}',
        f'{{"version":1,"request":{REQUEST},"events":[]}}',
        f'{{"version":1,"request":{REQUEST},"events":[null]}}',
        f'{{"version":1,"request":{REQUEST},"events":[["Waiting"]]}}',
        f'{{"version":1,"request":{REQUEST},"events":[["Waiting",null]]}}',
        f'{{"version":1,"request":{REQUEST},"events":[["Request",{REQUEST}]]}}',
        f'{{"version":1,"request":{REQUEST},"events":[["__class__",{{}}]]}}',
        f'{{"version":1,"request":{REQUEST},"events":[["Waiting",{{"num_needed_blocks":NaN}}]]}}',
        f'{{"version":1,"request":{REQUEST},"events":[["Waiting",{{"x":1}}]]}}',
        '{"version":1,"request":{"prompt":""},"events":[]}',
        '{"version":1,"request":{"prompt":"a","sampling":{"top_p":7}},"events":[]}',
        '{"version":1,"request":{"prompt":"a","unknown":7},"events":[]}',
        '{"version":1,"request":{"prompt":"a","strategy":{"m":7}},"events":[]}',
    ],
)
def test_what_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(TraceError):
        Trace.from_json(text)


def test_a_trace_of_version_1_is_read_with_its_settings_as_numbers(engine: Engine) -> None:
    """There every setting was text."""
    sampling = SamplingParams(temperature=0.7, top_k=5, no_repeat_ngram_size=3, logit_bias={65: 1.0})
    trace = engine.generate(Request("Once", sampling=sampling, max_new_tokens=3))
    document = json.loads(trace.to_json())
    document["version"] = 1
    for _, fields in document["events"]:
        for stage in fields.get("stages", ()):
            stage["setting"] = str(stage["setting"])
    assert Trace.from_json(json.dumps(document)) == trace
    assert [stage.setting for stage in trace.started.stages] == [3, "1 token", 0.7, 5]
    assert [type(stage.setting) for stage in trace.started.stages] == [int, str, float, int]
    document["events"][0][1]["stages"][0]["setting"] = "many"  # what is no number stays text
    assert Trace.from_json(json.dumps(document)).started.stages[0].setting == "many"


@pytest.mark.parametrize("name", ["[]", "{}"])
def test_an_event_without_a_name_is_refused(name: str) -> None:
    with pytest.raises(TraceError):
        Trace.from_json(f'{{"version":1,"request":{REQUEST},"events":[[{name},{{}}]]}}')


def test_an_endless_number_is_refused() -> None:
    with pytest.raises(TraceError):
        Trace.from_json('{"version":' + "1" * 5_000 + "}")


def test_a_stop_string_that_is_no_text_is_refused() -> None:
    with pytest.raises(RequestError):
        Request("a", stop=("\ud800",))


def _spoiled(rng: random.Random, node: Any) -> Any:
    """The same document with one value exchanged."""
    if isinstance(node, (dict, list)) and node and rng.random() < 0.9:
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        copy = dict(node) if isinstance(node, dict) else list(node)
        if rng.random() < 0.15:
            del copy[key]
        else:
            copy[key] = _spoiled(rng, copy[key])
        return copy
    return rng.choice([None, True, "x", "", -1, 1.5, 10**30, {}, {"a": 1}, [None], "NaN"])


def test_spoiled_traces_are_read_or_refused_but_never_crash(traces: list[Trace]) -> None:
    rng = random.Random(1)
    documents = [json.loads(trace.to_json()) for trace in traces]
    refused = 0
    for _ in range(1_500):
        text = json.dumps(_spoiled(rng, rng.choice(documents)))
        try:
            read = Trace.from_json(text)
        except TraceError:
            refused += 1
        else:
            json.loads(read.to_json(), parse_constant=refuse)
            assert all(isinstance(step, TokenDecoded) for step in read.steps())
    assert refused > 500
