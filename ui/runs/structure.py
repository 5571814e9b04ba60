"""The state behind the Structure tab, and the plain data that its components draw."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from backend.errors import GrammarError
from backend.events import DraftVerified, Event, Finished, Judged, TokenDecoded
from backend.request import Grammar
from ui.order import drawn

KINDS = {
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "ebnf": "grammar (GBNF)",
    "structural_tag": "structural tag",
}
ENGINES = {"xgrammar": "xgrammar, fast", "llguidance": "llguidance, strict"}
# Below this share of the model's probability on allowed tokens, the grammar decides against the model.
FIGHT = 0.05
MAX_FIGHTS = 6
MAX_SHOWN = 4_000  # characters of a parsed value


@dataclass(frozen=True)
class StructureFields:
    """What the tab asks for beside the prompt; checked like a Grammar.

    Attributes:
        kind: a source of Grammar. source: its text. beside: also run without the grammar, for comparison.
    """

    kind: str = "json_schema"
    source: str = ""
    engine: str = "xgrammar"
    reason_first: int = 0
    beside: bool = True

    def __post_init__(self) -> None:
        self.grammar()

    def grammar(self) -> Grammar:
        """The Grammar.

        Raises:
            GrammarError, RequestError: a value is unknown, of the wrong type or out of range.
        """
        if self.kind not in KINDS:
            raise GrammarError(f"kind must be one of {', '.join(KINDS)}, got {str(self.kind)[:40]!r}")
        fields: dict[str, Any] = {self.kind: self.source}
        return Grammar(engine=self.engine, reason_first=self.reason_first, **fields)  # type: ignore[arg-type]


@dataclass
class Report:
    """What compiling said: fine, with rules, time and notes; or an error with its place in the source."""

    state: Literal["empty", "waiting", "fine", "error"] = "empty"
    message: str = ""
    notes: tuple[str, ...] = ()
    line: int | None = None
    column: int | None = None
    excerpt: str = ""


@dataclass
class StructureState:
    """Beside the View of the constrained run: the same request without the grammar, and the report."""

    report: Report = field(default_factory=Report)
    beside: list[TokenDecoded] = field(default_factory=list)
    beside_finished: Finished | None = None
    beside_verdict: tuple[str, str] | None = None
    has_beside: bool = False
    vocab_size: int = 0

    def begin(self, has_beside: bool, vocab_size: int) -> None:
        self.beside, self.beside_finished, self.beside_verdict = [], None, None
        self.has_beside, self.vocab_size = has_beside, vocab_size

    def add_beside(self, event: Event) -> None:
        if isinstance(event, TokenDecoded):
            self.beside.append(event)
        elif isinstance(event, Finished):
            self.beside_finished = event


def error_report(error: Exception, source: str) -> Report:
    """A refusal, with the line it concerns."""
    line = getattr(error, "line", None)
    lines = source.split("\n")
    excerpt = lines[line - 1] if line is not None and 0 < line <= len(lines) else ""
    return Report("error", str(error), (), line, getattr(error, "column", None), excerpt)


def compiled(report: Report) -> dict[str, Any]:
    """What the report component draws; a long line is cut around the place."""
    column = report.column or 1
    start = max(0, column - 40)
    return {
        "drawn": drawn(),
        "state": report.state,
        "message": report.message,
        "notes": list(report.notes),
        "line": report.line,
        "column": report.column,
        "before": report.excerpt[start : column - 1],
        "after": report.excerpt[column - 1 : column + 60],
    }


def jumped(events: Sequence[Event]) -> set[int]:
    """Output places of tokens that were appended together with others in one call of the model."""
    rounds = [event for event in events if isinstance(event, DraftVerified)]
    return {event.index + offset for event in rounds for offset in range(event.num_accepted)}


def first_difference(left: Sequence[TokenDecoded], right: Sequence[TokenDecoded]) -> int | None:
    """Place of the first token that differs; None while one text is the beginning of the other."""
    pairs = zip(left, right, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a.token_id != b.token_id), None)


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


def fights(steps: Sequence[TokenDecoded]) -> list[int]:
    """The steps where the grammar left least of the model's probability, in the order of the text."""
    low = [s for s in steps if s.grammar and not s.grammar.is_free and s.grammar.feasible_mass < FIGHT]
    worst = sorted(low, key=lambda step: step.grammar.feasible_mass if step.grammar else 1.0)[:MAX_FIGHTS]
    return sorted(step.index for step in worst)


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
