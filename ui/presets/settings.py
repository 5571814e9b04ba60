"""Named sampling settings, read from presets/sampling/*.yaml and checked on load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from backend.request import SamplingParams
from backend.validation import CONFIG, Flag
from ui import knobs
from ui.presets.files import PRESETS, Count, Line, load

SAMPLING_FOLDER = PRESETS / "sampling"


@dataclass(frozen=True, config=CONFIG)
class SamplingPreset:
    """One row of the presets menu.

    Attributes:
        name: the file's name without suffix; stable, used in share links.
        title: as the menu shows it.
        purpose: one line, what it is for.
        source: where the values come from.
        settings: the knobs it sets; those not named are neutral.
        chat: whether it is meant for chat, that is, with the chat template.
        max_new_tokens: a length that suits it, or None to leave it.
    """

    name: str
    position: Count
    title: Line
    purpose: Line
    source: Line
    settings: SamplingParams
    chat: Flag = False
    max_new_tokens: Count | None = None


def menu_entry(preset: SamplingPreset) -> dict[str, Any]:
    """The preset as the menu of the knobs holds it."""
    settings = knobs.settings_of(preset.settings) | {"chat": preset.chat}
    if preset.max_new_tokens is not None:
        settings["max_new_tokens"] = preset.max_new_tokens
    return {
        "name": preset.name,
        "title": preset.title,
        "about": preset.purpose,
        "group": preset.source,
        "settings": settings,
    }


def load_sampling_presets(folder: Path = SAMPLING_FOLDER) -> dict[str, SamplingPreset]:
    """All presets of a folder by name, the default first; errors as of `load`."""
    return load(folder, SamplingPreset)
