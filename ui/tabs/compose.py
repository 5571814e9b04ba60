"""The row on top of a tab: the prompt, and the buttons that run and stop it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gradio as gr

from ui.session import Session, View
from ui.tabs.fields import Fields
from ui.tabs.player import halt
from ui.tabs.viewer import QUIET, Updates


class Compose:
    """The row's widgets, named in the page after the tab: pg-<name>-prompt, pg-<name>-run, pg-<name>-stop.

    `more` are the titles of further buttons, kept in that order.
    """

    def __init__(
        self,
        name: str,
        prompt: str,
        run: str = "Run",
        lines: int = 2,
        more: Sequence[str] = (),
        can_stop: bool = True,
    ) -> None:
        with gr.Row(elem_classes="pg-compose"):
            self.prompt = gr.Textbox(
                value=prompt,
                lines=lines,
                max_lines=lines + 6,
                show_label=False,
                label="Prompt",
                container=False,
                placeholder="A prompt to continue",
                elem_id=f"pg-{name}-prompt",
            )
            with gr.Row(elem_classes="pg-buttons"):
                self.run = gr.Button(run, elem_classes="pg-run", elem_id=f"pg-{name}-run")
                self.stop = gr.Button(
                    "Stop",
                    elem_classes="pg-stop",
                    elem_id=f"pg-{name}-stop",
                    interactive=False,
                    visible=can_stop,
                )
                self.more = [
                    gr.Button(title, elem_id=f"pg-{name}-{title.lower()}", elem_classes="pg-more")
                    for title in more
                ]

    @property
    def buttons(self) -> list[gr.Button]:
        return [self.run, self.stop, *self.more]

    def wire(
        self,
        session: gr.State,
        settings: gr.HTML,
        start: Callable[..., Iterator[Updates]],
        outputs: list[Any],
        pick: Callable[[Session], View],
        fields: Fields | None = None,
    ) -> None:
        """Run and Enter `start` with the session, the knobs, the prompt and the fields; Stop ends.

        `pick` finds the View whose run Stop ends.
        """
        inputs = [session, settings, self.prompt, *([fields.html] if fields else [])]
        for event in (self.run.click, self.prompt.submit):
            # A second Run starts over; the click must not get lost.
            event(start, inputs=inputs, outputs=outputs, trigger_mode="multiple", **QUIET)
        self.wire_stop(session, pick)

    def wire_stop(self, session: gr.State, pick: Callable[[Session], View]) -> None:
        """Stop ends the run of the View that `pick` finds in the session."""
        self.stop.click(lambda session: halt(pick(session)), inputs=[session], queue=False, **QUIET)

    def running(self, running: bool) -> dict[Any, Any]:
        """The update that lets Stop be clicked, or not."""
        return {self.stop: gr.Button(interactive=running)}
