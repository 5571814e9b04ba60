"""Faults that other engines have: good texts can be produced, bad ones not, or the grammar is refused.

`cases.jsonl` holds one fault per line; what must happen to each is spelled out here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.errors import GrammarError
from backend.grammar.verdict import judge
from tests.grammar.byte_engines import accepts, compiled

CASES = {
    case["id"]: case
    for case in map(json.loads, (Path(__file__).parent / "cases.jsonl").read_text("utf-8").splitlines())
}
REFUSED = {
    "S09": ("uniqueItems", "/uniqueItems"),
    "S14": ("pattern", "look-ahead (?! is not supported"),
    "S24": ("$ref", "'common.json#/$defs/level' is outside of this schema"),
    "S26": ("$ref", "#/$defs/u -> #/$defs/v -> #/$defs/u lead in a circle"),
    "S38": ("exclusiveMinimum", "draft 4"),
    "R04": ("pattern", "character 1: flags (?i is not supported"),
    "R05": ("pattern", r"character 1: word boundary \b is not supported"),
    "R06": ("pattern", r"character 8: back reference \1 is not supported"),
    "R08": ("pattern", "character 1: [ is never closed"),
    "R09": ("pattern", "1,000,000 character places"),
    "G06": ("", "line 1, column 14: rule 'ghost' is not defined"),
    "G07": ("", "there is no rule 'root'"),
}
# Keys come in the order of the schema; the note says so.
OTHER_ORDER = {"S33": '{"y": 2, "z": 1}'}


def grammar_of(case: dict[str, Any]) -> dict[str, Any]:
    kind = {"schema": "json_schema"}.get(case["kind"], case["kind"])
    return {kind: case["spec"]}


@pytest.mark.parametrize("engine", ["xgrammar", "llguidance"])
@pytest.mark.parametrize("name", sorted(set(CASES) - set(REFUSED)))
def test_good_texts_are_possible_and_bad_ones_are_not(name, engine):
    case = CASES[name]
    grammar = compiled(engine, **grammar_of(case))
    good = [text for text in case["good"] if text != OTHER_ORDER.get(name)]
    assert [accepts(grammar, text) for text in good] == [True] * len(good)
    assert [accepts(grammar, text) for text in case["bad"]] == [False] * len(case["bad"])
    assert {judge(grammar, text, None).status for text in good} <= {"valid"}
    if name in OTHER_ORDER:
        assert not accepts(grammar, OTHER_ORDER[name])
        assert "keys come in the order of the schema" in grammar.notes


@pytest.mark.parametrize("name", sorted(set(CASES) - set(REFUSED)))
def test_bad_texts_are_never_called_valid(name):
    case = CASES[name]
    grammar = compiled(**grammar_of(case))
    assert [judge(grammar, text, None).status for text in case["bad"]] == ["invalid"] * len(case["bad"])


@pytest.mark.parametrize("engine", ["xgrammar", "llguidance"])
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_enforced_is_refused_by_name(name, engine):
    keyword, words = REFUSED[name]
    with pytest.raises(GrammarError) as refusal:
        compiled(engine, **grammar_of(CASES[name]))
    assert refusal.value.keyword == keyword
    assert words in str(refusal.value)


def test_a_bad_grammar_does_not_spoil_the_next():
    for name in ("G09", "G06", "G07", "G09"):
        case = CASES[name]
        if name in REFUSED:
            with pytest.raises(GrammarError):
                compiled(**grammar_of(case))
        else:
            assert all(accepts(compiled(**grammar_of(case)), text) for text in case["good"])
    with pytest.raises(GrammarError, match="there is no rule 'root'"):
        compiled(ebnf="")


def test_every_whole_number_between_the_bounds_and_no_other():
    grammar = compiled(json_schema=CASES["S31"]["spec"])
    assert [n for n in range(-200, 1101) if accepts(grammar, str(n))] == list(range(-12, 105))
