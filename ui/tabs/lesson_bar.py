"""The lessons of a tab: a click asks the question and runs it; what the run shows is told at its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gradio as gr

from ui import knobs
from ui.presets.lessons import Lesson
from ui.presets.request_sets import RequestSet
from ui.runs.claims import Finding
from ui.session import Session

if TYPE_CHECKING:
    from ui.tabs.tab import Tab, Updates

Guided = Lesson | RequestSet


@dataclass
class Told:
    """The lesson chosen last in a tab. Once its run has ended, `number` is that of the text shown then."""

    lesson: str
    number: int | None = None
    found: Sequence[Finding] = ()


@dataclass
class Guide:
    """What one visitor chose, by tab."""

    told: dict[str, Told] = field(default_factory=dict)


class LessonBar:
    """The bar and its wiring. A lesson fills the prompt, the tab's fields and the knobs, and runs."""

    def __init__(self, tab: Tab, lessons: Iterable[Guided], name: str = "lessons"):
        self.tab = tab
        self.lessons: dict[str, Guided] = {each.name: each for each in lessons if each.tab == tab.name}
        self.bar = tab.card(
            "lessons", self._payload, name, spec=described(self.lessons.values()), framed=False
        )

    def wire(self) -> None:
        # A second lesson ends the first; the click must not get lost.
        self.tab.on(self.bar.choose, self._choose, outputs=self.outputs)

    def _choose(self, session: Session, event: gr.EventData) -> Iterator[dict[Any, Any]]:
        name = event._data.get("lesson") if isinstance(event._data, dict) else None
        if str(name) in self.lessons:
            yield from self.run(session, str(name))
        else:
            yield {self.bar: gr.skip()}

    @property
    def outputs(self) -> list[Any]:
        """What `run` updates."""
        placed = [self.tab.prompt, self.tab.page.knobs]
        return [*self.tab.outputs, *placed, *([self.tab.fields.html] if self.tab.fields else [])]

    def run(self, session: Session, name: str) -> Iterator[Updates]:
        """Put a lesson's settings in place, run it, and check what it claims."""
        tab, lesson = self.tab, self.lessons[name]
        view, told = tab.view(session), Told(name)
        session.state(Guide).told[tab.name] = told
        placed, sent = self.placed(session, lesson)
        yield {**placed, **tab.draw(session, self.bar)}
        before = view.number
        yield from tab.start(session, None, lesson.prompt if isinstance(lesson, Lesson) else "", sent)
        if view.running or view.stopped or view.number == before:  # taken over, stopped, refused
            return
        told.found = [claim.check(tab.seen(session)) for claim in lesson.shows]
        told.number = view.number
        yield {**tab.draw_end(session), **tab.compose.running(False), **tab.draw(session, self.bar)}

    def placed(self, session: Session, lesson: Guided) -> tuple[Updates, Any]:
        """The updates that put a lesson in place, and its fields as the tab's `start` takes them."""
        assert isinstance(lesson, Lesson)
        assert self.tab.fields is not None, f"the tab {self.tab.name} has lessons and no fields"
        turned = session.put_settings(settings(lesson))
        sent = self.tab.fields.value(turned["number"], values(lesson, self.tab.fields.start))
        return {
            self.tab.prompt: lesson.prompt,
            self.tab.fields.html: sent,
            self.tab.page.knobs: turned,
        }, sent

    def _payload(self, session: Session) -> dict[str, Any]:
        """The lesson chosen, and what its run showed as long as that run is the one on screen."""
        told, view = session.state(Guide).told.get(self.tab.name), self.tab.view(session)
        is_shown = told is not None and told.number == view.number and not view.running
        return {
            "chosen": told.lesson if told else None,
            "running": view.running,
            "found": [list(finding) for finding in told.found] if told and is_shown else None,
        }


def described(lessons: Iterable[Guided]) -> list[dict[str, str]]:
    """The lessons' texts, as the components read them."""
    names = ("name", "tab", "title", "question", "look_for", "answer")
    return [{name: getattr(lesson, name) for name in names} for lesson in lessons]


def settings(lesson: Guided) -> dict[str, Any]:
    """The knobs as the lesson wants them."""
    own = {"chat": lesson.chat, "seed": lesson.seed}
    return knobs.DEFAULTS | knobs.settings_of(lesson.settings) | own


def values(lesson: Lesson, start: dict[str, Any]) -> dict[str, Any]:
    """The tab's fields as the lesson wants them; choices are text there."""
    wanted = {name: value for name, value in lesson.fields.items() if name in start}
    if isinstance(wanted.get("early_stopping"), bool):
        wanted["early_stopping"] = str(wanted["early_stopping"]).lower()
    return start | wanted | {"max_new_tokens": lesson.max_new_tokens}
