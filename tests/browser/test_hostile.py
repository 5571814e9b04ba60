"""Hostile text, bad values, and two visitors at once, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.trace import VERSION
from tests.browser.conftest import (
    aim_at_bar,
    labels,
    run,
    score,
    set_knob,
    set_run,
    text_of,
    until,
    wait_for_end,
)

HOSTILE = (
    "<img src=x onerror=window.__p=1><svg onload=window.__p=1> ${window.__p=1} {{constructor}} "
    "`${(window.__p=1)}` </textarea><script>window.__p=1</script> <b>bold</b> &lt;i&gt;"
)
NOTICE = ".pg-tab-inspect .pg-notice:not([hidden])"


def assert_inert(page: Any) -> None:
    assert page.evaluate("window.__p") is None
    assert page.locator("#pg-main img, #pg-main b:text-is('bold'), #pg-main script").count() == 0


def test_hostile_text_stays_text_in_every_panel(page: Any) -> None:
    set_run(page, max_new_tokens=4, seed=1)
    run(page, HOSTILE)
    prompt = "".join(page.locator(".pg-tab-inspect .pg-prompt").all_text_contents())
    assert prompt == HOSTILE
    assert_inert(page)

    score(page, HOSTILE)
    first = "".join(page.locator(".pg-tab-score .pg-prompt").all_text_contents())
    assert first + "".join(labels(page, ".pg-tab-score")) == HOSTILE
    for index in (0, 3, 8, 15):
        token = page.locator(".pg-tab-score .pg-token").nth(index)
        token.hover()
        page.wait_for_selector(".pg-tab-score .pg-tip:not([hidden])")
        token.click()
        page.wait_for_selector(f".pg-tab-score .pg-step-name:text-is('Token {index}')")
    for place in range(3):
        aim_at_bar(page, ".pg-tab-score .pg-plot", place)
    assert_inert(page)


def test_hostile_settings_are_refused_as_text(page: Any) -> None:
    for form in ("<img src=x onerror=window.__p=1>", "${window.__p=1}", "{{#each this}}"):
        set_run(page, logit_bias=f"{form}: 3", max_new_tokens=2)
        page.click("#pg-inspect-run")
        page.locator(NOTICE, has_text=form).wait_for()
        assert_inert(page)


def test_a_hostile_link_is_inert_and_a_malformed_one_says_so(open_page: Callable[..., Any]) -> None:
    page = open_page(
        query="?prompt=%3Cimg+src%3Dx+onerror%3Dwindow.__p%3D1%3E%24%7Bwindow.__p%3D1%7D&max_new_tokens=2&seed=1"
    )
    until(lambda: len(labels(page)) == 2, "the run of the link")
    wait_for_end(page)
    assert_inert(page)
    page = open_page(query="?prompt=a&top_p=%3Cimg+src%3Dx+onerror%3Dwindow.__p%3D1%3E")
    page.locator(NOTICE, has_text="top_p in the link cannot be read").wait_for()
    assert_inert(page)


def test_white_space_tokens_are_visible_and_complete(page: Any) -> None:
    text = "a  b\n\n\tc \u00a0d"
    score(page, text)
    first = "".join(page.locator(".pg-tab-score .pg-prompt").all_text_contents())
    read = first + "".join(labels(page, ".pg-tab-score"))
    assert read == "a  b↵↵→c ⍽d"
    assert page.locator(".pg-tab-score .pg-tokens .pg-space").count() == 3
    assert page.locator(".pg-tab-score .pg-tokens br").count() == 2
    widths = page.locator(".pg-tab-score .pg-token").evaluate_all(
        "nodes => nodes.map((node) => node.getBoundingClientRect().width)"
    )
    assert len(widths) >= 5
    assert min(widths) > 0


BAD = [
    ("prompt", "", "prompt is empty"),
    ("temperature", "-1", "between 0 and 100, got -1"),
    ("top_p", "1.5", "between 0 and 1, got 1.5"),
    ("top_k", "2.5", "top_k must be a whole number from 0 to 1000000, got 2.5"),
    ("max_new_tokens", "0", "max_new_tokens must be a whole number from 1 to 16384, got 0"),
    ("max_new_tokens", "9999999", "max_new_tokens must be a whole number from 1 to 16384, got 9999999"),
    ("seed", "-4", "seed must be a whole number from 0 to"),
    ("logit_bias", "49152: 1", "logit_bias holds token id 49152"),
    ("logit_bias", "5: 1000", "between -100 and 100, got 1000"),
    ("logit_bias", "x: 1", "logit_bias holds 'x'"),
    ("prompt", "word " * 9000, "the prompt has 9,00"),
]


def test_bad_input_is_named_and_the_next_run_works(page: Any) -> None:
    knobs = {"temperature": 0.8, "top_p": 0.95, "top_k": 0}
    for field, value, message in BAD:
        before = labels(page)
        assert before
        if field == "prompt":
            page.fill("#pg-inspect-prompt textarea", value)
        elif field in knobs:
            set_knob(page, field, float(value))
        else:
            set_run(page, **{field: value})
        page.click("#pg-inspect-run")
        page.locator(NOTICE, has_text=message).wait_for()
        assert labels(page) == before
        if field in knobs:
            set_knob(page, field, knobs[field])
        set_run(page, max_new_tokens=2, seed=1, logit_bias="")
        run(page, "The sea")
        assert len(labels(page)) == 2
        assert page.locator(NOTICE).count() == 0


def test_two_visitors_share_nothing(open_page: Callable[..., Any]) -> None:
    one, two = open_page(), open_page()
    set_run(one, max_new_tokens=12, seed=11)
    set_run(two, max_new_tokens=9, seed=22)
    run(one, "My secret recipe", wait=False)
    run(two, "The weather report", wait=False)
    wait_for_end(one)
    wait_for_end(two)
    assert "".join(one.locator(".pg-tab-inspect .pg-prompt").all_text_contents()) == "My secret recipe"
    assert "".join(two.locator(".pg-tab-inspect .pg-prompt").all_text_contents()) == "The weather report"
    assert "seed 11" in text_of(one, ".pg-tab-inspect .pg-status")
    assert "seed 22" in text_of(two, ".pg-tab-inspect .pg-status")
    shown = labels(one)
    set_knob(two, "temperature", 0.3)
    one.locator(".pg-tab-inspect .pg-token").nth(1).click()
    one.wait_for_selector(".pg-tab-inspect .pg-step-name:text-is('Token 1')")
    assert text_of(one, ".pg-tab-inspect .pg-step .pg-badge") == ""
    assert labels(one) == shown
    # A visitor who comes later, or comes back, starts with the recording and the default settings.
    two.reload()
    two.wait_for_selector(".pg-tab-inspect .pg-token")
    until(lambda: text_of(two, ".pg-tab-inspect .pg-badge") == "recorded run", "the recording")
    two.wait_for_selector('[data-setting="seed"]', state="attached")
    assert two.input_value('[data-setting="seed"]') == ""
    assert "secret" not in two.content()
    assert "weather" not in two.content()


def test_a_masked_token_reads_as_cut_and_the_export_is_strict_json(page: Any, tmp_path: Path) -> None:
    set_knob(page, "top_k", 1)
    set_run(page, max_new_tokens=3, seed=1)
    run(page)
    cut = page.locator(".pg-tab-inspect .pg-step tr.pg-cut")
    assert cut.count() > 5
    assert cut.first.locator(".pg-cut-cell").text_content() == "cut · rank 2 > 1"
    assert "null" not in text_of(page, ".pg-tab-inspect .pg-step")
    assert "NaN" not in text_of(page, ".pg-tab-inspect .pg-step")
    with page.expect_download() as download:
        page.click('[data-do="export_json"]')
    file = tmp_path / "trace.json"
    download.value.save_as(file)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not strict JSON")

    document = json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse)
    assert document["version"] == VERSION
    steps = [event for kind, event in document["events"] if kind == "TokenDecoded"]
    assert len(steps) == 3
    assert "-Infinity" in steps[0]["candidates"]["after"][-1]
    assert None not in steps[0]["candidates"]["after"][-1]


def address(page: Any) -> str:
    return str(page.evaluate("location.search"))


def test_a_link_restores_the_page(page: Any, open_page: Callable[..., Any]) -> None:
    set_knob(page, "min_p", 0.05)
    set_knob(page, "top_p", 0.9)
    set_run(page, max_new_tokens=7, logit_bias="0: -100\n2: -100")
    run(page, "Rain & sun +1 = 100%?")
    page.locator(".pg-tab-inspect .pg-token").nth(2).click()
    page.wait_for_selector(".pg-tab-inspect .pg-step-name:text-is('Token 2')")
    page.click('[data-do="share"]')
    until(lambda: "prompt=" in address(page), "the link")
    query = address(page)
    other = open_page(query=query)
    until(lambda: labels(other) == labels(page), "the same text")
    wait_for_end(other)
    other.wait_for_selector(".pg-tab-inspect .pg-token.pg-selected[data-index='2']")
    assert other.input_value("#pg-inspect-prompt textarea") == "Rain & sun +1 = 100%?"
    assert other.input_value('.pg-knob[data-stage="min_p"] .pg-knob-number') == "0.05"
    assert other.input_value('[data-setting="max_new_tokens"]') == "7"
    score(other, "Two words")
    other.click('[data-do="share"]')
    until(lambda: "tab=score" in address(other), "the link of the other tab")
    third = open_page(query=address(other))
    third.wait_for_selector(".pg-tab-score .pg-token")
    assert third.input_value("#pg-score-prompt textarea") == "Two words"


def test_scored_text_can_be_branched_into_a_run(page: Any) -> None:
    set_run(page, max_new_tokens=6, seed=1, logit_bias="0: -100\n2: -100")
    score(page, "The cat sat on the mat.")
    scored = labels(page, ".pg-tab-score")
    page.locator(".pg-tab-score .pg-token").nth(2).click()
    page.wait_for_selector(".pg-tab-score .pg-step-name:text-is('Token 2')")
    row = page.locator(".pg-tab-score .pg-step tbody tr").first
    wanted = row.locator(".pg-cand").text_content()
    row.click()
    page.wait_for_selector(".pg-tab-inspect .pg-token.pg-forced", state="visible")
    wait_for_end(page)
    assert labels(page)[:3] == [*scored[:2], wanted]
    assert len(labels(page)) == 6
    # The prompt box now holds what the text goes on from, so that a further step goes on, too.
    assert page.input_value("#pg-inspect-prompt textarea") == "The"
    page.click("#pg-inspect-step")
    until(lambda: len(labels(page)) == 7, "one more token")
    wait_for_end(page)
    assert labels(page)[:3] == [*scored[:2], wanted]


def test_an_exported_trace_opens_again_and_a_broken_one_says_so(page: Any, tmp_path: Path) -> None:
    set_run(page, max_new_tokens=5, seed=1, logit_bias="0: -100\n2: -100")
    run(page, "The river <b>")
    before = labels(page)
    file = tmp_path / "trace.json"
    with page.expect_download() as download:
        page.click('[data-do="export_json"]')
    download.value.save_as(file)
    page.reload()
    page.wait_for_selector(".pg-tab-inspect .pg-token")
    page.wait_for_selector(".pg-file", state="attached")
    page.set_input_files(".pg-file", file)
    until(lambda: labels(page) == before, "the text of the file")
    assert text_of(page, ".pg-tab-inspect .pg-badge") == "imported"
    assert page.input_value("#pg-inspect-prompt textarea") == "The river <b>"
    page.click("#pg-inspect-step")
    until(lambda: len(labels(page)) == 6, "one more token")
    assert labels(page)[:5] == before
    wait_for_end(page)
    foreign = tmp_path / "foreign.json"
    foreign.write_text(
        file.read_text(encoding="utf-8").replace('"model":"smollm2-135m"', '"model":"another"')
    )
    page.set_input_files(".pg-file", foreign)
    until(lambda: "model another" in text_of(page, ".pg-tab-inspect .pg-status"), "the other model's text")
    page.click("#pg-inspect-step")
    page.locator(NOTICE, has_text="This text was made by another").wait_for()
    assert labels(page) == before
    broken = tmp_path / "broken.json"
    broken.write_text('{"version": 1, "events": [NaN], "x": "<img src=x onerror=window.__p=1>"}')
    page.set_input_files(".pg-file", broken)
    page.locator(NOTICE, has_text="not strict JSON").wait_for()
    assert labels(page) == before
    assert_inert(page)
