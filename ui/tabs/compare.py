"""Compare: two to eight settings in one batch under one seed, and what made their texts part."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import gradio as gr

from backend import Engine, EventStream
from backend.errors import PlaygroundError, RequestError
from backend.events import TokenDecoded
from backend.request import ORDERS
from ui import components, knobs, tables
from ui.loading import Loader
from ui.order import drawn
from ui.payloads import compare as compare_payloads
from ui.plots import lanes as lane_plots
from ui.presets.lessons import Lesson
from ui.runs import lanes
from ui.session import Session
from ui.tabs.compose import Compose
from ui.tabs.fields import Fields
from ui.tabs.inspect import Inspect
from ui.tabs.lesson_bar import LessonBar
from ui.tabs.player import play
from ui.tabs.viewer import QUIET, Updates, take_settings, whole
from ui.titles import TITLES

PERIOD = 0.2  # seconds between redraws while the lanes grow
MAX_TOKENS = 256  # per lane; tables of longer lanes would fill the memory

SPEC: dict[str, Any] = {
    "knobs": [
        {"name": knob.name, "title": TITLES[knob.name], "step": knob.step, "neutral": knob.neutral}
        for knob in knobs.KNOBS
    ],
    "orders": list(ORDERS),
    "max_lanes": lanes.MAX_LANES,
    "min_lanes": lanes.MIN_LANES,
    "max_tokens": MAX_TOKENS,
}
START: dict[str, Any] = {
    "lanes": [{}, {"top_p": 0.9}, {"temperature": 0}],
    "max_new_tokens": 40,
    "human": "",
}
PROMPT = "Once upon a time, there was a little"
NOTE = "Seed, bias, stop strings and chat come from the knobs on the left and are the same for all lanes."


class Compare:
    """The tab's widgets and their wiring."""

    name, title = "compare", "Compare"

    def __init__(self, loader: Loader, lessons: Iterable[Lesson] = ()):
        self.loader = loader
        self.compose = Compose("compare", PROMPT)
        self.prompt = self.compose.prompt
        self.lessons = LessonBar("compare", lessons)
        self.fields: Fields = Fields("compare", SPEC, START, NOTE, component="lanes")
        self.view = components.build("compare", payload(Session()), "pg-compare-view")
        self.view.elem_classes = [*self.view.elem_classes, "pg-card"]
        self.saver = components.build("saver", None, "pg-compare-saver")

    def wire(self, session: gr.State, settings: gr.HTML) -> None:
        self.outputs = [self.view, self.compose.stop]
        self.compose.wire(
            session, settings, self.start, self.outputs, lambda session: session.compare, self.fields
        )
        self.lessons.wire(session, settings, self.prompt, self.fields)
        self.view.csv(self._csv, inputs=[session], outputs=[self.saver], **QUIET)
        self.fields.html.take(
            self._take, inputs=[session, settings, self.fields.html], outputs=[self.fields.html], **QUIET
        )

    def wire_inspect(self, inspect: Inspect, session: gr.State, settings: gr.HTML) -> None:
        """A token clicked in a lane opens that lane in Inspect, at that token."""

        def opened(state: Session, event: gr.EventData) -> Updates:
            lane, index = whole(event, "lane"), whole(event, "index")
            if lane is None or not 0 <= lane < len(state.lanes.lanes):
                return {settings: gr.skip()}
            trace = state.lanes.lanes[lane].trace
            return inspect.open(state, trace, index) if trace else {settings: gr.skip()}

        self.view.open_lane(opened, inputs=[session], outputs=inspect.opened, **QUIET)

    def start(self, session: Session, turned: Any, prompt: str, sent: Any) -> Iterator[Updates]:
        take_settings(session, turned)
        view, values = session.compare, self.fields.read(sent)

        def begin(engine: Engine) -> list[EventStream]:
            asked = lanes.requests(
                prompt, session.settings | {"max_new_tokens": _limit(values)}, values["lanes"], session.salt
            )
            streams: list[EventStream] = []
            try:
                streams.extend(engine.stream(request) for request in asked)
            except PlaygroundError:
                for stream in streams:
                    stream.close()
                raise
            view.begin(asked[0], "run")
            view.prompt = prompt
            # New ones: a run that this one took over may still explain its own.
            session.lanes = lanes.Lanes([lanes.Lane(request) for request in asked])
            return streams

        due = 0.0
        yield self.compose.running(True)
        for batch in play(view, self.loader, begin):
            for number, event in batch or ():
                lane = session.lanes.lanes[number]
                lane.add(event)
                if number == 0:
                    view.add(lane.events[-1])
                if isinstance(event, TokenDecoded):
                    view.phase = "drawing"
            if time.monotonic() >= due:
                yield {**self.draw(session), **self.compose.running(True)}
                due = time.monotonic() + PERIOD
        if view.running:  # another run has taken over, and draws
            return
        if session.lanes.lanes and not view.notice:  # a refused run leaves the lanes as they were
            self._explain(session, values)
        yield {**self.draw(session), **self.compose.running(view.running)}

    def _explain(self, session: Session, values: dict[str, Any]) -> None:
        """Name the causes and score the human text, once the lanes have ended."""
        number, compared = session.compare.number, session.lanes
        try:
            engine = self.loader.require()
            if not compared.differences:
                compared.compare(engine)
            human = values["human"]
            if isinstance(human, str) and human.strip() and number == session.compare.number:
                trace = engine.score(f"{session.compare.prompt}{human}", cache_salt=session.salt)
                own = len(engine.encode(session.compare.prompt))
                compared.human = trace.steps()[max(0, own - 1) :]
        except PlaygroundError as error:
            session.compare.notice = str(error)

    def _take(self, session: Session, turned: Any, sent: Any, event: gr.EventData) -> Updates:
        """Put the knobs on the left into a lane."""
        take_settings(session, turned)
        values, lane = self.fields.read(sent), whole(event, "lane")
        rows = values["lanes"]
        if not isinstance(rows, list) or lane is None or not 0 <= lane < len(rows):
            return {self.fields.html: gr.skip()}
        values["lanes"] = [*rows[:lane], lanes.of_settings(session.settings), *rows[lane + 1 :]]
        session.settings_number += 1
        return {self.fields.html: self.fields.value(session.settings_number, values)}

    def _csv(self, session: Session) -> dict[str, Any]:
        entries = compare_payloads.lanes(session.lanes)
        if not entries:
            raise gr.Error("There is nothing to export yet: run the lanes first.", print_exception=False)
        names = [name for name, _ in compare_payloads.COLUMNS]
        rows = [[entry["name"], entry["summary"], *entry["row"]] for entry in entries]
        session.num_saved += 1
        text = tables.to_csv(["lane", "settings", *names], rows)
        return {"name": "compare.csv", "type": "text/csv", "text": text, "number": session.num_saved}

    def draw(self, session: Session) -> Updates:
        return {self.view: payload(session)}


def _limit(values: dict[str, Any]) -> Any:
    wanted = values["max_new_tokens"]
    if isinstance(wanted, int | float) and wanted > MAX_TOKENS:
        raise RequestError(f"a comparison takes at most {MAX_TOKENS} new tokens per lane, got {wanted}")
    return wanted


def payload(session: Session) -> dict[str, Any]:
    """What the compare component draws."""
    view, compared = session.compare, session.lanes
    started = view.started
    return {
        "drawn": drawn(),
        "number": view.number,
        "running": view.running,
        "phase": view.phase,
        "notice": view.notice,
        "prompt": view.prompt,
        "seed": None if started is None else started.seed,
        "lanes": compare_payloads.lanes(compared),
        "columns": [list(column) for column in compare_payloads.COLUMNS],
        "figure": lane_plots.probabilities(compared),
    }
