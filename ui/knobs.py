"""The knobs: what each is called and ranges over, and the way between page settings and a Request.

Settings are the plain dict the page holds: one entry per SamplingParams field plus max_new_tokens,
seed, stop and chat. They come from a browser or a link, so every value is checked on the way in.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from backend import Request, SamplingParams
from backend.errors import RequestError
from backend.stages import ORDERS, STAGES

# The stages whose setting is a number, in the order of the page: those of the draw first.
KNOBS = tuple(
    sorted((spec for spec in STAGES.values() if spec.slider), key=lambda spec: not spec.shapes_draw)
)

DEFAULTS: dict[str, Any] = {
    **{item.name: getattr(SamplingParams(), item.name) for item in fields(SamplingParams)},
    "temperature": 0.8,
    "top_p": 0.95,
    "max_new_tokens": 64,
    "seed": None,
    "stop": [],
    "chat": False,
}


def describe(presets: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """What the knobs component needs to draw itself; `presets` are the entries of its menu."""
    return {
        "presets": list(presets),
        "knobs": [
            {
                **{key: getattr(knob, key) for key in ("name", "title", "group", "step", "neutral", "hint")},
                "low": knob.slider[0],
                "high": knob.slider[1],
            }
            for knob in KNOBS
            if knob.slider is not None
        ],
        "orders": {name: list(order) for name, order in ORDERS.items()},
        "titles": {spec.name: spec.title for spec in STAGES.values()},
        "defaults": DEFAULTS,
    }


def sampling(settings: Mapping[str, Any]) -> SamplingParams:
    """SamplingParams from page settings.

    Raises:
        RequestError: a value has the wrong type or is out of range.
    """
    values = {item.name: settings.get(item.name, DEFAULTS[item.name]) for item in fields(SamplingParams)}
    values["logit_bias"] = _bias(values["logit_bias"])
    order = values["order"]
    values["order"] = tuple(order) if isinstance(order, list) else order
    return SamplingParams(**values)


def request(prompt: str, settings: Mapping[str, Any], salt: str) -> Request:
    """The Request that runs `prompt` under page settings.

    Raises:
        RequestError: a value has the wrong type or is out of range.
    """
    plain = {name: settings.get(name, DEFAULTS[name]) for name in ("max_new_tokens", "seed", "stop", "chat")}
    return Request(prompt=prompt, sampling=sampling(settings), cache_salt=salt, **plain)


def settings_of(params: SamplingParams) -> dict[str, Any]:
    """Page settings of SamplingParams; the other settings are not touched."""
    values = {item.name: getattr(params, item.name) for item in fields(SamplingParams)}
    values["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias.items()}
    if isinstance(params.order, tuple):
        values["order"] = list(params.order)
    return values


def _bias(value: Any) -> dict[int, Any]:
    """Token ids arrive as JSON object keys, so as text."""
    if not isinstance(value, Mapping):
        raise RequestError(f"logit_bias must map token ids to numbers, got {value!r}")
    bias: dict[int, Any] = {}
    for key, addend in value.items():
        try:
            bias[int(key)] = addend
        except (TypeError, ValueError):
            raise RequestError(f"logit_bias holds {key!r}; token ids are whole numbers from 0 up") from None
    return bias


def same_draw(settings: Mapping[str, Any], params: SamplingParams) -> bool:
    """Whether the settings ask for exactly this sampling; settings that are refused do not."""
    try:
        return sampling(settings) == params
    except RequestError:
        return False


def seeded(asked: Request, below: int = 2**31) -> Request:
    """The request with a seed: its own, or one drawn from 0 to `below` - 1."""
    return asked if asked.seed is not None else replace(asked, seed=secrets.randbelow(below))
