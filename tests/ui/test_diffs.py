"""Updates of a run reach the page as differences: applied by gradio's client they give the new value."""

from __future__ import annotations

import copy
import random
from typing import Any

import gradio.utils
import pytest
from gradio_client.utils import apply_diff

from ui import page
from ui.diffs import diff
from ui.loading import Loader

ROWS = [["A", 0, [0, 1, 2], 33], ["B", 1, [64, 65, 66], 34], ["C", 2, [32], 12], ["D", 3, [96], 9]]


def value(luck: random.Random, depth: int = 0) -> Any:
    """Something that a payload may hold."""
    kind = luck.randrange(7 if depth < 4 else 5)
    if kind == 5:
        return [value(luck, depth + 1) for _ in range(luck.randrange(5))]
    if kind == 6:
        return {name: value(luck, depth + 1) for name in luck.sample("abcdef", luck.randrange(5))}
    return (None, luck.random() < 0.5, luck.randrange(4), luck.choice(("", "x", "xy", "xyz")), 0.5)[kind]


def changed(old: Any, luck: random.Random) -> Any:
    """The same with some entries changed, added or gone, in nested lists too."""
    if luck.random() < 0.1 or not isinstance(old, list | dict):
        return value(luck) if luck.random() < 0.5 else old
    if isinstance(old, dict):
        return {key: changed(item, luck) for key, item in old.items() if luck.random() < 0.8} | {
            "g": luck.randrange(3)
        }
    kept = [changed(item, luck) for item in old if luck.random() < 0.7]
    return kept + [value(luck, 2) for _ in range(luck.randrange(2))]


@pytest.mark.parametrize("seed", range(300))
def test_the_edits_make_the_new_value_of_the_old_one(seed: int) -> None:
    luck = random.Random(seed)
    old = [value(luck) for _ in range(4)]
    new = changed(old, luck)
    before = copy.deepcopy(old)
    assert apply_diff(old, diff(old, new)) == new
    assert old == before


def test_a_row_that_goes_while_the_rows_after_it_are_shorter_takes_no_block_along() -> None:
    new = [ROWS[0], *ROWS[2:]]
    assert apply_diff(ROWS, diff(ROWS, new)) == new


def test_only_what_is_new_is_sent() -> None:
    assert diff({"text": "ab", "rows": [1]}, {"text": "abc", "rows": [1, 2]}) == [
        ["append", ["text"], "c"],
        ["add", ["rows", 1], 2],
    ]
    assert diff(ROWS, copy.deepcopy(ROWS)) == []


def test_the_page_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradio.utils, "diff", None)
    page.build(Loader(lambda progress: None))  # type: ignore[arg-type,return-value]
    assert gradio.utils.diff is diff
