"""Inspect: run a prompt, watch each token arrive, look into any step, branch from any candidate."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import gradio as gr

from backend import Engine, Request, SamplingParams, Trace
from backend.errors import PlaygroundError, RequestError
from backend.events import TokenDecoded
from ui import knobs, live, payloads
from ui.loading import Loader
from ui.session import Session, View, forced_step, step_request
from ui.tabs.viewer import QUIET, Updates, Viewer, is_stale, take_settings, whole

CURVE_PERIOD = 0.4  # seconds between redraws of the curve and the step while a run goes on
STEP_PERIOD = 0.25
HANDOVER_SECONDS = 5.0


class Plan(NamedTuple):
    """What to run, and the steps that stand before it with the sampling each was drawn with."""

    request: Request
    kept: Sequence[TokenDecoded] = ()
    drawn_with: Sequence[SamplingParams] = ()


class Inspect:
    """The tab's widgets and their wiring."""

    def __init__(self, loader: Loader, start: View, prompt: str):
        self.loader = loader
        with gr.Row(elem_classes="pg-compose"):
            self.prompt = gr.Textbox(
                value=prompt,
                lines=2,
                max_lines=8,
                show_label=False,
                label="Prompt",
                container=False,
                placeholder="A prompt to continue",
                elem_id="pg-prompt",
            )
            with gr.Row(elem_classes="pg-buttons"):
                self.run = gr.Button("Run", elem_classes="pg-run", elem_id="pg-run")
                self.stop = gr.Button("Stop", elem_classes="pg-stop", elem_id="pg-stop", interactive=False)
                self.step = gr.Button("Step", elem_id="pg-one", elem_classes="pg-one")
        self.viewer = Viewer("inspect", loader, lambda session: session.inspect, start)

    def wire(self, session: gr.State, settings: gr.HTML, score: Viewer, tabs: gr.Tabs) -> None:
        outputs = [*self.viewer.outputs, settings, self.run, self.stop, self.step]
        inputs = [session, settings, self.prompt]
        self.viewer.wire(session)
        for event in (self.run.click, self.prompt.submit):
            # A second Run starts over; a second Step waits for the first. Neither click may get lost.
            event(self._run, inputs=inputs, outputs=outputs, trigger_mode="multiple", **QUIET)
        self.step.click(self._step, inputs=inputs, outputs=outputs, trigger_mode="always_last", **QUIET)
        self.stop.click(stop, inputs=[session], queue=False, **QUIET)
        self.viewer.step.branch(self._branch, inputs=[session, settings], outputs=outputs, **QUIET)
        score.step.branch(
            self._branch_from_score,
            inputs=[session, settings],
            outputs=[*outputs, tabs, self.prompt],
            **QUIET,
        )
        self.settings, self.tabs = settings, tabs
        self.outputs = outputs

    def _run(self, session: Session, turned: Any, prompt: str) -> Iterator[Updates]:
        take_settings(session, turned)

        def plan(_: Engine) -> Plan:
            return Plan(knobs.request(prompt, session.settings, session.salt))

        yield from self.play(session, plan, prompt)

    def run_on_load(self, session: Session, prompt: str) -> Iterator[Updates]:
        """Run the prompt of a link, once."""
        if session.run_on_load and session.tab == "inspect":
            session.run_on_load = False
            yield from self._run(session, None, prompt)
        else:
            yield {self.viewer.strip: gr.skip()}

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
        with view.turn:
            view.stop.set()
            view.idle.wait(HANDOVER_SECONDS)
            view.stop.clear()
            view.idle.clear()
        try:
            yield from self._play(session, view, plan, prompt, pin)
        finally:
            view.idle.set()

    def _play(
        self, session: Session, view: View, plan: Callable[[Engine], Plan], prompt: str, pin: int | None
    ) -> Iterator[Updates]:
        view.notice, view.phase, view.progress = "", "starting", None
        yield {**self._strip(session), **self._buttons(running=True)}
        try:
            for line in self.loader.wait():
                view.phase, view.progress = f"waiting for the model: {line}", self.loader.fraction
                yield self._strip(session)
                if view.stop.is_set():
                    break
            if not view.stop.is_set():
                engine = self.loader.require()
                planned = plan(engine)
                with engine.stream(planned.request) as stream:
                    view.begin(planned.request, "run", planned.kept, planned.drawn_with)
                    view.prompt, view.pinned = prompt, pin
                    drawn = {**self.viewer.draw(session), **self._buttons(running=True)}
                    yield {**drawn, self.settings: {"activity": {}}}
                    yield from self._follow(session, view, live.batches(stream))
        except PlaygroundError as error:
            view.notice = str(error)
        except Exception as error:
            logging.getLogger(__name__).exception("a run failed")
            view.notice = f"The run failed: {type(error).__name__}: {error}"
        if view.finished is not None and view.finished.reason == "error":
            view.notice = view.finished.message
        view.idle.set()
        view.phase, view.progress = "", None
        if session.restore_token is not None:
            view.pinned, session.restore_token = session.restore_token, None
        yield {
            **self.viewer.draw(session),
            **self._buttons(view.running),  # another run may have taken over by now
            self.settings: {"activity": payloads.activity(view)},
        }

    def _follow(self, session: Session, view: View, events: Iterator[list[Any]]) -> Iterator[Updates]:
        curve_due = step_due = 0.0
        try:
            for batch in events:
                for event in batch:
                    view.add(event)
                if view.stop.is_set():
                    view.stopped = True
                    return
                now = time.monotonic()
                updates = self._strip(session)
                if batch and now >= curve_due:
                    updates[self.viewer.curve] = self.viewer.draw_curve(session)
                    # Again: an update that another follows at once may never reach the page.
                    updates |= self._buttons(running=True)
                    curve_due = now + CURVE_PERIOD
                if batch and now >= step_due and view.pinned is None and view.shown is None:
                    updates[self.viewer.step] = self.viewer.draw_step(session)
                    step_due = now + STEP_PERIOD
                yield updates
        finally:
            events.close()  # type: ignore[attr-defined]  # a generator: ends the run at once

    def _strip(self, session: Session) -> Updates:
        view = session.inspect
        return {self.viewer.strip: payloads.strip(view, is_stale(view, session.settings))}

    def _buttons(self, running: bool) -> Updates:
        return {self.stop: gr.Button(interactive=running)}

    def turn(self, session: Session, turned: Any) -> Updates:
        """A knob was moved: the strip says so, the selected step is evaluated again."""
        take_settings(session, turned)
        return {**self._strip(session), self.viewer.step: self.viewer.draw_step(session)}


def _check_model(trace: Trace, engine: Engine) -> None:
    """Token ids of one model mean nothing to another."""
    if trace.started.model != engine.model_name:
        raise RequestError(
            f"This text was made by {trace.started.model}; {engine.model_name} cannot go on from its tokens."
        )


def stop(session: Session) -> None:
    """Ask the run to end and wait until it has."""
    view = session.inspect
    view.stop.set()
    view.idle.wait(HANDOVER_SECONDS)
