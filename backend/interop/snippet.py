"""What an export gives, and the notes that several of them share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backend.request import BeamSearch, Request, SamplingParams, Speculative
from backend.stages import STAGES, Engine


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


def numbers(params: SamplingParams, engine: Engine, *, draw: bool = True) -> dict[str, float]:
    """The number settings under the engine's names: those in use, and those it wants named even where off.

    draw: False leaves out the stages that only shape a draw.
    """
    found: dict[str, float] = {}
    for spec in STAGES.values():
        theirs = spec.elsewhere.get(engine)
        if theirs is None or spec.neutral is None or (spec.shapes_draw and not draw):
            continue
        on = params.is_on(spec.name)
        if on or theirs.always:
            found[theirs.name] = getattr(params, spec.name) if on or theirs.off is None else theirs.off
    return found


def missing(params: SamplingParams, engine: Engine, called: str) -> list[str]:
    """A note per switched-on stage that the engine, called so in notes, does not have."""
    return [
        f"{called} has no {spec.name}; it is left out."
        for spec in STAGES.values()
        if params.is_on(spec.name) and engine not in spec.elsewhere
    ]


def order_note(params: SamplingParams, order: Sequence[str], engine: str) -> list[str]:
    """A note if the engine's order of the switched-on stages differs from ours and cannot be changed."""
    ours = list(params.switched_on)
    theirs = [stage for stage in order if stage in ours]
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
