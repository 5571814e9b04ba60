"""The Sweep tab in a real browser, on the bundled model."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from tests.browser.conftest import Site, open_tab, set_run, settled, start, text_of, until, wait_for_end

VIEW = ".pg-sweep"
BUTTONS = f"{VIEW} .pg-sweep-seeds button"


@pytest.fixture
def tab(page: Any) -> Any:
    open_tab(page, "Sweep")
    page.locator("#pg-sweep-prompt textarea").wait_for(state="visible")
    return page


def sweep(page: Any, wait: bool = True, **values: object) -> None:
    for name, value in values.items():
        page.fill(f'#pg-sweep-fields [data-field="{name}"]', str(value))
    start(page, VIEW, "sweep")
    if wait:
        settled(page, VIEW, "sweep")


def test_a_sweep_draws_bands_and_a_run_opens_in_inspect(tab: Any, tmp_path: Path) -> None:
    set_run(tab, seed=3)
    sweep(tab, low=0, high=1, count=2, seeds=2, max_new_tokens=6)
    assert tab.locator(BUTTONS).count() == 4
    tab.wait_for_selector(f"{VIEW} .pg-sweep-plot .main-svg")
    assert tab.locator(f"{VIEW} .pg-sweep-plot").count() == 8
    with tab.expect_download() as saved:
        tab.click(f"{VIEW} [data-act=csv]")
    saved.value.save_as(tmp_path / "sweep.csv")
    table = text_of(tab, f"{VIEW} tbody")
    # The last run: temperature 1, the second seed
    wanted = tab.locator(BUTTONS).last.get_attribute("title")
    tab.locator(BUTTONS).last.click()
    tab.wait_for_selector(".pg-tab-inspect .pg-strip:not(.pg-running) .pg-token >> nth=5")
    wait_for_end(tab)
    labels = "".join(tab.locator(".pg-tab-inspect .pg-token").all_text_contents())
    assert labels.replace("↵", "\n") == wanted
    assert tab.locator('[data-setting="seed"]').input_value() == "4"
    # The saved table, opened again, draws the same
    open_tab(tab, "Sweep")
    before = tab.get_attribute(VIEW, "data-number")
    tab.set_input_files(f"{VIEW} input[type=file]", tmp_path / "sweep.csv")
    tab.wait_for_selector(f"{VIEW}:not([data-number='{before}'])")
    assert text_of(tab, f"{VIEW} tbody") == table
    assert tab.locator(f"{BUTTONS}[disabled]").count() == 4


def test_two_knobs_make_a_heat_map_whose_cells_open_their_run(tab: Any) -> None:
    second = [tab.locator(f'#pg-sweep-fields [data-field="{name}"]') for name in ("low2", "high2", "count2")]
    assert not any(field.is_visible() for field in second)
    tab.select_option('#pg-sweep-fields [data-field="second"]', "top_p")
    assert all(field.is_visible() for field in second)
    set_run(tab, seed=5)
    sweep(tab, low=0.5, high=1, count=2, low2=0.6, high2=1, count2=3, seeds=1, max_new_tokens=4)
    assert tab.locator(BUTTONS).count() == 6
    cells = tab.locator(f"{VIEW} .pg-sweep-plot .heatmaplayer image, {VIEW} .pg-sweep-plot .hm image")
    cells.first.wait_for(state="attached")
    plot = tab.locator(f"{VIEW} .pg-sweep-plot .nsewdrag").first
    plot.scroll_into_view_if_needed()
    size = plot.bounding_box()
    # The lower left cell: the lowest value of both knobs
    plot.click(position={"x": size["width"] * 0.25, "y": size["height"] * 5 / 6})
    tab.wait_for_selector(".pg-tab-inspect .pg-strip:not(.pg-running) .pg-token >> nth=3")
    wait_for_end(tab)
    assert tab.locator('.pg-knob[data-stage="temperature"] .pg-knob-number').input_value() == "0.5"
    assert tab.locator('.pg-knob[data-stage="top_p"] .pg-knob-number').input_value() == "0.6"


def test_what_is_said_beside_the_knobs_is_of_the_run_in_inspect(tab: Any) -> None:
    acts = tab.locator('.pg-knob[data-stage="top_p"] .pg-acts')
    until(lambda: text_of(tab, '.pg-knob[data-stage="top_p"] .pg-acts') == "", "no word on another run")
    open_tab(tab, "Inspect")
    until(lambda: "cut" in (acts.text_content() or ""), "the word on the run in Inspect")


def test_stop_keeps_what_came_frees_every_block_and_the_page_answers_meanwhile(tab: Any, site: Site) -> None:
    blocks = site.engine.block_manager
    before = blocks.num_free_blocks
    set_run(tab, logit_bias="0: -100\n2: -100")
    sweep(tab, wait=False, low=0.5, high=1, count=10, seeds=16, max_new_tokens=10)
    until(lambda: int(tab.get_attribute(VIEW, "data-done")) >= 1, "a first run", seconds=120)
    open_tab(tab, "Score a text")  # other tabs open while it runs
    tab.locator("#pg-score-prompt textarea").wait_for(state="visible")
    open_tab(tab, "Sweep")
    tab.click("#pg-sweep-stop")
    until(lambda: blocks.num_free_blocks == before, "free blocks", seconds=20)
    settled(tab, VIEW, "sweep")
    done = int(tab.get_attribute(VIEW, "data-done"))
    assert text_of(tab, f"{VIEW} .pg-phase") == f"stopped: {done} of 160 runs"
    assert 1 <= done < 160
    assert tab.locator(BUTTONS).count() == done
    # A link holds the seed that was drawn
    seeds = {int(text) for text in tab.locator(BUTTONS).all_text_contents()}
    tab.click("#pg-header button:has-text('Share')")
    tab.wait_for_function("() => location.search.includes('tab=sweep')")
    drawn = int(parse_qs(tab.evaluate("() => location.search.slice(1)"))["seed"][0])
    assert drawn <= min(seeds) <= max(seeds) < drawn + 16


def test_bad_fields_and_files_are_named(tab: Any, tmp_path: Path) -> None:
    tab.fill('#pg-sweep-fields [data-field="seeds"]', "500")
    tab.click("#pg-sweep-run")
    tab.wait_for_selector(f"{VIEW} .pg-notice:has-text('seeds must be a whole number from 1 to 64, got 500')")
    tab.fill('#pg-sweep-fields [data-field="seeds"]', "50")
    tab.fill('#pg-sweep-fields [data-field="count"]', "40")
    tab.click("#pg-sweep-run")
    tab.wait_for_selector(f"{VIEW} .pg-notice:has-text('would take 2,000 runs; 1 to 400 are possible')")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    tab.set_input_files(f"{VIEW} input[type=file]", tmp_path / "other.csv")
    tab.wait_for_selector(f"{VIEW} .pg-notice:has-text('begins with one or two knobs')")
