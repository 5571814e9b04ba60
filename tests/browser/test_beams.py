"""The Beams tab in a real browser, on the bundled model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from backend import Trace
from backend.events import BeamStepped
from tests.browser.conftest import Site, choose_lesson, open_tab, set_run, settled, start, text_of, until
from tests.browser.test_endpoints import call
from tests.browser.test_hostile import HOSTILE, assert_inert
from ui.presets.lessons import load_lessons

TREE = ".pg-tab-beams .pg-tree"
WORDS = f"{TREE} .pg-word"
ROWS = ".pg-tab-beams .pg-hyps tbody tr[data-node]"
NOTICE = f"{TREE} .pg-notice:not([hidden])"


@pytest.fixture
def beams(page: Any) -> Any:
    open_tab(page, "Beams")
    return page


def fill(page: Any, **values: object) -> None:
    for name, value in values.items():
        page.fill(f'.pg-tab-beams [data-field="{name}"]', str(value))


def search(page: Any, prompt: str = "The capital of France is", wait: bool = True, **values: object) -> None:
    fill(page, **values)
    page.fill("#pg-beams-prompt textarea", prompt)
    start(page, TREE, "beams")
    if wait:
        ended(page)


def ended(page: Any) -> None:
    settled(page, TREE, "beams")


def texts(page: Any) -> list[str]:
    return page.locator(f"{ROWS} .pg-hyps-text").all_text_contents()


def column(page: Any, number: int) -> list[float]:
    return [float(cell) for cell in page.locator(f"{ROWS} td:nth-child({number})").all_text_contents()]


def test_the_tree_grows_while_the_search_runs(beams: Any) -> None:
    set_run(beams, logit_bias="0: -100\n2: -100")
    search(beams, num_beams=3, max_new_tokens=40, wait=False)
    steps = set()

    def watched() -> bool:
        if beams.locator(f"{TREE}.pg-running").count() and beams.locator(WORDS).count():
            steps.add(beams.get_attribute(TREE, "data-step"))
        return bool(beams.locator(f"{TREE}:not(.pg-running)").count())

    until(watched, "the end of the search", seconds=120)
    assert len(steps) >= 3
    assert "steps 40" in text_of(beams, f"{TREE} .pg-facts")
    assert "step 40 of 40" in text_of(beams, f"{TREE} .pg-tree-step")
    assert len(texts(beams)) >= 3


def test_the_slider_replays_the_search(beams: Any) -> None:
    search(beams, num_beams=3, max_new_tokens=8)
    slider = beams.locator(f"{TREE} [data-part=step]")
    slider.focus()
    slider.press("Home")
    assert beams.get_attribute(TREE, "data-step") == "0"
    beams.click(f"{TREE} [data-detail=all]")
    # The first step: every node is a first token, six candidates and nothing else.
    assert beams.locator(WORDS).count() == 6
    assert "kept: 3 alive" in text_of(beams, f"{TREE} .pg-tree-legend")
    slider.press("ArrowRight")
    assert beams.get_attribute(TREE, "data-step") == "1"
    beams.click(f"{TREE} [data-do=forth]")
    assert beams.get_attribute(TREE, "data-step") == "2"
    slider.press("End")
    assert "step 8 of 8" in text_of(beams, f"{TREE} .pg-tree-step")


def test_length_penalty_ranks_anew_without_a_run(
    beams: Any, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_lesson(
        beams, TREE, "beams", next(lesson for lesson in load_lessons() if lesson.name == "translation")
    )
    start(beams, TREE, "beams")
    ended(beams)
    first = texts(beams)
    sums, lengths, scores = column(beams, 3), column(beams, 4), column(beams, 5)
    assert scores == sorted(scores, reverse=True)
    runs: list[Any] = []
    monkeypatch.setattr(site.engine, "stream", lambda request: runs.append(request))
    slider = beams.locator(".pg-hyps .pg-slider")
    slider.focus()
    slider.press("Home")  # -2: short texts first
    assert text_of(beams, ".pg-hyps output") == "-2.00"
    expected = sorted((s * n**2 for s, n in zip(sums, lengths, strict=True)), reverse=True)
    assert column(beams, 5) == pytest.approx(expected, rel=1e-3)
    assert texts(beams) != first
    assert "▲" in "".join(beams.locator(f"{ROWS} .pg-moved").all_text_contents())
    beams.click(".pg-hyps [data-do=reset]")
    assert texts(beams) == first
    # The server has answered what came later, so it has seen all that the slider asked for.
    beams.click('[data-do="share"]')
    until(lambda: "tab=beams" in beams.evaluate("location.search"), "the link")
    assert runs == []


def test_a_word_shows_its_candidates_and_the_text_so_far(beams: Any) -> None:
    search(beams, num_beams=2, max_new_tokens=6)
    word = beams.locator(WORDS).nth(1)
    word.hover()
    beams.wait_for_selector(f"{TREE} .pg-tip:not([hidden])")
    assert "sum of log p" in text_of(beams, f"{TREE} .pg-tip")
    assert beams.locator(f"{TREE} .pg-tip-list li").count() >= 1
    word.click()
    beams.wait_for_selector(f"{TREE} .pg-tree-text:not([hidden])")
    assert text_of(beams, f"{TREE} .pg-tree-words").startswith("The capital of France is")
    # A row of the table shows its own text there.
    beams.locator(ROWS).first.click()
    words = text_of(beams, f"{TREE} .pg-tree-words").replace("The capital of France is", "")
    assert words.split()[0] in texts(beams)[0]


def test_the_tree_is_walked_zoomed_and_panned_by_keyboard(beams: Any) -> None:
    search(beams, num_beams=3, max_new_tokens=6)
    beams.uncheck(f"{TREE} [data-option=fold]")
    words = beams.locator(WORDS)
    assert beams.locator(f"{WORDS}[tabindex='0']").count() == 1
    words.first.focus()
    focused = "document.activeElement.dataset.id"
    first = beams.evaluate(focused)
    beams.keyboard.press("ArrowRight")
    assert beams.evaluate(focused) != first
    beams.keyboard.press("ArrowLeft")
    assert beams.evaluate(focused) == first
    beams.keyboard.press("Enter")
    assert beams.locator(f"{WORDS}.pg-selected").count() == 1
    place = f"document.querySelector('{TREE} .pg-tree-pan').getAttribute('transform')"
    before = beams.evaluate(place)
    beams.keyboard.press("+")
    zoomed = beams.evaluate(place)
    beams.keyboard.press("Shift+ArrowRight")
    panned = beams.evaluate(place)
    assert len({before, zoomed, panned}) == 3
    beams.keyboard.press("0")
    assert beams.evaluate(place) == before


def test_branches_differ_by_more_than_colour(beams: Any) -> None:
    search(beams, num_beams=3, max_new_tokens=10)
    beams.click(f"{TREE} [data-detail=all]")
    look = """(kind) => { const edge = document.querySelector(`.pg-tab-beams .pg-edge.pg-${kind}`);
        return edge && getComputedStyle(edge).strokeDasharray; }"""
    dashes = {kind: beams.evaluate(look, kind) for kind in ("finished", "lost", "pruned")}
    assert None not in dashes.values()
    assert len(set(dashes.values())) == 3
    struck = beams.locator(f"{TREE} .pg-seg.pg-pruned .pg-word text").first
    assert "line-through" in struck.evaluate("(node) => getComputedStyle(node).textDecoration")
    signs = beams.locator(f"{TREE} .pg-node-sign").all_text_contents()
    assert any("✕" in sign for sign in signs)
    assert any("■" in sign for sign in signs)
    assert sum("★" in sign for sign in signs) == 1
    assert sum("greedy" in sign for sign in signs) == 1


def test_stop_frees_every_block_and_keeps_the_tree(beams: Any, site: Site) -> None:
    blocks = site.engine.block_manager
    start = blocks.num_free_blocks
    search(beams, num_beams=4, max_new_tokens=200, wait=False)
    until(lambda: beams.locator(WORDS).count() >= 4, "some words")
    assert blocks.num_free_blocks < start
    beams.click("#pg-beams-stop")
    until(lambda: blocks.num_free_blocks == start, "free blocks", seconds=20)
    ended(beams)
    assert "ended stopped" in text_of(beams, f"{TREE} .pg-facts")
    assert beams.locator(WORDS).count() >= 4
    assert len(texts(beams)) >= 4


def test_a_closed_tab_ends_the_search(open_page: Callable[..., Any], site: Site) -> None:
    blocks = site.engine.block_manager
    start = blocks.num_free_blocks
    page = open_page()
    open_tab(page, "Beams")
    search(page, num_beams=4, max_new_tokens=200, wait=False)
    until(lambda: page.locator(WORDS).count() >= 4, "some words")
    page.close()
    until(lambda: blocks.num_free_blocks == start, "free blocks", seconds=20)


BAD = [
    ({"num_beams": 0}, "beams must be a whole number from 1 to 16, got 0"),
    ({"num_beams": 500}, "beams must be a whole number from 1 to 16, got 500"),
    ({"num_return_sequences": 5}, "num_return_sequences is 5, there are only 3 beams"),
    ({"num_beam_groups": 2}, "3 beams cannot be split into 2 equal groups"),
    ({"max_new_tokens": 2000}, "new tokens must be a whole number from 1 to 256, got 2000"),
]


def test_bad_input_is_named_with_the_numbers_and_nothing_is_lost(beams: Any) -> None:
    good: dict[str, Any] = {
        "num_beams": 3,
        "num_return_sequences": 1,
        "num_beam_groups": 1,
        "max_new_tokens": 5,
    }
    search(beams, **good)
    before, words = texts(beams), beams.locator(WORDS).count()
    for values, message in BAD:
        fill(beams, **(good | values))
        beams.click("#pg-beams-run")
        beams.wait_for_selector(f"{NOTICE}:has-text('{message}')")
        ended(beams)
        assert texts(beams) == before
        assert beams.locator(WORDS).count() == words
    search(beams, **good)
    assert texts(beams) == before
    assert beams.locator(NOTICE).count() == 0


def test_hostile_text_stays_text(beams: Any) -> None:
    # The likeliest continuation of a repeated string repeats it: markup becomes part of the tree.
    search(beams, f"{HOSTILE}\n{HOSTILE}\n{HOSTILE}\n", num_beams=2, max_new_tokens=20)
    assert "<img" in "".join(texts(beams))
    beams.locator(WORDS).nth(2).hover()
    beams.wait_for_selector(f"{TREE} .pg-tip:not([hidden])")
    beams.locator(ROWS).first.click()
    assert "<img" in text_of(beams, f"{TREE} .pg-tree-words")
    assert_inert(beams)
    assert beams.locator(f"{TREE} foreignObject, {TREE} svg image").count() == 0


def test_a_wide_tree_stays_legible_and_in_place(beams: Any) -> None:
    search(beams, "Once upon a time", num_beams=8, max_new_tokens=30, wait=False)
    until(lambda: beams.locator(WORDS).count() >= 8, "some words")
    beams.evaluate("window.kept = document.querySelector('.pg-tab-beams .pg-tree-svg g.pg-seg')")
    beams.wait_for_selector(f"{TREE}:not(.pg-running)", timeout=180_000)
    assert beams.evaluate("window.kept.isConnected")
    assert beams.locator(WORDS).count() < 150
    frame = beams.locator(f"{TREE} .pg-tree-box").bounding_box()
    assert frame["height"] <= 480
    beams.click(f"{TREE} [data-do=fit]")
    edges = beams.locator(f"{TREE} .pg-tree-pan").bounding_box()
    assert edges["width"] <= frame["width"] + 2
    assert edges["height"] <= frame["height"] + 2


def test_the_phone_has_no_sideways_scroll(open_page: Callable[..., Any]) -> None:
    page = open_page(viewport={"width": 390, "height": 844})
    open_tab(page, "Beams")
    search(page, num_beams=2, max_new_tokens=4)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_endpoint_gives_the_texts_and_the_tree(site: Site) -> None:
    settings = {"max_new_tokens": 5}
    kind, answer = call(site, "beam_search", ["The sea", 3, 1.0, False, 2, 1, 0.0, False, settings])
    assert kind == "complete"
    rows, document = answer
    trace = Trace.from_json(json.dumps(document))
    assert [row["text"] for row in rows] == list(trace.samples)
    assert rows[0]["score"] >= rows[1]["score"]
    assert rows[0]["score"] == pytest.approx(rows[0]["cum_logprob"] / rows[0]["num_tokens"])
    assert sum(isinstance(event, BeamStepped) for event in trace.events) == 5


@pytest.mark.parametrize(
    ("changed", "value"), [(1, 0), (1, 500), (1, "x"), (4, 9), (3, "soon"), (8, {"colour": 1}), (8, [1])]
)
def test_the_endpoint_refuses_bad_values(site: Site, changed: int, value: object) -> None:
    data: list[Any] = ["The sea", 3, 1.0, False, 2, 1, 0.0, False, {"max_new_tokens": 5}]
    data[changed] = value
    assert call(site, "beam_search", data)[0] == "error"
