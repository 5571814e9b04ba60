"""Links that restore a tab, opened in a profile that has seen nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import set_run, until

# Tab: its title, fields to change, and the selector of the texts that must come back.
TABS = {
    "beams": ("Beams", {"num_beams": 3, "max_new_tokens": 6}, ".pg-hyps tbody tr[data-node] .pg-hyps-text"),
    "samples": ("Samples", {"n": 3, "max_new_tokens": 6}, ".pg-sample .pg-sample-text"),
    "speculate": ("Speculate", {"num_draft_tokens": 3, "max_new_tokens": 6}, ".pg-drafts .pg-piece"),
    "structure": ("Structure", {"max_new_tokens": 6, "source": '{"enum": ["a", "b"]}'}, ".pg-s-token"),
}


@pytest.mark.parametrize("tab", TABS)
def test_a_link_restores_a_tab_with_its_fields_and_its_texts(
    tab: str, page: Any, open_page: Callable[..., Any]
) -> None:
    title, fields, shown = TABS[tab]
    page.click(f'button[role="tab"]:has-text("{title}")')
    set_run(page, seed=5, logit_bias="0: -100\n2: -100")
    for name, value in fields.items():
        page.fill(f'.pg-tab-{tab} [data-field="{name}"]', str(value))
    page.fill(f"#pg-{tab}-prompt textarea", "One, two, three, one, two,")
    page.click(f"#pg-{tab}-run")
    page.wait_for_selector(f"#pg-{tab}-stop:not([disabled])")
    page.wait_for_selector(f"#pg-{tab}-stop[disabled]")
    page.wait_for_selector(f".pg-tab-{tab} .pg-running", state="detached")
    texts = page.locator(f".pg-tab-{tab} {shown}").all_text_contents()
    assert texts
    page.click('[data-do="share"]')
    until(lambda: f"tab={tab}" in page.evaluate("location.search"), "the link")

    other = open_page(query=page.evaluate("location.search"))
    found = other.locator(f".pg-tab-{tab} {shown}")
    until(lambda: found.all_text_contents() == texts, "the same texts")
    assert other.input_value(f"#pg-{tab}-prompt textarea") == "One, two, three, one, two,"
    for name, value in fields.items():
        assert other.input_value(f'.pg-tab-{tab} [data-field="{name}"]') == str(value)
    assert other.input_value('[data-setting="seed"]') == "5"
