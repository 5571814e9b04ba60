"""Every lesson in full on the bundled model, against the claims that its text rests on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backend import Engine
from tests.ui.test_tabs import laid_out
from ui import knobs
from ui.page import LESSONS
from ui.presets.lessons import load_lessons
from ui.presets.request_sets import load_request_sets
from ui.session import Session
from ui.tabs.tab import Page

NAMES = [
    *((lesson.tab, lesson.name) for folder in LESSONS for lesson in load_lessons(folder)),
    *(("kv", name) for name in load_request_sets()),
]


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    engine = Engine.load("smollm2-135m", device="cpu", precision="float32")
    yield laid_out(engine)[0]
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize(("tab", "name"), NAMES)
def test_a_click_on_a_lesson_runs_it_and_the_run_shows_what_it_says(page: Page, tab: str, name: str) -> None:
    panel, session = page.panels[tab], Session(knobs.DEFAULTS)
    assert panel.lessons is not None
    *before, last = [
        updates[panel.lessons.bar]
        for updates in panel.lessons.run(session, name)
        if panel.lessons.bar in updates
    ]
    assert panel.view(session).notice == ""
    assert last["chosen"] == name
    assert [text for holds, text in last["found"] if not holds] == []
    assert [drawn["found"] for drawn in before] == [None] * len(before)
