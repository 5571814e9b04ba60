"""Beams: a search as a tree that grows while it runs, and the texts it found."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import gradio as gr

from backend import BeamSearch, Engine, EventStream, Request
from backend.events import BeamStepped, SampleFinished
from ui import components, knobs
from ui.loading import Loader
from ui.order import drawn
from ui.payloads import run as payloads
from ui.payloads import search as search_payloads
from ui.presets.lessons import Lesson
from ui.runs.beam_tree import BeamTree
from ui.session import Session
from ui.tabs.compose import Compose
from ui.tabs.fields import Fields
from ui.tabs.lesson_bar import LessonBar
from ui.tabs.player import play
from ui.tabs.viewer import Updates, take_settings
from ui.titles import title

TREE_PERIOD = 0.2  # seconds between redraws of the tree while it grows
EARLY: dict[Any, Any] = {"false": False, "true": True, "never": "never"}

FIELDS: list[dict[str, Any]] = [
    {"name": "num_beams", "title": "beams", "kind": "number", "min": 1, "max": 16, "step": 1,
     "hint": "Texts kept at every step. 1 is greedy."},
    {"name": "length_penalty", "title": "length penalty", "kind": "number", "min": -2, "max": 3, "step": 0.1,
     "hint": "The sum of log p is divided by length to this power. Above 0 favours long texts."},
    {"name": "early_stopping", "title": "early stopping", "kind": "select",
     "options": [["false", "when no beam can do better now"], ["true", "when enough texts ended"],
                 ["never", "only when none ever can"]],
     "hint": "When the search ends: false, true or never in transformers."},
    {"name": "num_return_sequences", "title": "returned", "kind": "number", "min": 1, "max": 16, "step": 1,
     "hint": "Texts handed back, at most as many as beams."},
    {"name": "num_beam_groups", "title": "groups", "kind": "number", "min": 1, "max": 16, "step": 1,
     "hint": "Groups search one after the other at each step; the beams must divide among them."},
    {"name": "diversity_penalty", "title": "diversity", "kind": "number", "min": 0, "max": 5, "step": 0.1,
     "hint": "A token costs this much for each time an earlier group chose it at this step."},
    {"name": "max_new_tokens", "title": "new tokens", "kind": "number", "min": 1, "max": 256, "step": 1,
     "hint": "Upper limit on generated tokens."},
    {"name": "stochastic", "title": "stochastic", "kind": "check",
     "hint": "Draws that many different texts, a sample without replacement, instead of searching."},
]  # fmt: skip
START: dict[str, Any] = {
    "num_beams": 4,
    "length_penalty": 1.0,
    "early_stopping": "false",
    "num_return_sequences": 1,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "max_new_tokens": 32,
    "stochastic": False,
}
PROMPT = "The capital of Australia is the city of"
NOTE = (
    "Of the knobs on the left, the penalties, no-repeat, bias and the chat template take part in the search. "
    "Temperature, the cuts and the seed do not, unless it is stochastic. Stop strings end no beam: they "
    "shorten what is returned."
)


class Beams:
    """The tab's widgets and their wiring."""

    name, title = "beams", "Beams"

    def __init__(self, loader: Loader, lessons: Iterable[Lesson] = ()):
        self.loader = loader
        self.compose = Compose("beams", PROMPT, run="Search")
        self.prompt = self.compose.prompt
        self.lessons = LessonBar("beams", lessons)
        self.fields = Fields("beams", FIELDS, START, NOTE)
        empty = Session()
        self.tree = components.build("tree", tree_payload(empty), "pg-beams-tree")
        self.found = components.build("hypotheses", found_payload(empty), "pg-beams-found")
        for component in (self.tree, self.found):
            component.elem_classes = [*component.elem_classes, "pg-card"]

    def wire(self, session: gr.State, settings: gr.HTML) -> None:
        self.outputs = [self.tree, self.found, self.compose.stop]
        self.compose.wire(
            session, settings, self.start, self.outputs, lambda session: session.beams, self.fields
        )
        self.lessons.wire(session, settings, self.prompt, self.fields)

    def start(self, session: Session, turned: Any, prompt: str, sent: Any) -> Iterator[Updates]:
        take_settings(session, turned)
        view = session.beams

        def begin(engine: Engine) -> list[EventStream]:
            asked = request(prompt, session.settings, self.fields.read(sent), session.salt)
            search = engine.stream(asked)
            session.tree = BeamTree()
            view.begin(asked, "run")
            view.prompt = prompt
            return [search, engine.stream(greedy(asked))]

        due = 0.0
        yield self.compose.running(True)
        for batch in play(view, self.loader, begin):
            for number, event in batch or ():
                if number == 0:
                    view.add(event)
                    if isinstance(event, SampleFinished):
                        session.tree.add_result(event)
                if isinstance(event, BeamStepped):
                    view.phase = "searching"
                    (session.tree.add, session.tree.add_greedy)[number](event)
            if time.monotonic() >= due:
                # With every redraw: an update that another follows at once may never reach the page.
                yield {**self.draw(session), **self.compose.running(True)}
                due = time.monotonic() + TREE_PERIOD
        if not view.running:  # otherwise another run has taken over, and draws
            yield {**self.draw(session), **self.compose.running(False)}

    def draw(self, session: Session) -> Updates:
        return {self.tree: tree_payload(session), self.found: found_payload(session)}


