"""The Structure tab in a real browser, on the bundled model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from backend import Trace
from tests.browser.conftest import (
    PATIENCE,
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
from tests.browser.test_endpoints import call
from tests.browser.test_hostile import HOSTILE, assert_inert
from ui.presets.lessons import load_lessons
from ui.tabs.structure import FOLDER

TAB = ".pg-tab-structure"
TEXT = f"{TAB} .pg-structured"
TOKENS = f"{TEXT} .pg-s-token"
WITH = f"{TEXT} [data-side=with]"
WITHOUT = f"{TEXT} [data-side=without]"
REPORT = f"{TAB} .pg-compiled"
STEP = f"{TAB} .pg-step"


@pytest.fixture
def tab(page: Any) -> Any:
    open_tab(page, "Structure")
    page.wait_for_selector(f"{REPORT}[data-state=fine]")
    return page


def write(page: Any, source: str, **values: str) -> None:
    for name, value in values.items():
        field = page.locator(f'{TAB} [data-field="{name}"]')
        if name in ("kind", "engine"):
            field.select_option(value)
        else:
            field.fill(value)
    page.fill(f'{TAB} [data-field="source"]', source)


def compiled(page: Any, state: str, words: str) -> str:
    page.wait_for_function(
        """([selector, state, words]) => {
          const node = document.querySelector(selector);
          return node && node.dataset.state === state && node.textContent.includes(words);
        }""",
        arg=[REPORT, state, words],
        timeout=PATIENCE,
    )
    return text_of(page, REPORT)


def run(page: Any) -> None:
    start(page, TEXT, "structure")
    settled(page, TEXT, "structure")
    page.wait_for_selector(f"{WITH} .pg-s-verdict[data-status]:not([data-status=''])")


def choose(page: Any, name: str) -> None:
    choose_lesson(
        page, TEXT, "structure", next(lesson for lesson in load_lessons(FOLDER) if lesson.name == name)
    )


def text(page: Any, side: str = WITH) -> str:
    return "".join(page.locator(f"{side} .pg-structured-text > span").all_text_contents())


def test_the_person_is_extracted_and_the_text_beside_it_is_not_valid(tab: Any) -> None:
    choose(tab, "person")
    line = compiled(tab, "fine", "compiled in")
    assert "rules, by xgrammar" in line
    assert "keys come in the order of the schema" in line
    run(tab)
    assert text_of(tab, f"{WITH} .pg-s-verdict") == "✓ valid"
    person = json.loads(text_of(tab, f"{WITH} .pg-structured-parsed"))
    assert person["name"] == "Anna"
    assert person["age"] == 34
    assert text_of(tab, f"{WITHOUT} .pg-s-verdict") == "✕ not valid"
    assert "not JSON" in text_of(tab, f"{WITHOUT} .pg-s-reason")
    kinds = tab.locator(TOKENS).evaluate_all("nodes => nodes.map((node) => node.dataset.kinds)")
    assert kinds[0] == "forced"
    assert any("jump" in kind for kind in kinds)
    tokens = int(text_of(tab, f'{TEXT} [data-fact="tokens"] b'))
    assert tokens == len(kinds)
    assert int(text_of(tab, f'{TEXT} [data-fact="calls of the model"] b')) < tokens
    assert tab.locator(f"{TEXT} .pg-mass-bar").count() == tokens
    # A step where the model wanted something else is listed, and a click shows it as a pipeline.
    fight = tab.locator(f"{TEXT} .pg-fight").first
    index = fight.get_attribute("data-index")
    assert "The model's favourite" in (fight.text_content() or "")
    fight.click()
    tab.wait_for_selector(f"{STEP} .pg-step-name:text-is('Token {index}')")
    assert "grammar" in text_of(tab, f"{STEP} thead")
    assert "masked by grammar" in text_of(tab, f"{STEP} tbody")


def test_arrow_keys_walk_the_tokens(tab: Any) -> None:
    write(tab, "(yes|no), [a-z]{3}", kind="regex", max_new_tokens="12")
    compiled(tab, "fine", "compiled in")
    run(tab)
    tab.locator(TOKENS).first.click()
    tab.keyboard.press("ArrowRight")
    tab.wait_for_selector(f"{TOKENS}.pg-selected[data-index='1']")
    assert tab.evaluate("document.activeElement.dataset.index") == "1"
    assert "feasible mass" in tab.evaluate("document.activeElement.getAttribute('aria-label')")
    tab.wait_for_selector(f"{STEP} .pg-step-name:text-is('Token 1')")


ERRORS = [
    ("json_schema", '{\n  "type": "string",\n}', "is not JSON: line 3, column 1", "line 3, column 1"),
    ("json_schema", '{"type": "strnig"}', "type at /type", "line 1, column 10"),
    ("json_schema", '{\n "uniqueItems": true, "type": "array"}', "uniqueItems at /uniqueItems", "line 2"),
    ("json_schema", '{"enum": [1], "type": "string"}', "no value can satisfy the schema", "line 1"),
    ("ebnf", 'root ::= "a" ghost', "rule 'ghost' is not defined", "line 1, column 14"),
    ("ebnf", 'root ::= "a" root', "no text is ever complete", None),
    ("regex", "a(?=b)", "character 2: look-ahead (?= is not supported", "line 1, column 2"),
    ("structural_tag", "{}", "a structural tag reads", "line 1, column 1"),
]


def test_errors_name_the_place_and_the_next_run_is_fine(tab: Any) -> None:
    for kind, source, words, place in ERRORS:
        write(tab, source, kind=kind)
        compiled(tab, "error", words)
        shown = tab.locator(f"{REPORT} .pg-compiled-place:not([hidden])")
        if place is None:
            assert shown.count() == 0
        else:
            assert place in (shown.text_content() or "")
    tab.click("#pg-structure-run")
    tab.locator(f"{TEXT} .pg-notice", has_text=words).wait_for()
    write(tab, "ok", kind="regex")
    compiled(tab, "fine", "compiled in")
    tab.wait_for_selector(f"{TEXT} .pg-notice", state="hidden")
    run(tab)
    assert text(tab) == "ok"
    assert text_of(tab, f"{WITH} .pg-s-verdict") == "✓ valid"


def test_a_text_cut_at_the_limit_is_incomplete_and_nothing_is_parsed(tab: Any) -> None:
    choose(tab, "person")
    tab.fill(f'{TAB} [data-field="max_new_tokens"]', "5")
    run(tab)
    assert text_of(tab, f"{WITH} .pg-s-verdict") == "… incomplete"
    assert "cut at the limit of 5 new tokens" in text_of(tab, f"{WITH} .pg-s-reason")
    assert tab.locator(f"{WITH} .pg-structured-parsed:not([hidden])").count() == 0


def test_a_candidate_branches_under_the_grammar_and_a_masked_one_is_refused(tab: Any, site: Site) -> None:
    set_knob(tab, "temperature", 1)
    set_knob(tab, "top_p", 1)  # nothing else cuts: every allowed token is listed
    tab.fill("#pg-structure-prompt textarea", "My favourite pet is a ")
    write(tab, "(cat|dog)[.]", kind="regex", max_new_tokens="8")
    compiled(tab, "fine", "compiled in")
    run(tab)
    before = text(tab)
    tab.locator(TOKENS).first.click()
    tab.wait_for_selector(f"{STEP} .pg-step-name:text-is('Token 0')")
    tab.click(f"{STEP} .pg-table-foot button:has-text('show all')")
    other = "dog" if before.startswith("c") else "cat"
    label = f"[data-id='{site.engine.encode(other)[0]}']"
    row = tab.locator(f"{STEP} tbody tr{label}")
    number = tab.get_attribute(TEXT, "data-number")
    row.click()
    tab.wait_for_selector(f"{TEXT}:not([data-number='{number}'])")
    settled(tab, TEXT, "structure")
    tab.wait_for_selector(f"{WITH} .pg-s-verdict[data-status=valid]")
    assert text(tab) == f"{other}."
    tab.wait_for_selector(f"{STEP} tbody tr:has-text('masked by grammar')")
    tab.locator(f"{STEP} tbody tr", has_text="masked by grammar").first.click()
    tab.wait_for_selector(f"{TEXT} .pg-notice:has-text('breaks the grammar')")


def test_both_engines_can_be_chosen(tab: Any) -> None:
    write(tab, '{"type": "string", "pattern": "^a+-b+$", "minLength": 5}', engine="xgrammar")
    compiled(tab, "error", "choose llguidance")
    tab.locator(f'{TAB} [data-field="engine"]').select_option("llguidance")
    compiled(tab, "fine", "by llguidance")
    run(tab)
    assert text_of(tab, f"{WITH} .pg-s-verdict") in ("✓ valid", "… incomplete")


def test_stop_ends_a_constrained_run(tab: Any, site: Site) -> None:
    write(tab, "[^.]{1500}[.]", kind="regex", max_new_tokens="512")
    compiled(tab, "fine", "compiled in")
    tab.click("#pg-structure-run")
    tab.wait_for_selector(TOKENS)
    tab.wait_for_selector("#pg-structure-stop:not([disabled])")
    tab.click("#pg-structure-stop")
    tab.wait_for_selector(f"{TEXT}:not(.pg-running)")
    until(
        lambda: site.engine.block_manager.num_free_blocks == site.engine.block_manager.num_blocks,
        "the blocks to come back",
    )
    tab.wait_for_selector(f"{WITH} .pg-s-verdict[data-status=incomplete]")


def test_hostile_grammars_and_prompts_stay_text(tab: Any) -> None:
    write(tab, json.dumps({"enum": [HOSTILE], "title": HOSTILE}), max_new_tokens="40")
    tab.fill("#pg-structure-prompt textarea", HOSTILE)
    compiled(tab, "fine", "compiled in")
    set_run(tab, seed=1)
    run(tab)
    assert_inert(tab)
    write(tab, f'{{"{HOSTILE}": 1, "not": {{}}}}'.replace("</textarea>", ""), max_new_tokens="8")
    compiled(tab, "error", "")
    write(tab, HOSTILE, kind="ebnf")
    compiled(tab, "error", "means nothing here")
    assert_inert(tab)


def test_the_tab_fits_a_phone(open_page: Callable[..., Any]) -> None:
    page = open_page(viewport={"width": 390, "height": 844})
    open_tab(page, "Structure")
    page.wait_for_selector(f"{REPORT}[data-state=fine]")
    for part in (TEXT, f"{TAB} .pg-fields", REPORT):
        box = page.locator(part).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_endpoint_gives_text_verdict_and_trace(site: Site) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    settings = {"temperature": 0.0, "max_new_tokens": 20}
    kind, out = call(site, "structure", ["A digit:", schema, None, None, None, "xgrammar", 0, settings])
    assert kind == "complete"
    found, verdict, document = out
    assert verdict["status"] == "valid"
    assert json.loads(found)["n"] <= 9
    assert verdict["structure"] == found
    assert any("closed" in note for note in verdict["notes"])
    trace = Trace.from_json(json.dumps(document))
    assert trace.verdict is not None
    assert trace.verdict.status == "valid"
    kind, answer = call(site, "structure", ["x", {"not": {}}, None, None, None, "xgrammar", 0, None])
    assert kind == "error"
    assert "not at /not" in json.dumps(answer)
