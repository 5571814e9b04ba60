"""Samples: n texts drawn side by side, and the one that a rule selects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gradio as gr

from backend import BestOf, Request
from backend.events import Event, TokenDecoded
from backend.protocol import EngineProtocol, RunStream
from ui import knobs
from ui.payloads import search as payloads
from ui.runs.reselect import RULES, Choice, Recorded, recorded
from ui.session import Session
from ui.tabs.fields import number, starts, typed
from ui.tabs.tab import Page, Tab, Updates, got

MAX_MATRIX = 32  # similarities of more samples than this take seconds, so they are only computed for "mbr"
FIELDS: list[dict[str, Any]] = [
    number("n", "samples", 1, 64, 8, "Texts drawn in one batch."),
    number("max_new_tokens", "new tokens", 1, 512, 64, "Upper limit on generated tokens of each sample."),
    typed(
        "answer",
        "answer pattern",
        "text",
        "Regular expression with one group that finds the answer to vote on; acts from the next run.",
        placeholder="the last number",
    ),
]
START = starts(FIELDS)
PROMPT = "Q: A box holds 4 red and 5 blue pens. How many pens does it hold?\nA:"
NOTE = "All knobs on the left take part, the seed included: sample 1 is what Inspect draws under that seed."


class Samples(Tab):
    """The tab's widgets and their wiring."""

    name, title = "samples", "Samples"
    needs = ("several_samples",)

    def __init__(self, page: Page):
        super().__init__(page)
        self.lay_out(PROMPT, FIELDS, NOTE, run="Draw")
        self.shown = self.picture(
            "samples", lambda view, choice: payloads.samples(view, choice.rule), Choice, "cards"
        )

    def wire(self) -> None:
        super().wire()
        self.on(self.shown.rule, self._rule)

    def begin(
        self, session: Session, engine: EngineProtocol, prompt: str, values: dict[str, Any]
    ) -> Sequence[RunStream]:
        asked = request(prompt, session.settings, values, session.state(Choice).rule, session.salt)
        stream = engine.stream(asked)
        self.view(session).begin(asked, "run", prompt=prompt)
        return [stream]

    def take(self, session: Session, number: int, event: Event) -> None:
        super().take(session, number, event)
        if isinstance(event, TokenDecoded):
            self.view(session).phase = "drawing"

    def seen(self, session: Session) -> Recorded:
        view = self.view(session)
        strategy = view.request.strategy if view.request else None
        return recorded(view.events, strategy.n if isinstance(strategy, BestOf) else 0)

    def _rule(self, session: Session, event: gr.EventData) -> Updates:
        """Select by another rule from what the run recorded."""
        wanted = got(event, "rule", str)
        if wanted in RULES:
            session.put(Choice(wanted))
        return self.draw(session)


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
