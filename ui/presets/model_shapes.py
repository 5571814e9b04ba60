"""Shapes of models for the size formula: published ones from presets/model_shapes/."""

from __future__ import annotations

from pathlib import Path

from pydantic.dataclasses import dataclass

from backend.validation import CONFIG
from ui.presets.files import PRESETS, Count, load
from ui.runs.model_shape import ModelShape

FOLDER = PRESETS / "model_shapes"


@dataclass(frozen=True, config=CONFIG, kw_only=True)
class PublishedShape(ModelShape):
    """A shape, and its place in the list."""

    position: Count


def load_model_shapes(folder: Path = FOLDER) -> dict[str, PublishedShape]:
    """All shapes of a folder by name; errors as of `load`."""
    return load(folder, PublishedShape)
