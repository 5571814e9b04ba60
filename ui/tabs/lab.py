"""Lab: guided lessons, a table of the literature measured here, and formulas to play with."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
import yaml

from backend import Engine, RequestError
from backend.degeneration import (
    METHODS,
    MIN_PROMPTS,
    PUBLISHED,
    SOURCE,
    Measured,
    Published,
    measured,
    method_of,
    requests,
    trap_shows,
)
from backend.sweep import MAX_RUNS, Outcome, Sweep
from ui import components, tables
from ui.loading import Loader
from ui.order import drawn
from ui.payloads import worked as worked_payloads
from ui.payloads.compare import fixed
from ui.payloads.run import percent
from ui.presets.lessons import Lesson
from ui.session import Session
from ui.tabs.compose import Compose
from ui.tabs.fields import Fields
from ui.tabs.lesson_bar import LessonBar
from ui.tabs.player import play
from ui.tabs.viewer import QUIET, Updates, take_settings

PROMPTS = Path(__file__).parent.parent.parent / "presets" / "lab" / "prompts.yaml"
PERIOD = 0.5  # seconds between redraws while texts come in
MAX_TOKENS = 256
COLUMNS = ["method", "texts", "perplexity", "loops", "4-grams again", "self-BLEU", "Zipf"]
FIELDS: list[dict[str, Any]] = [
    {
        "name": "max_new_tokens",
        "title": "new tokens",
        "kind": "number",
        "min": 1,
        "max": MAX_TOKENS,
        "step": 1,
        "hint": "Upper limit on generated tokens of each text. Loops need room: the paper used up to 200.",
    },
    {
        "name": "seed",
        "title": "first seed",
        "kind": "number",
        "min": 0,
        "max": 1_000_000,
        "step": 1,
        "hint": "Every prompt has a seed of its own, the same for all methods.",
    },
]
START: dict[str, Any] = {"max_new_tokens": 64, "seed": 1}
NOTE = "One prompt a line. The knobs on the left take no part here."


class Lab:
    """The tab's widgets and their wiring."""

    name, title = "lab", "Lab"

    def __init__(self, loader: Loader, lessons: Iterable[Lesson] = ()):
        self.loader = loader
        self.lessons = list(lessons)
        names = ("name", "tab", "title", "look_for", "question", "answer")
        self.list = components.build(
            "lessonlist",
            {},
            "pg-lab-lessons",
            spec=[{name: getattr(lesson, name) for name in names} for lesson in self.lessons],
        )
        self.list.elem_classes = [*self.list.elem_classes, "pg-card"]
        gr.HTML("<h2>Likely text and human text</h2>", elem_classes="pg-lab-title")
        self.compose = Compose("lab", "\n".join(prompts()), run="Measure", lines=3)
        self.prompt = self.compose.prompt
        self.fields: Fields = Fields("lab", FIELDS, START, NOTE)
        self.view = components.build("table1", payload(Session()), "pg-lab-table")
        self.view.elem_classes = [*self.view.elem_classes, "pg-card"]
        self.saver = components.build("saver", None, "pg-lab-saver")
        gr.HTML("<h2>Worked numbers</h2>", elem_classes="pg-lab-title")
        inputs = worked_payloads.start()
        self.worked = components.build(
            "worked",
            {"results": worked_payloads.results(inputs)},
            "pg-lab-worked",
            spec={"cards": worked_payloads.CARDS},
        )
        self.worked.elem_classes = [*self.worked.elem_classes, "pg-card"]

    def wire(self, session: gr.State, settings: gr.HTML) -> None:
        self.outputs = [self.view, self.compose.stop]
        self.compose.run.click(
            self.start,
            inputs=[session, settings, self.prompt, self.fields.html],
            outputs=self.outputs,
            trigger_mode="multiple",
            **QUIET,
        )
        self.compose.wire_stop(session, lambda session: session.lab)
        self.view.csv(self._csv, inputs=[session], outputs=[self.saver], **QUIET)
        self.worked.turn(self._work, outputs=[self.worked], trigger_mode="multiple", **QUIET)

    def wire_lessons(self, bars: Sequence[LessonBar], tabs: gr.Tabs, session: gr.State) -> None:
        """A lesson opens in its tab, with its settings in place."""
        by_name = {name: bar for bar in bars for name in bar.lessons}

        def opened(state: Session, event: gr.EventData) -> Updates:
            name = event._data.get("lesson") if isinstance(event._data, dict) else None
            bar = by_name.get(str(name))
            if bar is None:
                return {tabs: gr.skip()}
            state.tab = bar.lessons[str(name)].tab
            return {tabs: gr.Tabs(selected=state.tab), **bar.put(state, str(name))}

        outputs = dict.fromkeys([tabs, *(output for bar in bars for output in bar.outputs)])
        self.list.open_lesson(opened, inputs=[session], outputs=list(outputs), **QUIET)

    def start(self, session: Session, turned: Any, prompt: str, sent: Any) -> Iterator[Updates]:
        """Every prompt by every method, in batches."""
        take_settings(session, turned)
        view = session.lab

        def begin(engine: Engine) -> list[Sweep]:
            values = self.fields.read(sent)
            made = requests(lines(prompt), limit(values), whole_seed(values), session.salt)
            view.begin(made[0], "run")
            session.measured, session.num_wanted = [], len(made)
            return [Sweep(engine, made)]

        due = 0.0
        yield self.compose.running(True)
        for batch in play(view, self.loader, begin):
            for _, outcome in batch or ():
                session.measured.append(outcome)
            if view.running and session.num_wanted and not view.phase.startswith("waiting"):
                view.phase = "measuring"
            if batch or time.monotonic() >= due:
                yield {**self.draw(session), **self.compose.running(True)}
                due = time.monotonic() + PERIOD
        if not view.running:  # otherwise another run has taken over, and draws
            failed = [outcome.error for outcome in session.measured if outcome.error]
            if failed and not view.notice:
                view.notice = f"{len(failed)} texts failed. {failed[0]}"
            yield {**self.draw(session), **self.compose.running(False)}

    def _work(self, event: gr.EventData) -> Updates:
        order, data = drawn(), event._data if isinstance(event._data, dict) else {}
        return {self.worked: {"drawn": order, "results": worked_payloads.results(data.get("inputs"))}}

    def _csv(self, session: Session) -> dict[str, Any]:
        rows = [row["cells"] for row in payload(session)["measured"]]
        session.num_saved += 1
        text = tables.to_csv(COLUMNS, rows)
        return {"name": "decoding-methods.csv", "type": "text/csv", "text": text, "number": session.num_saved}

    def draw(self, session: Session) -> Updates:
        return {self.view: payload(session)}


