"""Speculate: drafted tokens inside the text, each round's checks, and what it gains over plain decoding."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from backend import Engine, Request, Sample, Speculative
from backend.errors import PlaygroundError, RequestError
from backend.experiments import prove_step
from ui import components, knobs
from ui.loading import Loader
from ui.payloads import speculation as drawn
from ui.presets.lessons import Lesson
from ui.runs.series import Series
from ui.runs.speculation import SOURCES, Kind, Speculation, rounds, source
from ui.session import Session
from ui.tabs.compose import Compose
from ui.tabs.fields import Fields
from ui.tabs.lesson_bar import LessonBar
from ui.tabs.player import play
from ui.tabs.viewer import QUIET, Updates, take_settings, whole

FOLDER = Path(__file__).parents[2] / "presets" / "speculation"
PERIOD = 0.15  # seconds between redraws while a run goes on
MAX_LENGTH = 512  # new tokens; a payload with every piece of a longer text would get heavy
NUM_DRAWS = 20_000
# Taken in turns, so that a slow moment of the machine does not hit always the same one.
MORE_PAIRS: tuple[Kind, ...] = ("plain", "speculative", "speculative", "plain", "plain", "speculative")

FIELDS: list[dict[str, Any]] = [
    {"name": "draft", "title": "draft from", "kind": "select", "options": list(map(list, SOURCES.items())),
     "hint": "Where the guesses come from. A draft model needs the tokenizer of the model that runs."},
    {"name": "num_draft_tokens", "title": "k, drafted", "kind": "number", "min": 1, "max": 16, "step": 1,
     "hint": "Tokens guessed before each call of the target."},
    {"name": "verify", "title": "check", "kind": "select",
     "options": [["rejection", "rejection: same distribution"], ["coupled", "coupled: same text"]],
     "hint": "rejection accepts with probability min(1, p / q); coupled shares the luck, so the text is that "
             "of plain sampling under the same seed."},
    {"name": "max_new_tokens", "title": "new tokens", "kind": "number", "min": 1, "max": MAX_LENGTH,
     "step": 1, "hint": "Upper limit on generated tokens."},
    {"name": "adaptive", "title": "adaptive k", "kind": "check",
     "hint": "Draft fewer after an early rejection, more after full acceptance."},
]  # fmt: skip
START: dict[str, Any] = {
    "draft": "prompt_lookup",
    "num_draft_tokens": 8,
    "verify": "rejection",
    "max_new_tokens": 64,
    "adaptive": False,
}
NOTE = (
    "Temperature, cuts, penalties, seed and chat come from the knobs; draft and target pass the same stages."
)


class Speculate:
    """The tab's widgets and their wiring."""

    name, title = "speculate", "Speculate"

    def __init__(self, loader: Loader, lessons: Sequence[Lesson] = ()):
        self.loader = loader
        self.compose = Compose("speculate", lessons[0].prompt if lessons else "", lines=3)
        self.prompt = self.compose.prompt
        self.lessons = LessonBar("speculate", lessons)
        self.fields = Fields("speculate", FIELDS, START, NOTE)
        empty = Session()
        view, state = empty.speculate, empty.speculation
        self.text = components.build("drafts", drawn.text(view, state), "pg-speculate-text")
        self.payoff = components.build("payoff", drawn.payoff(view, state), "pg-speculate-payoff")
        with gr.Row(elem_classes="pg-speculate-row"):
            self.round = components.build("round", drawn.detail(view, state), "pg-speculate-round")
            self.proof = components.build("proof", drawn.proof(view, state), "pg-speculate-proof")
        self.formula = components.build(
            "formula", drawn.formula_point(view), "pg-speculate-formula", spec=drawn.formula()
        )
        for component in (self.text, self.payoff, self.round, self.proof, self.formula):
            component.elem_classes = [*component.elem_classes, "pg-card"]

    def wire(self, session: gr.State, settings: gr.HTML) -> None:
        self.drawn = [self.text, self.payoff, self.round, self.proof, self.formula]
        self.outputs = outputs = [*self.drawn, self.compose.stop]
        self.lessons.wire(session, settings, self.prompt, self.fields)
        self.compose.wire(
            session, settings, self.start, self.outputs, lambda session: session.speculate, self.fields
        )
        self.payoff.measure(self._measure, inputs=[session], outputs=outputs, **QUIET)
        for component in (self.text, self.round, self.payoff):
            component.pin(self._pin, inputs=[session], outputs=self.drawn, trigger_mode="multiple", **QUIET)
        self.proof.prove(self._prove, inputs=[session], outputs=[self.proof], **QUIET)

    def start(self, session: Session, turned: Any, prompt: str, sent: Any) -> Iterator[Updates]:
        """The speculative run, then plain decoding of the same request, alone on the model each."""
        take_settings(session, turned)
        view = session.speculate

        def begin(engine: Engine) -> list[Series]:
            asked = request(engine, prompt, session.settings, self.fields.read(sent))
            series = Series(engine, [salted(session, asked), salted(session, plain(asked))])
            session.speculation = Speculation(lossless=lossless(asked), planned=["speculative", "plain"])
            view.begin(asked, "run")
            view.prompt = prompt
            return [series]

        yield from self._play(session, begin)

    def _measure(self, session: Session) -> Iterator[Updates]:
        """More pairs of runs of the request shown, without drawing them."""
        view, state = session.speculate, session.speculation
        asked = view.request
        if asked is None or view.running or not state.runs:
            yield {self.payoff: gr.skip()}
            return

        def begin(engine: Engine) -> list[Series]:
            kinds = list(MORE_PAIRS)
            runs = {"plain": plain(asked), "speculative": asked}
            series = Series(engine, [salted(session, runs[kind]) for kind in kinds])
            state.planned = kinds
            return [series]

        yield from self._play(session, begin)

    def _play(self, session: Session, start: Callable[[Engine], list[Series]]) -> Iterator[Updates]:
        view = session.speculate
        due = 0.0
        yield {**self.compose.running(True), self.payoff: drawn.payoff(view, session.speculation)}
        for batch in play(view, self.loader, start):
            state = session.speculation
            for _, event in batch or ():
                if state.take(event):
                    view.add(event)
            if batch is not None and state.runs:
                view.phase = phase(state)
            if time.monotonic() >= due:
                # With every redraw: the page may drop an update that the next one follows at once.
                yield {**self.draw(session), **self.compose.running(True)}
                due = time.monotonic() + PERIOD
        if not view.running:  # otherwise another run has taken over, and draws
            yield {**self.draw(session), **self.compose.running(False)}

    def draw(self, session: Session) -> Updates:
        """Everything anew."""
        view, state = session.speculate, session.speculation
        return {
            self.text: drawn.text(view, state),
            self.payoff: drawn.payoff(view, state),
            self.round: drawn.detail(view, state),
            self.proof: drawn.proof(view, state),
            self.formula: drawn.formula_point(view),
        }

    def _pin(self, session: Session, event: gr.EventData) -> Updates:
        number, place = whole(event, "round"), whole(event, "place")
        if number is not None and place is not None:
            session.speculation.selected = (number, place)
        return self.draw(session)

    def _prove(self, session: Session) -> Iterator[Updates]:
        view, state = session.speculate, session.speculation
        checks = rounds(view.events)
        step = drawn.provable(checks, drawn.selection(checks, state))
        if step is None or state.proving:
            yield {self.proof: gr.skip()}
            return
        state.proving, state.proof_note = True, ""
        yield {self.proof: drawn.proof(view, state)}
        try:
            check = checks[step[0]]
            asked = at_token(view.request, session, check.index + step[1])
            guess = check.drafted[step[1]].token_id
            # Other draws each time, yet the same ones for the same seed and clicks.
            seed = (asked.seed or 0) % 2**31 + state.num_proofs
            state.proof = prove_step(self.loader.require(), asked, guess, NUM_DRAWS, seed)
            state.proof_of, state.num_proofs = step, state.num_proofs + 1
        except PlaygroundError as error:
            state.proof_note = str(error)
        finally:
            state.proving = False
        yield {self.proof: drawn.proof(view, state)}


