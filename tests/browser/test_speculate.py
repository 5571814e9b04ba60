"""The Speculate tab in a real browser, on the bundled model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from backend import Trace
from backend.events import DraftVerified
from tests.browser.conftest import (
    Site,
    choose_lesson,
    open_tab,
    set_knob,
    set_run,
    settled,
    start,
    text_of,
    until,
)
from tests.browser.test_endpoints import arguments, call
from tests.browser.test_hostile import HOSTILE, assert_inert
from ui.presets.lessons import load_lessons
from ui.tabs.speculate import FOLDER

TEXT = ".pg-tab-speculate .pg-drafts"
PIECES = f"{TEXT} .pg-piece"
ROUND = ".pg-tab-speculate .pg-round"
PAYOFF = ".pg-tab-speculate .pg-payoff"
PROOF = ".pg-tab-speculate .pg-proof"
FORMULA = ".pg-tab-speculate .pg-formula"
NOTICE = f"{TEXT} .pg-notice:not([hidden])"
REPEATING = "one two three four. one two three four. one two three four. one two"


@pytest.fixture
def tab(page: Any) -> Any:
    open_tab(page, "Speculate")
    return page


def fill(page: Any, **values: object) -> None:
    for name, value in values.items():
        field = page.locator(f'.pg-tab-speculate [data-field="{name}"]')
        if name in ("draft", "verify"):
            field.select_option(str(value))
        else:
            field.fill(str(value))


def run(page: Any, prompt: str | None = None, wait: bool = True, **values: object) -> None:
    fill(page, **values)
    if prompt is not None:
        page.fill("#pg-speculate-prompt textarea", prompt)
    start(page, TEXT, "speculate")
    if wait:
        settled(page, TEXT, "speculate")


def choose(page: Any, name: str) -> None:
    choose_lesson(
        page, TEXT, "speculate", next(lesson for lesson in load_lessons(FOLDER) if lesson.name == name)
    )


def kinds(page: Any) -> list[str]:
    return page.locator(PIECES).evaluate_all("nodes => nodes.map((node) => node.dataset.kind)")


def tile(page: Any, name: str) -> str:
    return text_of(page, f'{PAYOFF} [data-tile="{name}"] b')


def drawn_run(page: Any, **values: Any) -> None:
    """A short sampled run with rejections in it."""
    set_knob(page, "temperature", 0.9)
    set_knob(page, "top_p", 0.95)
    set_run(page, seed=3)
    run(page, "The water cycle", draft="layer_skip", num_draft_tokens=3, max_new_tokens=14, **values)


def test_a_copy_takes_many_tokens_a_call_and_gives_the_plain_text(tab: Any) -> None:
    choose(tab, "copy")
    run(tab, max_new_tokens=24)
    assert kinds(tab).count("accepted") >= 15
    assert float(tile(tab, "tokens")) > 4
    assert re.fullmatch(r"× \d+\.\d\d", tile(tab, "speed"))
    assert text_of(tab, f"{PAYOFF} .pg-payoff-verdict") == "Same text as plain decoding, token for token."
    shown = "".join(tab.locator(f"{PIECES}:not([data-kind=rejected])").all_text_contents())
    assert "blue ink, 40 brown envelopes" in shown
    assert "24 tokens" in text_of(tab, f"{TEXT} .pg-facts")


def test_every_kind_of_token_is_told_apart_by_more_than_colour(tab: Any) -> None:
    drawn_run(tab)
    assert {"accepted", "rejected", "recovered"} <= set(kinds(tab))
    looks = {
        kind: tab.locator(f".pg-drafts-legend .pg-kind-{kind}").evaluate(
            """node => {
              const style = getComputedStyle(node);
              return [getComputedStyle(node, '::before').content, style.borderBottomStyle,
                      style.borderBottomWidth, style.textDecorationLine];
            }"""
        )
        for kind in ("accepted", "rejected", "recovered", "bonus", "target")
    }
    assert len({json.dumps(look) for look in looks.values()}) == 5
    labels = [piece.get_attribute("aria-label") or "" for piece in tab.locator(PIECES).all()]
    assert any("rejected draft" in label for label in labels)
    assert any("recovered" in label for label in labels)


def test_a_rejected_token_shows_its_check_and_the_residual(tab: Any) -> None:
    drawn_run(tab)
    rejected = tab.locator(f"{PIECES}[data-kind=rejected]").last
    rejected.click()
    tab.wait_for_selector(f"{PIECES}.pg-selected[data-kind=rejected]")
    label = rejected.text_content()
    tab.wait_for_selector(f"{ROUND} .pg-check-row.pg-chosen[data-status=rejected]")
    row = tab.locator(f"{ROUND} .pg-check-row.pg-chosen")
    assert row.locator(".pg-quoted").text_content() == label
    cells = row.locator("> span").all_text_contents()
    assert "%" in cells[1]
    assert "%" in cells[2]
    uniform, ratio = float(cells[4]), float(cells[3])
    assert uniform >= min(1.0, ratio) - 0.01
    assert "rejected." in text_of(tab, f"{ROUND} .pg-round-why")
    bars = tab.locator(f"{ROUND} .pg-residual-row")
    assert bars.count() >= 2
    assert "pg-struck" in (bars.first.get_attribute("class") or "")
    assert tab.locator(f"{ROUND} .pg-residual-row.pg-drawn").count() == 1
    recovered = tab.locator(f"{PIECES}[data-kind=recovered]").last.text_content()
    assert tab.locator(f"{ROUND} .pg-residual-row.pg-drawn .pg-quoted").text_content() == recovered


def test_arrow_keys_walk_the_pieces_and_the_focus_stays(tab: Any) -> None:
    drawn_run(tab)
    tab.locator(PIECES).nth(0).click()
    for _ in range(4):
        tab.keyboard.press("ArrowRight")
    assert tab.evaluate("document.activeElement.dataset.index") == "4"
    name = tab.evaluate("document.activeElement.getAttribute('aria-label')").rsplit(" ", 1)[1]
    tab.wait_for_selector(f"{ROUND} .pg-round-name:text('Round {name} of')")
    assert tab.evaluate("document.activeElement.dataset.index") == "4"
    tab.keyboard.press("End")
    last = tab.locator(PIECES).count() - 1
    assert tab.evaluate("document.activeElement.dataset.index") == str(last)


def test_the_columns_select_their_round(tab: Any) -> None:
    drawn_run(tab)
    columns = tab.locator(f"{PAYOFF} .pg-column")
    columns.nth(1).click()
    tab.wait_for_selector(f"{ROUND} .pg-round-name:text('Round 2 of')")
    tab.wait_for_selector(f"{PAYOFF} .pg-column[data-round='1'][aria-current=true]")
    found = re.search(r"(\d+) target calls", text_of(tab, f"{TEXT} .pg-facts"))
    assert found is not None
    assert columns.count() == int(found[1]) > 1


def test_prove_it_draws_the_step_thousands_of_times(tab: Any) -> None:
    drawn_run(tab)
    tab.locator(f"{PIECES}[data-kind=rejected]").first.click()
    tab.wait_for_selector(f"{PIECES}.pg-selected[data-kind=rejected]")
    tab.click(f"{PROOF} [data-do=prove]")
    tab.wait_for_selector(f"{PROOF} .pg-proof-result:not([hidden])")
    fits = {
        name: tab.get_attribute(f"{PROOF} .pg-proof-verdict[data-series={name}]", "data-fits")
        for name in ("speculative", "plain")
    }
    assert fits == {"speculative": "true", "plain": "true"}
    assert "χ²" in text_of(tab, f"{PROOF} .pg-proof-verdict[data-series=speculative]")
    counts = tab.locator(f"{PROOF} .pg-proof-row small").all_text_contents()
    pairs = [[int(part) for part in text.split(" · ")] for text in counts]
    assert sum(pair[0] for pair in pairs) == 20_000
    assert sum(pair[1] for pair in pairs) == 20_000
    assert any(pair[0] != pair[1] for pair in pairs)
    before = counts
    tab.click(f"{PROOF} [data-do=prove]")
    until(
        lambda: tab.locator(f"{PROOF} .pg-proof-row small").all_text_contents() != before, "other draws", 60
    )


def test_a_coupled_run_gives_the_plain_text_and_needs_no_proof(tab: Any) -> None:
    drawn_run(tab, verify="coupled")
    assert text_of(tab, f"{PAYOFF} .pg-payoff-verdict") == "Same text as plain decoding, token for token."
    assert tab.locator(f"{PROOF} [data-do=prove]").is_disabled()
    assert "plain decoding draws" in text_of(tab, f"{PROOF} .pg-proof-note")
    assert "target drew" in text_of(tab, f"{ROUND} .pg-round-checks")


def test_more_pairs_are_measured_in_turns(tab: Any) -> None:
    set_knob(tab, "temperature", 0)
    run(tab, REPEATING, draft="prompt_lookup", max_new_tokens=20)
    before = kinds(tab)
    assert "one pair" in text_of(tab, f"{PAYOFF} .pg-payoff-pairs")
    tab.click(f"{PAYOFF} [data-do=measure]")
    tab.wait_for_selector(f"{PAYOFF} .pg-payoff-pairs:text('median of 4 pairs')")
    parts = [text_of(tab, f"{PAYOFF} .pg-timekey > span:nth-child({i})") for i in (1, 2, 3)]
    assert [part.split()[0] for part in parts] == ["draft", "verify", "overhead"]
    settled(tab, TEXT, "speculate")
    assert kinds(tab) == before


def test_stop_ends_the_run_and_frees_every_block(tab: Any, site: Site) -> None:
    set_run(tab, logit_bias="0: -100\n2: -100")
    run(tab, "Once upon a time", wait=False, draft="layer_skip", max_new_tokens=400)
    until(lambda: tab.locator(PIECES).count() > 4, "some tokens")
    tab.click("#pg-speculate-stop")
    settled(tab, TEXT, "speculate")
    assert "ended stopped" in text_of(tab, f"{TEXT} .pg-facts")
    manager = site.engine.block_manager
    until(lambda: manager.num_free_blocks == manager.num_blocks, "free blocks", 20)
    assert tile(tab, "speed") == "–"
    run(tab, "Once upon a time", max_new_tokens=4)
    assert "4 tokens" in text_of(tab, f"{TEXT} .pg-facts")
    assert tab.locator(f"{PAYOFF} .pg-column").count() >= 1


def test_the_formula_answers_to_sliders_and_table(tab: Any) -> None:
    tab.click(f'{FORMULA} button[data-a="0.8"][data-k="4"]')
    assert text_of(tab, f"{FORMULA} .pg-formula-result") == "3.36 tokens per call"
    assert tab.input_value(f"{FORMULA} [data-turn=k]") == "4"
    for a, k, text in ((0.9, 8, "6.13"), (0.75, 6, "3.47"), (0.6, 3, "2.18"), (1, 5, "6.00")):
        tab.fill(f"{FORMULA} [data-turn=a]", str(a))
        tab.fill(f"{FORMULA} [data-turn=k]", str(k))
        assert text_of(tab, f"{FORMULA} .pg-formula-result") == f"{text} tokens per call"
    assert tab.locator(f"{FORMULA} path.pg-now").count() == 1


def test_the_run_is_a_point_beside_the_formula(tab: Any) -> None:
    drawn_run(tab)
    assert tab.input_value(f"{FORMULA} [data-turn=k]") == "3"
    assert f"this run {tile(tab, 'tokens')}" in text_of(tab, f"{FORMULA} .pg-measured-label")


def test_hostile_text_stays_text(tab: Any) -> None:
    set_run(tab, seed=1)
    run(tab, f"{HOSTILE} {HOSTILE}", draft="prompt_lookup", num_draft_tokens=6, max_new_tokens=20)
    shown = "".join(tab.locator(f"{TEXT} .pg-prompt").all_text_contents())
    assert "</textarea><script>window.__p=1</script> <b>bold</b>" in shown
    pieces = tab.locator(PIECES)
    assert pieces.count() >= 6
    for place in range(6):
        pieces.nth(place).hover()
        pieces.nth(place).click()
    tab.click(f"{PROOF} [data-do=prove]")
    tab.wait_for_selector(f"{PROOF} .pg-proof-result:not([hidden])")
    assert_inert(tab)


BAD = [
    ("prompt", "", "prompt is empty"),
    ("num_draft_tokens", "0", "k, drafted must be a whole number from 1 to 16, got 0"),
    ("num_draft_tokens", "2.5", "k, drafted must be a whole number from 1 to 16, got 2.5"),
    ("num_draft_tokens", "99", "got 99"),
    ("max_new_tokens", "9999", "new tokens must be a whole number from 1 to 512, got 9999"),
    ("max_new_tokens", "0", "new tokens must be a whole number from 1 to 512, got 0"),
]


def test_bad_input_is_named_and_the_text_stays(tab: Any) -> None:
    set_knob(tab, "temperature", 0)
    run(tab, REPEATING, max_new_tokens=6)
    for field, value, message in BAD:
        before = kinds(tab)
        assert before
        if field == "prompt":
            tab.fill("#pg-speculate-prompt textarea", value)
        else:
            fill(tab, **{field: value})
        tab.click("#pg-speculate-run")
        tab.locator(NOTICE, has_text=message).wait_for()
        assert kinds(tab) == before
        run(tab, REPEATING, num_draft_tokens=4, max_new_tokens=4)
        assert tab.locator(NOTICE).count() == 0


def test_the_text_is_there_when_the_reader_comes_back(tab: Any) -> None:
    set_knob(tab, "temperature", 0)
    run(tab, REPEATING, max_new_tokens=6)
    before = kinds(tab)
    open_tab(tab, "Inspect")
    open_tab(tab, "Speculate")
    assert kinds(tab) == before
    assert tab.input_value("#pg-speculate-prompt textarea") == REPEATING


def test_the_phone_has_no_sideways_scroll(open_page: Callable[..., Any]) -> None:
    page = open_page(viewport={"width": 390, "height": 844})
    open_tab(page, "Speculate")
    run(page, REPEATING, max_new_tokens=8)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for part in (ROUND, PROOF, PAYOFF, FORMULA):
        box = page.locator(part).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        assert box["width"] > 300


def test_the_endpoint_gives_text_counts_and_trace(site: Site) -> None:
    settings = {"temperature": 0.0, "max_new_tokens": 12}
    prompt = load_lessons(FOLDER)[0].prompt
    kind, out = call(site, "speculate", [prompt, "prompt_lookup", 4, "rejection", False, settings])
    assert kind == "complete"
    text, counts, document = out
    assert text.startswith(" 3 boxes of blue ink, 40 brown")
    trace = Trace.from_json(json.dumps(document))
    checks = [event for event in trace.events if isinstance(event, DraftVerified)]
    assert counts["num_rounds"] == len(checks)
    assert counts["num_accepted"] == sum(check.num_accepted for check in checks) > 4
    assert counts["num_accepted"] <= counts["num_checked"] <= counts["num_drafted"]
    kind, plain = call(
        site, "generate", arguments(prompt=prompt, temperature=0.0, top_p=1.0, max_new_tokens=12)
    )
    assert plain[0] == text


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (["a", "/etc/passwd"], "draft must be one of prompt_lookup"),
        (["a", "prompt_lookup", 0], "num_draft_tokens must be a whole number from 1 to 32, got 0"),
        (["a", "prompt_lookup", 4, "sloppy"], "verify must be"),
        (["", "prompt_lookup"], "prompt is empty"),
    ],
)
def test_the_endpoint_refuses_by_name(site: Site, data: list[Any], message: str) -> None:
    full = [*data, *["", "prompt_lookup", 4, "rejection", False, None][len(data) :]]
    kind, answer = call(site, "speculate", full)
    assert kind == "error"
    assert message in json.dumps(answer, ensure_ascii=False)