def prompts(path: Path = PROMPTS) -> list[str]:
    """The prompts that the experiment opens with."""
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [str(prompt) for prompt in found]


def lines(text: str) -> list[str]:
    """One prompt a line.

    Raises:
        RequestError: none, or more than the experiment takes.
    """
    found = [line.strip() for line in text.splitlines() if line.strip()]
    most = MAX_RUNS // len(METHODS)
    if not 1 <= len(found) <= most:
        raise RequestError(f"the experiment takes 1 to {most} prompts, one a line, got {len(found)}")
    return found


def limit(values: dict[str, Any]) -> Any:
    wanted = values["max_new_tokens"]
    if isinstance(wanted, int | float) and wanted > MAX_TOKENS:
        raise RequestError(f"the experiment takes at most {MAX_TOKENS} new tokens a text, got {wanted}")
    return wanted


def whole_seed(values: dict[str, Any]) -> int:
    seed = values["seed"]
    if isinstance(seed, bool) or not isinstance(seed, int | float) or seed != seed or seed != int(seed):
        raise RequestError(f"seed must be a whole number, got {str(seed)[:40]!r}")
    return int(seed)


def payload(session: Session) -> dict[str, Any]:
    """What the table component draws."""
    number, view = drawn(), session.lab
    by_method: dict[str, list[Outcome]] = {name: [] for name in METHODS}
    for outcome in session.measured:
        if not outcome.error:
            by_method[method_of(outcome.index)].append(outcome)
    rows = {name: measured(found) for name, found in by_method.items()}
    return {
        "drawn": number,
        "number": view.number,
        "running": view.running,
        "phase": view.phase,
        "notice": view.notice,
        "done": len(session.measured),
        "total": session.num_wanted,
        "columns": COLUMNS,
        "measured": [{"name": name, "cells": _cells(METHODS[name].title, rows[name])} for name in METHODS],
        "published": [{"name": name, "cells": _published(row)} for name, row in PUBLISHED.items()],
        "source": SOURCE,
        "verdict": verdict(rows, view.running),
    }


def _cells(title: str, row: Measured) -> list[str]:
    shown = (row.loops, row.repeated_4grams)
    loops, repeats = ("–" if value is None else percent(value) for value in shown)
    return [
        title,
        str(row.num_texts),
        fixed(row.perplexity, 2),
        loops,
        repeats,
        fixed(row.self_bleu, 2),
        fixed(row.zipf, 2),
    ]


def _published(row: Published) -> list[str]:
    return [
        row.title,
        "5,000",
        f"{row.perplexity:.2f}",
        percent(row.loops),
        "–",
        f"{row.self_bleu:.2f}",
        f"{row.zipf:.2f}",
    ]


def verdict(rows: dict[str, Measured], running: bool) -> str:
    """What the measured table says about the likelihood trap, whichever way it came out."""
    shows = trap_shows(rows)
    if shows is None or running:
        return ""
    greedy, beam, nucleus = (rows[name] for name in ("greedy", "beam", "nucleus"))
    figures = (
        f"4-grams again: greedy {_share(greedy)}, beams {_share(beam)}, nucleus {_share(nucleus)}; "
        f"perplexity: {fixed(greedy.perplexity, 1)}, {fixed(beam.perplexity, 1)}, "
        f"{fixed(nucleus.perplexity, 1)}."
    )
    few = "" if nucleus.num_texts >= MIN_PROMPTS else f" Only {nucleus.num_texts} texts: little to go by."
    if shows:
        return f"The likelihood trap shows here: what is likelier repeats itself more. {figures}{few}"
    return f"The likelihood trap does not show here. {figures}{few}"


def _share(row: Measured) -> str:
    return "–" if row.repeated_4grams is None else percent(row.repeated_4grams)
