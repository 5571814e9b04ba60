"""The Lab in a real browser: every lesson runs on the bundled model, the table fills, the sliders answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import Site, begun, lesson_stands, open_tab, settled, start, stop, text_of, until
from ui.page import LESSONS
from ui.presets.lessons import Lesson, load_lessons
from ui.presets.request_sets import load_request_sets

TABLE = ".pg-table1"
VIEWS = {
    "compare": ".pg-compare",
    "samples": ".pg-samples",
    "beams": ".pg-tree",
    "structure": ".pg-structured",
}


@pytest.fixture
def tab(page: Any) -> Any:
    open_tab(page, "Lab")
    page.locator(".pg-lessonlist").wait_for(state="visible")
    return page


def test_every_lesson_opens_with_its_settings_and_runs(tab: Any) -> None:
    lessons = [lesson for folder in LESSONS for lesson in load_lessons(folder)]
    listed = tab.locator(".pg-lessonlist [data-lesson]").count()
    assert listed == len(lessons) + len(load_request_sets()) >= 25
    # Those of Speculate and KV cache are run in the tests of these tabs.
    for lesson in (each for each in lessons if each.tab in VIEWS):
        open_tab(tab, "Lab")
        with begun(tab, f".pg-tab-{lesson.tab} {VIEWS[lesson.tab]}"):
            tab.click(f'.pg-lessonlist [data-lesson="{lesson.name}"]')
        run_short(tab, lesson)


def run_short(page: Any, lesson: Lesson) -> None:
    """The lesson as it was put in place: its own run is stopped, and made again with few tokens."""
    panel = f".pg-tab-{lesson.tab}"
    view = f"{panel} {VIEWS[lesson.tab]}"
    page.locator(f"#pg-{lesson.tab}-prompt textarea").wait_for(state="visible")
    lesson_stands(page, lesson.tab, lesson)
    page.wait_for_selector(f"{panel} .pg-lessons-ask:has-text({lesson.question[:30]!r})")
    stop(page, view, lesson.tab)
    page.fill(f'{panel} [data-field="max_new_tokens"]', "3" if lesson.tab != "structure" else "12")
    start(page, view, lesson.tab)
    settled(page, view, lesson.tab)
    if lesson.tab == "compare":
        page.wait_for_selector(f"{view}.pg-explained")
        assert page.locator(f"{view} .pg-lane:not([data-human])").count() == len(lesson.fields["lanes"])
    assert page.locator(f"{panel} .pg-notice:not([hidden])").count() == 0


def test_the_table_is_measured_with_progress_and_can_be_stopped(tab: Any, site: Site) -> None:
    blocks = site.engine.block_manager
    before = blocks.num_free_blocks
    tab.fill("#pg-lab-prompt textarea", "The sea\nThe old man\nOnce upon a time")
    tab.fill('#pg-lab-fields [data-field="max_new_tokens"]', "6")
    tab.click("#pg-lab-run")
    tab.wait_for_selector(f'{TABLE}[data-done="18"]:not(.pg-running)')
    assert (
        tab.locator(f'{TABLE} [data-table=measured] [data-column="texts"]').all_text_contents() == ["3"] * 6
    )
    verdict = text_of(tab, f"{TABLE} .pg-table1-verdict")
    assert "Only 3 texts" in verdict
    assert tab.locator(f"{TABLE} [data-table=published] tbody tr").count() == 6
    tab.fill('#pg-lab-fields [data-field="max_new_tokens"]', "200")
    tab.click("#pg-lab-run")
    tab.wait_for_selector(f"{TABLE}.pg-running")
    tab.click("#pg-lab-stop")
    tab.wait_for_selector(f"{TABLE}:not(.pg-running)")
    until(lambda: blocks.num_free_blocks == before, "free blocks", seconds=20)


def test_the_calculators_answer(tab: Any) -> None:
    card = '.pg-workcard[data-card="nucleus"]'
    assert text_of(tab, f"{card} [data-fact=kept] b") == "4"
    tab.fill(f'{card} [data-input="top_p"]', "0.5")
    tab.wait_for_selector(f"{card} [data-fact=kept] b:text-is('2')")
    tab.fill(f'{card} [data-input="probabilities"]', "0.9, 0.9")
    tab.wait_for_selector(f"{card} .pg-stale:has-text('add up to at most 1')")
