"""What the page needs of a tab: to lay it out, wire it, draw it when opened, and run it from a link."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import gradio as gr

from ui.session import Session
from ui.tabs.fields import Fields
from ui.tabs.viewer import Updates


class Panel(Protocol):
    """One tab.

    Attributes:
        name: its id in links and its View's name in a session.
        title: what the tab reads.
        prompt: the text it works on.
        fields: the settings it has beside the knobs; None without any.
        outputs: every component that `draw` and `start` may update.
    """

    name: str
    title: str
    prompt: gr.Textbox
    outputs: list[Any]

    @property
    def fields(self) -> Fields | None: ...

    def wire(self, session: gr.State, settings: gr.HTML) -> None:
        """Connect the tab's own events; sets `outputs`."""

    def start(self, session: Session, turned: Any, prompt: str, sent: Any) -> Iterator[Updates]:
        """Run the prompt under the knobs `turned` and the fields `sent`, yielding what to redraw."""

    def draw(self, session: Session) -> Updates:
        """Everything anew."""
