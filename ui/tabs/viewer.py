"""The viewer that tabs share: token strip, surprise curve and the selected step of one View."""

from __future__ import annotations

from functools import partial
from typing import Any

import gradio as gr

from backend.errors import PlaygroundError
from backend.events import TokenDecoded
from ui import knobs
from ui.order import ordered
from ui.payloads import run as payloads
from ui.plots import trace as plots
from ui.session import Session, View, step_request
from ui.tabs.tab import Tab, Updates, got


class Viewer:
    """The three cards of a tab, and what each draws of the tab's View."""

    def __init__(self, tab: Tab):
        self.tab = tab
        self.strip = tab.card("strip", self._strip)
        self.curve = tab.card("curve", self._curve)
        self.step = tab.card("step", self._step)

    @property
    def outputs(self) -> list[Any]:
        return [self.strip, self.curve, self.step]

    def _strip(self, session: Session, whole: bool = False) -> dict[str, Any]:
        """The strip, of whose text the page has the rows before the last ones already, or asks for them."""
        view = self.tab.view(session)
        return payloads.strip(view, is_stale(view, session.settings), whole)

    def _curve(self, session: Session) -> dict[str, Any]:
        view = self.tab.view(session)
        overlay = session.inspect.steps if self.tab.name == "score" else []
        name = "the run in Inspect" if overlay else ""
        return {
            "number": view.number,
            "figure": plots.surprise(view.steps, overlay, name),
            "selected": view.index,
            "overlay": name,
        }

    def _step(self, session: Session) -> dict[str, Any] | None:
        """The selected step, evaluated again where the knobs differ from those it was drawn with."""
        view = self.tab.view(session)
        index = view.index
        if index is None:
            return None
        recorded = view.steps[index]
        again, note = self._again(session, view, index)
        view.displayed = again or recorded
        return payloads.step(
            view.displayed, key=str(view.number), recorded=recorded if again else None, note=note
        )

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
            if not self.tab.loader.done:
                return None, "The knobs act on this step as soon as the model is loaded."
            engine = self.tab.loader.require()
            if engine.capabilities.reevaluation:
                return None, engine.capabilities.reevaluation
            if trace.started.model != engine.model_name:
                return (
                    None,
                    f"Recorded with {trace.started.model}; the knobs act on runs of {engine.model_name}.",
                )
            return engine.evaluate(step_request(trace, index, params, session.salt)), ""
        except PlaygroundError as error:
            return None, str(error)

    def wire(self) -> None:
        """Looking at a token (hover, keyboard) and pinning it, from the strip or the curve."""
        self.tab.on(self.strip.show, self._show, outputs=self.outputs)
        for component in (self.strip, self.curve):
            self.tab.on(component.pin, self._pin, outputs=self.outputs)
        self.tab.on(self.strip.whole, self._whole, outputs=[self.strip])

    def _whole(self, session: Session) -> Updates:
        return {self.strip: ordered(partial(self._strip, session, whole=True))}

    def _show(self, session: Session, event: gr.EventData) -> Updates:
        """Look at a token in passing; no index looks back at the pinned one."""
        view = self.tab.view(session)
        before = view.index
        view.shown = got(event, "index", int)
        view.looked = view.looked if view.shown is None else view.shown
        if view.index == before:
            return {self.step: gr.skip()}
        return self.tab.draw(session, self.curve, self.step)

    def _pin(self, session: Session, event: gr.EventData) -> Updates:
        view = self.tab.view(session)
        view.pinned, view.shown = got(event, "index", int), None
        view.looked = view.pinned
        return self.tab.draw(session, *self.outputs)


def is_stale(view: View, settings: dict[str, Any]) -> bool:
    """Whether the text was drawn under other settings than the knobs show now."""
    if view.source not in ("run", "recording", "import") or view.request is None or not view.steps:
        return False
    return not knobs.same_draw(settings or knobs.DEFAULTS, view.request.sampling)
