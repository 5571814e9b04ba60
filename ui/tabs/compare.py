"""Compare: two to eight settings in one batch under one seed, and what made their texts part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from backend.events import Event, TokenDecoded
from backend.protocol import EngineProtocol, RunStream
from backend.stages import ORDERS
from ui import knobs, tables
from ui.payloads import compare as compare_payloads
from ui.runs import lanes
from ui.session import Session, take_settings
from ui.tabs.fields import Fields, number, starts, typed
from ui.tabs.player import start_all
from ui.tabs.tab import Page, Tab, Updates, got

MAX_TOKENS = 256  # per lane; tables of longer lanes would fill the memory
SPEC: dict[str, Any] = {
    "knobs": [
        {"name": knob.name, "title": knob.title, "step": knob.step, "neutral": knob.neutral}
        for knob in knobs.KNOBS
    ],
    "orders": list(ORDERS),
    "max_lanes": lanes.MAX_LANES,
    "min_lanes": lanes.MIN_LANES,
    "max_tokens": MAX_TOKENS,
}
FIELDS: list[dict[str, Any]] = [
    number(
        "max_new_tokens", "new tokens", 1, MAX_TOKENS, 40, "Upper limit on generated tokens of each lane."
    ),
    typed("human", "human text", "area"),
]
LANES: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"temperature": 0}]
START = {"lanes": LANES, **starts(FIELDS)}
PROMPT = "Once upon a time, there was a little"
NOTE = "Seed, bias, stop strings and chat come from the knobs on the left and are the same for all lanes."


class Compare(Tab):
    """The tab's widgets and their wiring."""

    name, title = "compare", "Compare"
    period = 0.2
    fields: Fields

    def __init__(self, page: Page):
        super().__init__(page)
        self.lay_out(PROMPT, FIELDS, NOTE, start=START, component="lanes", spec=SPEC)
        self.shown = self.picture("compare", compare_payloads.payload, lanes.Lanes, "view")
        self.save(self.shown.csv, "compare.csv", csv)

    def wire(self) -> None:
        super().wire()
        inspect: Any = self.page.panels["inspect"]

        def open_lane(session: Session, event: gr.EventData) -> Updates:
            """A token clicked in a lane opens that lane in Inspect, at that token."""
            lane, found = got(event, "lane", int), session.state(lanes.Lanes).lanes
            trace = found[lane].trace if lane is not None and 0 <= lane < len(found) else None
            if trace is None:
                return {self.page.knobs: gr.skip()}
            updates: Updates = inspect.open(session, trace, got(event, "index", int))
            return updates

        self.on(self.shown.open_lane, open_lane, outputs=inspect.opened, mode=None)
        fields = self.fields.html
        self.on(fields.take, self._take, self.page.knobs, fields, outputs=[fields], mode=None)

    def begin(
        self, session: Session, engine: EngineProtocol, prompt: str, values: dict[str, Any]
    ) -> Sequence[RunStream]:
        settings = session.settings | {"max_new_tokens": values["max_new_tokens"]}
        asked = lanes.requests(prompt, settings, values["lanes"], session.salt)
        streams = start_all(engine, asked)
        view = self.view(session)
        view.begin(asked[0], "run", prompt=prompt)
        # New ones: a run that this one took over may still explain its own.
        session.put(lanes.Lanes([lanes.Lane(request) for request in asked], human_text=values["human"]))
        return streams

    def take(self, session: Session, number: int, event: Event) -> None:
        view, lane = self.view(session), session.state(lanes.Lanes).lanes[number]
        lane.add(event)
        if number == 0:
            view.add(lane.events[-1])
        if isinstance(event, TokenDecoded):
            view.phase = "drawing"

    def ended(self, session: Session) -> None:
        """Name the causes and score the human text."""
        view, compared = self.view(session), session.state(lanes.Lanes)
        if compared.lanes and not view.notice:  # a refused run leaves the lanes as they were
            compared.explain(self.loader.require(), view.prompt, session.salt)

    def seen(self, session: Session) -> lanes.Lanes:
        return session.state(lanes.Lanes)

    def _take(self, session: Session, turned: Any, sent: Any, event: gr.EventData) -> Updates:
        """Put the knobs on the left into a lane."""
        take_settings(session, turned)
        values, lane = self.fields.read(sent), got(event, "lane", int)
        rows = values["lanes"]
        if not isinstance(rows, list) or lane is None or not 0 <= lane < len(rows):
            return {self.fields.html: gr.skip()}
        values["lanes"] = [*rows[:lane], lanes.of_settings(session.settings), *rows[lane + 1 :]]
        session.settings_number += 1
        return {self.fields.html: self.fields.value(session.settings_number, values)}


def csv(session: Session) -> str:
    """The table under the lanes; empty without any."""
    entries = compare_payloads.lanes(session.state(lanes.Lanes))
    names = [name for name, _ in compare_payloads.COLUMNS]
    rows = [[entry["name"], entry["summary"], *entry["row"]] for entry in entries]
    return tables.to_csv(["lane", "settings", *names], rows) if rows else ""
