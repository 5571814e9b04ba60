"""Guided lessons, read from presets/lessons/*.yaml and checked on load."""
from dataclasses import dataclass
@dataclass(frozen=True)
class Lesson:
    name: str
    title: str
    tab: str
