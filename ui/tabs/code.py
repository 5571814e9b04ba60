"""Code: the knobs as code for other engines, and their settings read into the knobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import gradio as gr

from backend import BeamSearch, BestOf, Request
from backend.errors import PlaygroundError
from backend.interop.export import TARGETS, export, known_as
from backend.interop.foreign import read
from ui import knobs
from ui.session import Session, take_settings
from ui.tabs.fields import Fields, check, number, select, starts
from ui.tabs.tab import Page, Tab, Updates, got

FIELDS: list[dict[str, Any]] = [
    select(
        "strategy",
        "strategy",
        {"sample": "one sample", "beams": "beam search", "best_of": "several samples"},
        "How the text is decoded; all other settings are the knobs on the left.",
    ),
    number("n", "beams or samples", 1, 64, 4, "How many beams or samples.", unless={"strategy": "sample"}),
]
NOTE = "Turn a knob on the left and the code follows."
PROMPT = "Once upon a time"


@dataclass
class Exported:
    """What is written as code besides the knobs, and what was said of settings that were read."""

    prompt: str = PROMPT
    values: dict[str, Any] = field(default_factory=lambda: starts(FIELDS))
    said: str = ""


class Code(Tab):
    """The tab's widgets and their wiring. It runs nothing, so it needs nothing of an engine."""

    name, title = "code", "Code"
    needs = ()
    fields: Fields

    def __init__(self, page: Page):
        super().__init__(page)
        self.lay_out(PROMPT, FIELDS, NOTE, run="Write", can_stop=False)
        self.written = self.card("code", self._payload, "view")
        self.turning = [self.written]

    def wire(self) -> None:
        changes = (self.compose.run.click, self.prompt.submit, self.prompt.change, self.fields.html.turn)
        for event in changes:
            self.on(event, self.start, *self.asked, mode="always_last")
        outputs = [self.written, self.page.knobs, self.prompt]
        self.on(self.written.read_settings, self._read, self.page.knobs, outputs=outputs, mode=None)

    def start(self, session: Session, turned: Any, prompt: str, sent: Any = None) -> Iterator[Updates]:
        take_settings(session, turned)
        session.put(Exported(prompt, self.fields.read(sent)))
        yield self.draw(session)

    def _payload(self, session: Session) -> dict[str, Any]:
        engine = self.loader.engine
        model = engine.model_name if engine is not None else "smollm2-135m"
        return payload(session.settings, session.state(Exported), known_as(model))

    def _read(self, session: Session, turned: Any, event: gr.EventData) -> Updates:
        """Put foreign settings into the knobs; what cannot be read leaves them as they are."""
        take_settings(session, turned)
        state = session.state(Exported)
        try:
            found = read(got(event, "text", str) or "")
        except PlaygroundError as error:
            state.said = f"Nothing was changed: {error}"
            return self.draw(session)
        own = {name: value for name, value in found.values.items() if name != "prompt"}
        settings = session.put_settings(knobs.settings_of(found.sampling) | own)
        state.said = " ".join([f"Read as {found.source}; the knobs are set.", *found.notes])
        updates: Updates = {self.page.knobs: settings}
        prompt = found.values.get("prompt")
        if isinstance(prompt, str) and prompt:
            updates[self.prompt] = state.prompt = prompt
        return updates | self.draw(session)


def payload(settings: dict[str, Any], state: Exported, model: str) -> dict[str, Any]:
    """What the code component draws: a snippet for every target, or why there is none."""
    try:
        asked = request(state.prompt, settings, state.values)
        made = [(name, export(asked, name, model)) for name in TARGETS]
    except PlaygroundError as error:
        return {"snippets": [], "notice": str(error), "said": state.said}
    snippets = [
        {"name": name, "title": item.title, "code": item.code, "notes": list(item.notes)}
        for name, item in made
    ]
    return {"snippets": snippets, "notice": "", "said": state.said}


def request(prompt: str, settings: dict[str, Any], values: dict[str, Any]) -> Request:
    """The Request to write down.

    Raises:
        RequestError: a value has the wrong type or is out of range.
    """
    wanted = check(FIELDS, values)
    asked = knobs.request(prompt, knobs.DEFAULTS | settings, "")
    if wanted["strategy"] == "beams":
        return replace(asked, strategy=BeamSearch(num_beams=wanted["n"]))
    if wanted["strategy"] == "best_of":
        return replace(asked, strategy=BestOf(n=wanted["n"]))
    return asked
