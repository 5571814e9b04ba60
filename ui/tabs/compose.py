"""The row on top of a tab: the prompt, the buttons that run and stop it, and why it cannot be run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr


class Compose:
    """The row's widgets, named in the page after the tab: pg-<name>-prompt, pg-<name>-run, pg-<name>-stop.

    `more` are the titles of further buttons, kept in that order. `lack` stays empty where the engine can do
    what the tab needs.
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
        self.lack = gr.HTML("", visible=False, elem_id=f"pg-{name}-lack", elem_classes="pg-notice")

    @property
    def buttons(self) -> list[gr.Button]:
        return [self.run, self.stop, *self.more]

    def running(self, running: bool) -> dict[Any, Any]:
        """The update that lets Stop be clicked, or not."""
        return {self.stop: gr.Button(interactive=running)}

    def refuse(self, reason: str) -> dict[Any, Any]:
        """The update that shows the reason and lets nothing but Stop be clicked."""
        greyed = [self.run, *self.more]
        return {self.lack: gr.HTML(reason, visible=True)} | {b: gr.Button(interactive=False) for b in greyed}
