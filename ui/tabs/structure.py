"""Structure: a grammar in an editor, the text it lets through, and where it goes against the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from backend import Request
from backend.errors import PlaygroundError, RequestError
from backend.events import Event
from backend.protocol import EngineProtocol, RunStream
from ui import knobs
from ui.loading import Loader
from ui.payloads import structure as payloads
from ui.runs.structure import (
    ENGINES,
    KINDS,
    Constrained,
    Report,
    StructureFields,
    StructureState,
    error_report,
)
from ui.session import Session, forced_step
from ui.tabs.fields import Fields, number, select, starts, tick, typed
from ui.tabs.player import start_all
from ui.tabs.tab import Page, Tab, Updates, got

FOLDER = Path(__file__).parents[2] / "presets" / "grammars"
MAX_LENGTH = 512  # new tokens; a payload with every step of a longer text would get heavy

FIELDS: list[dict[str, Any]] = [
    select(
        "kind",
        "written as",
        KINDS,
        "A JSON schema (draft 2020-12), a regular expression for the whole text, a grammar in the "
        "notation of llama.cpp, or a structural tag: free text with structured parts.",
    ),
    select(
        "engine",
        "masks by",
        ENGINES,
        "Both are exact here: what one of them cannot enforce is refused by name. llguidance also takes "
        "lengths beside any pattern; structural tags need xgrammar.",
    ),
    number(
        "reason_first",
        "free text first",
        0,
        256,
        0,
        "Up to this many tokens without the grammar, so that the model can think; a blank line ends them.",
    ),
    number(
        "max_new_tokens",
        "new tokens",
        1,
        MAX_LENGTH,
        80,
        "Upper limit on generated tokens, the free text included.",
    ),
    tick(
        "beside",
        "compare with no grammar",
        True,
        "Runs the same prompt, knobs and seed without the grammar beside it.",
    ),
    typed("source", "grammar", "area", "Compiled while you type.", rows=9, placeholder="Paste a schema here"),
]
START = starts(FIELDS)


class Structure(Tab):
    """The tab's widgets and their wiring."""

    name, title = "structure", "Structure"
    needs = ("grammars",)
    fields: Fields

    def __init__(self, page: Page):
        super().__init__(page)
        first = self.first_lesson
        start = first.fields | {"max_new_tokens": first.max_new_tokens} if first else {}
        self.lay_out(first.prompt if first else "", FIELDS, start=start)
        self.report = self.picture(
            "compiled",
            lambda _, state: payloads.compiled(state.report),
            StructureState,
            "report",
            framed=False,
        )
        self.texts = self.picture("structured", payloads.texts, StructureState, "texts")
        self.step = self.card("step", lambda session: payloads.step(self.view(session)))

    def wire(self) -> None:
        super().wire()
        for event in (self.fields.html.turn, self.fields.html.change, self.report.check):
            self.on(
                event,
                self._check,
                self.fields.html,
                outputs=[self.report, self.texts, self.step],
                mode="always_last",
            )
        self.on(self.step.branch, self._branch, outputs=self.outputs, mode=None)
        self.on(self.texts.pin, self._pin)

    def _check(self, session: Session, sent: Any) -> Iterator[Updates]:
        """Compile what the editor holds; nothing is run."""
        view, state, values = self.view(session), session.state(StructureState), self.fields.read(sent)
        was_refused = state.report.state == "error"
        if is_empty(values):
            state.report = Report()
        else:
            if not self.loader.done or state.report.state == "empty":
                state.report = Report("waiting", "compiling …")
                yield self.draw(session, self.report)
            for line in self.loader.wait():
                state.report = Report("waiting", f"waiting for the model: {line}")
                yield self.draw(session, self.report)
            state.report = report(self.loader, values)
        if was_refused and state.report.state != "error" and view.notice and not view.running:
            view.notice = ""  # it spoke of the refused grammar
            yield self.draw(session, self.report, self.texts)
        else:
            yield self.draw(session, self.report)

    def begin(
        self, session: Session, engine: EngineProtocol, prompt: str, values: dict[str, Any]
    ) -> Sequence[RunStream]:
        """The constrained run and, where asked for, the same without the grammar, in one batch."""
        if is_empty(values):
            raise RequestError("There is no grammar yet: write one above, or try an example.")
        view, state = self.view(session), session.state(StructureState)
        state.report = report(self.loader, values)
        asked = request(prompt, session.settings, values, session.salt)
        free = [replace(asked, grammar=None, num_candidates=0)] if values["beside"] else []
        streams = start_all(engine, [asked, *free])
        view.begin(asked, "run", prompt=prompt)
        state.begin(values["beside"], engine.vocab_size)
        return streams

    def _branch(self, session: Session, event: gr.EventData) -> Iterator[Updates]:
        """Follow the text shown up to a token, take a candidate there, and go on under the same grammar."""
        view = self.view(session)
        trace, index, token_id = view.trace, got(event, "index", int), got(event, "token_id", int)
        if trace is None or index is None or token_id is None or not 0 <= index < len(view.steps):
            yield {self.step: gr.skip()}
            return
        limit = trace.request.max_new_tokens
        asked = replace(trace.branch(index, token_id), max_new_tokens=limit, cache_salt=session.salt)

        def begin(engine: EngineProtocol) -> list[RunStream]:
            stream = engine.stream(asked)
            text = engine.added_text(asked.output_prefix[:-1], token_id)
            kept = [*view.steps[:index], forced_step(view.steps[index], token_id, text)]
            view.begin(asked, "run", kept)
            session.state(StructureState).begin(False, engine.vocab_size)
            return [stream]

        yield from self.play(session, begin)

    def take(self, session: Session, number: int, event: Event) -> None:
        if number == 0:
            super().take(session, number, event)
        else:
            session.state(StructureState).beside.events.append(event)

    def ended(self, session: Session) -> None:
        """What the reader of the constrained text says of the other one."""
        state, asked = session.state(StructureState), self.view(session).request
        if not state.has_beside or state.beside.finished is None or asked is None or asked.grammar is None:
            return
        text = "".join(step.text for step in state.beside.tokens)
        try:
            found = self.loader.require().judge(asked.grammar, text.strip())
        except PlaygroundError:  # the engine was closed meanwhile
            return
        state.beside_verdict = (found.status, found.reason)

    def seen(self, session: Session) -> Constrained:
        view = self.view(session)
        return Constrained(view.events, view.steps, session.state(StructureState))

    def _pin(self, session: Session, event: gr.EventData) -> Updates:
        view = self.view(session)
        view.pinned = got(event, "index", int)
        view.looked = view.pinned
        return self.draw(session, self.texts, self.step)


