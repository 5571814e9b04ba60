"""The lessons of a tab: a click puts prompt, fields and knobs in place and says what to look for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import gradio as gr

from ui import components, knobs
from ui.presets.lessons import Lesson
from ui.session import Session

if TYPE_CHECKING:
    from ui.tabs.tab import Tab


class LessonBar:
    """The bar and its wiring. A lesson fills the prompt, the tab's fields and the knobs."""

    def __init__(self, tab: str, lessons: Iterable[Lesson]):
        self.lessons = {lesson.name: lesson for lesson in lessons if lesson.tab == tab}
        spec = [
            {name: getattr(lesson, name) for name in ("name", "title", "look_for", "question", "answer")}
            for lesson in self.lessons.values()
        ]
        self.bar = components.build("lessons", {"chosen": None}, f"pg-{tab}-lessons", spec=spec)

    @property
    def first(self) -> Lesson | None:
        return next(iter(self.lessons.values()), None)

    def wire(self, tab: Tab) -> None:
        assert tab.fields is not None, f"the tab {tab.name} has lessons and no fields"
        self.prompt, self.fields, self.turned = tab.prompt, tab.fields, tab.page.knobs
        tab.on(self.bar.choose, self._choose, outputs=self.outputs, mode=None)

    def _choose(self, session: Session, event: gr.EventData) -> dict[Any, Any]:
        name = event._data.get("lesson") if isinstance(event._data, dict) else None
        return self.put(session, str(name)) if str(name) in self.lessons else {self.bar: gr.skip()}

    @property
    def outputs(self) -> list[Any]:
        """What `put` updates."""
        return [self.bar, self.prompt, self.fields.html, self.turned]

    def put(self, session: Session, name: str) -> dict[Any, Any]:
        """Put a lesson's settings in place."""
        lesson = self.lessons[name]
        turned = session.put_settings(settings(lesson))
        return {
            self.bar: {"chosen": lesson.name},
            self.prompt: lesson.prompt,
            self.fields.html: self.fields.value(turned["number"], values(lesson, self.fields.start)),
            self.turned: turned,
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
