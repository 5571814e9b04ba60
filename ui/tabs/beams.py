"""Beams: a search as a tree that grows while it runs, and the texts it found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from backend import BeamSearch, Request
from backend.events import BeamStepped, Event, SampleFinished
from backend.protocol import EngineProtocol, RunStream
from ui import knobs
from ui.payloads import search as payloads
from ui.runs.beam_tree import BeamTree
from ui.session import Session
from ui.tabs.fields import number, select, starts, tick
from ui.tabs.player import start_all
from ui.tabs.tab import Page, Tab

EARLY: dict[Any, Any] = {"false": False, "true": True, "never": "never"}
ENDS = {
    "false": "when no beam can do better now",
    "true": "when enough texts ended",
    "never": "only when none ever can",
}
FIELDS: list[dict[str, Any]] = [
    number("num_beams", "beams", 1, 16, 4, "Texts kept at every step. 1 is greedy."),
    number(
        "length_penalty",
        "length penalty",
        -2,
        3,
        1.0,
        "The sum of log p is divided by length to this power. Above 0 favours long texts.",
        0.1,
    ),
    select(
        "early_stopping",
        "early stopping",
        ENDS,
        "When the search ends: false, true or never in transformers.",
    ),
    number("num_return_sequences", "returned", 1, 16, 1, "Texts handed back, at most as many as beams."),
    number(
        "num_beam_groups",
        "groups",
        1,
        16,
        1,
        "Groups search one after the other at each step; the beams must divide among them.",
    ),
    number(
        "diversity_penalty",
        "diversity",
        0,
        5,
        0.0,
        "A token costs this much for each time an earlier group chose it at this step.",
        0.1,
    ),
    number("max_new_tokens", "new tokens", 1, 256, 32, "Upper limit on generated tokens."),
    tick(
        "stochastic",
        "stochastic",
        False,
        "Draws that many different texts, a sample without replacement, instead of searching.",
        needs="stochastic_beams",
    ),
]
START = starts(FIELDS)
PROMPT = "The capital of Australia is the city of"
NOTE = (
    "Of the knobs on the left, the penalties, no-repeat, bias and the chat template take part in the search. "
    "Temperature, the cuts and the seed do not, unless it is stochastic. Stop strings end no beam: they "
    "shorten what is returned."
)


class Beams(Tab):
    """The tab's widgets and their wiring."""

    name, title = "beams", "Beams"
    needs = ("beams",)
    period = 0.2

    def __init__(self, page: Page):
        super().__init__(page)
        self.lay_out(PROMPT, FIELDS, NOTE, run="Search")
        self.picture("tree", payloads.growing, BeamTree)
        self.picture("hypotheses", payloads.found, BeamTree, "found")

    def begin(
        self, session: Session, engine: EngineProtocol, prompt: str, values: dict[str, Any]
    ) -> Sequence[RunStream]:
        asked = request(prompt, session.settings, values, session.salt)
        streams = start_all(engine, [asked, greedy(asked)])
        view = self.view(session)
        session.put(BeamTree())
        view.begin(asked, "run", prompt=prompt)
        return streams

    def take(self, session: Session, number: int, event: Event) -> None:
        view, tree = self.view(session), session.state(BeamTree)
        if number == 0:
            view.add(event)
            if isinstance(event, SampleFinished):
                tree.add_result(event)
        if isinstance(event, BeamStepped):
            view.phase = "searching"
            (tree.add, tree.add_greedy)[number](event)

    def seen(self, session: Session) -> BeamTree:
        return session.state(BeamTree)


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
    """The greedy text under the same penalties, bans and biases, scored as the search scores its own."""
    search = asked.strategy
    assert isinstance(search, BeamSearch)
    return replace(asked, strategy=BeamSearch(num_beams=1, length_penalty=search.length_penalty))
