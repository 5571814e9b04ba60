"""Sweep: one knob over a range, or two as a heat map, several seeds each, in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import gradio as gr

from backend import Request
from backend.errors import PlaygroundError, RequestError
from backend.protocol import EngineProtocol
from backend.sweep import Axis, Outcome, Sweep, requests
from ui import knobs
from ui.payloads import sweep as payloads
from ui.runs.sweep_table import MAX_TOKENS, MEASURES, SweepState, Table, export, opened
from ui.session import Session
from ui.tabs.fields import check, number, select, starts
from ui.tabs.tab import Page, Tab, Updates, got

NAMES = {knob.name: knob.title for knob in knobs.KNOBS}
# Fields that matter only with a second knob.
SECOND: dict[str, Any] = {"unless": {"second": ""}}
RANGE = (-100, 1_000_000)  # of all knobs; each refuses what it cannot be
FIELDS: list[dict[str, Any]] = [
    select(
        "knob",
        "knob",
        NAMES,
        "The setting that is moved; all others stay as on the left.",
        start="temperature",
    ),
    number("low", "from", *RANGE, 0.2, "First value.", 0.05),
    number("high", "to", *RANGE, 1.7, "Last value.", 0.05),
    number("count", "values", 1, 50, 4, "How many values, evenly spaced."),
    select(
        "second",
        "second knob",
        {"": "none", **NAMES},
        "With a second knob every pair of values is run, and shown as a heat map.",
    ),
    number("low2", "from", *RANGE, 0.5, "First value of the second knob.", 0.05, **SECOND),
    number("high2", "to", *RANGE, 1, "Last value of the second knob.", 0.05, **SECOND),
    number("count2", "values", 1, 50, 3, "How many values of the second knob.", **SECOND),
    number("seeds", "seeds", 1, 64, 4, "Runs per value; every value gets the same seeds."),
    number("max_new_tokens", "new tokens", 1, MAX_TOKENS, 48, "Upper limit on generated tokens of each run."),
]
PROMPT = "The old man looked at the sea and"
NOTE = (
    "One knob: the line is the median over the seeds (of loops: their share), the band the middle half, each "
    "dot a run. Two: each cell is a median. Click a dot, a cell or a seed to open its run in Inspect."
)


class SweepTab(Tab):
    """The tab's widgets and their wiring."""

    name, title = "sweep", "Sweep"
    period = 0.5

    def __init__(self, page: Page):
        super().__init__(page)
        self.lay_out(PROMPT, FIELDS, NOTE, run="Sweep")
        self.shown = self.picture("sweep", payloads.payload, SweepState, "view")
        self.save(self.shown.csv, "sweep.csv", lambda session: export(session.state(SweepState).table))

    def wire(self) -> None:
        super().wire()
        inspect: Any = self.page.panels["inspect"]

        def open_run(session: Session, event: gr.EventData) -> Iterator[Updates]:
            """A run clicked here is made again in Inspect, where every step has its candidates."""
            place, made = got(event, "run", int), session.state(SweepState).table.requests
            if place is None or not 0 <= place < len(made):
                yield {self.page.knobs: gr.skip()}
                return
            yield from inspect.run_again(session, replace(made[place], num_candidates=30))

        self.on(self.shown.open_run, open_run, outputs=[*inspect.outputs, *inspect.opened], mode=None)
        self.on(self.shown.open_table, self._open, mode=None)
        self.on(self.shown.measure, self._measure)

    def begin(
        self, session: Session, engine: EngineProtocol, prompt: str, values: dict[str, Any]
    ) -> Sequence[Sweep]:
        axes, made = plan(prompt, session.settings, values, session.salt)
        self.view(session).begin(made[0], "run", prompt=prompt)
        session.state(SweepState).table = Table(axes, made)
        return [Sweep(engine, made)]

    def take(self, session: Session, number: int, event: Outcome) -> None:
        session.state(SweepState).table.add(event)

    def phase(self, session: Session) -> str:
        return "running"

    def ended(self, session: Session) -> None:
        view, errors = self.view(session), session.state(SweepState).table.errors
        if errors and not view.notice:
            view.notice = f"{len(errors)} runs failed. {errors[0]}"

    def _measure(self, session: Session, event: gr.EventData) -> Updates:
        wanted = got(event, "measure", str)
        if wanted is not None and wanted in (*MEASURES, "self_bleu"):
            session.state(SweepState).measure = wanted
        return self.draw(session)

    def _open(self, session: Session, event: gr.EventData) -> Updates:
        """Show a table saved earlier; a file that is none leaves what is shown."""
        view = self.view(session)
        try:
            if view.running:
                raise RequestError("A sweep goes on: stop it before opening a table.")
            session.state(SweepState).table = opened(got(event, "text", str) or "")
            view.number, view.notice = view.number + 1, ""
        except PlaygroundError as error:
            view.notice = str(error)
        return self.draw(session)


def plan(
    prompt: str, settings: dict[str, Any], values: dict[str, Any], salt: str
) -> tuple[tuple[Axis, ...], list[Request]]:
    """The axes and the runs that the fields describe.

    Raises:
        RequestError: a value has the wrong type or is out of range.
    """
    wanted = check(FIELDS, starts(FIELDS) | values)
    base = knobs.request(prompt, settings | {"max_new_tokens": wanted["max_new_tokens"]}, salt)
    base = knobs.seeded(base, 10_000)  # short: every run shows its own
    axes = [Axis.spaced(wanted["knob"], wanted["low"], wanted["high"], wanted["count"])]
    if wanted["second"]:
        axes.append(Axis.spaced(wanted["second"], wanted["low2"], wanted["high2"], wanted["count2"]))
    return tuple(axes), requests(base, axes, wanted["seeds"])
