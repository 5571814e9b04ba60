"""Code: the settings written for other engines, and theirs read into the knobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gradio as gr

from backend import BeamSearch, BestOf, Request
from backend.errors import PlaygroundError, RequestError
from backend.interop.export import TARGETS, export, known_as
from backend.interop.foreign import Imported, read
from ui import components, knobs
from ui.loading import Loader
from ui.session import Session
from ui.tabs.compose import Compose
from ui.tabs.fields import Fields
from ui.tabs.viewer import QUIET, Updates, take_settings

FIELDS: list[dict[str, Any]] = [
    {
        "name": "strategy",
        "title": "strategy",
        "kind": "select",
        "options": [["sample", "one sample"], ["beams", "beam search"], ["best_of", "several samples"]],
        "hint": "How the text is decoded; all other settings are the knobs on the left.",
    },
    {
        "name": "n",
        "title": "beams or samples",
        "kind": "number",
        "min": 1,
        "max": 64,
        "step": 1,
        "hint": "How many beams or samples.",
        "unless": {"strategy": "sample"},
    },
]
START: dict[str, Any] = {"strategy": "sample", "n": 4}
NOTE = "Turn a knob on the left and the code follows."
PROMPT = "Once upon a time"


class Code:
    """The tab's widgets and their wiring."""

    name, title = "code", "Code"

    def __init__(self, loader: Loader):
        self.loader = loader
        self.compose = Compose("code", PROMPT, run="Write", can_stop=False)
        self.prompt = self.compose.prompt
        self.fields: Fields = Fields("code", FIELDS, START, NOTE)
        self.view = components.build("code", self.payload(Session()), "pg-code-view")
        self.view.elem_classes = [*self.view.elem_classes, "pg-card"]

    def wire(self, session: gr.State, settings: gr.HTML) -> None:
        self.outputs: list[Any] = [self.view]
        self.settings = settings
        inputs = [session, settings, self.prompt, self.fields.html]
        for event in (self.compose.run.click, self.prompt.submit, self.prompt.change, self.fields.html.turn):
            event(self.start, inputs=inputs, outputs=self.outputs, trigger_mode="always_last", **QUIET)
        self.view.read_settings(
            self._read, inputs=[session, settings], outputs=[self.view, settings, self.prompt], **QUIET
        )

    def start(self, session: Session, turned: Any, prompt: str, sent: Any) -> Iterator[Updates]:
        take_settings(session, turned)
        session.exported = (prompt, self.fields.read(sent))
        session.imported = ""
        yield self.draw(session)

    def draw(self, session: Session) -> Updates:
        return {self.view: self.payload(session)}

    def turn(self, session: Session, turned: Any) -> Updates:
        """A knob was moved: the code follows."""
        take_settings(session, turned)
        return self.draw(session)

    def payload(self, session: Session) -> dict[str, Any]:
        """What the code component draws."""
        prompt, values = session.exported or (PROMPT, START)
        engine = self.loader.engine
        model = known_as(engine.model_name if engine is not None else "smollm2-135m")
        try:
            asked = request(prompt, session.settings, values)
            made = [(name, export(asked, name, model)) for name in TARGETS]
        except PlaygroundError as error:
            return {"snippets": [], "notice": str(error), "said": session.imported}
        snippets = [
            {"name": name, "title": item.title, "code": item.code, "notes": list(item.notes)}
            for name, item in made
        ]
        return {"snippets": snippets, "notice": "", "said": session.imported}

    def _read(self, session: Session, turned: Any, event: gr.EventData) -> Updates:
        """Put foreign settings into the knobs; what cannot be read leaves them as they are."""
        take_settings(session, turned)
        text = event._data.get("text") if isinstance(event._data, dict) else None
        try:
            found = read(text if isinstance(text, str) else "")
        except PlaygroundError as error:
            session.imported = f"Nothing was changed: {error}"
            return self.draw(session)
        own = {name: value for name, value in found.values.items() if name != "prompt"}
        session.settings |= knobs.settings_of(found.sampling) | own
        session.settings_number += 1
        session.imported = " ".join([f"Read as {found.source}; the knobs are set.", *found.notes])
        updates: Updates = {
            self.settings: {
                "number": session.settings_number,
                "settings": session.settings,
                "activity": {},
            }
        }
        prompt = _text(found)
        if prompt:
            updates[self.prompt] = prompt
            session.exported = (prompt, (session.exported or (prompt, START))[1])
        return updates | self.draw(session)


def _text(found: Imported) -> str:
    prompt = found.values.get("prompt")
    return prompt if isinstance(prompt, str) else ""


def request(prompt: str, settings: dict[str, Any], values: dict[str, Any]) -> Request:
    """The Request to write down.

    Raises:
        RequestError: a value has the wrong type or is out of range.
    """
    asked = knobs.request(prompt, knobs.DEFAULTS | settings, "")
    if values["strategy"] == "beams":
        return replace(asked, strategy=BeamSearch(num_beams=values["n"]))
    if values["strategy"] == "best_of":
        return replace(asked, strategy=BestOf(n=values["n"]))
    if values["strategy"] != "sample":
        raise RequestError(f"strategy must be sample, beams or best_of, got {str(values['strategy'])[:40]!r}")
    return asked
