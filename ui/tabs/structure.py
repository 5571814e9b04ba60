"""Structure: a grammar in an editor, the text it lets through, and where it goes against the model."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from backend import Engine, EventStream, Request
from backend.errors import PlaygroundError, RequestError
from ui import components, knobs
from ui.loading import Loader
from ui.payloads import structure as drawn
from ui.presets.lessons import Lesson
from ui.runs.structure import ENGINES, KINDS, Report, StructureFields, error_report
from ui.session import Session, forced_step
from ui.tabs.compose import Compose
from ui.tabs.fields import Fields
from ui.tabs.lesson_bar import LessonBar
from ui.tabs.player import play
from ui.tabs.viewer import QUIET, Updates, take_settings, whole

FOLDER = Path(__file__).parents[2] / "presets" / "grammars"
PERIOD = 0.15  # seconds between redraws while a run goes on
MAX_LENGTH = 512  # new tokens; a payload with every step of a longer text would get heavy

FIELDS: list[dict[str, Any]] = [
    {"name": "kind", "title": "written as", "kind": "select", "options": list(map(list, KINDS.items())),
     "hint": "A JSON schema (draft 2020-12), a regular expression for the whole text, a grammar in the "
             "notation of llama.cpp, or a structural tag: free text with structured parts."},
    {"name": "engine", "title": "masks by", "kind": "select", "options": list(map(list, ENGINES.items())),
     "hint": "Both are exact here: what one of them cannot enforce is refused by name. llguidance also takes "
             "lengths beside any pattern; structural tags need xgrammar."},
    {"name": "reason_first", "title": "free text first", "kind": "number", "min": 0, "max": 256, "step": 1,
     "hint": "Up to this many tokens without the grammar, so that the model can think; a blank line ends "
             "them."},
    {"name": "max_new_tokens", "title": "new tokens", "kind": "number", "min": 1, "max": MAX_LENGTH,
     "step": 1, "hint": "Upper limit on generated tokens, the free text included."},
    {"name": "beside", "title": "compare with no grammar", "kind": "check",
     "hint": "Runs the same prompt, knobs and seed without the grammar beside it."},
    {"name": "source", "title": "grammar", "kind": "area", "rows": 9, "placeholder": "Paste a schema here",
     "hint": "Compiled while you type."},
]  # fmt: skip
START: dict[str, Any] = {
    "kind": "json_schema",
    "engine": "xgrammar",
    "reason_first": 0,
    "max_new_tokens": 80,
    "beside": True,
    "source": "",
}


class Structure:
    """The tab's widgets and their wiring."""

    name, title = "structure", "Structure"

    def __init__(self, loader: Loader, lessons: Sequence[Lesson] = ()):
        self.loader = loader
        first = lessons[0] if lessons else None
        start = (
            START if first is None else START | dict(first.fields) | {"max_new_tokens": first.max_new_tokens}
        )
        self.compose = Compose("structure", first.prompt if first else "")
        self.prompt = self.compose.prompt
        self.lessons = LessonBar("structure", lessons)
        self.fields = Fields("structure", FIELDS, start)
        empty = Session()
        view, state = empty.structure, empty.constrained
        self.report = components.build("compiled", drawn.compiled(state.report), "pg-structure-report")
        self.texts = components.build("structured", drawn.texts(view, state), "pg-structure-texts")
        self.step = components.build("step", drawn.step(view), "pg-structure-step")
        for component in (self.texts, self.step):
            component.elem_classes = [*component.elem_classes, "pg-card"]

    def wire(self, session: gr.State, settings: gr.HTML) -> None:
        self.outputs = [self.texts, self.step, self.report, self.compose.stop]
        self.compose.wire(
            session, settings, self.start, self.outputs, lambda session: session.structure, self.fields
        )
        self.lessons.wire(session, settings, self.prompt, self.fields)
        for event in (self.fields.html.turn, self.fields.html.change, self.report.check):
            event(
                self._check,
                inputs=[session, self.fields.html],
                outputs=[self.report, self.texts],
                trigger_mode="always_last",
                **QUIET,
            )
        self.step.branch(self._branch, inputs=[session], outputs=self.outputs, **QUIET)
        self.texts.pin(
            self._pin, inputs=[session], outputs=[self.texts, self.step], trigger_mode="multiple", **QUIET
        )

    def _check(self, session: Session, sent: Any) -> Iterator[Updates]:
        """Compile what the editor holds; nothing is run."""
        state = session.constrained
        was_refused = state.report.state == "error"
        values = self.fields.read(sent)
        source = str(values["source"])
        if not source.strip() and values["kind"] != "regex":
            state.report = Report()
            yield self._checked(session, was_refused)
            return
        if not self.loader.done or state.report.state == "empty":
            state.report = Report("waiting", "compiling …")
            yield {self.report: drawn.compiled(state.report)}
        for line in self.loader.wait():
            state.report = Report("waiting", f"waiting for the model: {line}")
            yield {self.report: drawn.compiled(state.report)}
        state.report = report(self.loader, values)
        yield self._checked(session, was_refused)

    def _checked(self, session: Session, was_refused: bool) -> Updates:
        """The report; a notice that spoke of a refused grammar goes with it."""
        view, state = session.structure, session.constrained
        shown = {self.report: drawn.compiled(state.report)}
        if not was_refused or state.report.state == "error" or not view.notice or view.running:
            return shown
        view.notice = ""
        return {**shown, self.texts: drawn.texts(view, state)}

    def start(self, session: Session, turned: Any, prompt: str, sent: Any) -> Iterator[Updates]:
        """The constrained run and, where asked for, the same without the grammar, in one batch."""
        take_settings(session, turned)
        view, state = session.structure, session.constrained
        values = self.fields.read(sent)

        def begin(engine: Engine) -> list[EventStream]:
            if not str(values["source"]).strip() and values["kind"] != "regex":
                raise RequestError("There is no grammar yet: write one above, or try an example.")
            state.report = report(self.loader, values)
            asked = request(prompt, session.settings, values, session.salt)
            streams = [engine.stream(asked)]
            view.begin(asked, "run")
            view.prompt = prompt
            state.begin(bool(values["beside"]), engine.vocab_size)
            if values["beside"]:
                streams.append(engine.stream(replace(asked, grammar=None, num_candidates=0)))
            return streams

        yield from self._play(session, begin)

    def _branch(self, session: Session, event: gr.EventData) -> Iterator[Updates]:
        """Follow the text shown up to a token, take a candidate there, and go on under the same grammar."""
        view = session.structure
        trace, index, token_id = view.trace, whole(event, "index"), whole(event, "token_id")
        if trace is None or index is None or token_id is None or not 0 <= index < len(view.steps):
            yield {self.step: gr.skip()}
            return
        limit = trace.request.max_new_tokens
        asked = replace(trace.branch(index, token_id), max_new_tokens=limit, cache_salt=session.salt)

        def begin(engine: Engine) -> list[EventStream]:
            stream = engine.stream(asked)
            text = engine.added_text(asked.output_prefix[:-1], token_id)
            kept = [*view.steps[:index], forced_step(view.steps[index], token_id, text)]
            view.begin(asked, "run", kept)
            session.constrained.begin(False, engine.vocab_size)
            return [stream]

        yield from self._play(session, begin)

    def _play(self, session: Session, begin: Callable[[Engine], list[EventStream]]) -> Iterator[Updates]:
        view, state = session.structure, session.constrained
        due = 0.0
        yield self.compose.running(True)
        for batch in play(view, self.loader, begin):
            for number, event in batch or ():
                if number == 0:
                    view.add(event)
                else:
                    state.add_beside(event)
            if time.monotonic() >= due:
                # With every redraw: an update that another follows at once may never reach the page.
                yield {**self.draw(session), **self.compose.running(True)}
                due = time.monotonic() + PERIOD
        if not view.running:  # otherwise another run has taken over, and draws
            self._judge_beside(session)
            yield {**self.draw(session), **self.compose.running(False)}

    def _judge_beside(self, session: Session) -> None:
        """What the reader of the constrained text says of the other one."""
        state, asked = session.constrained, session.structure.request
        if not state.has_beside or state.beside_finished is None or asked is None or asked.grammar is None:
            return
        text = "".join(step.text for step in state.beside)
        try:
            found = self.loader.require().judge(asked.grammar, text.strip())
        except PlaygroundError:  # the engine was closed meanwhile
            return
        state.beside_verdict = (found.status, found.reason)

    def _pin(self, session: Session, event: gr.EventData) -> Updates:
        view = session.structure
        view.pinned = whole(event, "index")
        view.looked = view.pinned
        return {
            self.texts: drawn.texts(view, session.constrained),
            self.step: drawn.step(view),
        }

    def draw(self, session: Session) -> Updates:
        """Everything anew."""
        view, state = session.structure, session.constrained
        return {
            self.texts: drawn.texts(view, state),
            self.step: drawn.step(view),
            self.report: drawn.compiled(state.report),
        }


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
    limit = values["max_new_tokens"]
    if isinstance(limit, int) and limit > MAX_LENGTH:
        raise RequestError(f"new tokens must be at most {MAX_LENGTH} here, got {limit}")
    grammar = grammar_fields(values).grammar()
    asked = knobs.request(prompt, settings | {"max_new_tokens": limit}, salt)
    seed = secrets.randbelow(2**31) if asked.seed is None else asked.seed
    return replace(asked, grammar=grammar, seed=seed)
