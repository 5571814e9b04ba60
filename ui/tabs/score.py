"""Score a text: how likely the model finds each token of a text that somebody wrote."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from backend.errors import PlaygroundError
from ui import payloads
from ui.loading import Loader
from ui.session import Session
from ui.tabs.viewer import QUIET, Updates, Viewer, take_settings

EXAMPLE = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, "
    "it was the age of marmalade."
)


class Score:
    """The tab's widgets and their wiring."""

    def __init__(self, loader: Loader):
        self.loader = loader
        with gr.Row(elem_classes="pg-compose"):
            self.text = gr.Textbox(
                value=EXAMPLE,
                lines=2,
                max_lines=8,
                show_label=False,
                label="Text to score",
                container=False,
                placeholder="Any text",
                elem_id="pg-text",
            )
            with gr.Row(elem_classes="pg-buttons"):
                self.run = gr.Button("Score", elem_classes="pg-run", elem_id="pg-score-run")
        self.viewer = Viewer("score", loader, lambda session: session.score)

    def wire(self, session: gr.State, settings: gr.HTML) -> None:
        self.viewer.wire(session)
        for event in (self.run.click, self.text.submit):
            event(
                self._score,
                inputs=[session, settings, self.text],
                outputs=self.viewer.outputs,
                **QUIET,
            )

    def _score(self, session: Session, turned: Any, text: str) -> Iterator[Updates]:
        take_settings(session, turned)
        view = session.score
        view.notice, view.phase = "", "scoring"
        view.idle.clear()
        try:
            for line in self.loader.wait():
                view.phase = f"waiting for the model: {line}"
                yield {self.viewer.strip: payloads.strip(view)}
            yield {self.viewer.strip: payloads.strip(view)}
            trace = self.loader.require().score(text, cache_salt=session.salt)
            view.show(trace, "score")
        except PlaygroundError as error:
            view.notice = str(error)
        finally:
            view.idle.set()
            view.phase = ""
        if session.restore_token is not None:
            view.pinned, session.restore_token = session.restore_token, None
        yield self.viewer.draw(session)

    def run_on_load(self, session: Session, text: str) -> Iterator[Updates]:
        """Score the text of a link, once."""
        if session.run_on_load and session.tab == "score":
            session.run_on_load = False
            yield from self._score(session, None, text)
        else:
            yield {self.viewer.strip: gr.skip()}

    def turn(self, session: Session, turned: Any) -> Updates:
        """A knob was moved: show what it would have done to the selected token."""
        take_settings(session, turned)
        return {self.viewer.step: self.viewer.draw_step(session)}
