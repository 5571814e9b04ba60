"""A sweep's runs as rows: for the page, and as CSV out and in. Pure functions."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from backend import Request
from backend.errors import RequestError
from backend.metrics import self_bleu
from backend.sweep import Axis, Outcome
from ui.tables import from_csv, to_csv

# name in tables: what it is called, and how many digits it is shown with
MEASURES: dict[str, tuple[str, int]] = {
    "perplexity": ("perplexity", 2),
    "loop": ("runs that end in a loop", 2),
    "repeated_4grams": ("4-grams again", 2),
    "distinct_1": ("distinct-1", 2),
    "distinct_2": ("distinct-2", 2),
    "distinct_3": ("distinct-3", 2),
    "entropy": ("entropy, bits", 2),
    "survivors": ("tokens left after the cuts", 0),
    "acted": ("steps the knob acted on", 2),
    "num_tokens": ("length", 0),
}
MAX_TOKENS = 512  # new ones, of each run
COLUMNS = ("seed", *MEASURES, "reason", "text")


@dataclass(frozen=True)
class Row:
    """One run: where on the axes it stands, its seed and its measures (None where there is none to say)."""

    index: int
    at: tuple[float, ...]
    seed: int
    measures: dict[str, float | None]
    reason: str
    text: str


@dataclass
class Table:
    """The runs of a sweep as they come in. `requests` is empty for a table that was opened from a file."""

    axes: tuple[Axis, ...] = ()
    requests: list[Request] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        if outcome.error:
            self.errors.append(outcome.error)
        else:
            self.rows.append(row(self.axes, self.requests[outcome.index], outcome))


@dataclass
class SweepState:
    """What the tab holds besides its View: the runs, and the measure that a heat map shows."""

    table: Table = field(default_factory=Table)
    measure: str = "perplexity"


def row(axes: Sequence[Axis], request: Request, outcome: Outcome) -> Row:
    found = outcome.metrics
    acted = [outcome.acted.get(axis.knob, 0.0) for axis in axes]
    measures: dict[str, float | None] = {
        "perplexity": found.perplexity,
        "loop": float(found.phrase is not None),
        "repeated_4grams": found.repeated_4grams,
        "distinct_1": found.distinct_1,
        "distinct_2": found.distinct_2,
        "distinct_3": found.distinct_3,
        "entropy": None if found.mean_entropy is None else found.mean_entropy / math.log(2),
        "survivors": outcome.survivors,
        "acted": max(acted),
        "num_tokens": float(found.num_tokens),
    }
    at = tuple(float(getattr(request.sampling, axis.knob)) for axis in axes)
    return Row(outcome.index, at, request.seed or 0, measures, outcome.reason, outcome.text)


def cells(rows: Sequence[Row]) -> dict[tuple[float, ...], list[Row]]:
    """The runs by place on the axes, in order; within a place by seed."""
    found: dict[tuple[float, ...], list[Row]] = {}
    for item in sorted(rows, key=lambda item: (item.at, item.seed)):
        found.setdefault(item.at, []).append(item)
    return found


def values(rows: Sequence[Row], measure: str) -> list[float]:
    """A measure's finite values; "self_bleu" has one for all of the rows."""
    if measure == "self_bleu":
        found = self_bleu([item.text for item in rows])
        return [] if found is None else [found]
    known = (item.measures[measure] for item in rows)
    return [value for value in known if value is not None and math.isfinite(value)]


def export(table: Table) -> str:
    """CSV with a line for each run, empty without any. The text is JSON: no spreadsheet calculates it."""
    knobs = [axis.knob for axis in table.axes]
    lines = [
        [
            *item.at,
            item.seed,
            *(item.measures[name] for name in MEASURES),
            item.reason,
            json.dumps(item.text, ensure_ascii=False),
        ]
        for item in sorted(table.rows, key=lambda item: item.index)
    ]
    return to_csv([*knobs, *COLUMNS], lines) if lines else ""


def opened(text: str) -> Table:
    """A table that `export` wrote.

    Raises:
        RequestError: other columns, or a cell that does not hold what its column says.
    """
    first = text.split("\n", 1)[0].strip().split(",")
    knobs = first[: len(first) - len(COLUMNS)]
    if not 1 <= len(knobs) <= 2:
        raise RequestError(f"a sweep's table begins with one or two knobs, then {', '.join(COLUMNS)}")
    lines = from_csv(text, [*knobs, *COLUMNS])
    if not lines:
        raise RequestError("the table has no runs")
    rows = [_row(number, knobs, line) for number, line in enumerate(lines)]
    axes = tuple(
        Axis(knob, tuple(sorted({item.at[place] for item in rows}))) for place, knob in enumerate(knobs)
    )
    return Table(axes, [], rows)


def _row(number: int, knobs: Sequence[str], line: dict[str, str]) -> Row:
    try:
        text = json.loads(line["text"])
        if not isinstance(text, str):
            raise ValueError("the text is no JSON string")
        measures = {name: float(line[name]) if line[name] else None for name in MEASURES}
        at = tuple(float(line[knob]) for knob in knobs)
        return Row(number, at, int(line["seed"]), measures, line["reason"], text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"run {number + 1} of the table cannot be read: {str(error)[:100]}") from None
