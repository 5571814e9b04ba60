"""Speculate: drafted tokens inside the text, each round's checks, and what it gains over plain decoding."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from backend import Request, Sample, Speculative
from backend.errors import PlaygroundError, RequestError
from backend.events import Event
from backend.experiments import prove_step
from backend.protocol import EngineProtocol
from ui import knobs
from ui.payloads import speculation as payloads
from ui.runs.series import Series
from ui.runs.speculation import SOURCES, Kind, Speculation, rounds, source
from ui.session import Session, View
from ui.tabs.fields import number, select, starts, tick
from ui.tabs.tab import Page, Tab, Updates, got

FOLDER = Path(__file__).parents[2] / "presets" / "speculation"
MAX_LENGTH = 512  # new tokens; a payload with every piece of a longer text would get heavy
NUM_DRAWS = 20_000
# Taken in turns, so that a slow moment of the machine does not hit always the same one.
MORE_PAIRS: tuple[Kind, ...] = ("plain", "speculative", "speculative", "plain", "plain", "speculative")

FIELDS: list[dict[str, Any]] = [
    select(
        "draft",
        "draft from",
        SOURCES,
        "Where the guesses come from. A draft model needs the tokenizer of the model that runs.",
    ),
    number("num_draft_tokens", "k, drafted", 1, 16, 8, "Tokens guessed before each call of the target."),
    select(
        "verify",
        "check",
        {"rejection": "rejection: same distribution", "coupled": "coupled: same text"},
        "rejection accepts with probability min(1, p / q); coupled shares the luck, so the text is that "
        "of plain sampling under the same seed.",
    ),
    number("max_new_tokens", "new tokens", 1, MAX_LENGTH, 64, "Upper limit on generated tokens."),
    tick(
        "adaptive", "adaptive k", False, "Draft fewer after an early rejection, more after full acceptance."
    ),
]
START = starts(FIELDS)
NOTE = (
    "Temperature, cuts, penalties, seed and chat come from the knobs; draft and target pass the same stages."
)


class Speculate(Tab):
    """The tab's widgets and their wiring."""

    name, title = "speculate", "Speculate"
    needs = ("draft_checks",)

    def __init__(self, page: Page):
        super().__init__(page)
        first = self.first_lesson
        self.lay_out(first.prompt if first else "", FIELDS, NOTE, lines=3)
        self.text = self.picture("drafts", payloads.text, Speculation, "text")
        self.payoff = self.picture("payoff", payloads.payoff, Speculation)
        with gr.Row(elem_classes="pg-speculate-row"):
            self.round = self.picture("round", payloads.detail, Speculation)
            self.proof = self.picture("proof", payloads.proof, Speculation)
        self.card(
            "formula", lambda session: payloads.formula_point(self.view(session)), spec=payloads.formula()
        )

    def wire(self) -> None:
        super().wire()
        self.on(self.payoff.measure, self._measure, outputs=self.outputs, mode=None)
        for component in (self.text, self.round, self.payoff):
            self.on(component.pin, self._pin)
        self.on(self.proof.prove, self._prove, outputs=[self.proof], mode=None)

    def begin(
        self, session: Session, engine: EngineProtocol, prompt: str, values: dict[str, Any]
    ) -> Sequence[Series]:
        """The speculative run, then plain decoding of the same request, alone on the model each."""
        asked, view = request(engine, prompt, session.settings, values), self.view(session)
        series = Series(engine, [salted(session, asked), salted(session, plain(asked))])
        session.put(Speculation(lossless=lossless(asked), planned=["speculative", "plain"]))
        view.begin(asked, "run", prompt=prompt)
        return [series]

    def take(self, session: Session, number: int, event: Event) -> None:
        if session.state(Speculation).take(event):
            super().take(session, number, event)

    def phase(self, session: Session) -> str:
        runs = session.state(Speculation).runs
        if len(runs) < 2:
            return "drafting and checking" if runs else ""
        if len(runs) == 2:
            return "now plain decoding, to compare the time"
        return f"measuring: {runs[-1].kind} run {len(runs) - 2} of {len(MORE_PAIRS)}"

    def seen(self, session: Session) -> Speculation:
        return session.state(Speculation)

    def _measure(self, session: Session) -> Iterator[Updates]:
        """More pairs of runs of the request shown, without drawing them."""
        view, state = self.view(session), session.state(Speculation)
        asked = view.request
        if asked is None or view.running or not state.runs:
            yield {self.payoff: gr.skip()}
            return

        def begin(engine: EngineProtocol) -> list[Series]:
            kinds = list(MORE_PAIRS)
            runs = {"plain": plain(asked), "speculative": asked}
            series = Series(engine, [salted(session, runs[kind]) for kind in kinds])
            state.planned = kinds
            return [series]

        yield from self.play(session, begin)

    def _pin(self, session: Session, event: gr.EventData) -> Updates:
        number, place = got(event, "round", int), got(event, "place", int)
        if number is not None and place is not None:
            session.state(Speculation).selected = (number, place)
        return self.draw(session)

    def _prove(self, session: Session) -> Iterator[Updates]:
        view, state = self.view(session), session.state(Speculation)
        checks = rounds(view.events)
        step = payloads.provable(checks, payloads.selection(checks, state))
        if step is None or state.proving:
            yield {self.proof: gr.skip()}
            return
        state.proving, state.proof_note = True, ""
        yield self.draw(session, self.proof)
        try:
            check = checks[step[0]]
            asked = at_token(view, check.index + step[1], session.salt)
            guess = check.drafted[step[1]].token_id
            # Other draws each time, yet the same ones for the same seed and clicks.
            seed = (asked.seed or 0) % 2**31 + state.num_proofs
            state.proof = prove_step(self.loader.require(), asked, guess, NUM_DRAWS, seed)
            state.proof_of, state.num_proofs = step, state.num_proofs + 1
        except PlaygroundError as error:
            state.proof_note = str(error)
        finally:
            state.proving = False
        yield self.draw(session, self.proof)


def request(engine: EngineProtocol, prompt: str, settings: dict[str, Any], values: dict[str, Any]) -> Request:
    """The Request of a speculative run, from the knobs and the tab's own fields; its seed is drawn here.

    Raises:
        RequestError: a value has the wrong type or is out of range.
    """
    wanted = dict(values)
    limit = wanted.pop("max_new_tokens")
    strategy = Speculative(**source(wanted.pop("draft"), engine.num_layers), **wanted)
    return knobs.seeded(
        replace(
            knobs.request(prompt, settings | {"max_new_tokens": limit}, ""),
            strategy=strategy,
            num_candidates=0,
        )
    )


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


def at_token(view: View, index: int, salt: str) -> Request:
    """The request whose next token is token `index` of the text shown.

    Raises:
        RequestError: there is no text.
    """
    asked = view.request
    if asked is None or view.started is None:
        raise RequestError("there is no run to take a step from")
    prefix = tuple(step.token_id for step in view.steps[:index])
    return replace(
        asked,
        prompt=view.started.prompt_token_ids,
        chat=False,
        output_prefix=prefix,
        max_new_tokens=max(asked.max_new_tokens, len(prefix) + 1),
        cache_salt=salt,
    )
