"""The runs of an experiment as they come in."""

from __future__ import annotations

from dataclasses import dataclass, field

from backend.sweep import Outcome


@dataclass
class Outcomes:
    """How many runs there are to be, and what those that ended came to."""

    num_wanted: int = 0
    found: list[Outcome] = field(default_factory=list)
