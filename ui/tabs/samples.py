"""Samples: n texts drawn side by side, and the one that a rule selects."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import gradio as gr

from backend import BestOf, Engine, EventStream, Request
from backend.events import TokenDecoded
from ui import components, knobs
from ui.loading import Loader
from ui.order import drawn
from ui.payloads import search as search_payloads
from ui.presets.lessons import Lesson
from ui.runs.reselect import RULES
from ui.session import Session
from ui.tabs.compose import Compose
from ui.tabs.fields import Fields
from ui.tabs.lesson_bar import LessonBar
from ui.tabs.player import play
from ui.tabs.viewer import QUIET, Updates, take_settings

PERIOD = 0.15  # seconds between redraws while the samples grow
MAX_MATRIX = 32  # similarities of more samples than this take seconds, so they are only computed for "mbr"

FIELDS: list[dict[str, Any]] = [
    {
        "name": "n",
        "title": "samples",
        "kind": "number",
        "min": 1,
        "max": 64,
        "step": 1,
        "hint": "Texts drawn in one batch.",
    },
    {
        "name": "max_new_tokens",
        "title": "new tokens",
        "kind": "number",
        "min": 1,
        "max": 512,
        "step": 1,
        "hint": "Upper limit on generated tokens of each sample.",
    },
    {
        "name": "answer",
        "title": "answer pattern",
        "kind": "text",
        "placeholder": "the last number",
        "hint": "Regular expression with one group that finds the answer to vote on; acts from the next run.",
    },
]
START: dict[str, Any] = {"n": 8, "max_new_tokens": 64, "answer": ""}
PROMPT = "Q: A box holds 4 red and 5 blue pens. How many pens does it hold?\nA:"
NOTE = "All knobs on the left take part, the seed included: sample 1 is what Inspect draws under that seed."


class Samples:
    """The tab's widgets and their wiring."""

    name, title = "samples", "Samples"

    def __init__(self, loader: Loader, lessons: Iterable[Lesson] = ()):
        self.loader = loader
        self.compose = Compose("samples", PROMPT, run="Draw")
        self.prompt = self.compose.prompt
        self.lessons = LessonBar("samples", lessons)
        self.fields = Fields("samples", FIELDS, START, NOTE)
        self.cards = components.build("samples", payload(Session()), "pg-samples-cards")
        self.cards.elem_classes = [*self.cards.elem_classes, "pg-card"]

    def wire(self, session: gr.State, settings: gr.HTML) -> None:
        self.outputs = [self.cards, self.compose.stop]
        self.compose.wire(
            session, settings, self.start, self.outputs, lambda session: session.samples, self.fields
        )
        self.lessons.wire(session, settings, self.prompt, self.fields)
        self.cards.rule(self._rule, inputs=[session], outputs=[self.cards], trigger_mode="multiple", **QUIET)

    def start(self, session: Session, turned: Any, prompt: str, sent: Any) -> Iterator[Updates]:
        take_settings(session, turned)
        view = session.samples

        def begin(engine: Engine) -> list[EventStream]:
            asked = request(prompt, session.settings, self.fields.read(sent), session.rule, session.salt)
            stream = engine.stream(asked)
            view.begin(asked, "run")
            view.prompt = prompt
            return [stream]

        due = 0.0
        yield self.compose.running(True)
        for batch in play(view, self.loader, begin):
            for _, event in batch or ():
                view.add(event)
                if isinstance(event, TokenDecoded):
                    view.phase = "drawing"
            if time.monotonic() >= due:
                # With every redraw: an update that another follows at once may never reach the page.
                yield {**self.draw(session), **self.compose.running(True)}
                due = time.monotonic() + PERIOD
        if not view.running:  # otherwise another run has taken over, and draws
            yield {**self.draw(session), **self.compose.running(False)}

    def _rule(self, session: Session, event: gr.EventData) -> Updates:
        """Select by another rule from what the run recorded."""
        wanted = event._data.get("rule") if isinstance(event._data, dict) else None
        if wanted in RULES:
            session.rule = wanted
        return self.draw(session)

    def draw(self, session: Session) -> Updates:
        return {self.cards: payload(session)}


def request(prompt: str, settings: dict[str, Any], values: dict[str, Any], rule: str, salt: str) -> Request:
    """The Request of n samples, from the knobs and the tab's own fields.

    The run selects by "mbr" wherever that is cheap, since it then records what every rule needs.

    Raises:
        RequestError: a value has the wrong type or is out of range.
    """
    values = START | values
    count = BestOf(n=values["n"]).n
    strategy = BestOf(count, "mbr" if count <= MAX_MATRIX else rule, values["answer"] or None)  # type: ignore[arg-type]
    asked = knobs.request(prompt, settings | {"max_new_tokens": values["max_new_tokens"]}, salt)
    return replace(asked, strategy=strategy, num_candidates=0)


def payload(session: Session) -> dict[str, Any]:
    """What the samples component draws."""
    view = session.samples
    strategy = view.request.strategy if view.request else None
    count = strategy.n if isinstance(strategy, BestOf) else 0
    return {
        "drawn": drawn(),
        "number": view.number,
        "running": view.running,
        "phase": view.phase,
        "notice": view.notice,
        "status": search_payloads.samples_status(view),
        **search_payloads.samples(view.events, count, session.rule),
    }