def request(prompt: str, settings: dict[str, Any], values: dict[str, Any], salt: str) -> Request:
    """The Request of a search, from the knobs and the tab's own fields.

    Raises:
        RequestError: a value has the wrong type or is out of range.
    """
    wanted = dict(values)
    limit = wanted.pop("max_new_tokens")
    early = wanted.pop("early_stopping")
    strategy = BeamSearch(early_stopping=EARLY.get(early, early), **wanted)
    asked = knobs.request(prompt, settings | {"max_new_tokens": limit}, salt)
    return replace(asked, strategy=strategy, num_candidates=0)


def greedy(asked: Request) -> Request:
    """The greedy text under the same penalties, bans and biases."""
    return replace(asked, strategy=BeamSearch(num_beams=1))


def tree_payload(session: Session) -> dict[str, Any]:
    """What the tree component draws."""
    view, tree = session.beams, session.tree
    results = tree.results
    best = next((place for place in tree.hypotheses() if 0 in tree.ranks(place)), None) if results else None
    return {
        "drawn": drawn(),
        "number": view.number,
        "running": view.running,
        "phase": view.phase,
        "notice": view.notice,
        "prompt": prompt_tail(view.prompt),
        "best": best,
        "status": status(session),
        **search_payloads.tree(tree),
    }


def found_payload(session: Session) -> dict[str, Any]:
    """What the table of texts draws."""
    view = session.beams
    strategy = view.request.strategy if view.request else None
    search = strategy if isinstance(strategy, BeamSearch) else BeamSearch()
    return {
        "drawn": drawn(),
        "number": view.number,
        "running": view.running,
        "length_penalty": search.length_penalty,
        "stochastic": search.stochastic,
        "entries": search_payloads.hypotheses(session.tree),
    }


def prompt_tail(prompt: str, limit: int = 28) -> str:
    """The end of the prompt, on one line."""
    line = " ".join(prompt.split())
    return line if len(line) <= limit else "…" + line[-limit:]


def status(session: Session) -> list[list[str]]:
    """The status line as [name, value] pairs."""
    view, tree = session.beams, session.tree
    if view.started is None:
        return []
    line = [
        ["steps", str(max(tree.last_step.values(), default=-1) + 1)],
        ["texts considered", f"{len(tree.nodes):,}"],
    ]
    if view.stopped:
        line.append(["ended", payloads.ENDINGS["cancelled"]])
    elif view.finished is not None:
        line.append(["returned", str(len(tree.results))])
        line.append(["took", f"{view.finished.time:.1f} s"])
    for stage in view.started.stages:
        line.append([title(stage.stage), stage.setting])
    line.append(["model", view.started.model])
    return line
