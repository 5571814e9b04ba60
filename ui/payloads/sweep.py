"""A sweep's table -> the plain data that the sweep component draws. Pure functions."""

from __future__ import annotations

from typing import Any

from ui.payloads.run import head
from ui.plots import sweep as plots
from ui.runs.sweep_table import MEASURES, Row, SweepState, cells, values
from ui.session import View
from ui.titles import title


def payload(view: View, state: SweepState) -> dict[str, Any]:
    """What the sweep component draws: progress, figures of the measure, and a table of the cells."""
    table, names = state.table, [plots.name(name) for name in (*MEASURES, "self_bleu")]
    return {
        **head(view),
        "stopped": view.stopped,
        "done": len(table.rows) + len(table.errors),
        "total": len(table.requests) or len(table.rows),
        "two": len(table.axes) == 2,
        "measure": state.measure,
        "measures": [list(pair) for pair in zip((*MEASURES, "self_bleu"), names, strict=True)],
        "figures": plots.figures(table, state.measure),
        "axes": [title(axis.knob) for axis in table.axes],
        "columns": names,
        "cells": [_cell(at, rows) for at, rows in cells(table.rows).items()],
        "can_open": bool(table.requests),
    }


def _cell(at: tuple[float, ...], rows: list[Row]) -> dict[str, Any]:
    shown = []
    for name in (*MEASURES, "self_bleu"):
        value = plots.middle(values(rows, name), name)
        digits = MEASURES[name][1] if name in MEASURES else 2
        shown.append("–" if value is None else f"{value:,.{digits}f}")
    return {
        "at": [f"{value:g}" for value in at],
        "values": shown,
        "runs": [[row.index, row.seed, row.text[:200]] for row in rows],
    }
