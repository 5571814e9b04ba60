"""Guided lessons, read from presets/lessons/*.yaml and checked on load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from backend.errors import RequestError
from backend.request import BeamSearch, BestOf, SamplingParams, Speculative
from ui.presets.settings import PresetError, check_keys
from ui.runs.claims import Claim
from ui.runs.lanes import LaneFields
from ui.runs.structure import StructureFields

LESSONS_FOLDER = Path(__file__).parents[2] / "presets" / "lessons"
STRATEGIES: dict[str, type] = {
    "beams": BeamSearch,
    "samples": BestOf,
    "speculate": Speculative,
    "compare": LaneFields,
    "structure": StructureFields,
}


@dataclass(frozen=True)
class Lesson:
    """A question, and a prompt with settings whose run answers it.

    Attributes:
        name: the file's name without suffix. tab: where it is run, a key of STRATEGIES.
        question: asked before the run. look_for, answer: what the run shows and why, told after it.
        shows: what the run must show for that to be true.
        fields: the tab's own settings that differ from its start values: fields of what STRATEGIES names.
        settings: the knobs it sets; those not named are neutral.
    """

    name: str
    title: str
    tab: str
    prompt: str
    question: str
    look_for: str
    answer: str
    shows: tuple[Claim, ...]
    max_new_tokens: int
    fields: Mapping[str, Any]
    settings: SamplingParams
    chat: bool = False
    seed: int | None = None


def load_lessons(folder: Path = LESSONS_FOLDER) -> list[Lesson]:
    """All lessons of a folder, in the order of their `position`.

    Raises:
        PresetError: a file is no mapping, or has an unknown, missing or wrong key.
    """
    found = [_read(path) for path in sorted(folder.glob("*.yaml"))]
    found.sort(key=lambda pair: (pair[0], pair[1].name))
    return [lesson for _, lesson in found]


TEXTS = ("title", "question", "look_for", "answer")
_REQUIRED = ("position", "tab", "prompt", *TEXTS, "shows", "max_new_tokens")
_OPTIONAL = ("fields", "settings", "chat", "seed")


def _read(path: Path) -> tuple[int, Lesson]:
    """The position and the lesson of one file."""
    name = path.name
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise PresetError(f"{name} is not YAML: {error}") from error
    check_keys(name, data, _REQUIRED, (*_REQUIRED, *_OPTIONAL))
    texts = read_texts(name, data, (*TEXTS, "prompt"))
    for key in ("position", "max_new_tokens"):
        if type(data[key]) is not int or data[key] < 1:
            raise PresetError(f"{name}: {key} must be a whole number from 1, got {data[key]!r}")
    if data["tab"] not in STRATEGIES:
        raise PresetError(f"{name}: tab must be one of {', '.join(STRATEGIES)}, got {data['tab']!r}")
    if type(data.get("chat", False)) is not bool:
        raise PresetError(f"{name}: chat must be true or false, got {data['chat']!r}")
    seed = data.get("seed")
    if seed is not None and (type(seed) is not int or seed < 0):
        raise PresetError(f"{name}: seed must be a whole number from 0, got {seed!r}")
    lesson = Lesson(
        name=path.stem,
        tab=data["tab"],
        **(texts | {"prompt": data["prompt"]}),
        shows=read_claims(name, data["tab"], data["shows"]),
        max_new_tokens=data["max_new_tokens"],
        fields=checked(f"{name}: fields", STRATEGIES[data["tab"]], data.get("fields", {}))[0],
        settings=checked(f"{name}: settings", SamplingParams, data.get("settings", {}))[1],
        chat=data.get("chat", False),
        seed=seed,
    )
    return data["position"], lesson


def read_texts(place: str, data: Mapping[str, Any], keys: Iterable[str] = TEXTS) -> dict[str, str]:
    """The texts under these keys, each as one line.

    Raises:
        PresetError: one of them is no text, or empty.
    """
    for key in keys:
        if not isinstance(data[key], str) or not data[key].strip():
            raise PresetError(f"{place}: {key} must be text, got {data[key]!r}")
    return {key: " ".join(data[key].split()) for key in keys}


def read_claims(place: str, tab: str, data: Any) -> tuple[Claim, ...]:
    """The claims of a lesson: a list of mappings, each of the claim's name and its arguments.

    Raises:
        PresetError: it is none, or a claim is unknown or takes other arguments.
    """
    if not isinstance(data, list) or not data:
        raise PresetError(f"{place}: shows must be a list of at least one claim, got {data!r}")
    found = []
    for row in data:
        if not isinstance(row, dict) or "claim" not in row:
            raise PresetError(f"{place}: shows must hold mappings with a claim, got {row!r}")
        try:
            found.append(Claim(tab, row["claim"], {key: row[key] for key in row if key != "claim"}))
        except RequestError as error:
            raise PresetError(f"{place}: shows: {error}") from error
    return tuple(found)


def checked(place: str, kind: type, data: Any) -> tuple[dict[str, Any], Any]:
    """The mapping, and the object of that kind which it makes."""
    check_keys(place, data, (), [item.name for item in fields(kind)])
    try:
        return data, kind(**data)
    except RequestError as error:
        raise PresetError(f"{place}: {error}") from error
