"""Inspect: run a prompt, watch each token arrive, look into any step, branch from any candidate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import gradio as gr

from backend import Engine, EventStream, Request, SamplingParams, Trace
from backend.errors import RequestError
from backend.events import TokenDecoded
from ui import knobs
from ui.loading import Loader
from ui.payloads import run as payloads
from ui.session import Session, View, forced_step, step_request
from ui.tabs.compose import Compose
from ui.tabs.fields import Fields
from ui.tabs.player import halt, play
from ui.tabs.viewer import QUIET, Updates, Viewer, take_settings, whole

CURVE_PERIOD = 0.4  # seconds between redraws of the curve and the step while a run goes on
CURVE_TOKENS = 200  # of longer texts the curve is redrawn less often
STEP_PERIOD = 0.25


class Plan(NamedTuple):
    """What to run, and the steps that stand before it with the sampling each was drawn with."""

    request: Request
    kept: Sequence[TokenDecoded] = ()
    drawn_with: Sequence[SamplingParams] = ()


class Inspect:
    """The tab's widgets and their wiring."""

    name, title = "inspect", "Inspect"
    fields: Fields | None = None

    def __init__(self, loader: Loader, start: View, prompt: str):
        self.loader = loader
        self.compose = Compose("inspect", prompt, more=["Step"])
        self.prompt = self.compose.prompt
        self.viewer = Viewer("inspect", loader, lambda session: session.inspect, start)

    def wire(self, session: gr.State, settings: gr.HTML) -> None:
        outputs = [*self.viewer.outputs, settings, *self.compose.buttons]
        inputs = [session, settings, self.prompt]
        self.viewer.wire(session)
        for event in (self.compose.run.click, self.prompt.submit):
            # A second Run starts over; a second Step waits for the first. Neither click may get lost.
            event(self.start, inputs=inputs, outputs=outputs, trigger_mode="multiple", **QUIET)
        self.compose.more[0].click(
            self._step, inputs=inputs, outputs=outputs, trigger_mode="always_last", **QUIET
        )
        self.compose.wire_stop(session, lambda session: session.inspect)
        self.viewer.step.branch(self._branch, inputs=[session, settings], outputs=outputs, **QUIET)
        self.settings, self.outputs = settings, outputs

    def wire_branches_of(self, score: Viewer, tabs: gr.Tabs, session: gr.State) -> None:
        """A candidate chosen in a scored text starts a run here."""
        self.tabs = tabs
        score.step.branch(
            self._branch_from_score,
            inputs=[session, self.settings],
            outputs=[*self.outputs, tabs, self.prompt],
            **QUIET,
        )

    def start(self, session: Session, turned: Any, prompt: str, sent: Any = None) -> Iterator[Updates]:
        """Run the prompt."""
        take_settings(session, turned)

        def plan(_: Engine) -> Plan:
            return Plan(knobs.request(prompt, session.settings, session.salt))

        yield from self.play(session, plan, prompt)

    def _step(self, session: Session, turned: Any, prompt: str) -> Iterator[Updates]:
        """One more token after the text shown, under the knobs as they are; with a new prompt its first."""
        take_settings(session, turned)
        view = session.inspect
        trace, steps, drawn_with = view.trace, list(view.steps), list(view.drawn_with)
        fresh = view.source == "recording" or view.prompt != prompt

        def plan(engine: Engine) -> Plan:
            if fresh or trace is None:
                return Plan(replace(knobs.request(prompt, session.settings, session.salt), max_new_tokens=1))
            if trace.finish_reason in ("eos", "stop", "context_full"):
                raise RequestError(
                    f"The text has ended ({payloads.ENDINGS[trace.finish_reason]}); Run starts a new one."
                )
            _check_model(trace, engine)
            params = knobs.sampling(session.settings)
            request = step_request(trace, len(steps), params, session.salt)
            return Plan(replace(request, max_new_tokens=len(steps) + 1), steps, drawn_with)

        yield from self.play(session, plan, prompt)

    def _branch(self, session: Session, turned: Any, event: gr.EventData) -> Iterator[Updates]:
        yield from self._branch_of(session, session.inspect, turned, event)

    def _branch_from_score(self, session: Session, turned: Any, event: gr.EventData) -> Iterator[Updates]:
        """The run goes on in Inspect, so that the scored text stays."""
        session.tab = "inspect"
        first = True
        for updates in self._branch_of(session, session.score, turned, event):
            if first:
                updates |= {self.tabs: gr.Tabs(selected="inspect"), self.prompt: session.score.prompt}
                first = False
            yield updates

    def _branch_of(
        self, session: Session, parent: View, turned: Any, event: gr.EventData
    ) -> Iterator[Updates]:
        take_settings(session, turned)
        trace, displayed = parent.trace, parent.displayed
        index, token_id = whole(event, "index"), whole(event, "token_id")
        if (
            trace is None
            or displayed is None
            or index is None
            or token_id is None
            or displayed.index != index
        ):
            yield {self.viewer.strip: gr.skip()}
            return
        kept, drawn_with = parent.steps[:index], parent.drawn_with[:index]

        def plan(engine: Engine) -> Plan:
            _check_model(trace, engine)
            asked = knobs.request("-", session.settings, session.salt)
            request = trace.branch(
                index, token_id, sampling=asked.sampling, stop=asked.stop, cache_salt=session.salt
            )
            return Plan(
                replace(request, max_new_tokens=max(asked.max_new_tokens, index + 2)),
                [*kept, forced_step(displayed, token_id)],
                [*drawn_with, asked.sampling],
            )

        yield from self.play(session, plan, parent.prompt, pin=index)

    def play(
        self, session: Session, plan: Callable[[Engine], Plan], prompt: str, pin: int | None = None
    ) -> Iterator[Updates]:
        """Run what `plan` asks for in the Inspect view, yielding what to redraw; closing this ends the run.

        A refused request leaves the text shown as it is and says why above it.
        """
        view = session.inspect
        before, curve_due, step_due = view.number, 0.0, 0.0

        def start(engine: Engine) -> list[EventStream]:
            planned = plan(engine)
            stream = engine.stream(planned.request)
            view.begin(planned.request, "run", planned.kept, planned.drawn_with)
            view.prompt, view.pinned = prompt, pin
            return [stream]

        for batch in play(view, self.loader, start):
            for _, event in batch or ():
                view.add(event)
            now = time.monotonic()
            updates = {self.viewer.strip: self.viewer.draw_strip(session), **self.compose.running(True)}
            if view.number != before:
                before = view.number
                updates |= {**self.viewer.draw(session), self.settings: {"activity": {}}}
            if batch and now >= curve_due:
                updates[self.viewer.curve] = self.viewer.draw_curve(session)
                # A drawing costs as much as the text is long; a token must not.
                curve_due = now + CURVE_PERIOD * max(1, len(view.steps) / CURVE_TOKENS)
            if batch and now >= step_due and view.pinned is None and view.shown is None:
                updates[self.viewer.step] = self.viewer.draw_step(session)
                step_due = now + STEP_PERIOD
            yield updates
        if not view.running:  # otherwise another run has taken over, and draws
            yield {
                **self.viewer.draw(session, whole=False),
                **self.compose.running(False),
                self.settings: {"activity": payloads.activity(view)},
            }

    @property
    def opened(self) -> list[Any]:
        """What `open` updates."""
        return [*self.viewer.outputs, self.tabs, self.prompt, self.settings]

    def open(self, session: Session, trace: Trace, index: int | None = None) -> Updates:
        """Show a run made in another tab, at one of its tokens, with the knobs it was drawn with."""
        view = session.inspect
        halt(view)
        view.show(trace, "run")
        view.pinned = index
        session.tab = "inspect"
        asked = trace.request
        session.settings |= knobs.settings_of(asked.sampling) | {
            "seed": trace.started.seed,
            "max_new_tokens": asked.max_new_tokens,
            "chat": asked.chat,
        }
        session.settings_number += 1
        sent = {"number": session.settings_number, "settings": session.settings}
        return {
            **self.viewer.draw(session),
            self.tabs: gr.Tabs(selected="inspect"),
            self.prompt: view.prompt,
            self.settings: {**sent, "activity": payloads.activity(view)},
        }

    def run_again(self, session: Session, request: Request) -> Iterator[Updates]:
        """Make a run of another tab here, with its knobs; the seed makes it the same text."""
        session.tab = "inspect"
        session.settings |= knobs.settings_of(request.sampling) | {
            "seed": request.seed,
            "max_new_tokens": request.max_new_tokens,
            "chat": request.chat,
            "stop": list(request.stop),
        }
        session.settings_number += 1
        prompt = request.prompt if isinstance(request.prompt, str) else ""
        shown: Updates = {
            self.tabs: gr.Tabs(selected="inspect"),
            self.prompt: prompt,
            self.settings: {"number": session.settings_number, "settings": session.settings, "activity": {}},
        }
        for number, updates in enumerate(self.play(session, lambda _: Plan(request), prompt)):
            # More than once: an update that another follows at once may never reach the page.
            yield {**updates, **(shown if number < 3 else {})}

    def draw(self, session: Session) -> Updates:
        return self.viewer.draw(session)

    def turn(self, session: Session, turned: Any) -> Updates:
        """A knob was moved: the strip says so, the selected step is evaluated again."""
        take_settings(session, turned)
        return {
            self.viewer.strip: self.viewer.draw_strip(session),
            self.viewer.step: self.viewer.draw_step(session),
        }


def _check_model(trace: Trace, engine: Engine) -> None:
    """Token ids of one model mean nothing to another."""
    if trace.started.model != engine.model_name:
        raise RequestError(
            f"This text was made by {trace.started.model}; {engine.model_name} cannot go on from its tokens."
        )
