"""Preset files: YAML mappings, each read into the pydantic dataclass that says what it may hold."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import AfterValidator, GetPydanticSchema, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError, core_schema

from backend.errors import RequestError
from backend.validation import shown, whole

PRESETS = Path(__file__).parents[2] / "presets"
T = TypeVar("T")


class PresetError(ValueError):
    """A preset file that cannot be used; names the file, the key and the value."""


def _text(said: str, lines: bool) -> GetPydanticSchema:
    def check(value: Any) -> str:
        if not isinstance(value, str) or not value.strip() or ("\n" in value.strip() and not lines):
            raise PydanticCustomError("limit", f"must be {said}")
        return value

    return GetPydanticSchema(lambda source, handler: core_schema.no_info_plain_validator_function(check))


Count = Annotated[int, whole(1)]
Text = Annotated[str, _text("text", lines=True)]
Line = Annotated[str, _text("one line of text", lines=False), AfterValidator(str.strip)]
Paragraph = Annotated[Text, AfterValidator(lambda text: " ".join(text.split()))]


def load(folder: Path, kind: type[T]) -> dict[str, T]:
    """The presets of a folder by name, in the order of their `position`.

    Args:
        folder: holds a YAML file for each.
        kind: a pydantic dataclass with a `position`, and a `name`, which is the file's without suffix.

    Raises:
        PresetError: a file is no mapping, or has an unknown, missing or wrong key.
    """
    found: list[Any] = [_read(path, kind) for path in sorted(folder.glob("*.yaml"))]
    return {preset.name: preset for preset in sorted(found, key=lambda preset: preset.position)}


def _read(path: Path, kind: type[T]) -> T:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise PresetError(f"{path.name} is not YAML: {error}") from error
    return checked(kind, {**data, "name": path.stem} if isinstance(data, dict) else data, path.name)


def checked(kind: type[T], data: Any, place: str) -> T:
    """The object of that kind that the mapping describes.

    Raises:
        PresetError: it describes none; names what is wrong and where, `place` first.
    """
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        raise PresetError(_sentence(error, place, kind)) from error


def _sentence(error: ValidationError, place: str, kind: type) -> str:
    """The first thing that is wrong."""
    first = error.errors(include_url=False)[0]
    *outer, key = ["", *first["loc"]]
    inside, cause = ": ".join(map(str, [place, *outer[1:]])), first.get("ctx", {}).get("error")
    if isinstance(cause, PresetError | RequestError):
        return f"{': '.join(map(str, [place, *first['loc']]))}: {cause}"
    match first["type"]:
        case "unexpected_keyword_argument":
            known = "" if outer[1:] else f"; known: {', '.join(field.name for field in fields(kind))}"
            return f"{inside} has the unknown key {key!r}{known}"
        case "missing":
            return f"{inside} lacks the key {key!r}"
        case "dataclass_type":
            whole_place = inside if not key else f"{inside}: {key}"
            return f"{whole_place} must be a mapping of keys to values, got {shown(first['input'])}"
    return f"{inside}: {key} {first['msg']}, got {shown(first['input'])}"
