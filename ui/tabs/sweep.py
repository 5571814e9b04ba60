"""Sweep: one knob over a range, or two as a heat map, several seeds each, in batches."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gradio as gr

from backend import Engine, Request
from backend.errors import PlaygroundError, RequestError
from backend.sweep import Axis, Sweep, requests, spaced
from ui import components, knobs
from ui.loading import Loader
from ui.order import drawn
from ui.plots import sweep as sweep_plots
from ui.runs.sweep_table import MEASURES, Table, cells, export, opened, values
from ui.session import Session
from ui.tabs.compose import Compose
from ui.tabs.fields import Fields
from ui.tabs.inspect import Inspect
from ui.tabs.player import play
from ui.tabs.viewer import QUIET, Updates, take_settings, whole
from ui.titles import TITLES, title

PERIOD = 0.5  # seconds between redraws while runs come in
WHOLE = ("top_k", "no_repeat_ngram_size")
MAX_TOKENS = 512
NAMES = [knob.name for knob in knobs.KNOBS]
LIMITS = {knob.name: (knob.low, knob.high) for knob in knobs.KNOBS}


def _number(
    name: str, text: str, low: float, high: float, hint: str, step: float = 0.05, **more: Any
) -> dict[str, Any]:
    field = {
        "name": name,
        "title": text,
        "kind": "number",
        "min": low,
        "max": high,
        "step": step,
        "hint": hint,
    }
    return field | more


# Fields that matter only with a second knob.
SECOND: dict[str, Any] = {"unless": {"second": ""}}


FIELDS: list[dict[str, Any]] = [
    {
        "name": "knob",
        "title": "knob",
        "kind": "select",
        "options": [[name, TITLES[name]] for name in NAMES],
        "hint": "The setting that is moved; all others stay as on the left.",
    },
    _number("low", "from", -10, 1000, "First value."),
    _number("high", "to", -10, 1000, "Last value."),
    _number("count", "values", 1, 50, "How many values, evenly spaced.", 1),
    {
        "name": "second",
        "title": "second knob",
        "kind": "select",
        "options": [["", "none"], *([name, TITLES[name]] for name in NAMES)],
        "hint": "With a second knob every pair of values is run, and shown as a heat map.",
    },
    _number("low2", "from", -10, 1000, "First value of the second knob.", **SECOND),
    _number("high2", "to", -10, 1000, "Last value of the second knob.", **SECOND),
    _number("count2", "values", 1, 50, "How many values of the second knob.", 1, **SECOND),
    _number("seeds", "seeds", 1, 64, "Runs per value; every value gets the same seeds.", 1),
    _number("max_new_tokens", "new tokens", 1, MAX_TOKENS, "Upper limit on generated tokens of each run.", 1),
]
START: dict[str, Any] = {
    "knob": "temperature",
    "low": 0.2,
    "high": 1.7,
    "count": 4,
    "second": "",
    "low2": 0.5,
    "high2": 1,
    "count2": 3,
    "seeds": 4,
    "max_new_tokens": 48,
}
PROMPT = "The old man looked at the sea and"
NOTE = (
    "One knob: the line is the median over the seeds (of loops: their share), the band the middle half, each "
    "dot a run. Two: each cell is a median. Click a dot, a cell or a seed to open its run in Inspect."
)


class SweepTab:
    """The tab's widgets and their wiring."""

    name, title = "sweep", "Sweep"

    def __init__(self, loader: Loader):
        self.loader = loader
        self.compose = Compose("sweep", PROMPT, run="Sweep")
        self.prompt = self.compose.prompt
        self.fields: Fields = Fields("sweep", FIELDS, START, NOTE)
        self.view = components.build("sweep", payload(Session()), "pg-sweep-view")
        self.view.elem_classes = [*self.view.elem_classes, "pg-card"]
        self.saver = components.build("saver", None, "pg-sweep-saver")

    def wire(self, session: gr.State, settings: gr.HTML) -> None:
        self.outputs = [self.view, self.compose.stop]
        self.compose.wire(
            session, settings, self.start, self.outputs, lambda session: session.sweep, self.fields
        )
        self.view.csv(self._csv, inputs=[session], outputs=[self.saver], **QUIET)
        self.view.open_table(self._open, inputs=[session], outputs=[self.view], **QUIET)
        self.view.measure(
            self._measure, inputs=[session], outputs=[self.view], trigger_mode="multiple", **QUIET
        )

    def wire_inspect(self, inspect: Inspect, session: gr.State, settings: gr.HTML) -> None:
        """A run clicked here is made again in Inspect, where every step has its candidates."""

        def open_run(state: Session, event: gr.EventData) -> Iterator[Updates]:
            number, made = whole(event, "run"), state.swept.requests
            if number is None or not 0 <= number < len(made):
                yield {settings: gr.skip()}
                return
            yield from inspect.run_again(state, replace(made[number], num_candidates=30))

        outputs = list(dict.fromkeys([*inspect.outputs, *inspect.opened]))
        self.view.open_run(open_run, inputs=[session], outputs=outputs, **QUIET)

    def start(self, session: Session, turned: Any, prompt: str, sent: Any) -> Iterator[Updates]:
        take_settings(session, turned)
        view = session.sweep

        def begin(engine: Engine) -> list[Sweep]:
            axes, made = plan(prompt, session.settings, self.fields.read(sent), session.salt)
            view.begin(made[0], "run")
            view.prompt = prompt
            session.swept = Table(axes, made)
            return [Sweep(engine, made)]

        due = 0.0
        yield self.compose.running(True)
        for batch in play(view, self.loader, begin):
            for _, outcome in batch or ():
                session.swept.add(outcome)
            if view.running and session.swept.requests and not view.phase.startswith("waiting"):
                view.phase = "running"
            if batch or time.monotonic() >= due:
                yield {**self.draw(session), **self.compose.running(True)}
                due = time.monotonic() + PERIOD
        if not view.running:  # otherwise another run has taken over, and draws
            if session.swept.errors and not view.notice:
                view.notice = f"{len(session.swept.errors)} runs failed. {session.swept.errors[0]}"
            yield {**self.draw(session), **self.compose.running(False)}

    def _measure(self, session: Session, event: gr.EventData) -> Updates:
        wanted = event._data.get("measure") if isinstance(event._data, dict) else None
        if wanted in MEASURES or wanted == "self_bleu":
            session.measure = str(wanted)
        return self.draw(session)

    def _csv(self, session: Session) -> dict[str, Any]:
        if not session.swept.rows:
            raise gr.Error("There is nothing to export yet: run a sweep first.", print_exception=False)
        session.num_saved += 1
        text = export(session.swept)
        return {"name": "sweep.csv", "type": "text/csv", "text": text, "number": session.num_saved}

    def _open(self, session: Session, event: gr.EventData) -> Updates:
        """Show a table saved earlier; a file that is none leaves what is shown."""
        text = event._data.get("text") if isinstance(event._data, dict) else None
        view = session.sweep
        try:
            if view.running:
                raise RequestError("A sweep goes on: stop it before opening a table.")
            session.swept = opened(text if isinstance(text, str) else "")
            view.number, view.notice = view.number + 1, ""
        except PlaygroundError as error:
            view.notice = str(error)
        return self.draw(session)

    def draw(self, session: Session) -> Updates:
        return {self.view: payload(session)}


