"""The calculators of the Lab: what each asks for, and its result as plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from backend import worked
from backend.errors import PlaygroundError, RequestError
from ui.numbers import percent

Result = dict[str, Any]


class Inputs(dict[str, Any]):
    """What the reader put into the cards, by name of the card; what is not there is at its start."""


def _range(name: str, title: str, low: float, high: float, step: float, start: float) -> dict[str, Any]:
    return {
        "name": name,
        "title": title,
        "kind": "range",
        "min": low,
        "max": high,
        "step": step,
        "start": start,
    }


def _text(name: str, title: str, start: str) -> dict[str, Any]:
    return {"name": name, "title": title, "kind": "text", "start": start}


CARDS: list[dict[str, Any]] = [
    {
        "name": "softmax",
        "title": "Softmax with temperature",
        "formula": "p = exp(z / T) / sum of exp(z / T)",
        "inputs": [_text("logits", "logits z", "2, 1, 0.1"), _range("temperature", "T", 0, 3, 0.05, 0.5)],
    },
    {
        "name": "nucleus",
        "title": "A nucleus by hand",
        "formula": "the fewest best tokens whose probability reaches p",
        "inputs": [
            _text("probabilities", "probabilities", "0.35, 0.25, 0.15, 0.12, 0.08, 0.05"),
            _range("top_p", "p", 0, 1, 0.01, 0.8),
        ],
    },
    {
        "name": "min_p",
        "title": "The min-p cutoff",
        "formula": "kept if p is at least min-p × the best p",
        "inputs": [
            _text("probabilities", "probabilities", "0.4, 0.25, 0.15, 0.05, 0.03, 0.02"),
            _range("min_p", "min-p", 0, 1, 0.01, 0.1),
        ],
    },
    {
        "name": "rounds",
        "title": "Expected tokens per round",
        "formula": "(1 − a^(k+1)) / (1 − a)",
        "inputs": [_range("a", "acceptance a", 0, 1, 0.01, 0.75), _range("k", "drafted k", 1, 20, 1, 6)],
    },
    {
        "name": "beams",
        "title": "Two hypotheses, their length divided out",
        "formula": "sum of log p / length ^ λ",
        "inputs": [
            _text("first", "first: sum, length", "-2, 2"),
            _text("second", "second: sum, length", "-5, 10"),
            _range("penalty", "λ", 0, 2, 0.05, 1),
        ],
    },
    {
        "name": "blocks",
        "title": "What a request wastes",
        "formula": "1 − tokens / buffer, against blocks as needed",
        "inputs": [
            _range("tokens", "tokens", 1, 4096, 1, 320),
            _range("buffer", "buffer", 256, 8192, 256, 4096),
            _range("block", "block size", 1, 64, 1, 16),
        ],
    },
]


def start() -> dict[str, dict[str, Any]]:
    """The inputs that the calculators open with."""
    return {card["name"]: {item["name"]: item["start"] for item in card["inputs"]} for card in CARDS}


def results(inputs: Any) -> dict[str, Result]:
    """What every calculator shows; an input that cannot be used is named in its card's `error`."""
    given = inputs if isinstance(inputs, dict) else {}
    return {name: _result(name, given.get(name)) for name in start()}


def _result(name: str, given: Any) -> Result:
    values = start()[name] | (given if isinstance(given, dict) else {})
    try:
        return {"bars": [], "error": "", **_CALCULATIONS[name](values)}
    except PlaygroundError as error:
        return {"bars": [], "facts": [], "error": str(error)}


def _number(values: Mapping[str, Any], name: str) -> float:
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestError(f"{name} must be a number, got {str(value)[:40]!r}")
    return value


def _numbers(values: Mapping[str, Any], name: str) -> list[float]:
    value = values[name]
    if not isinstance(value, str):
        raise RequestError(f"{name} must be numbers, separated by commas")
    return worked.numbers(value)


def _softmax(values: Mapping[str, Any]) -> Result:
    logits = _numbers(values, "logits")
    found = worked.softmax(logits, _number(values, "temperature"))
    bars = [[f"{z:g}", p, f"{p:.4f}", True] for z, p in zip(logits, found, strict=True)]
    return {"bars": bars, "facts": [["best", f"{max(found):.4f}"]]}


def _cut_bars(found: worked.Nucleus, cumulative: bool) -> list[list[Any]]:
    rows = zip(found.probabilities, found.cumulative, found.after, strict=True)
    return [
        [f"{p:g}", p, f"sum {reached:.2f}" if cumulative else f"→ {after:.4f}", after > 0]
        for p, reached, after in rows
    ]


def _nucleus(values: Mapping[str, Any]) -> Result:
    found = worked.nucleus(_numbers(values, "probabilities"), _number(values, "top_p"))
    facts = [["kept", str(found.num_kept)], ["their probability", f"{found.kept_mass:.2f}"]]
    return {"bars": _cut_bars(found, True), "facts": facts}


def _min_p(values: Mapping[str, Any]) -> Result:
    cutoff, found = worked.min_p(_numbers(values, "probabilities"), _number(values, "min_p"))
    return {
        "bars": _cut_bars(found, False),
        "facts": [["cutoff", f"{cutoff:.4g}"], ["kept", str(found.num_kept)]],
    }


def _rounds(values: Mapping[str, Any]) -> Result:
    found = worked.rounds(_number(values, "a"), int(_number(values, "k")))
    ceiling = "no limit" if math.isinf(found.ceiling) else f"{found.ceiling:.2f}"
    facts = [["tokens per round", f"{found.tokens:.2f}"], ["limit for long drafts", ceiling]]
    return {"facts": [*facts, ["reached", percent(found.share)]]}


def _beams(values: Mapping[str, Any]) -> Result:
    penalty = _number(values, "penalty")
    scores = []
    for name in ("first", "second"):
        pair = _numbers(values, name)
        if len(pair) != 2:
            raise RequestError(f"{name} takes two numbers, a sum and a length, got {len(pair)}")
        scores.append(worked.beam_score(pair[0], int(pair[1]), penalty))
    winner = "the first" if scores[0] > scores[1] else "the second" if scores[1] > scores[0] else "neither"
    return {"facts": [["first", f"{scores[0]:.4f}"], ["second", f"{scores[1]:.4f}"], ["wins", winner]]}


def _blocks(values: Mapping[str, Any]) -> Result:
    tokens, buffer, block = (int(_number(values, name)) for name in ("tokens", "buffer", "block"))
    found = worked.waste(tokens, buffer, block)
    return {
        "facts": [
            ["one buffer wastes", percent(found.reserved_share)],
            ["blocks", f"{found.num_blocks:,}"],
            ["tokens in the last", f"{found.last_used:,}"],
            ["blocks waste", percent(found.block_share)],
            ["at worst", percent(found.worst_share)],
        ]
    }


_CALCULATIONS: dict[str, Callable[[Mapping[str, Any]], Result]] = {
    "softmax": _softmax,
    "nucleus": _nucleus,
    "min_p": _min_p,
    "rounds": _rounds,
    "beams": _beams,
    "blocks": _blocks,
}
