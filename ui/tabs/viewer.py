"""The viewer that tabs share: token strip, surprise curve and the selected step of one View."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from backend.errors import PlaygroundError
from backend.events import TokenDecoded
from ui import components, knobs
from ui.loading import Loader
from ui.order import drawn
from ui.payloads import run as payloads
from ui.plots import trace as plots
from ui.session import Session, View, step_request

Updates = dict[Any, Any]
# Events of the page itself: no spinner over the picture, not part of the API, one per visitor at a time.
QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}


class Viewer:
    """The three components and what each draws of a View."""

    def __init__(self, name: str, loader: Loader, pick: Callable[[Session], View], start: View | None = None):
        """`pick` finds this viewer's View in a session; `start` is drawn at first paint."""
        self.loader = loader
        self.pick = pick
        view = start or View()
        self.strip = components.build("strip", payloads.strip(view), f"pg-{name}-strip")
        self.curve = components.build("curve", curve_payload(view), f"pg-{name}-curve")
        self.step = components.build("step", _recorded(view), f"pg-{name}-step")
        for component in (self.strip, self.curve, self.step):
            component.elem_classes = [*component.elem_classes, "pg-card"]

    @property
    def outputs(self) -> list[Any]:
        return [self.strip, self.curve, self.step]

    def draw(self, session: Session, whole: bool = True) -> Updates:
        """Everything anew; of the strip only the last rows if not `whole`."""
        return {
            self.strip: self.draw_strip(session, whole),
            self.curve: self.draw_curve(session),
            self.step: self.draw_step(session),
        }

    def draw_strip(self, session: Session, whole: bool = False) -> dict[str, Any]:
        """The strip, of whose text the page has the rows before the last ones already, or asks for them."""
        view = self.pick(session)
        return payloads.strip(view, is_stale(view, session.settings), whole)

    def draw_curve(self, session: Session) -> dict[str, Any]:
        view = self.pick(session)
        overlay = session.inspect if view is session.score and session.inspect.steps else None
        return curve_payload(view, overlay)

    def draw_step(self, session: Session) -> dict[str, Any] | None:
        """The selected step, evaluated again where the knobs differ from those it was drawn with."""
        order = drawn()
        view = self.pick(session)
        index = view.index
        if index is None:
            return None
        recorded = view.steps[index]
        again, note = self._again(session, view, index)
        view.displayed = again or recorded
        shown = view.displayed
        payload = payloads.step(shown, key=str(view.number), recorded=recorded if again else None, note=note)
        return {"drawn": order, **payload}

    def _again(self, session: Session, view: View, index: int) -> tuple[TokenDecoded | None, str]:
        """The step under the present knobs, None where that changes nothing, and why it cannot be had."""
        following = view.running and view.shown is None and view.pinned is None
        trace = view.trace
        if following or trace is None:
            return None, ""
        try:
            params = knobs.sampling(session.settings)
            if params == view.drawn_with[index]:
                return None, ""
            if not self.loader.done:
                return None, "The knobs act on this step as soon as the model is loaded."
            engine = self.loader.require()
            if trace.started.model != engine.model_name:
                return (
                    None,
                    f"Recorded with {trace.started.model}; the knobs act on runs of {engine.model_name}.",
                )
            return engine.evaluate(step_request(trace, index, params, session.salt)), ""
        except PlaygroundError as error:
            return None, str(error)

    def wire(self, session: gr.State) -> None:
        """Looking at a token (hover, keyboard) and pinning it, from the strip or the curve."""
        # Never "always_last": of events that overlap gradio sends the last with the data of the first.
        self.strip.show(self._show, inputs=[session], outputs=self.outputs, trigger_mode="multiple", **QUIET)
        for component in (self.strip, self.curve):
            component.pin(self._pin, inputs=[session], outputs=self.outputs, trigger_mode="multiple", **QUIET)
        self.strip.whole(self._whole, inputs=[session], outputs=[self.strip], **QUIET)

    def _whole(self, session: Session) -> Updates:
        return {self.strip: self.draw_strip(session, whole=True)}

    def _show(self, session: Session, event: gr.EventData) -> Updates:
        """Look at a token in passing; no index looks back at the pinned one."""
        view = self.pick(session)
        before = view.index
        view.shown = whole(event, "index")
        view.looked = view.looked if view.shown is None else view.shown
        if view.index == before:
            return {self.step: gr.skip()}
        return {self.curve: self.draw_curve(session), self.step: self.draw_step(session)}

    def _pin(self, session: Session, event: gr.EventData) -> Updates:
        view = self.pick(session)
        view.pinned, view.shown = whole(event, "index"), None
        view.looked = view.pinned
        return self.draw(session, whole=False)


def whole(event: gr.EventData, name: str) -> int | None:
    """A whole number from an event's data; it comes from a browser, so anything else reads as None."""
    value = (event._data or {}).get(name) if isinstance(event._data, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def curve_payload(view: View, overlay: View | None = None) -> dict[str, Any]:
    name = "the run in Inspect" if overlay else ""
    return {
        "drawn": drawn(),
        "number": view.number,
        "figure": plots.surprise(view.steps, overlay.steps if overlay else (), name),
        "selected": view.index,
        "overlay": name,
    }


def _recorded(view: View) -> dict[str, Any] | None:
    index = view.index
    return None if index is None else payloads.step(view.steps[index], key=str(view.number))


def is_stale(view: View, settings: dict[str, Any]) -> bool:
    """Whether the text was drawn under other settings than the knobs show now."""
    if view.source not in ("run", "recording", "import") or view.request is None or not view.steps:
        return False
    return not knobs.same_draw(settings or knobs.DEFAULTS, view.request.sampling)


def take_settings(session: Session, sent: Any) -> bool:
    """Keep the settings the knobs sent; what is not a set of settings leaves the last ones.

    Settings sent before the knobs took over what the server put in place since (a link, an opened trace) are
    older than that and must not undo it. False for these: whatever came with them is as old.
    """
    settings = sent.get("settings") if isinstance(sent, dict) else None
    number = sent.get("number") if isinstance(sent, dict) else None
    outdated = isinstance(number, int) and number < session.settings_number
    if isinstance(settings, dict) and not outdated:
        session.settings = {name: settings.get(name, default) for name, default in knobs.DEFAULTS.items()}
    return not outdated