def plan(
    prompt: str, settings: dict[str, Any], values: dict[str, Any], salt: str
) -> tuple[tuple[Axis, ...], list[Request]]:
    """The axes and the runs that the fields describe.

    Raises:
        RequestError: a value has the wrong type or is out of range.
    """
    wanted = START | values
    if isinstance(wanted["max_new_tokens"], int | float) and wanted["max_new_tokens"] > MAX_TOKENS:
        raise RequestError(f"a sweep takes at most {MAX_TOKENS} new tokens a run")
    base = knobs.request(prompt, settings | {"max_new_tokens": wanted["max_new_tokens"]}, salt)
    if base.seed is None:
        base = replace(base, seed=secrets.randbelow(10_000))  # short: every run shows its own
    axes = [_axis(wanted["knob"], wanted["low"], wanted["high"], wanted["count"])]
    if wanted["second"]:
        axes.append(_axis(wanted["second"], wanted["low2"], wanted["high2"], wanted["count2"]))
    return tuple(axes), requests(base, axes, _count("seeds", wanted["seeds"]))


def _axis(knob: Any, low: Any, high: Any, count: Any) -> Axis:
    if knob not in NAMES:
        raise RequestError(f"knob must be one of {', '.join(NAMES)}, got {str(knob)[:40]!r}")
    for name, value in (("from", low), ("to", high)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
            raise RequestError(f"{name} must be a number, got {str(value)[:40]!r}")
    return Axis(knob, spaced(low, high, _count("values", count), knob in WHOLE))


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise RequestError(f"{name} must be a whole number, got {str(value)[:40]!r}")
    return int(value)


def payload(session: Session) -> dict[str, Any]:
    """What the sweep component draws."""
    view, table = session.sweep, session.swept
    total = len(table.requests) or len(table.rows)
    measure = session.measure
    return {
        "drawn": drawn(),
        "number": view.number,
        "running": view.running,
        "phase": view.phase,
        "stopped": view.stopped,
        "notice": view.notice,
        "done": len(table.rows) + len(table.errors),
        "total": total,
        "two": len(table.axes) == 2,
        "measure": measure,
        "measures": [[name, sweep_plots.name(name)] for name in (*MEASURES, "self_bleu")],
        "figures": sweep_plots.figures(table, measure),
        "axes": [title(axis.knob) for axis in table.axes],
        "columns": [sweep_plots.name(name) for name in (*MEASURES, "self_bleu")],
        "cells": [_cell(at, rows) for at, rows in cells(table.rows).items()],
        "can_open": bool(table.requests),
    }


def _cell(at: tuple[float, ...], rows: list[Any]) -> dict[str, Any]:
    shown = []
    for name in (*MEASURES, "self_bleu"):
        found = values(rows, name)
        digits = MEASURES[name][1] if name in MEASURES else 2
        middle = sum(found) / len(found) if name == "loop" and found else None
        value = middle if middle is not None else sweep_plots.quartiles(found)[1] if found else None
        shown.append("–" if value is None else f"{value:,.{digits}f}")
    return {
        "at": [f"{value:g}" for value in at],
        "values": shown,
        "runs": [[row.index, row.seed, row.text[:200]] for row in rows],
    }
