"""Page settings <-> SamplingParams, Request and links."""

from __future__ import annotations

from typing import Any

import pytest

from backend import SamplingParams
from backend.errors import RequestError
from backend.stages import ORDERS
from ui import knobs
from ui.presets.settings import load_sampling_presets, menu_entry


def test_every_number_of_sampling_params_has_a_knob_with_its_neutral_value() -> None:
    neutral = SamplingParams()
    numbers = {name for name, value in vars(neutral).items() if isinstance(value, (int, float))}
    assert {knob.name for knob in knobs.KNOBS} == numbers
    assert all(knob.neutral == getattr(neutral, knob.name) for knob in knobs.KNOBS)


def test_settings_and_params_are_the_same_both_ways() -> None:
    params = SamplingParams(
        temperature=0.7, top_k=40, logit_bias={5: -100.0}, order=tuple(reversed(ORDERS["vllm"]))
    )
    assert knobs.sampling(knobs.settings_of(params)) == params


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": 2.5}, "top_k must be a whole number"),
        ({"top_k": None}, "got None"),
        ({"temperature": "9"}, "got '9'"),
        ({"min_p": float("nan")}, "min_p must be .* between 0 and 1, got nan"),
        ({"logit_bias": {"x": 1}}, "logit_bias holds 'x'"),
        ({"logit_bias": {"5": "high"}}, r"logit_bias\[5\] must be a number"),
        ({"logit_bias": None}, "logit_bias must map"),
        ({"order": ["top_k"]}, "order must name each of"),
        ({"order": {"a": 1}}, "order must name each of"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"stop": 3}, "stop must be a list"),
        ({"chat": 1}, "chat must be true or false"),
        ({"max_new_tokens": 0}, "max_new_tokens must be a whole number from 1"),
    ],
)
def test_settings_from_a_browser_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        knobs.request("x", settings, "")


def test_a_request_takes_over_every_setting() -> None:
    request = knobs.request(
        "hi",
        {**knobs.DEFAULTS, "top_p": 0.5, "seed": 4, "stop": ["\n"], "chat": True, "max_new_tokens": 9},
        "salt",
    )
    assert (request.prompt, request.sampling.top_p, request.seed) == ("hi", 0.5, 4)
    assert (request.stop, request.chat, request.max_new_tokens, request.cache_salt) == (
        ("\n",),
        True,
        9,
        "salt",
    )


def test_every_preset_gives_settings_that_a_request_accepts() -> None:
    entries = knobs.describe(map(menu_entry, load_sampling_presets().values()))["presets"]
    assert entries
    for entry in entries:
        knobs.request("x", {**knobs.DEFAULTS, **entry["settings"]}, "")
        assert entry["title"]
        assert entry["about"]


def test_settings_that_are_refused_are_not_the_same_draw() -> None:
    assert knobs.same_draw({"top_p": 1.0, "temperature": 1}, SamplingParams())
    assert not knobs.same_draw({"top_p": 7}, SamplingParams())
