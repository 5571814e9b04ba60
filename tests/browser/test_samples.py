"""The Samples tab in a real browser, on the bundled model."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from backend import Trace
from tests.browser.conftest import Site, open_tab, run, set_knob, set_run, settled, start, text_of, until
from tests.browser.test_endpoints import call
from tests.browser.test_hostile import HOSTILE, assert_inert

VIEW = ".pg-tab-samples .pg-samples"
CARDS = f"{VIEW} .pg-sample"
NOTICE = f"{VIEW} .pg-notice:not([hidden])"


@pytest.fixture
def tab(page: Any) -> Any:
    open_tab(page, "Samples")
    return page


def draw(page: Any, prompt: str = "Q: 3 + 4\nA:", wait: bool = True, **values: object) -> None:
    for name, value in values.items():
        page.fill(f'.pg-tab-samples [data-field="{name}"]', str(value))
    page.fill("#pg-samples-prompt textarea", prompt)
    start(page, VIEW, "samples")
    if wait:
        settled(page, VIEW, "samples")


def facts(page: Any, name: str) -> list[str]:
    return page.locator(f"{CARDS} [data-fact={name}] b").all_text_contents()


def selected(page: Any) -> int:
    names = page.locator(f"{CARDS} .pg-sample-name").all_text_contents()
    (chosen,) = [place for place, name in enumerate(names) if "★" in name]
    return chosen


def test_samples_grow_side_by_side(tab: Any) -> None:
    set_run(tab, seed=3, logit_bias="0: -100\n2: -100")
    draw(tab, "Once upon a time", n=3, max_new_tokens=30, wait=False)
    seen = set()

    def watched() -> bool:
        if tab.locator(f"{VIEW}.pg-running").count():
            seen.add(tuple(facts(tab, "length")))
        return bool(tab.locator(f"{VIEW}:not(.pg-running)").count())

    until(watched, "the end", seconds=120)
    assert len(seen) >= 3
    assert facts(tab, "length") == ["30", "30", "30"]
    assert len(set(tab.locator(f"{CARDS} .pg-sample-text").all_text_contents())) == 3


def test_every_rule_selects_from_the_record_without_a_run(
    tab: Any, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_run(tab, seed=5)
    draw(tab, n=6, max_new_tokens=6)
    answers, sums, means = facts(tab, "answer"), facts(tab, "sum"), facts(tab, "mean")
    votes = Counter(answers).most_common()
    assert tab.locator(f"{CARDS}.pg-selected [data-fact=answer] b").text_content() == votes[0][0]
    tab.wait_for_selector(f"{VIEW} .pg-votes-plot .main-svg")
    tab.wait_for_selector(f"{VIEW} .pg-matrix-plot .main-svg")
    runs: list[Any] = []
    monkeypatch.setattr(site.engine, "stream", lambda request: runs.append(request))
    for rule, values in (("sum", sums), ("mean", means)):
        tab.click(f"{VIEW} [data-rule={rule}]")
        best = max(range(6), key=lambda place: float(values[place]))
        tab.wait_for_selector(f"{CARDS}:nth-child({best + 1}).pg-selected")
    tab.click(f"{VIEW} [data-rule=mbr]")
    tab.wait_for_selector(f"{CARDS}.pg-selected .pg-sample-score:text-matches('^MBR')")
    shown = tab.locator(f"{CARDS} .pg-sample-score").all_text_contents()
    scores = [float(text.removeprefix("MBR ")) for text in shown]
    assert scores[selected(tab)] == max(scores)
    assert runs == []


def test_sample_one_is_what_inspect_draws(tab: Any) -> None:
    set_run(tab, seed=11, max_new_tokens=6)
    draw(tab, "The sea was", n=3, max_new_tokens=6)
    first = text_of(tab, f"{CARDS} .pg-sample-text")
    open_tab(tab, "Inspect")
    run(tab, "The sea was")
    assert "".join(tab.locator(".pg-tab-inspect .pg-token").all_text_contents()) == first


def test_stop_frees_every_block(tab: Any, site: Site) -> None:
    blocks = site.engine.block_manager
    before = blocks.num_free_blocks
    set_run(tab, logit_bias="0: -100\n2: -100")
    draw(tab, n=4, max_new_tokens=400, wait=False)
    until(lambda: tab.locator(f"{CARDS} .pg-sample-text span").count() >= 4, "some tokens")
    assert blocks.num_free_blocks < before
    tab.click("#pg-samples-stop")
    until(lambda: blocks.num_free_blocks == before, "free blocks", seconds=20)
    settled(tab, VIEW, "samples")
    assert "ended stopped" in text_of(tab, f"{VIEW} .pg-status")
    assert tab.locator(CARDS).count() == 4


def test_bad_input_is_named_and_nothing_is_lost(tab: Any) -> None:
    draw(tab, n=2, max_new_tokens=4, answer="")
    before = tab.locator(f"{CARDS} .pg-sample-text").all_text_contents()
    for values, message in (
        ({"n": 0}, "samples must be a whole number from 1 to 64, got 0"),
        ({"n": 1000}, "samples must be a whole number from 1 to 64, got 1000"),
        ({"n": 2, "answer": "("}, "is not a regular expression"),
        ({"answer": "a"}, "must have one group, it has 0"),
    ):
        for name, value in values.items():
            tab.fill(f'.pg-tab-samples [data-field="{name}"]', str(value))
        tab.click("#pg-samples-run")
        tab.wait_for_selector(f"{NOTICE}:has-text('{message}')")
        assert tab.locator(f"{CARDS} .pg-sample-text").all_text_contents() == before
    draw(tab, n=2, max_new_tokens=4, answer="")
    assert tab.locator(NOTICE).count() == 0


def test_hostile_text_stays_text(tab: Any) -> None:
    set_knob(tab, "temperature", 0)
    draw(tab, f"{HOSTILE}\n{HOSTILE}\n{HOSTILE}\n", n=2, max_new_tokens=20, answer="(<img[^>]*>?)")
    assert "<img" in text_of(tab, f"{CARDS} .pg-sample-text")
    assert "<img" in facts(tab, "answer")[0]
    tab.wait_for_selector(f"{VIEW} .pg-votes-plot .main-svg")
    assert_inert(tab)


def test_the_endpoint_gives_samples_scores_and_the_selected(site: Site) -> None:
    settings = {"max_new_tokens": 5, "seed": 3, "temperature": 0.8}
    kind, answer = call(site, "best_of", ["Q: 3 + 4\nA:", 4, "vote", None, settings])
    assert kind == "complete"
    rows, document = answer
    trace = Trace.from_json(json.dumps(document))
    assert [row["selected"] for row in rows].index(True) == trace.selected
    assert rows[trace.selected]["score"] == max(row["score"] for row in rows)


@pytest.mark.parametrize(
    ("changed", "value"), [(1, 0), (1, 1000), (2, "luck"), (3, "("), (4, {"temperature": -1})]
)
def test_the_endpoint_refuses_bad_values(site: Site, changed: int, value: object) -> None:
    data: list[Any] = ["The sea", 3, "mean", None, {"max_new_tokens": 5}]
    data[changed] = value
    assert call(site, "best_of", data)[0] == "error"
