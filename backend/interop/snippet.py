"""What an export gives, and the notes that several of them share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backend.request import STAGES, BeamSearch, Request, SamplingParams, Speculative


@dataclass(frozen=True)
class Snippet:
    """Settings written for another engine.

    Attributes:
        language: "python", "json" or "shell".
        notes: where the other engine acts otherwise, or what it cannot do; empty if it does the same.
    """

    title: str
    language: str
    code: str
    notes: tuple[str, ...]


def in_use(params: SamplingParams) -> list[str]:
    """The stages that are switched on, in their order."""
    neutral = SamplingParams()
    return [stage for stage in params.stage_order if getattr(params, stage) != getattr(neutral, stage)]


def missing(params: SamplingParams, unknown: Iterable[str], engine: str) -> list[str]:
    """A note per switched-on stage that the engine does not have."""
    used = in_use(params)
    return [
        f"{engine} has no {stage}; it is left out." for stage in STAGES if stage in used and stage in unknown
    ]


def order_note(params: SamplingParams, order: Sequence[str], engine: str) -> list[str]:
    """A note if the engine's order of the switched-on stages differs from ours and cannot be changed."""
    ours = in_use(params)
    theirs = [stage for stage in order if stage in ours]
    ours = [stage for stage in ours if stage in theirs]
    if ours == theirs or params.temperature == 0:
        return []
    return [f"Order: {engine} applies {', '.join(theirs)}; here it was {', '.join(ours)}."]


def common_notes(request: Request, engine: str) -> list[str]:
    """What holds for every engine: random numbers, and what a snippet leaves out."""
    notes = []
    beams = request.strategy
    drawn = request.sampling.temperature > 0 and not (isinstance(beams, BeamSearch) and not beams.stochastic)
    if drawn:
        notes.append(
            f"The same seed gives other random numbers in {engine}: the same distribution, another text."
        )
    if isinstance(request.strategy, Speculative):
        notes.append("Speculation is left out: it changes the speed, not the distribution.")
    if request.grammar is not None:
        notes.append("The grammar is left out.")
    if request.output_prefix:
        notes.append(f"The {len(request.output_prefix)} tokens already fixed by a branch are left out.")
    return notes
