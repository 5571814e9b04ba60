"""Inspect: run a prompt, watch each token arrive, look into any step, branch from any candidate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import gradio as gr

from backend import Request, SamplingParams, Trace
from backend.errors import RequestError
from backend.events import TokenDecoded
from backend.protocol import EngineProtocol, RunStream
from ui import knobs
from ui.payloads import run as payloads
from ui.session import Session, View, forced_step, step_request, take_settings
from ui.tabs.player import halt
from ui.tabs.tab import Page, Tab, Updates, got
from ui.tabs.viewer import Viewer, is_stale

CURVE_PERIOD = 0.4  # seconds between redraws of the curve and the step while a run goes on
CURVE_TOKENS = 200  # of longer texts the curve is redrawn less often
STEP_PERIOD = 0.25


class Plan(NamedTuple):
    """What to run, and the steps that stand before it with the sampling each was drawn with."""

    request: Request
    kept: Sequence[TokenDecoded] = ()
    drawn_with: Sequence[SamplingParams] = ()


class Inspect(Tab):
    """The tab's widgets and their wiring."""

    name, title = "inspect", "Inspect"
    period = 0.0

    def __init__(self, page: Page):
        super().__init__(page)
        self.lay_out(page.first.inspect.prompt or "Once upon a time", more=["Step"])
        self.viewer = Viewer(self)
        self.turning = [self.viewer.strip, self.viewer.step]

    @property
    def outputs(self) -> list[Any]:
        return [*self.cards, self.page.knobs, *self.compose.buttons]

    def wire(self) -> None:
        super().wire()
        self.viewer.wire()
        # A second Step waits for the first.
        step = self.compose.more[0]
        self.on(step.click, self._step, *self.asked, outputs=self.outputs, mode="always_last")
        self.on(self.viewer.step.branch, self._branch, self.page.knobs, outputs=self.outputs, mode=None)
        # A candidate chosen in a scored text starts a run here.
        score = self.page.panels["score"]
        (scored,) = score.turning
        outputs = [*self.outputs, self.page.tabs, self.prompt]
        self.on(scored.branch, self._branch_from_score, self.page.knobs, outputs=outputs, mode=None)

    def start(self, session: Session, turned: Any, prompt: str, sent: Any = None) -> Iterator[Updates]:
        """Run the prompt."""
        take_settings(session, turned)
        yield from self.follow(
            session, lambda _: Plan(knobs.request(prompt, session.settings, session.salt)), prompt
        )

    def _step(self, session: Session, turned: Any, prompt: str) -> Iterator[Updates]:
        """One more token after the text shown, under the knobs as they are; with a new prompt its first."""
        take_settings(session, turned)
        view = session.inspect
        trace, steps, drawn_with = view.trace, list(view.steps), list(view.drawn_with)
        fresh = view.source == "recording" or view.prompt != prompt

        def plan(engine: EngineProtocol) -> Plan:
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

        yield from self.follow(session, plan, prompt)

    def _branch(self, session: Session, turned: Any, event: gr.EventData) -> Iterator[Updates]:
        yield from self._branch_of(session, session.inspect, turned, event)

    def _branch_from_score(self, session: Session, turned: Any, event: gr.EventData) -> Iterator[Updates]:
        """The run goes on in Inspect, so that the scored text stays."""
        session.tab = "inspect"
        scored = session.views["score"]
        shown: Updates = {self.page.tabs: gr.Tabs(selected="inspect"), self.prompt: scored.prompt}
        yield from _shown_first(self._branch_of(session, scored, turned, event), shown)

    def _branch_of(
        self, session: Session, parent: View, turned: Any, event: gr.EventData
    ) -> Iterator[Updates]:
        take_settings(session, turned)
        trace, displayed = parent.trace, parent.displayed
        index, token_id = got(event, "index", int), got(event, "token_id", int)
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

        def plan(engine: EngineProtocol) -> Plan:
            _check_model(trace, engine)
            asked = knobs.request("-", session.settings, session.salt)
            request = trace.branch(
                index, token_id, sampling=asked.sampling, stop=asked.stop, cache_salt=session.salt
            )
            text = engine.added_text(request.output_prefix[:-1], token_id)
            return Plan(
                replace(request, max_new_tokens=max(asked.max_new_tokens, index + 2)),
                [*kept, forced_step(displayed, token_id, text)],
                [*drawn_with, asked.sampling],
            )

        yield from self.follow(session, plan, parent.prompt, pin=index)

    def follow(
        self, session: Session, plan: Callable[[EngineProtocol], Plan], prompt: str, pin: int | None = None
    ) -> Iterator[Updates]:
        """Run what `plan` asks for in the Inspect view, yielding what to redraw; closing this ends the run.

        A refused request leaves the text shown as it is and says why above it.
        """
        view, cards = session.inspect, self.viewer
        before, num_events, curve_due, step_due = view.number, len(view.events), 0.0, 0.0

        def begin(engine: EngineProtocol) -> list[RunStream]:
            planned = plan(engine)
            stream = engine.stream(planned.request)
            view.begin(planned.request, "run", planned.kept, planned.drawn_with, prompt)
            view.pinned = pin
            return [stream]

        def draw() -> Updates:
            nonlocal before, num_events, curve_due, step_due
            if not view.running:
                return self.draw(session) | {self.page.knobs: {"activity": payloads.activity(view)}}
            if view.number != before:
                before = view.number
                return self.draw(session) | {self.page.knobs: {"activity": {}}}
            now, wanted = time.monotonic(), [cards.strip]
            if len(view.events) != num_events:
                num_events = len(view.events)
                if now >= curve_due:
                    wanted.append(cards.curve)
                    # A drawing costs as much as the text is long; a token must not.
                    curve_due = now + CURVE_PERIOD * max(1, len(view.steps) / CURVE_TOKENS)
                if now >= step_due and view.pinned is None and view.shown is None:
                    wanted.append(cards.step)
                    step_due = now + STEP_PERIOD
            return self.draw(session, *wanted)

        yield from self.play(session, begin, draw=lambda _: draw())

    def beyond_link(self, session: Session) -> str:
        view = session.inspect
        if view.source == "import":
            return "It does not hold the opened trace: export that as a file."
        if view.request is not None and view.request.output_prefix:
            return "It does not hold the branch: it opens the run before it. Export the trace to keep it."
        if is_stale(view, session.settings):
            return "The knobs were moved since this run: the link draws with them as they stand now."
        return ""

    @property
    def opened(self) -> list[Any]:
        """What `open` updates."""
        return [*self.cards, self.page.tabs, self.prompt, self.page.knobs]

    def open(
        self, session: Session, trace: Trace, index: int | None = None, imported: bool = False
    ) -> Updates:
        """Show a run made elsewhere, at one of its tokens, with the knobs it was drawn with."""
        view = session.inspect
        halt(view)
        view.show(trace, "import" if imported else "run")
        view.pinned = index
        session.tab = "inspect"
        settings = knobs.settings_of(trace.request.sampling)
        if not imported:
            settings |= _settings_of(trace.request) | {"seed": trace.started.seed}
        return {
            **self.draw(session),
            self.page.tabs: gr.Tabs(selected="inspect"),
            self.prompt: view.prompt,
            self.page.knobs: session.put_settings(settings, payloads.activity(view)),
        }

    def run_again(self, session: Session, request: Request) -> Iterator[Updates]:
        """Make a run of another tab here, with its knobs; the seed makes it the same text."""
        session.tab = "inspect"
        settings = knobs.settings_of(request.sampling) | _settings_of(request) | {"stop": list(request.stop)}
        prompt = request.prompt if isinstance(request.prompt, str) else ""
        shown: Updates = {
            self.page.tabs: gr.Tabs(selected="inspect"),
            self.prompt: prompt,
            self.page.knobs: session.put_settings(settings),
        }
        yield from _shown_first(self.follow(session, lambda _: Plan(request), prompt), shown)


def _shown_first(playing: Iterator[Updates], shown: Updates) -> Iterator[Updates]:
    """`shown` goes with the first updates, not only one: the page may drop one that another follows."""
    for number, updates in enumerate(playing):
        yield {**updates, **(shown if number < 3 else {})}


def _settings_of(request: Request) -> dict[str, Any]:
    return {"seed": request.seed, "max_new_tokens": request.max_new_tokens, "chat": request.chat}


def _check_model(trace: Trace, engine: EngineProtocol) -> None:
    """Token ids of one model mean nothing to another."""
    if trace.started.model != engine.model_name:
        raise RequestError(
            f"This text was made by {trace.started.model}; {engine.model_name} cannot go on from its tokens."
        )
