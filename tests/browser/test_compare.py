"""The Compare tab in a real browser, on the bundled model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import Site, open_tab, set_run, settled, start, text_of, until
from tests.browser.test_hostile import HOSTILE, assert_inert

VIEW = ".pg-compare"
LANES = f"{VIEW} .pg-lane"


@pytest.fixture
def tab(page: Any) -> Any:
    open_tab(page, "Compare")
    page.locator('.pg-lanes [data-knob="top_p"]').first.wait_for(state="visible")
    return page


def lane(page: Any, place: int, **values: object) -> None:
    for name, value in values.items():
        page.fill(f'.pg-lanes tr[data-lane="{place}"] [data-knob="{name}"]', str(value))


def compare(page: Any, prompt: str, tokens: int, wait: bool = True) -> None:
    page.fill(".pg-lanes [data-field=max_new_tokens]", str(tokens))
    page.fill("#pg-compare-prompt textarea", prompt)
    start(page, VIEW, "compare")
    if wait:
        settled(page, f"{VIEW}.pg-explained", "compare")


def text(page: Any, name: str) -> str:
    return "".join(page.locator(f'{LANES}[data-lane="{name}"] .pg-lane-token').all_text_contents())


def test_equal_lanes_agree_and_a_cut_is_named(tab: Any) -> None:
    set_run(tab, seed=3)
    tab.click(".pg-lanes [data-act=add]")
    lane(tab, 0, temperature=1)
    lane(tab, 1, temperature=1, top_p=1)
    lane(tab, 2, temperature=1, top_p=0.5)
    lane(tab, 3, temperature=0)
    compare(tab, "Once upon a time", 12)
    assert text(tab, "A") == text(tab, "B") != text(tab, "C")
    assert "same tokens as A" in text_of(tab, f'{LANES}[data-lane="B"] .pg-lane-why')
    why = text_of(tab, f'{LANES}[data-lane="C"] .pg-lane-why')
    assert "top-p 0.5 cut" in why
    assert "Checked: without top-p in both" in why
    assert tab.locator(f'{LANES}[data-lane="C"] .pg-apart').count() == 1
    assert tab.locator(f"{VIEW} tbody tr").count() == 4
    tab.wait_for_selector(f"{VIEW} .pg-compare-plot .main-svg")
    # Lane D at its fifth token, in Inspect, with the knobs of that lane
    wanted = text(tab, "D")
    tab.click(f'{LANES}[data-lane="D"] .pg-lane-token[data-index="4"]')
    tab.wait_for_selector(".pg-tab-inspect .pg-token.pg-selected")
    assert "".join(tab.locator(".pg-tab-inspect .pg-token").all_text_contents()).replace("↵", "\n") in (
        wanted.replace("↵", "\n")
    )
    assert tab.locator('.pg-knob[data-stage="temperature"] .pg-knob-number').input_value() == "0"


def test_stop_frees_every_block_and_keeps_the_texts(tab: Any, site: Site) -> None:
    blocks = site.engine.block_manager
    before = blocks.num_free_blocks
    set_run(tab, seed=1, logit_bias="0: -100\n2: -100")
    compare(tab, "The sea", 250, wait=False)
    until(lambda: tab.locator(f'{LANES}[data-lane="C"] .pg-lane-token').count() >= 2, "some tokens")
    tab.click("#pg-compare-stop")
    until(lambda: blocks.num_free_blocks == before, "free blocks", seconds=20)
    settled(tab, VIEW, "compare")
    assert tab.locator(LANES).count() == 3
    assert text(tab, "A")


def test_run_during_a_run_starts_over(tab: Any, site: Site) -> None:
    before = site.engine.block_manager.num_free_blocks
    set_run(tab, seed=3, logit_bias="0: -100\n2: -100")
    compare(tab, "One two three", 200, wait=False)
    tab.wait_for_selector(f"{LANES} .pg-lane-token")
    compare(tab, "A bird", 5)
    assert tab.locator(f'{LANES}[data-lane="A"] .pg-lane-token').count() == 5
    until(lambda: site.engine.block_manager.num_free_blocks == before, "free blocks", seconds=5)


def test_bad_lanes_are_named_and_hostile_text_stays_text(tab: Any) -> None:
    lane(tab, 1, top_p=3)
    tab.click("#pg-compare-run")
    tab.wait_for_selector(
        f"{VIEW} .pg-notice:has-text('lane B: top_p must be a number between 0 and 1, got 3')"
    )
    lane(tab, 1, top_p=0.5)
    lane(tab, 0, temperature=0)
    tab.fill(".pg-lanes [data-field=human]", HOSTILE)
    compare(tab, f"{HOSTILE}\n{HOSTILE}\n{HOSTILE}\n", 6)
    tab.wait_for_selector(f"{LANES}[data-human]")
    assert "<img" in text(tab, "✎")
    assert_inert(tab)


def test_a_link_restores_the_lanes(tab: Any, open_page: Any) -> None:
    set_run(tab, seed=5)
    lane(tab, 0, temperature=0.7, top_k=9)
    compare(tab, "The old house", 6)
    tab.click('[data-do="share"]')
    tab.wait_for_function("() => location.search.includes('lanes')")
    query = tab.evaluate("() => location.search")
    other = open_page(query)
    settled(other, f"{VIEW}.pg-explained", "compare")
    assert text(other, "A") == text(tab, "A")
    assert other.locator('.pg-lanes tr[data-lane="0"] [data-knob="top_k"]').input_value() == "9"
