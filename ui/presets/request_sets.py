"""Sets of requests for the KV cache tab, read from presets/kv/*.yaml and checked on load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from backend import Request, Sample, SamplingParams
from backend.errors import RequestError
from ui.presets.lessons import TEXTS, checked, read_claims, read_texts
from ui.presets.settings import PresetError, check_keys
from ui.runs.claims import Claim
from ui.runs.crowd import Ask

FOLDER = Path(__file__).parents[2] / "presets" / "kv"
WHOLE = "whole"
POOLS = (WHOLE, "48", "64", "128", "512")


@dataclass(frozen=True)
class RequestSet:
    """Requests to be run together, as a lesson: see Lesson for its texts and claims.

    Attributes:
        pool: which pool, one of POOLS. stagger: seconds between starts. buffer: tokens of the contiguous
            buffer they are compared with.
    """

    name: str
    title: str
    question: str
    look_for: str
    answer: str
    shows: tuple[Claim, ...]
    pool: str
    stagger: float
    buffer: int
    asks: tuple[Ask, ...]
    settings: SamplingParams
    tab = "kv"
    seed, chat = 1, False


_REQUIRED = ("position", *TEXTS, "shows", "pool", "stagger", "buffer", "requests")


def load_request_sets(folder: Path = FOLDER) -> dict[str, RequestSet]:
    """All sets of a folder by name, in the order of their `position`.

    Raises:
        PresetError: a file is no mapping, or has an unknown, missing or wrong key.
    """
    found = [_read(path) for path in sorted(folder.glob("*.yaml"))]
    found.sort(key=lambda pair: pair[0])
    return {chosen.name: chosen for _, chosen in found}


def _read(path: Path) -> tuple[int, RequestSet]:
    name = path.name
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise PresetError(f"{name} is not YAML: {error}") from error
    check_keys(name, data, _REQUIRED, (*_REQUIRED, "texts", "settings"))
    if str(data["pool"]) not in POOLS:
        raise PresetError(f"{name}: pool must be one of {', '.join(POOLS)}, got {data['pool']!r}")
    for key, kinds, least in (("position", int, 1), ("stagger", (int, float), 0), ("buffer", int, 1)):
        if not isinstance(data[key], kinds) or isinstance(data[key], bool) or data[key] < least:
            raise PresetError(f"{name}: {key} must be a number from {least}, got {data[key]!r}")
    texts, rows = data.get("texts", {}), data["requests"]
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise PresetError(f"{name}: texts must map names to texts")
    if not isinstance(rows, list) or not rows:
        raise PresetError(f"{name}: requests must be a list of at least one")
    return data["position"], RequestSet(
        name=path.stem,
        **read_texts(name, data),
        shows=read_claims(name, RequestSet.tab, data["shows"]),
        pool=str(data["pool"]),
        stagger=float(data["stagger"]),
        buffer=data["buffer"],
        settings=checked(f"{name}: settings", SamplingParams, data.get("settings", {}))[1],
        asks=tuple(_ask(f"{name}: request {number}", row, texts) for number, row in enumerate(rows, 1)),
    )


def _ask(place: str, row: Any, texts: Mapping[str, str]) -> Ask:
    """A row's prompt is a text, or a list of names of texts to be joined."""
    check_keys(place, row, ("prompt",), ("prompt", "max_new_tokens", "n"))
    prompt = row["prompt"]
    if isinstance(prompt, list):
        unknown = [name for name in prompt if name not in texts]
        if unknown:
            raise PresetError(f"{place}: no text is called {unknown[0]!r}")
        prompt = "\n".join(texts[name].strip() for name in prompt)
    try:
        asked = Request(
            prompt, max_new_tokens=row.get("max_new_tokens", 64), strategy=Sample(row.get("n", 1))
        )
    except RequestError as error:
        raise PresetError(f"{place}: {error}") from error
    return Ask(prompt, asked.max_new_tokens, row.get("n", 1))
