"""What the constrained text and the text beside it look like, as plain data. Pure functions."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from backend.comparison import first_unequal
from backend.events import Judged, TokenDecoded
from ui.payloads import run as payloads
from ui.runs.structure import Report, StructureState, jumped
from ui.session import View
from ui.titles import title

# Below this share of the model's probability on allowed tokens, the grammar decides against the model.
FIGHT = 0.05
MAX_FIGHTS = 6
MAX_SHOWN = 4_000  # characters of a parsed value


def texts(view: View, state: StructureState) -> dict[str, Any]:
    """Both texts, the curve, and the verdicts."""
    together = jumped(view.events)
    judged = next((event for event in reversed(view.events) if isinstance(event, Judged)), None)
    low = fights(view.steps)
    return {
        **payloads.head(view),
        "vocab": state.vocab_size,
        "rows": [row(step, step.index in together) for step in view.steps],
        "selected": view.index,
        "fights": sorted(step.index for step in low[:MAX_FIGHTS]),
        "more_fights": max(0, len(low) - MAX_FIGHTS),
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
    tokens, finished, said = state.beside.tokens, state.beside.finished, state.beside_verdict
    reason = finished.reason if finished else None
    return {
        "tokens": [step.label if step.text else "" for step in tokens],
        "difference": first_unequal(view.steps, tokens, ended=False),
        "ended": payloads.ENDINGS[reason] if reason else "",
        "end": len(tokens) - 1 if reason == "eos" else None,
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


def compiled(report: Report) -> dict[str, Any]:
    """What the report component draws; a long line is cut around the place."""
    column = report.column or 1
    start = max(0, column - 40)
    return {
        "state": report.state,
        "message": report.message,
        "notes": list(report.notes),
        "line": report.line,
        "column": report.column,
        "before": report.excerpt[start : column - 1],
        "after": report.excerpt[column - 1 : column + 60],
    }


def row(step: TokenDecoded, was_jumped: bool) -> dict[str, Any]:
    """One token of the constrained text."""
    grammar = step.grammar
    result = {"label": step.label, "text": step.text, "p": _share(step.model_logprob), "jumped": was_jumped}
    if grammar is None:
        return result
    return result | {
        "allowed": grammar.num_allowed,
        "mass": float(f"{grammar.feasible_mass:.4g}"),
        "forced": grammar.forced,
        "free": grammar.is_free,
        "wanted": grammar.masked_label,
        "wanted_p": None if grammar.masked_logprob is None else _share(grammar.masked_logprob),
    }


def _share(logprob: float) -> float:
    return float(f"{math.exp(logprob):.4g}")


def fights(steps: Sequence[TokenDecoded]) -> list[TokenDecoded]:
    """The steps where the grammar left little of the model's probability, the least first."""
    low = [s for s in steps if s.grammar and not s.grammar.is_free and s.grammar.feasible_mass < FIGHT]
    return sorted(low, key=lambda step: step.grammar.feasible_mass if step.grammar else 1.0)


def parsed(judged: Judged | None) -> str:
    """A valid JSON result, laid out; empty for anything else."""
    if judged is None or judged.status != "valid":
        return ""
    try:
        value = json.loads(judged.structure)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(value, dict | list):
        return ""
    return json.dumps(value, indent=2, ensure_ascii=False)[:MAX_SHOWN]
