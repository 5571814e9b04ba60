"""Samples: n texts drawn side by side, and the one that a rule selects."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import gradio as gr

from backend import BestOf, Engine, EventStream, Request
from backend.events import TokenDecoded
from ui import components, knobs, search_payloads
from ui.lessons import Lesson
from ui.loading import Loader
from ui.reselect import RULES
from ui.session import Session
from ui.tabs.lesson_bar import LessonBar
from ui.tabs.player import halt, play
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

    def __init__(self, loader: Loader, lessons: Iterable[Lesson] = ()):
        self.loader = loader
        with gr.Row(elem_classes="pg-compose"):
            self.prompt = gr.Textbox(
                value=PROMPT,
                lines=2,
                max_lines=8,
                show_label=False,
                label="Prompt",
                container=False,
                placeholder="A prompt to continue",
                elem_id="pg-samples-prompt",
            )
            with gr.Row(elem_classes="pg-buttons"):
                self.run = gr.Button("Draw", elem_classes="pg-run", elem_id="pg-samples-run")
                self.stop = gr.Button(
                    "Stop", elem_classes="pg-stop", elem_id="pg-samples-stop", interactive=False
                )
        self.lessons = LessonBar("samples", lessons, START, NOTE)
        self.fields = components.build(
            "fields", {"number": 1, "values": START, "note": NOTE}, "pg-samples-fields", spec=FIELDS
        )
        self.cards = components.build("samples", payload(Session()), "pg-samples-cards")
        self.cards.elem_classes = [*self.cards.elem_classes, "pg-card"]

    def wire(self, session: gr.State, settings: gr.HTML) -> None:
        self.outputs = [self.cards, self.stop]
        for event in (self.run.click, self.prompt.submit):
            event(
                self._run, inputs=[session, settings, self.prompt, self.fields], outputs=self.outputs, **QUIET
            )
        self.lessons.wire(session, settings, self.prompt, self.fields)
        self.stop.click(lambda session: halt(session.samples), inputs=[session], queue=False, **QUIET)
        self.cards.rule(
            self._rule, inputs=[session], outputs=[self.cards], trigger_mode="always_last", **QUIET
        )

    def _run(self, session: Session, turned: Any, prompt: str, sent: Any) -> Iterator[Updates]:
        take_settings(session, turned)
        values = sent.get("values") if isinstance(sent, dict) else None
        view = session.samples

        def start(engine: Engine) -> list[EventStream]:
            own = values if isinstance(values, dict) else {}
            asked = request(prompt, session.settings, own, session.rule, session.salt)
            stream = engine.stream(asked)
            view.begin(asked, "run")
            view.prompt = prompt
            return [stream]

        due = 0.0
        yield {self.stop: gr.Button(interactive=True)}
        for batch in play(view, self.loader, start):
            for _, event in batch or ():
                view.add(event)
                if isinstance(event, TokenDecoded):
                    view.phase = "drawing"
            if time.monotonic() >= due:
                # With every redraw: an update that another follows at once may never reach the page.
                yield {**self.draw(session), self.stop: gr.Button(interactive=True)}
                due = time.monotonic() + PERIOD
        yield {**self.draw(session), self.stop: gr.Button(interactive=view.running)}

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
    wanted = START | {name: values[name] for name in START if name in values}
    count = BestOf(n=wanted["n"]).n
    strategy = BestOf(count, "mbr" if count <= MAX_MATRIX else rule, wanted["answer"] or None)  # type: ignore[arg-type]
    asked = knobs.request(prompt, settings | {"max_new_tokens": wanted["max_new_tokens"]}, salt)
    return replace(asked, strategy=strategy, num_candidates=0)


def payload(session: Session) -> dict[str, Any]:
    """What the samples component draws."""
    view = session.samples
    strategy = view.request.strategy if view.request else None
    count = strategy.n if isinstance(strategy, BestOf) else 0
    return {
        "number": view.number,
        "running": view.running,
        "phase": view.phase,
        "notice": view.notice,
        "status": search_payloads.samples_status(view),
        **search_payloads.samples(view.events, count, session.rule),
    }
