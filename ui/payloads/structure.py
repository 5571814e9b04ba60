"""What the constrained text and the text beside it look like, as plain data. Pure functions."""

from __future__ import annotations

from typing import Any

from backend.events import Judged
from ui.order import drawn
from ui.payloads import run as payloads
from ui.runs.structure import StructureState, fights, first_difference, jumped, parsed, row
from ui.session import View
from ui.titles import title


def texts(view: View, state: StructureState) -> dict[str, Any]:
    """Both texts, the curve, and the verdicts."""
    number = drawn()
    together = jumped(view.events)
    judged = next((event for event in reversed(view.events) if isinstance(event, Judged)), None)
    return {
        "drawn": number,
        "number": view.number,
        "running": view.running,
        "phase": view.phase,
        "notice": view.notice,
        "vocab": state.vocab_size,
        "rows": [row(step, step.index in together) for step in view.steps],
        "selected": view.index,
        "fights": fights(view.steps),
        "verdict": verdict(view, judged),
        "parsed": parsed(judged),
        "is_json": view.request is not None
        and view.request.grammar is not None
        and view.request.grammar.json_schema is not None,
        "status": status(view, len(together)),
        "beside": beside(view, state),
    }


def verdict(view: View, judged: Judged | None) -> dict[str, str] | None:
    """The verdict on the constrained text; None before its end."""
    if judged is not None:
        return {"status": judged.status, "reason": judged.reason}
    trace = view.trace
    if view.running or trace is None:
        return None
    if view.stopped:
        return {"status": "incomplete", "reason": "the run was stopped"}
    if trace.verdict is None:
        return None
    return {"status": trace.verdict.status, "reason": trace.verdict.reason}


def beside(view: View, state: StructureState) -> dict[str, Any] | None:
    """The text without the grammar; None where it was not asked for."""
    if not state.has_beside:
        return None
    ended = payloads.ENDINGS[state.beside_finished.reason] if state.beside_finished else ""
    said = state.beside_verdict
    return {
        "tokens": [step.label if step.text else "" for step in state.beside],
        "difference": first_difference(view.steps, state.beside),
        "ended": ended,
        "verdict": None if said is None else {"status": said[0], "reason": said[1]},
    }


def status(view: View, num_jumped: int) -> list[list[str]]:
    """The status line as [name, value] pairs."""
    line = payloads.status(view)
    if view.steps:
        line.insert(1, ["calls of the model", f"{len(view.steps) - num_jumped:,}"])
    if view.started is not None:
        stages = [title(stage.stage) for stage in view.started.stages]
        line.append(["stages", " → ".join(stages)])
    return line


def step(view: View) -> dict[str, Any] | None:
    """The selected step as a pipeline, the grammar one of its stages."""
    index = view.index
    return None if index is None else payloads.step(view.steps[index], key=str(view.number))
