"""Guided lessons, read from presets/lessons/*.yaml and checked on load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

from pydantic.dataclasses import dataclass

from backend.errors import RequestError
from backend.request import BeamSearch, BestOf, SamplingParams, Speculative
from backend.validation import CONFIG, Flag, choice, shown, whole
from ui.presets.files import PRESETS, Count, Line, Paragraph, PresetError, Text, checked, load
from ui.runs.claims import Claim
from ui.runs.lanes import LaneFields
from ui.runs.structure import StructureFields

LESSONS_FOLDER = PRESETS / "lessons"
STRATEGIES: dict[str, type] = {
    "beams": BeamSearch,
    "samples": BestOf,
    "speculate": Speculative,
    "compare": LaneFields,
    "structure": StructureFields,
}


@dataclass(frozen=True, config=CONFIG)
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
    position: Count
    tab: Annotated[str, choice(*STRATEGIES)]
    title: Line
    prompt: Text
    question: Paragraph
    look_for: Paragraph
    answer: Paragraph
    shows: Sequence[Any]
    max_new_tokens: Count
    fields: dict[str, Any] = field(default_factory=dict)
    settings: SamplingParams = field(default_factory=SamplingParams)
    chat: Flag = False
    seed: Annotated[int, whole(0)] | None = None

    def __post_init__(self) -> None:
        checked(STRATEGIES[self.tab], self.fields, "fields")
        object.__setattr__(self, "shows", claims(self.tab, self.shows))


def claims(tab: str, rows: Any) -> tuple[Claim, ...]:
    """The claims of a lesson of that tab: mappings, each of the claim's name and its arguments.

    Raises:
        PresetError: there is none, or a claim is unknown or takes other arguments.
    """
    if not rows:
        raise PresetError("shows must be a list of at least one claim")
    return tuple(_claim(tab, row) for row in rows)


def _claim(tab: str, row: Any) -> Claim:
    if not isinstance(row, dict) or "claim" not in row:
        raise PresetError(f"shows must hold mappings with a claim, got {shown(row)}")
    try:
        return Claim(tab, row["claim"], {key: row[key] for key in row if key != "claim"})
    except RequestError as error:
        raise PresetError(f"shows: {error}") from error


def load_lessons(folder: Path = LESSONS_FOLDER) -> list[Lesson]:
    """All lessons of a folder; errors as of `load`."""
    return list(load(folder, Lesson).values())
