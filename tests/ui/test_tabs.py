"""Every tab over two engines: a real one, and one that plays back what the real one recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gradio as gr
import pytest

from backend import Engine, Request, Trace
from backend.protocol import Capabilities, EngineProtocol
from backend.recorded import LACKING, RecordedEngine, RecordedStream
from tests import models
from ui import components, knobs, order
from ui import page as page_module
from ui.header import Header
from ui.loading import Loader
from ui.page import LESSONS, TABS
from ui.presets.lessons import load_lessons
from ui.runs.crowd import Ask
from ui.runs.kv_state import KvState
from ui.session import Session
from ui.tabs.compose import Compose
from ui.tabs.tab import Page, Tab, Updates

SETTINGS = knobs.DEFAULTS | {"seed": 5, "max_new_tokens": 6, "top_p": 0.9}
FEW = {"max_new_tokens": 5}
# What each tab is asked for: its prompt, and the fields that are not as they start.
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "inspect": ("a b a b", {}),
    "compare": ("a b a b", FEW),
    "sweep": ("a b a b", FEW | {"count": 2, "seeds": 2}),
    "beams": ("a b a b", FEW | {"num_beams": 3}),
    "samples": ("a b a b", FEW | {"n": 3}),
    "speculate": ("a b a b", FEW | {"num_draft_tokens": 2}),
    "kv": ("", {"pool": "whole", "stagger": 0}),
    "structure": ("a b", FEW | {"kind": "regex", "source": "[a-d ]{2,3}", "beside": True}),
    "score": ("a b a b", {}),
    "lab": ("a b a b\nc d", {"max_new_tokens": 3, "seed": 1}),
}


class Recorder:
    """Passes everything on to an engine and keeps the traces of what it streamed."""

    def __init__(self, engine: Engine):
        self.engine, self.traces = engine, list[Trace]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def stream(self, request: Request, parent: Any = None) -> RecordedStream:
        trace = self.engine.generate(request)
        self.traces.append(trace)
        return RecordedStream(request, trace.events)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    made = models.engine()
    yield made
    made.close()


def laid_out(engine: EngineProtocol) -> tuple[Page, Header]:
    """The page over an engine that is loaded; gradio takes the running event loop, or leaves one open."""
    return asyncio.run(_laid_out(engine))


async def _laid_out(engine: EngineProtocol) -> tuple[Page, Header]:
    loader = Loader(lambda progress: engine)
    loader.start()
    list(loader.wait(0.01))
    first = Session(knobs.DEFAULTS)
    lessons = [lesson for folder in LESSONS for lesson in load_lessons(folder)]
    with gr.Blocks():
        turned = components.build("knobs", {}, "pg-knobs", spec=knobs.describe())
        header = Header(loader)
        with gr.Tabs() as tabs:
            page = Page(loader, first, gr.State(first), turned, tabs, lessons)
            for kind in TABS:
                with gr.Tab(kind.title, id=kind.name):
                    kind(page)
        for panel in page.panels.values():
            panel.wire()
        header.wire(page)
    return page, header


def run(panel: Tab, session: Session) -> list[Updates]:
    """All that a run of the tab draws."""
    prompt, fields = ASKED[panel.name]
    start = panel.fields.start if panel.fields else {}
    return list(panel.start(session, {"settings": SETTINGS}, prompt, {"values": start | fields}))


def pictures(panel: Tab, updates: Updates) -> dict[str, Any]:
    found = {card.elem_id: updates[card] for card in panel.cards if card in updates}
    return {name: {**value, "drawn": 0} if value else value for name, value in found.items()}


@pytest.mark.parametrize("name", ASKED)
def test_every_tab_runs_over_a_real_engine(engine: Engine, name: str) -> None:
    page, _ = laid_out(engine)
    panel, session = page.panels[name], Session(knobs.DEFAULTS)
    drawn = run(panel, session)
    view = panel.view(session)
    assert view.notice == ""
    assert not view.running
    assert drawn[-1][panel.compose.stop].interactive is False
    assert drawn[0][panel.compose.stop].interactive is True
    json.dumps(pictures(panel, drawn[-1]), allow_nan=False)
    for card in panel.cards:
        numbers = [updates[card]["drawn"] for updates in drawn if updates.get(card)]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("name", ["inspect", "compare", "sweep", "beams", "samples", "speculate", "lab"])
def test_a_recorded_engine_gives_the_same_pictures(engine: Engine, name: str) -> None:
    recorder = Recorder(engine)
    page, _ = laid_out(recorder)  # type: ignore[arg-type]  # it answers for the engine
    panel = page.panels[name]
    before = pictures(panel, run(panel, Session(knobs.DEFAULTS))[-1])
    recorded = RecordedEngine(recorder.traces, Capabilities(reevaluation=LACKING.reevaluation))
    recorded.num_layers = engine.num_layers
    page, _ = laid_out(recorded)
    panel = page.panels[name]
    after = pictures(panel, run(panel, Session(knobs.DEFAULTS))[-1])
    assert after == before


@pytest.mark.parametrize("name", ["kv", "structure", "score", "beams", "samples", "speculate", "lab"])
def test_a_tab_that_the_engine_cannot_serve_is_greyed_and_says_why(name: str) -> None:
    page, header = laid_out(RecordedEngine([]))
    panel, session = page.panels[name], Session(knobs.DEFAULTS)
    reason = LACKING.lacking(panel.needs)
    assert reason.endswith("there is no model.")
    updates = header._tick(session, *([{"values": {}}] * 20))
    assert (updates[panel.compose.lack].value, updates[panel.compose.lack].visible) == (reason, True)
    assert updates[panel.compose.run].interactive is False
    run(panel, session)  # as a link or an old page would
    assert panel.view(session).notice == reason
    assert not panel.view(session).running


def test_a_field_that_the_engine_cannot_serve_is_greyed_and_says_why() -> None:
    page, _ = laid_out(RecordedEngine([]))
    for name, field in (("kv", "pool"), ("beams", "stochastic")):
        panel = page.panels[name]
        assert panel.fields is not None
        sent = {"number": 3, "values": {"a": 1}}
        updates = panel.refuse(replace(LACKING, beams="", block_tables=""), sent)
        assert panel.compose.run not in updates
        reason = getattr(LACKING, {"kv": "pool_sizes", "beams": "stochastic_beams"}[name])
        assert updates[panel.fields.html] == {**sent, "lacking": {field: reason}}


def test_an_engine_that_can_all_leaves_the_page_alone(engine: Engine) -> None:
    page, header = laid_out(engine)
    assert engine.capabilities == Capabilities()
    assert set(header._tick(Session(knobs.DEFAULTS), *[None] * 20)) == {header.bar, header.timer}
    assert not any(panel.refuse(Capabilities(), {}) for panel in page.panels.values())


def test_a_run_that_was_not_recorded_is_refused_by_name(engine: Engine) -> None:
    recorded = RecordedEngine([engine.generate(Request("a b", max_new_tokens=2, seed=1))])
    page, _ = laid_out(recorded)
    panel, session = page.panels["inspect"], Session(knobs.DEFAULTS)
    run(panel, session)
    assert "only recorded runs are played back here" in session.inspect.notice
    assert session.inspect.notice.endswith("Recorded: 'a b'")


def test_the_number_of_a_picture_is_taken_before_what_it_shows_is_read(engine: Engine) -> None:
    page, _ = laid_out(engine)
    for panel in page.panels.values():
        for card in panel.cards:
            panel.cards[card] = lambda session: {"read": next(order._numbers)}
        updates = panel.draw(Session(knobs.DEFAULTS))
        shown = [updates[card] for card in panel.cards if card in updates]
        assert shown
        assert all(picture["drawn"] < picture["read"] for picture in shown)


def test_a_new_tab_is_one_class(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Echo(Tab):
        """Runs the prompt and counts its tokens."""

        name, title = "echo", "Echo"

        def __init__(self, page: Page):
            super().__init__(page)
            self.compose = Compose("echo", "a b")
            self.card("saver", lambda session: {"tokens": len(self.view(session).steps)})

        def begin(self, session: Session, engine: Any, prompt: str, values: dict[str, Any]) -> list[Any]:
            asked = knobs.request(prompt, session.settings, session.salt)
            stream = engine.stream(asked)
            self.view(session).begin(asked, "run")
            return [stream]

    monkeypatch.setitem(ASKED, "echo", ("a b", {}))
    monkeypatch.setitem(globals(), "TABS", [*TABS, Echo])
    page, _ = laid_out(engine)
    session = Session(knobs.DEFAULTS)
    last = run(page.panels["echo"], session)[-1]
    assert pictures(page.panels["echo"], last) == {"pg-echo-saver": {"tokens": 6, "drawn": 0}}
    assert session.views["echo"].finished is not None


@pytest.mark.parametrize("name", [name for name in ASKED if name != "inspect"])
def test_fields_out_of_their_limits_are_refused_by_title_and_start_nothing(engine: Engine, name: str) -> None:
    page, _ = laid_out(engine)
    panel = page.panels[name]
    if panel.fields is None:
        return
    for field in panel.fields.inputs:
        bad: list[Any] = [None, [], {}]
        if field["kind"] == "number":
            bad += [field["min"] - 1, field["max"] + 1, float("nan"), float("inf"), True, "1"]
            bad += [1.5] if isinstance(field["step"], int) else []
        if field["kind"] == "select":
            bad += ["x", 5]
        values = panel.fields.start | ({"second": "top_p"} if name == "sweep" else {})
        for value in bad:
            session = Session(knobs.DEFAULTS)
            list(panel.start(session, {}, "a b", {"values": values | {field["name"]: value}}))
            assert panel.view(session).notice.startswith(f"{field['title']} must be "), (field, value)
            assert panel.view(session).number == 0


def test_a_link_says_beforehand_what_it_cannot_carry(engine: Engine) -> None:
    page, _ = laid_out(engine)
    panel, session = page.panels["inspect"], Session(knobs.DEFAULTS)
    run(panel, session)
    assert panel.beyond_link(session) == ""
    session.settings["temperature"] = 0.1
    assert "knobs were moved" in panel.beyond_link(session)
    session.settings = dict(SETTINGS)
    trace = panel.view(session).trace
    assert trace is not None
    panel.view(session).show(engine.generate(trace.branch(2, 5)), "run")
    assert "does not hold the branch" in panel.beyond_link(session)
    panel.view(session).show(trace, "import")
    assert "does not hold the opened trace" in panel.beyond_link(session)


def test_a_link_says_that_an_edited_list_of_requests_is_not_in_it(engine: Engine) -> None:
    page, _ = laid_out(engine)
    panel, session = page.panels["kv"], Session(knobs.DEFAULTS)
    run(panel, session)
    first = next(iter(panel.sets.values()))  # type: ignore[attr-defined]
    panel._fill(session, first.name)  # type: ignore[attr-defined]
    assert panel.beyond_link(session) == ""
    session.state(KvState).crowd.add(Ask("one more", 3, 1))
    assert first.title in panel.beyond_link(session)
    assert page.panels["score"].beyond_link(session) == ""


def test_no_event_of_the_page_lets_the_browser_copy_its_pictures() -> None:
    """With every update gradio's page copies each component on which the event could show a spinner."""
    blocks = page_module.build(Loader(lambda progress: None))  # type: ignore[arg-type, return-value]
    events = blocks.get_config_file()["dependencies"]
    own = [event for event in events if event["api_visibility"] == "private"]
    assert len(own) > 50
    assert [event["id"] for event in own if event["show_progress_on"] != []] == []
