"""Lab: guided lessons, a table of the literature measured here, and formulas to play with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
import yaml

from backend import RequestError
from backend.degeneration import METHODS, requests
from backend.protocol import EngineProtocol
from backend.sweep import MAX_RUNS, Outcome, Sweep
from ui import components, tables
from ui.payloads import lab as payloads
from ui.payloads import worked as worked_payloads
from ui.runs.outcomes import Outcomes
from ui.session import Session
from ui.tabs.fields import number, starts
from ui.tabs.lesson_bar import described
from ui.tabs.tab import Page, Tab, Updates, got

FOLDER = Path(__file__).parents[2] / "presets" / "lab"
PROMPTS, QUESTIONS = FOLDER / "prompts.yaml", FOLDER / "questions.yaml"
FIELDS: list[dict[str, Any]] = [
    number(
        "max_new_tokens",
        "new tokens",
        1,
        256,
        64,
        "Upper limit on generated tokens of each text. Loops need room: the paper used up to 200.",
    ),
    number(
        "seed",
        "first seed",
        0,
        1_000_000,
        1,
        "Every prompt has a seed of its own, the same for all methods.",
    ),
]
START = starts(FIELDS)
NOTE = "One prompt a line. The knobs on the left take no part here."


class Lab(Tab):
    """The tab's widgets and their wiring."""

    name, title = "lab", "Lab"
    needs = ("sampling", "beams")
    period = 0.5

    def __init__(self, page: Page):
        super().__init__(page)
        self.bars = [panel.lessons for panel in page.panels.values() if panel.lessons]
        spec = {
            "lessons": described(lesson for bar in self.bars for lesson in bar.lessons.values()),
            "tabs": {name: panel.title for name, panel in page.panels.items()},
            "questions": questions(),
        }
        self.list = components.build("lessonlist", {}, "pg-lab-lessons", spec=spec)
        self.list.elem_classes = [*self.list.elem_classes, "pg-card"]
        gr.HTML("<h2>Likely text and human text</h2>", elem_classes="pg-lab-title")
        self.lay_out("\n".join(prompts()), FIELDS, NOTE, run="Measure", lines=3)
        self.table = self.picture("table1", payloads.payload, Outcomes, "table")
        self.save(self.table.csv, "decoding-methods.csv", self._csv)
        gr.HTML("<h2>Worked numbers</h2>", elem_classes="pg-lab-title")
        self.worked = self.card(
            "worked",
            lambda session: {"results": worked_payloads.results(session.state(worked_payloads.Inputs))},
            spec={"cards": worked_payloads.CARDS},
        )

    def wire(self) -> None:
        super().wire()
        self.on(self.worked.turn, self._work, outputs=[self.worked])
        outputs = [self.page.tabs, *(output for bar in self.bars for output in bar.outputs)]
        self.on(self.list.open_lesson, self._open, outputs=outputs)

    def begin(
        self, session: Session, engine: EngineProtocol, prompt: str, values: dict[str, Any]
    ) -> Sequence[Sweep]:
        """Every prompt by every method, in batches."""
        made = requests(lines(prompt), values["max_new_tokens"], values["seed"], session.salt)
        self.view(session).begin(made[0], "run")
        session.put(Outcomes(len(made)))
        return [Sweep(engine, made)]

    def take(self, session: Session, number: int, event: Outcome) -> None:
        session.state(Outcomes).found.append(event)

    def phase(self, session: Session) -> str:
        return "measuring"

    def ended(self, session: Session) -> None:
        view = self.view(session)
        failed = [outcome.error for outcome in session.state(Outcomes).found if outcome.error]
        if failed and not view.notice:
            view.notice = f"{len(failed)} texts failed. {failed[0]}"

    def _open(self, session: Session, event: gr.EventData) -> Iterator[Updates]:
        """Open a tab, and run the lesson there that was asked for."""
        name, bars = got(event, "lesson", str) or "", {bar.tab.name: bar for bar in self.bars}
        tab = got(event, "tab", str) or ""
        if tab not in self.page.panels:
            yield {self.page.tabs: gr.skip()}
            return
        session.tab = tab
        yield {self.page.tabs: gr.Tabs(selected=tab)}
        if tab in bars and name in bars[tab].lessons:
            yield from bars[tab].run(session, name)

    def _work(self, session: Session, event: gr.EventData) -> Updates:
        session.put(worked_payloads.Inputs(got(event, "inputs", dict) or {}))
        return self.draw(session, self.worked)

    def _csv(self, session: Session) -> str:
        rows = [
            row["cells"] for row in payloads.payload(self.view(session), session.state(Outcomes))["measured"]
        ]
        return tables.to_csv(payloads.COLUMNS, rows)


def prompts(path: Path = PROMPTS) -> list[str]:
    """The prompts that the experiment opens with."""
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [str(prompt) for prompt in found]


def questions(path: Path = QUESTIONS) -> list[dict[str, str]]:
    """Questions a run raises: where the page answers them, and a lesson that raises each."""
    found: list[dict[str, str]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def lines(text: str) -> list[str]:
    """One prompt a line.

    Raises:
        RequestError: none, or more than the experiment takes.
    """
    found = [line.strip() for line in text.splitlines() if line.strip()]
    most = MAX_RUNS // len(METHODS)
    if not 1 <= len(found) <= most:
        raise RequestError(f"the experiment takes 1 to {most} prompts, one a line, got {len(found)}")
    return found
