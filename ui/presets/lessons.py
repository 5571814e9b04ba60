"""Guided lessons, read from presets/lessons/*.yaml and checked on load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from backend.errors import RequestError
from backend.request import BeamSearch, BestOf, SamplingParams, Speculative
from ui.presets.settings import PresetError, check_keys
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
    """A prompt with settings under which something can be seen.

    Attributes:
        name: the file's name without suffix. tab: where it is run, a key of STRATEGIES.
        look_for: what there is to see.
        fields: the tab's own settings that differ from its start values: fields of what STRATEGIES names.
        settings: the knobs it sets; those not named are neutral.
        question, answer: something to think about before the answer is shown; both or neither.
    """

    name: str
    title: str
    tab: str
    prompt: str
    look_for: str
    max_new_tokens: int
    fields: Mapping[str, Any]
    settings: SamplingParams
    chat: bool = False
    seed: int | None = None
    question: str = ""
    answer: str = ""


def load_lessons(folder: Path = LESSONS_FOLDER) -> list[Lesson]:
    """All lessons of a folder, in the order of their `position`.

    Raises:
        PresetError: a file is no mapping, or has an unknown, missing or wrong key.
    """
    found = [_read(path) for path in sorted(folder.glob("*.yaml"))]
    found.sort(key=lambda pair: (pair[0], pair[1].name))
    return [lesson for _, lesson in found]


_TEXTS = ("title", "prompt", "look_for")
_REQUIRED = ("position", "tab", *_TEXTS, "max_new_tokens")
_OPTIONAL = ("fields", "settings", "chat", "seed", "question", "answer")


def _read(path: Path) -> tuple[int, Lesson]:
    """The position and the lesson of one file."""
    name = path.name
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise PresetError(f"{name} is not YAML: {error}") from error
    check_keys(name, data, _REQUIRED, (*_REQUIRED, *_OPTIONAL))
    for key in _TEXTS:
        if not isinstance(data[key], str) or not data[key].strip():
            raise PresetError(f"{name}: {key} must be text, got {data[key]!r}")
    for key in ("position", "max_new_tokens"):
        if type(data[key]) is not int or data[key] < 1:
            raise PresetError(f"{name}: {key} must be a whole number from 1, got {data[key]!r}")
    if data["tab"] not in STRATEGIES:
        raise PresetError(f"{name}: tab must be one of {', '.join(STRATEGIES)}, got {data['tab']!r}")
    if type(data.get("chat", False)) is not bool:
        raise PresetError(f"{name}: chat must be true or false, got {data['chat']!r}")
    for key in ("question", "answer"):
        if not isinstance(data.get(key, ""), str) or bool(data.get("question")) != bool(data.get("answer")):
            raise PresetError(f"{name}: question and answer must both be text, or both be left out")
    seed = data.get("seed")
    if seed is not None and (type(seed) is not int or seed < 0):
        raise PresetError(f"{name}: seed must be a whole number from 0, got {seed!r}")
    lesson = Lesson(
        name=path.stem,
        tab=data["tab"],
        title=data["title"].strip(),
        prompt=data["prompt"],
        look_for=" ".join(data["look_for"].split()),
        max_new_tokens=data["max_new_tokens"],
        fields=_checked(f"{name}: fields", STRATEGIES[data["tab"]], data.get("fields", {}))[0],
        settings=_checked(f"{name}: settings", SamplingParams, data.get("settings", {}))[1],
        chat=data.get("chat", False),
        seed=seed,
        question=" ".join(data.get("question", "").split()),
        answer=" ".join(data.get("answer", "").split()),
    )
    return data["position"], lesson


def _checked(place: str, kind: type, data: Any) -> tuple[dict[str, Any], Any]:
    """The mapping, and the object of that kind which it makes."""
    check_keys(place, data, (), [item.name for item in fields(kind)])
    try:
        return data, kind(**data)
    except RequestError as error:
        raise PresetError(f"{place}: {error}") from error
