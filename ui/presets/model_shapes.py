"""Shapes of models for the size formula: published ones from presets/model_shapes/."""

from __future__ import annotations

from pathlib import Path

import yaml

from ui.presets.settings import PresetError, check_keys
from ui.runs.model_shape import ModelShape

FOLDER = Path(__file__).parents[2] / "presets" / "model_shapes"

_NUMBERS = ("num_layers", "num_heads", "num_kv_heads", "head_size", "context_length")
_REQUIRED = ("position", "title", "source", *_NUMBERS)


def load_model_shapes(folder: Path = FOLDER) -> dict[str, ModelShape]:
    """All shapes of a folder by name, in the order of their `position`.

    Raises:
        PresetError: a file is no mapping, or has an unknown, missing or wrong key.
    """
    found = [_read(path) for path in sorted(folder.glob("*.yaml"))]
    found.sort(key=lambda pair: pair[0])
    return {shape.name: shape for _, shape in found}


def _read(path: Path) -> tuple[int, ModelShape]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise PresetError(f"{path.name} is not YAML: {error}") from error
    check_keys(path.name, data, _REQUIRED, (*_REQUIRED, "note"))
    for key in ("position", *_NUMBERS):
        if type(data[key]) is not int or data[key] < 1:
            raise PresetError(f"{path.name}: {key} must be a whole number from 1, got {data[key]!r}")
    for key in ("title", "source", "note"):
        if not isinstance(data.get(key, ""), str):
            raise PresetError(f"{path.name}: {key} must be text, got {data[key]!r}")
    if data["num_heads"] % data["num_kv_heads"]:
        raise PresetError(f"{path.name}: {data['num_heads']} heads cannot share {data['num_kv_heads']}")
    return data.pop("position"), ModelShape(name=path.stem, **data)
