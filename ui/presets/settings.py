"""Named sampling settings, read from presets/sampling/*.yaml and checked on load."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from backend.request import SamplingParams
from ui import knobs

SAMPLING_FOLDER = Path(__file__).parents[2] / "presets" / "sampling"


class PresetError(ValueError):
    """A preset file that cannot be used; names the file and the key."""


@dataclass(frozen=True)
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
    title: str
    purpose: str
    source: str
    settings: SamplingParams
    chat: bool = False
    max_new_tokens: int | None = None


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
    """All presets of a folder by name, in the order of their `position`, the default first.

    Raises:
        PresetError: a file is no mapping, or has an unknown, missing or wrong key.
    """
    found = [_read(path) for path in sorted(folder.glob("*.yaml"))]
    found.sort(key=lambda pair: (pair[0], pair[1].name))
    return {preset.name: preset for _, preset in found}


_TEXTS = ("title", "purpose", "source")
_OPTIONAL = ("chat", "max_new_tokens")


def _read(path: Path) -> tuple[int, SamplingPreset]:
    """The menu position and the preset of one file."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise PresetError(f"{path.name} is not YAML: {error}") from error
    required = ("position", *_TEXTS, "settings")
    check_keys(path.name, data, required, (*required, *_OPTIONAL))
    for key in _TEXTS:
        text = data[key]
        if not isinstance(text, str) or not text.strip() or "\n" in text.strip():
            raise PresetError(f"{path.name}: {key} must be one line of text, got {text!r}")
    if type(data["position"]) is not int:
        raise PresetError(f"{path.name}: position must be a whole number, got {data['position']!r}")
    if type(data.get("chat", False)) is not bool:
        raise PresetError(f"{path.name}: chat must be true or false, got {data['chat']!r}")
    limit = data.get("max_new_tokens")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise PresetError(f"{path.name}: max_new_tokens must be a whole number from 1, got {limit!r}")
    preset = SamplingPreset(
        name=path.stem,
        settings=_settings(path.name, data["settings"]),
        chat=data.get("chat", False),
        max_new_tokens=limit,
        **{key: data[key].strip() for key in _TEXTS},
    )
    return data["position"], preset


def _settings(file: str, data: Any) -> SamplingParams:
    check_keys(f"{file}: settings", data, (), [field.name for field in fields(SamplingParams)])
    try:
        return SamplingParams(**data)
    except ValueError as error:
        raise PresetError(f"{file}: settings: {error}") from error


def check_keys(place: str, data: Any, required: Collection[str], allowed: Collection[str]) -> None:
    """Refuse `data` from a preset file unless it is a mapping of exactly such keys.

    Raises:
        PresetError: it is no mapping, or a key is missing or not allowed.
    """
    if not isinstance(data, dict):
        raise PresetError(f"{place} must be a mapping of keys to values, got {data!r}")
    for key in data:
        if key not in allowed:
            raise PresetError(f"{place} has the unknown key {key!r}; known: {', '.join(allowed)}")
    for key in required:
        if key not in data:
            raise PresetError(f"{place} lacks the key {key!r}")