def request(engine: Engine, prompt: str, settings: dict[str, Any], values: dict[str, Any]) -> Request:
    """The Request of a speculative run, from the knobs and the tab's own fields; its seed is drawn here.

    Raises:
        RequestError: a value has the wrong type or is out of range.
    """
    wanted = dict(values)
    limit = wanted.pop("max_new_tokens")
    if isinstance(limit, int) and limit > MAX_LENGTH:
        raise RequestError(f"new tokens must be at most {MAX_LENGTH} here, got {limit}")
    strategy = Speculative(**source(wanted.pop("draft"), engine.num_layers), **wanted)
    asked = knobs.request(prompt, settings | {"max_new_tokens": limit}, "")
    seed = secrets.randbelow(2**31) if asked.seed is None else asked.seed
    return replace(asked, strategy=strategy, seed=seed, num_candidates=0)


def plain(asked: Request) -> Request:
    """The same without speculation."""
    return replace(asked, strategy=Sample())


def lossless(asked: Request) -> bool:
    """Whether speculation must give the very text of plain decoding, not only its distribution."""
    strategy = asked.strategy
    return asked.sampling.temperature == 0 or (
        isinstance(strategy, Speculative) and strategy.verify == "coupled"
    )


def salted(session: Session, asked: Request) -> Request:
    """With a salt that no other run has: each reads the whole prompt, none gains from an earlier one."""
    return replace(asked, cache_salt=f"{session.salt}:{secrets.token_hex(8)}")


def at_token(asked: Request | None, session: Session, index: int) -> Request:
    """The request whose next token is token `index` of the text shown.

    Raises:
        RequestError: there is no text.
    """
    view = session.speculate
    if asked is None or view.started is None:
        raise RequestError("there is no run to take a step from")
    prefix = tuple(step.token_id for step in view.steps[:index])
    return replace(
        asked,
        prompt=view.started.prompt_token_ids,
        chat=False,
        output_prefix=prefix,
        max_new_tokens=max(asked.max_new_tokens, len(prefix) + 1),
        cache_salt=session.salt,
    )


def phase(state: Speculation) -> str:
    """What goes on, in words."""
    if len(state.runs) == 1:
        return "drafting and checking"
    if len(state.runs) == 2:
        return "now plain decoding, to compare the time"
    return f"measuring: {state.runs[-1].kind} run {len(state.runs) - 2} of {len(MORE_PAIRS)}"
