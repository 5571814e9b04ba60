"""The experiment of the Lab -> the table that its component draws, and what it says. Pure functions."""

from __future__ import annotations

from typing import Any

from backend.degeneration import (
    METHODS,
    MIN_PROMPTS,
    PUBLISHED,
    SOURCE,
    Measured,
    Published,
    measured,
    method_of,
    trap_shows,
)
from backend.sweep import Outcome
from ui.numbers import fixed, percent
from ui.payloads.run import head
from ui.runs.outcomes import Outcomes
from ui.session import View

COLUMNS = ["method", "texts", "perplexity", "loops", "4-grams again", "self-BLEU", "Zipf"]


def payload(view: View, state: Outcomes) -> dict[str, Any]:
    """What the table component draws: progress, the measured rows, the published ones, and a verdict."""
    by_method: dict[str, list[Outcome]] = {name: [] for name in METHODS}
    for outcome in state.found:
        if not outcome.error:
            by_method[method_of(outcome.index)].append(outcome)
    rows = {name: measured(found) for name, found in by_method.items()}
    return {
        **head(view),
        "done": len(state.found),
        "total": state.num_wanted,
        "columns": COLUMNS,
        "measured": [
            {"name": name, "cells": _cells(method.title, str(rows[name].num_texts), rows[name])}
            for name, method in METHODS.items()
        ],
        "published": [
            {"name": name, "cells": _cells(row.title, "5,000", row)} for name, row in PUBLISHED.items()
        ],
        "source": SOURCE,
        "verdict": verdict(rows, view.running),
    }


def _cells(title: str, num_texts: str, row: Measured | Published) -> list[str]:
    repeats = row.repeated_4grams if isinstance(row, Measured) else None
    return [
        title,
        num_texts,
        fixed(row.perplexity, 2),
        percent(row.loops),
        percent(repeats),
        fixed(row.self_bleu, 2),
        fixed(row.zipf, 2),
    ]


def verdict(rows: dict[str, Measured], running: bool) -> str:
    """What the measured table says about the likelihood trap, whichever way it came out."""
    shows = trap_shows(rows)
    if shows is None or running:
        return ""
    greedy, beam, nucleus = (rows[name] for name in ("greedy", "beam", "nucleus"))
    repeats = [percent(row.repeated_4grams) for row in (greedy, beam, nucleus)]
    figures = (
        f"4-grams again: greedy {repeats[0]}, beams {repeats[1]}, nucleus {repeats[2]}; "
        f"perplexity: {fixed(greedy.perplexity, 1)}, {fixed(beam.perplexity, 1)}, "
        f"{fixed(nucleus.perplexity, 1)}."
    )
    few = "" if nucleus.num_texts >= MIN_PROMPTS else f" Only {nucleus.num_texts} texts: little to go by."
    if shows:
        return f"The likelihood trap shows here: what is likelier repeats itself more. {figures}{few}"
    return f"The likelihood trap does not show here. {figures}{few}"
