"""Score a text: how likely the model finds each token of a text that somebody wrote."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import gradio as gr

from backend import Engine, EventStream
from backend.events import Started
from ui.loading import Loader
from ui.session import Session
from ui.tabs.compose import Compose
from ui.tabs.fields import Fields
from ui.tabs.player import play
from ui.tabs.viewer import Updates, Viewer, take_settings

PERIOD = 0.3  # seconds between redraws while the scores come in
EXAMPLE = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, "
    "it was the age of marmalade."
)


class Score:
    """The tab's widgets and their wiring."""

    name, title = "score", "Score a text"
    fields: Fields | None = None

    def __init__(self, loader: Loader):
        self.loader = loader
        self.compose = Compose("score", EXAMPLE, run="Score")
        self.prompt = self.compose.prompt
        self.viewer = Viewer("score", loader, lambda session: session.score)

    def wire(self, session: gr.State, settings: gr.HTML) -> None:
        self.outputs = [*self.viewer.outputs, self.compose.stop]
        self.viewer.wire(session)
        self.compose.wire(session, settings, self.start, self.outputs, lambda session: session.score)

    def start(self, session: Session, turned: Any, prompt: str, sent: Any = None) -> Iterator[Updates]:
        """Score the text in the box."""
        take_settings(session, turned)
        view = session.score

        def begin(engine: Engine) -> list[EventStream]:
            stream = engine.stream_score(prompt, session.salt)
            view.begin(stream.request, "score")
            return [stream]

        due = 0.0
        for batch in play(view, self.loader, begin):
            for _, event in batch or ():
                view.add(event)
                if isinstance(event, Started):
                    view.prompt = "".join(event.prompt_labels)
            if time.monotonic() >= due:
                yield {**self.draw(session), **self.compose.running(True)}
                due = time.monotonic() + PERIOD
        if not view.running:
            yield {**self.draw(session), **self.compose.running(False)}

    def draw(self, session: Session) -> Updates:
        return self.viewer.draw(session)

    def turn(self, session: Session, turned: Any) -> Updates:
        """A knob was moved: show what it would have done to the selected token."""
        take_settings(session, turned)
        return {self.viewer.step: self.viewer.draw_step(session)}