def is_empty(values: dict[str, Any]) -> bool:
    """Whether no grammar is written yet; an empty regular expression is one."""
    return not str(values["source"]).strip() and values["kind"] != "regex"


def grammar_fields(values: dict[str, Any]) -> StructureFields:
    """The part of the tab's fields that makes a grammar.

    Raises:
        RequestError: a value has the wrong type or is out of range.
    """
    return StructureFields(**{name: value for name, value in values.items() if name != "max_new_tokens"})


def report(loader: Loader, values: dict[str, Any]) -> Report:
    """Compile and say how that went."""
    try:
        made = loader.require().check_grammar(grammar_fields(values).grammar())
    except PlaygroundError as error:
        return error_report(error, str(values["source"]))
    rules = f"{made.num_rules:,} rule" + ("" if made.num_rules == 1 else "s")
    message = f"compiled in {made.seconds * 1000:.1f} ms, {rules}, by {made.grammar.engine}"
    return Report("fine", message, made.notes)


def request(prompt: str, settings: dict[str, Any], values: dict[str, Any], salt: str) -> Request:
    """The constrained Request, from the knobs and the tab's own fields; its seed is drawn here.

    Raises:
        RequestError: a value has the wrong type or is out of range.
    """
    grammar = grammar_fields(values).grammar()
    asked = knobs.request(prompt, settings | {"max_new_tokens": values["max_new_tokens"]}, salt)
    return replace(knobs.seeded(asked), grammar=grammar)
