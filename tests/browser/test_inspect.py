"""The Inspect tab in a real browser, on the bundled model.

PLAYGROUND_FULL_GRID=1 stops 20 runs and closes 20 pages, else a few.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from backend import Engine, EventStream, Request
from tests.browser.conftest import (
    Site,
    aim_at_bar,
    labels,
    run,
    serve,
    set_knob,
    set_run,
    text_of,
    until,
    wait_for_end,
)
from tests.browser.held import Held
from tests.running import FULL
from ui.loading import Loader

STEP = ".pg-tab-inspect .pg-step"
STATUS = ".pg-tab-inspect .pg-status"
TOKENS = ".pg-tab-inspect .pg-token"
STOPS, CLOSED = (20, 20) if FULL else (5, 4)
WARM = 2  # runs after which memory and threads must not grow any more


def test_a_recording_is_shown_before_the_model_is_loaded_and_run_waits_for_it(
    engine: Engine, open_page: Callable[..., Any]
) -> None:
    gate = threading.Event()

    def slow(progress: Callable[[str, float], None]) -> Engine:
        progress("Fetching the weights", 0.4)
        gate.wait()
        return engine

    loader = Loader(slow)
    loader.start()
    blocks, url = serve(loader)
    try:
        page = open_page(url=url)
        assert text_of(page, ".pg-tab-inspect .pg-badge") == "recorded run"
        assert len(labels(page)) > 20
        assert "Fetching the weights" in text_of(page, ".pg-load")
        set_run(page, max_new_tokens=3, seed=1, logit_bias="0: -100\n2: -100")
        page.click("#pg-inspect-run")
        page.wait_for_selector(f"{STATUS} :text('waiting for the model: Fetching the weights (40%)')")
        gate.set()
        page.wait_for_selector(".pg-tab-inspect .pg-badge:empty", state="attached")
        wait_for_end(page)
        assert len(labels(page)) == 3
        page.wait_for_selector(".pg-load", state="hidden")
        assert engine.model_name in text_of(page, ".pg-model")
    finally:
        gate.set()
        blocks.close()


def test_tokens_arrive_while_the_run_goes_on(page: Any) -> None:
    set_run(page, max_new_tokens=120, logit_bias="0: -100\n2: -100")
    page.evaluate(
        """() => {
          window.counts = new Set();
          const strip = document.querySelector('.pg-tab-inspect .pg-strip');
          const tokens = strip.getElementsByClassName('pg-token');
          new MutationObserver(() => {
            if (strip.classList.contains('pg-running')) window.counts.add(tokens.length);
          }).observe(strip, { childList: true, subtree: true });
        }"""
    )
    run(page)
    counts = page.evaluate("[...window.counts]")
    assert len([count for count in counts if 0 < count < 120]) >= 10
    assert page.locator(TOKENS).count() == 120
    status = text_of(page, STATUS)
    assert "120 tokens" in status
    assert "ended token limit" in status
    assert "tok/s" in status
    assert "seed" in status


def test_a_clicked_token_shows_its_stages(page: Any) -> None:
    set_knob(page, "min_p", 0.05)
    set_run(page, max_new_tokens=6, seed=1)
    run(page)
    page.locator(TOKENS).nth(2).click()
    page.wait_for_selector(f"{STEP} .pg-step-name:text-is('Token 2')")
    head = page.locator(f"{STEP} thead .pg-th").all_text_contents()
    assert head == [
        "token",
        "model",
        "after temperature",
        "after top-p",
        "after min-p",
        "luck",
        "ln p + luck",
    ]
    assert page.locator(f"{STEP} tr.pg-won").count() == 1
    assert "cut · " in text_of(page, f"{STEP} .pg-cut-cell")
    stages = [chart.get_attribute("data-stage") for chart in page.locator(f"{STEP} .pg-chart").all()]
    assert stages == ["top_p", "min_p"]


def test_the_knobs_say_how_often_they_acted(page: Any) -> None:
    set_knob(page, "top_k", 100000)
    set_run(page, max_new_tokens=5, seed=1)
    run(page)
    page.wait_for_selector('.pg-knob[data-stage="top_p"] .pg-acts:text-matches("^cut [\\\\d.]+ % of steps")')
    assert text_of(page, '.pg-knob[data-stage="top_k"] .pg-acts') == "never fired"
    assert text_of(page, '.pg-knob[data-stage="min_p"] .pg-acts') == ""


def test_a_moved_knob_redraws_the_step_without_a_run(
    page: Any, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_run(page, max_new_tokens=6, seed=1)
    run(page)
    before = labels(page)
    page.locator(TOKENS).nth(1).click()
    page.wait_for_selector(f"{STEP} .pg-step-name:text-is('Token 1')")
    kept = text_of(page, f"{STEP} .pg-chart figcaption")
    runs: list[int] = []
    stream = site.engine.stream

    def counted(request: Request) -> EventStream:
        runs.append(request.max_new_tokens)
        return stream(request)

    monkeypatch.setattr(site.engine, "stream", counted)
    slider = page.locator('.pg-knob[data-stage="top_p"] .pg-slider')
    slider.focus()
    for _ in range(5):
        slider.press("PageDown")
    page.wait_for_selector(f"{STEP} .pg-badge:text('re-evaluated')")
    until(lambda: text_of(page, f"{STEP} .pg-chart figcaption") != kept, "another picture")
    assert labels(page) == before
    page.wait_for_selector(".pg-tab-inspect .pg-stale:text('settings changed since this run')")
    # Each request made was for the one step looked at: one token after a prefix of one.
    assert set(runs) == {2}


def test_a_candidate_becomes_a_branch(page: Any) -> None:
    set_run(page, max_new_tokens=8, seed=1)
    run(page)
    before = labels(page)
    page.locator(TOKENS).nth(3).click()
    page.wait_for_selector(f"{STEP} .pg-step-name:text-is('Token 3')")
    row = page.locator(f"{STEP} tbody tr:not(.pg-won)").first
    wanted = row.locator(".pg-cand").text_content()
    row.click()
    page.wait_for_selector(f"{TOKENS}.pg-forced")
    wait_for_end(page)
    after = labels(page)
    assert after[:3] == before[:3]
    assert after[3] == wanted != before[3]
    assert len(after) == 8
    assert page.locator(f"{TOKENS}.pg-forced").count() == 1


def test_step_adds_one_token_at_a_time(page: Any) -> None:
    set_run(page, seed=5, max_new_tokens=4, logit_bias="0: -100\n2: -100")
    run(page, "The sea was")
    whole = labels(page)
    page.click("#pg-inspect-step")
    until(lambda: len(labels(page)) == 5, "a fifth token")
    wait_for_end(page)
    assert labels(page)[:4] == whole
    page.click("#pg-inspect-step")
    until(lambda: len(labels(page)) == 6, "a sixth token")


def test_stop_ends_the_compute_and_frees_the_blocks(page: Any, site: Site) -> None:
    blocks = site.engine.block_manager
    start = blocks.num_free_blocks
    set_run(page, max_new_tokens=2000, logit_bias="0: -100\n2: -100")
    held = Held()
    for number in range(STOPS):
        if number == WARM:
            held = Held()
        run(page, wait=False)
        until(lambda: page.locator(TOKENS).count() >= 3, "three tokens")
        assert blocks.num_free_blocks < start
        page.click("#pg-inspect-stop")
        until(lambda: blocks.num_free_blocks == start, "free blocks", seconds=5)
        wait_for_end(page)
        assert "ended stopped" in text_of(page, STATUS)
    held.check()
    assert f"{page.locator(TOKENS).count()} tokens" in text_of(page, STATUS)
    set_run(page, max_new_tokens=2)
    run(page)
    assert len(labels(page)) == 2


def test_a_closed_tab_ends_the_compute(open_page: Callable[..., Any], site: Site) -> None:
    blocks = site.engine.block_manager
    start = blocks.num_free_blocks
    held = Held()
    for number in range(CLOSED):
        if number == WARM:
            held = Held()
        page = open_page()
        set_run(page, max_new_tokens=2000, logit_bias="0: -100\n2: -100")
        run(page, wait=False)
        page.wait_for_selector(f"{TOKENS} >> nth=2")
        assert blocks.num_free_blocks < start
        page.close()
        until(lambda: blocks.num_free_blocks == start, "free blocks", seconds=10)
    held.check(kept=4 * CLOSED)  # gradio keeps the session of a closed page for an hour


def test_the_strip_is_walked_by_keyboard(page: Any) -> None:
    set_run(page, max_new_tokens=6, seed=1, logit_bias="0: -100\n2: -100")
    run(page)

    def focused() -> str:
        return page.evaluate(
            "document.activeElement.dataset.index ?? document.activeElement.dataset.id ?? ''"
        )

    assert page.locator(f"{TOKENS}[tabindex='0']").count() == 1
    page.locator(TOKENS).first.focus()
    for key, index in (
        ("ArrowRight", "1"),
        ("ArrowRight", "2"),
        ("ArrowLeft", "1"),
        ("End", "5"),
        ("Home", "0"),
    ):
        page.keyboard.press(key)
        assert focused() == index
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(f"{STEP} .pg-step-name:text-is('Token 1')")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{TOKENS}.pg-selected[data-index='1']")
    page.keyboard.press("ArrowDown")
    ids = [row.get_attribute("data-id") for row in page.locator(f"{STEP} tbody tr").all()]
    assert focused() == ids[0]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert focused() == ids[2]
    page.keyboard.press("ArrowUp")
    assert focused() == ids[1]
    wanted = page.locator(f"{STEP} tbody tr .pg-cand").nth(1).text_content()
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{TOKENS}.pg-forced")
    wait_for_end(page)
    assert labels(page)[1] == wanted


def test_300_tokens_arrive_without_a_remount_or_a_jump(page: Any) -> None:
    set_run(page, max_new_tokens=300, seed=3, logit_bias="0: -100\n2: -100")
    run(page, wait=False)
    until(lambda: page.locator(TOKENS).count() >= 8, "eight tokens")
    # By keyboard: a pointer would hover over tokens that scroll by, and show them.
    page.locator(TOKENS).first.focus()
    for key in (*["ArrowRight"] * 4, "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector(f"{TOKENS}.pg-selected[data-index='4']")
    page.wait_for_selector(f"{STEP} .pg-step-name:text-is('Token 4')")
    until(lambda: page.locator(".pg-tab-inspect .pg-plot .main-svg").count() > 0, "the curve")
    page.evaluate(
        """() => {
          window.scrollTo(0, 120);
          document.querySelector('.pg-tab-inspect .pg-table-box').scrollTop = 40;
          window.marked = ['.pg-token', '.pg-table-box', '.pg-step tbody tr', '.pg-plot svg', '.pg-status']
            .map((query) => document.querySelector('.pg-tab-inspect ' + query));
          window.shift = 0;
          new PerformanceObserver((list) => {
            for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
          }).observe({ type: 'layout-shift', buffered: false });
        }"""
    )
    scroll = page.evaluate("[scrollY, document.querySelector('.pg-tab-inspect .pg-table-box').scrollTop]")
    until(lambda: page.locator(TOKENS).count() == 300, "300 tokens", seconds=240)
    wait_for_end(page)
    assert page.evaluate("window.marked.map((node) => node.isConnected)") == [True] * 5
    assert (
        page.evaluate("[scrollY, document.querySelector('.pg-tab-inspect .pg-table-box').scrollTop]")
        == scroll
    )
    assert page.evaluate("window.shift") < 0.1
    assert page.evaluate("document.activeElement.dataset.index") == "4"
    assert text_of(page, f"{STEP} .pg-step-name") == "Token 4"


def test_the_curve_selects_a_token(page: Any) -> None:
    set_run(page, max_new_tokens=10, seed=1, logit_bias="0: -100\n2: -100")
    run(page)
    index = aim_at_bar(page, ".pg-tab-inspect .pg-plot", 0)
    assert page.locator(f"{TOKENS}.pg-selected").count() == 0
    page.mouse.down()
    page.mouse.up()
    page.wait_for_selector(f"{TOKENS}.pg-selected[data-index='{index}']")
    page.wait_for_selector(f"{STEP} .pg-step-name:text-is('Token {index}')")


def test_the_order_of_the_stages_is_editable(page: Any) -> None:
    page.click(".pg-order summary")
    page.select_option('[data-part="order"]', "llama.cpp")
    set_run(page, max_new_tokens=3, seed=1)
    run(page)
    head = page.locator(f"{STEP} thead .pg-th").all_text_contents()
    assert head[2:4] == ["after top-p", "after temperature"]
    page.click('button[aria-label="temperature earlier"]')
    assert page.locator('[data-part="order"]').input_value() == "custom"


def test_a_preset_sets_the_knobs(page: Any) -> None:
    page.select_option("#pg-preset", "greedy")
    assert page.input_value('.pg-knob[data-stage="temperature"] .pg-knob-number') == "0"
    set_run(page, max_new_tokens=4)
    run(page)
    first = labels(page)
    run(page)
    assert labels(page) == first


def colour(page: Any) -> str:
    return str(page.evaluate("getComputedStyle(document.querySelector('.pg-tokens')).color"))


def test_light_and_dark_follow_the_system_and_the_switch(open_page: Callable[..., Any]) -> None:
    page = open_page(color_scheme="dark")
    until(lambda: colour(page) == "rgb(231, 234, 236)", "dark")
    page.click('[data-do="theme"]')
    until(lambda: colour(page) == "rgb(27, 33, 38)", "light")
    page.reload()
    page.wait_for_selector(".pg-tab-inspect .pg-token")
    until(lambda: colour(page) == "rgb(27, 33, 38)", "light after a reload")


def test_the_phone_has_no_sideways_scroll_and_a_drawer(open_page: Callable[..., Any]) -> None:
    page = open_page(viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not page.locator("#pg-side").is_visible()
    page.click(".pg-open-knobs")
    page.locator('.pg-knob[data-stage="top_p"]').wait_for(state="visible")
    page.keyboard.press("Escape")
    page.locator("#pg-side").wait_for(state="hidden")


def test_run_during_a_run_starts_over(page: Any, site: Site) -> None:
    start = site.engine.block_manager.num_free_blocks
    set_run(page, max_new_tokens=2000, logit_bias="0: -100\n2: -100")
    run(page, "One two three", wait=False)
    until(lambda: page.locator(TOKENS).count() >= 3, "three tokens")
    set_run(page, max_new_tokens=3)
    run(page, "The sea")
    assert "".join(page.locator(".pg-tab-inspect .pg-prompt").all_text_contents()) == "The sea"
    assert page.locator(TOKENS).count() == 3
    assert "ended token limit" in text_of(page, STATUS)
    until(lambda: site.engine.block_manager.num_free_blocks == start, "free blocks", seconds=5)
