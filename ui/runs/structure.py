"""The state behind the Structure tab: its fields, the report of compiling, and the run beside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic.dataclasses import dataclass as checked_dataclass

from backend.events import DraftVerified, Event, TokenDecoded
from backend.request import Grammar
from backend.validation import CONFIG, Flag, choice, refusing, text
from ui.runs.log import Log

KINDS = {
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "ebnf": "grammar (GBNF)",
    "structural_tag": "structural tag",
}
ENGINES = {"xgrammar": "xgrammar, fast", "llguidance": "llguidance, strict"}


@refusing
@checked_dataclass(frozen=True, config=CONFIG)
class StructureFields:
    """What the tab asks for beside the prompt; checked like a Grammar.

    Attributes:
        kind: a source of Grammar. source: its text. beside: also run without the grammar, for comparison.
    """

    kind: Annotated[str, choice(*KINDS)] = "json_schema"
    source: Annotated[str, text()] = ""
    engine: str = "xgrammar"
    reason_first: int = 0
    beside: Flag = True

    def __post_init__(self) -> None:
        self.grammar()

    def grammar(self) -> Grammar:
        """The Grammar.

        Raises:
            GrammarError, RequestError: a value is unknown, of the wrong type or out of range.
        """
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
    beside: Log = field(default_factory=Log)
    beside_verdict: tuple[str, str] | None = None
    has_beside: bool = False
    vocab_size: int = 0

    def begin(self, has_beside: bool, vocab_size: int) -> None:
        self.beside, self.beside_verdict = Log(), None
        self.has_beside, self.vocab_size = has_beside, vocab_size


@dataclass(frozen=True)
class Constrained:
    """A constrained run: its events, its tokens, and what is known of the run beside it."""

    events: Sequence[Event]
    steps: Sequence[TokenDecoded]
    state: StructureState

    @property
    def jumped(self) -> set[int]:
        return jumped(self.events)


def jumped(events: Sequence[Event]) -> set[int]:
    """Output places of tokens that were appended together with others in one call of the model."""
    rounds = [event for event in events if isinstance(event, DraftVerified)]
    return {event.index + offset for event in rounds for offset in range(event.num_accepted)}


def error_report(error: Exception, source: str) -> Report:
    """A refusal, with the line it concerns."""
    line = getattr(error, "line", None)
    lines = source.split("\n")
    excerpt = lines[line - 1] if line is not None and 0 < line <= len(lines) else ""
    return Report("error", str(error), (), line, getattr(error, "column", None), excerpt)
