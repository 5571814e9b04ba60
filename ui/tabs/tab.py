"""What every tab is: widgets, the payload of each of its cards, and the one loop that runs and draws."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import gradio as gr

from backend.errors import PlaygroundError, RequestError
from backend.protocol import Capabilities, EngineProtocol
from ui import components
from ui.loading import Loader
from ui.order import ordered
from ui.presets.lessons import Lesson
from ui.session import Session, View, take_settings
from ui.tabs.compose import Compose
from ui.tabs.fields import Fields
from ui.tabs.lesson_bar import LessonBar
from ui.tabs.player import Playable, halt, play

T = TypeVar("T")
Updates = dict[Any, Any]
# Events of the page itself: no spinner over the picture, not part of the API, one per visitor at a time.
# A spinner stands on no component at all, since with every update of an event gradio's page copies the whole
# value of each component that could show one, hidden or not.
QUIET: dict[str, Any] = {
    "show_progress": "hidden",
    "show_progress_on": [],
    "api_visibility": "private",
    "concurrency_limit": None,
}


@dataclass
class Page:
    """What the tabs of a page share.

    Attributes:
        first: what the page shows at first paint. state: the visitor's Session. knobs: the component.
        tabs: the gr.Tabs, to open one. panels: the tabs by name, each put there by itself.
    """

    loader: Loader
    first: Session
    state: gr.State
    knobs: gr.HTML
    tabs: gr.Tabs
    lessons: Sequence[Lesson] = ()
    panels: dict[str, Tab] = field(default_factory=dict)


class Tab:
    """One tab. A tab lays out its widgets in `__init__`, and says in `begin` and `take` what a run is.

    Attributes:
        name: its id in links and its View's name in a session. title: what the tab reads.
        needs: the capabilities of the engine without which it is greyed, with the reason.
        period: seconds between redraws while a run goes on.
        compose: the prompt and its buttons. fields: the settings beside the knobs; None without any.
        cards: every picture, with what draws it of a session. turning: those that follow a turned knob.
    """

    name: str
    title: str
    needs: tuple[str, ...] = ("sampling",)
    period = 0.15
    compose: Compose
    fields: Fields | None = None
    lessons: LessonBar | None = None
    turning: Sequence[gr.HTML] = ()

    def __init__(self, page: Page):
        self.page, self.loader = page, page.loader
        self.cards: dict[gr.HTML, Callable[[Session], Any]] = {}
        page.panels[self.name] = self

    @property
    def first_lesson(self) -> Lesson | None:
        return next((lesson for lesson in self.page.lessons if lesson.tab == self.name), None)

    def lay_out(
        self,
        prompt: str,
        inputs: list[dict[str, Any]] | None = None,
        note: str = "",
        *,
        start: Mapping[str, Any] | None = None,
        component: str = "fields",
        spec: Any = None,
        **compose: Any,
    ) -> None:
        """The rows on top: prompt and buttons as of `Compose`, the tab's lessons, and its `Fields`."""
        self.compose = Compose(self.name, prompt, **compose)
        if self.first_lesson:
            self.lessons = LessonBar(self, self.page.lessons)
        if inputs:
            self.fields = Fields(self.name, inputs, note, start, component, spec)

    def save(self, event: Callable[..., Any], name: str, table: Callable[[Session], str]) -> None:
        """Save the table, as CSV, as a file of that name when the event comes; an empty one is refused."""

        def act(session: Session) -> dict[str, Any]:
            text = table(session)
            if not text:
                raise gr.Error("There is nothing to export yet: run it first.", print_exception=False)
            return saved(session, name, "text/csv", text)

        saver = components.build("saver", None, f"pg-{self.name}-saver")
        self.on(event, act, outputs=[saver], mode=None)

    def card(
        self,
        component: str,
        payload: Callable[[Session], Any],
        name: str = "",
        spec: Any = None,
        framed: bool = True,
    ) -> gr.HTML:
        """A picture of the session: the component of that name, drawn by `payload`; pg-<tab>-<name>."""
        first = payload(self.page.first)
        html = components.build(component, first, f"pg-{self.name}-{name or component}", spec=spec)
        if framed:
            html.elem_classes = [*html.elem_classes, "pg-card"]
        self.cards[html] = payload
        return html

    def picture(
        self, component: str, payload: Callable[[View, Any], Any], state: type, name: str = "", **more: Any
    ) -> gr.HTML:
        """A card that draws the tab's View and the visitor's object of class `state`."""
        return self.card(
            component, lambda session: payload(self.view(session), session.state(state)), name, **more
        )

    @property
    def prompt(self) -> gr.Textbox:
        return self.compose.prompt

    @property
    def outputs(self) -> list[Any]:
        """Every component that `draw` and `start` may update."""
        return [*self.cards, self.compose.stop]

    def view(self, session: Session) -> View:
        return session.views[self.name]

    def on(
        self,
        event: Callable[..., Any],
        act: Callable[..., Any],
        *inputs: Any,
        outputs: Sequence[Any] | None = None,
        mode: str | None = "multiple",
    ) -> None:
        """Call `act` with the session and the inputs; it updates the tab's cards, or these outputs.

        "multiple": never "always_last", since of events that overlap gradio sends the last with the data of
        the first; None drops what comes while the last is served.
        """
        targets = list(dict.fromkeys(self.cards if outputs is None else outputs))
        event(act, inputs=[self.page.state, *inputs], outputs=targets, trigger_mode=mode, **QUIET)

    def wire(self) -> None:
        """Connect the tab's events: Run, Enter, Stop and the lessons; a tab adds its own."""
        for event in (self.compose.run.click, self.prompt.submit):
            # A second Run starts over; the click must not get lost.
            self.on(event, self.start, *self.asked, outputs=self.outputs)
        self.wire_stop(self.compose.stop.click, self.name)
        if self.lessons is not None:
            self.lessons.wire()

    def wire_stop(self, event: Callable[..., Any], view: str) -> None:
        """End the run of the View of that name."""
        event(lambda session: halt(session.views[view]), inputs=[self.page.state], queue=False, **QUIET)

    @property
    def asked(self) -> list[Any]:
        """The inputs of a run: knobs, prompt, fields."""
        return [self.page.knobs, self.prompt, *([self.fields.html] if self.fields else [])]

    def start(self, session: Session, turned: Any, prompt: str, sent: Any = None) -> Iterator[Updates]:
        """Run the prompt under the knobs `turned` and the fields `sent`, yielding what to redraw."""
        take_settings(session, turned)
        values = self.fields.read(sent) if self.fields else {}

        def begin(engine: EngineProtocol) -> Sequence[Playable[Any]]:
            return self.begin(session, engine, prompt, self.fields.checked(values) if self.fields else {})

        yield from self.play(session, begin)

    def begin(
        self, session: Session, engine: EngineProtocol, prompt: str, values: dict[str, Any]
    ) -> Sequence[Playable[Any]]:
        """Start a run: the streams to play. Only when nothing can be refused any more, what is shown goes.

        Raises:
            PlaygroundError: refused; the notice says why, and what is shown stays.
        """
        raise NotImplementedError

    def take(self, session: Session, number: int, event: Any) -> None:
        """Take in an event of stream `number`."""
        self.view(session).add(event)

    def phase(self, session: Session) -> str:
        """What goes on, in words, once streams are playing; empty leaves what the events said."""
        return ""

    def ended(self, session: Session) -> None:
        """After the last event, unless another run has taken over: what there is to find out about it."""

    def seen(self, session: Session) -> Any:
        """What the claims of the tab's lessons are checked against, once a run has ended."""
        raise NotImplementedError

    def play(
        self,
        session: Session,
        begin: Callable[[EngineProtocol], Sequence[Playable[Any]]],
        take: Callable[[Session, int, Any], None] | None = None,
        draw: Callable[[Session], Updates] | None = None,
        view: View | None = None,
    ) -> Iterator[Updates]:
        """The loop of every run: begins it, takes in its events, draws now and then, and at its end.

        `take`, `draw` and `view` stand for the tab's own where a tab has a second kind of run.
        """
        view, take = view or self.view(session), take or self.take
        is_own = view is self.view(session)

        def taken_over() -> bool:
            """Whether another run has, which then draws."""
            return view.running

        def buttons() -> Updates:
            # With every redraw: an update that another follows at once may never reach the page.
            return self.compose.running(view.running) if is_own else {}

        def allowed(engine: EngineProtocol) -> Sequence[Playable[Any]]:
            reason = engine.capabilities.lacking(self.needs)
            if reason:
                raise RequestError(reason)
            return begin(engine)

        due = 0.0
        for batch in play(view, self.loader, allowed):
            for number, event in batch or ():
                take(session, number, event)
            if batch is not None and is_own:
                view.phase = self.phase(session) or view.phase
            if time.monotonic() >= due:
                yield {**(draw or self.draw_live)(session), **buttons()}
                due = time.monotonic() + self.period
        if taken_over():
            return
        if is_own:
            try:
                self.ended(session)
            except PlaygroundError as error:
                view.notice = str(error)
            if taken_over():
                return
        yield {**(draw or self.draw_end)(session), **buttons()}

    def draw(self, session: Session, *only: gr.HTML) -> Updates:
        """The cards anew, or only these, each with its number in the order of all pictures."""
        return {card: ordered(partial(self.cards[card], session)) for card in only or self.cards}

    def draw_live(self, session: Session) -> Updates:
        """What is drawn while a run goes on."""
        return self.draw(session)

    def draw_end(self, session: Session) -> Updates:
        """What is drawn when a run has ended."""
        return self.draw(session)

    def beyond_link(self, session: Session) -> str:
        """What of that which is on screen a link cannot carry, in a sentence; empty if it carries all."""
        return ""

    def refuse(self, capabilities: Capabilities, sent: Any) -> Updates:
        """Grey what the engine cannot serve, and say why: the whole tab, or fields (which hold `sent`)."""
        reason = capabilities.lacking(self.needs)
        updates = self.compose.refuse(reason) if reason else {}
        lacking = self.fields.lacking(capabilities) if self.fields else {}
        if self.fields and lacking and isinstance(sent, dict):
            updates[self.fields.html] = {**sent, "lacking": lacking}
        return updates


def saved(session: Session, name: str, kind: str, text: str) -> dict[str, Any]:
    """A file for the saver component."""
    session.num_saved += 1
    return {"name": name, "type": kind, "text": text, "number": session.num_saved}


def got(event: gr.EventData, name: str, kind: type[T]) -> T | None:
    """A value of an event's data; it comes from a browser, so what is of another kind reads as None."""
    data = event._data if isinstance(event._data, dict) else {}
    value = data.get(name)
    return value if isinstance(value, kind) and not (kind is int and isinstance(value, bool)) else None
