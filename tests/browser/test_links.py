"""Links that restore a tab, opened in a profile that has seen nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import open_tab, set_run, settled, start, until

# Tab: its title, fields to change, what shows its run, and the selector of the texts that must come back.
TABS: dict[str, tuple[str, dict[str, object], str, str]] = {
    "beams": ("Beams", {"num_beams": 3}, ".pg-tree", ".pg-hyps tr[data-node] .pg-hyps-text"),
    "samples": ("Samples", {"n": 3}, ".pg-samples", ".pg-sample .pg-sample-text"),
    "speculate": ("Speculate", {"num_draft_tokens": 3}, ".pg-drafts", ".pg-drafts .pg-piece"),
    "structure": ("Structure", {"source": '{"enum": ["a", "b"]}'}, ".pg-structured", ".pg-s-token"),
}


@pytest.mark.parametrize("tab", TABS)
def test_a_link_restores_a_tab_with_its_fields_and_its_texts(
    tab: str, page: Any, open_page: Callable[..., Any]
) -> None:
    title, fields, view, shown = TABS[tab]
    fields = {"max_new_tokens": 6, **fields}
    open_tab(page, title)
    set_run(page, seed=5, logit_bias="0: -100\n2: -100")
    for name, value in fields.items():
        page.fill(f'.pg-tab-{tab} [data-field="{name}"]', str(value))
    page.fill(f"#pg-{tab}-prompt textarea", "One, two, three, one, two,")
    start(page, f".pg-tab-{tab} {view}", tab)
    settled(page, f".pg-tab-{tab} {view}", tab)
    page.click('[data-do="share"]')
    until(lambda: f"tab={tab}" in page.evaluate("location.search"), "the link")

    other = open_page(query=page.evaluate("location.search"))
    found, texts = (each.locator(f".pg-tab-{tab} {shown}") for each in (other, page))
    until(lambda: found.all_text_contents() == texts.all_text_contents() != [], "the same texts")
    assert other.input_value(f"#pg-{tab}-prompt textarea") == "One, two, three, one, two,"
    for name, value in fields.items():
        assert other.input_value(f'.pg-tab-{tab} [data-field="{name}"]') == str(value)
    assert other.input_value('[data-setting="seed"]') == "5"


def test_a_link_without_a_prompt_opens_its_tab_and_runs_nothing(open_page: Callable[..., Any]) -> None:
    page = open_page(query="?tab=beams&top_k=7&fields=%7B%22num_beams%22%3A%203%7D")
    page.wait_for_selector('button[role="tab"][aria-selected="true"]:has-text("Beams")')
    until(lambda: page.input_value('.pg-tab-beams [data-field="num_beams"]') == "3", "the field")
    assert page.input_value('.pg-knob[data-stage="top_k"] .pg-knob-number') == "7"
    assert page.locator(".pg-tab-beams .pg-word").count() == 0


def test_a_link_to_no_tab_says_so(open_page: Callable[..., Any]) -> None:
    page = open_page(query="?tab=nope&prompt=a")
    page.wait_for_selector(".pg-tab-inspect .pg-notice:text-matches(\"there is no tab 'nope'\")")
