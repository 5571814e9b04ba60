"""The lessons of a tab: a click puts prompt, fields and knobs in place and says what to look for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gradio as gr

from ui import components, knobs
from ui.presets.lessons import Lesson
from ui.session import Session
from ui.tabs.fields import Fields
from ui.tabs.viewer import QUIET, Updates


class LessonBar:
    """The bar and its wiring. A lesson fills the prompt, the tab's fields and the knobs."""

    def __init__(self, tab: str, lessons: Iterable[Lesson]):
        self.lessons = {lesson.name: lesson for lesson in lessons if lesson.tab == tab}
        spec = [
            {name: getattr(lesson, name) for name in ("name", "title", "look_for", "question", "answer")}
            for lesson in self.lessons.values()
        ]
        self.bar = components.build("lessons", {"chosen": None}, f"pg-{tab}-lessons", spec=spec)

    def wire(self, session: gr.State, turned: gr.HTML, prompt: gr.Textbox, fields: Fields) -> None:
        self.turned, self.prompt, self.fields = turned, prompt, fields
        self.bar.choose(self._choose, inputs=[session], outputs=self.outputs, **QUIET)

    def _choose(self, session: Session, event: gr.EventData) -> Updates:
        name = event._data.get("lesson") if isinstance(event._data, dict) else None
        return self.put(session, str(name)) if str(name) in self.lessons else {self.bar: gr.skip()}

    @property
    def outputs(self) -> list[Any]:
        """What `put` updates."""
        return [self.bar, self.prompt, self.fields.html, self.turned]

    def put(self, session: Session, name: str) -> Updates:
        """Put a lesson's settings in place."""
        lesson = self.lessons[name]
        session.settings = settings(lesson)
        session.settings_number += 1
        number = session.settings_number  # one that the components have not accepted yet
        return {
            self.bar: {"chosen": lesson.name},
            self.prompt: lesson.prompt,
            self.fields.html: self.fields.value(number, values(lesson, self.fields.start)),
            self.turned: {"number": number, "settings": session.settings, "activity": {}},
        }


def settings(lesson: Lesson) -> dict[str, Any]:
    """The knobs as the lesson wants them."""
    own = {"chat": lesson.chat, "seed": lesson.seed}
    return knobs.DEFAULTS | knobs.settings_of(lesson.settings) | own


def values(lesson: Lesson, start: dict[str, Any]) -> dict[str, Any]:
    """The tab's fields as the lesson wants them; choices are text there."""
    wanted = {name: value for name, value in lesson.fields.items() if name in start}
    if isinstance(wanted.get("early_stopping"), bool):
        wanted["early_stopping"] = str(wanted["early_stopping"]).lower()
    return start | wanted | {"max_new_tokens": lesson.max_new_tokens}
