"""The Code tab in a real browser."""

from __future__ import annotations

import json
from typing import Any

from tests.browser.conftest import open_tab, set_knob, text_of
from tests.browser.test_hostile import HOSTILE, assert_inert

VIEW = ".pg-codes"


def test_the_code_follows_the_knobs_and_foreign_settings_set_them(page: Any) -> None:
    open_tab(page, "Code")
    page.fill("#pg-code-prompt textarea", HOSTILE)
    set_knob(page, "temperature", 0.45)
    page.wait_for_selector(f"{VIEW} pre:has-text('temperature=0.45')")
    page.click(f'{VIEW} [data-target="llama.cpp-server"]')
    page.wait_for_selector(f"{VIEW} pre:has-text('samplers')")
    assert json.loads(text_of(page, f"{VIEW} pre"))["prompt"] == HOSTILE
    assert json.loads(text_of(page, f"{VIEW} pre"))["temperature"] == 0.45
    count = page.locator('#pg-code-fields [data-field="n"]')
    assert not count.is_visible()
    page.select_option('#pg-code-fields [data-field="strategy"]', "best_of")
    count.fill("3")
    page.click(f'{VIEW} [data-target="transformers"]')
    page.wait_for_selector(f"{VIEW} pre:has-text('num_return_sequences=3')")
    page.fill(f"{VIEW} textarea", '{"do_sample": true, "top_k": 7, "max_new_tokens": 33, "top_p": 2}')
    page.click(f"{VIEW} [data-act=read]")
    page.wait_for_selector(f"{VIEW} .pg-codes-imported:has-text('Nothing was changed: top_p must be')")
    page.fill(f"{VIEW} textarea", '{"do_sample": true, "top_k": 7, "max_new_tokens": 33}')
    page.click(f"{VIEW} [data-act=read]")
    page.wait_for_selector(f"{VIEW} .pg-codes-imported:has-text('Read as transformers')")
    page.wait_for_function(
        "() => document.querySelector('.pg-knob[data-stage=\"top_k\"] .pg-knob-number').value === '7'"
    )
    assert page.locator('[data-setting="max_new_tokens"]').input_value() == "33"
    assert_inert(page)
