"""Score a text: how likely the model finds each token of a text that somebody wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.events import Event, Started
from backend.protocol import EngineProtocol, RunStream
from ui.session import Session
from ui.tabs.tab import Page, Tab
from ui.tabs.viewer import Viewer

EXAMPLE = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, "
    "it was the age of marmalade."
)


class Score(Tab):
    """The tab's widgets and their wiring."""

    name, title = "score", "Score a text"
    needs = ("scoring",)
    period = 0.3

    def __init__(self, page: Page):
        super().__init__(page)
        self.lay_out(EXAMPLE, run="Score")
        self.viewer = Viewer(self)
        self.turning = [self.viewer.step]

    def wire(self) -> None:
        super().wire()
        self.viewer.wire()

    def begin(
        self, session: Session, engine: EngineProtocol, prompt: str, values: dict[str, Any]
    ) -> Sequence[RunStream]:
        stream = engine.stream_score(prompt, session.salt)
        self.view(session).begin(stream.request, "score")
        return [stream]

    def take(self, session: Session, number: int, event: Event) -> None:
        super().take(session, number, event)
        if isinstance(event, Started):
            self.view(session).prompt = "".join(event.prompt_labels)
