"""The state of a run by its tokens: forks, roll-backs, end tokens, padding, free text; and the verdict."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from backend.errors import GrammarError
from backend.grammar.constraint import Constraint
from backend.grammar.engines import ENGINES as BY_NAME
from backend.grammar.lowering import lower
from backend.grammar.matcher import Tokens
from backend.grammar.verdict import judge
from backend.request import Grammar
from tests.grammar.byte_engines import BYTES, END, accepts, compiled

ENGINES = ["xgrammar", "llguidance"]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0}, "b": {"enum": ["x", "yy"]}},
    "required": ["b"],
}


def constraint(engine: str = "xgrammar", capacity: int = 2, **fields: Any) -> Constraint:
    return Constraint(compiled(engine, **fields), BYTES, capacity)


def ids(text: str) -> list[int]:
    return list(text.encode())


def allowed(subject: Constraint, text: str) -> str:
    mask = subject.mask(ids(text))
    return bytes(i for i in mask.nonzero().flatten().tolist() if i != END).decode("latin-1") + (
        "." if bool(mask[END]) else ""
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_end_tokens_are_allowed_only_where_the_text_is_complete(engine):
    subject = constraint(engine, json_schema={"enum": ["yes", "yet"]})
    assert [allowed(subject, text) for text in ("", '"', '"ye', '"yes', '"yes"')] == [
        '"',
        "y",
        "st",
        '"',
        ".",
    ]
    assert subject.is_over(ids('"yes"'))
    assert not subject.is_over(ids('"yes'))
    assert allowed(subject, '"yes"') == "."
    assert subject.mask([*ids('"yes"'), END]).nonzero().flatten().tolist() == [END]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_end_token_and_no_other_special_token(engine):
    # Two end tokens, a special one, and padding behind the last real token.
    tokens = Tokens((b"a", b"aa", b"", b"b", b"", b"", b"", b""), (2, 4))
    made = BY_NAME[engine](tokens)
    grammar = Grammar(regex="a{2}a?", engine=engine)
    source, _ = made.compile(lower(grammar))
    base = compiled(engine, regex="a{2}a?")
    subject = Constraint(type(base)(grammar, 1, 0.0, (), made, made.load(source)), tokens, capacity=1)
    answers = [
        subject.mask(output).nonzero().flatten().tolist() for output in ([], [0], [1], [1, 0], [0, 0, 0])
    ]
    assert answers == [[0, 1], [0, 1], [0, 2, 4], [2, 4], [2, 4]]


@pytest.mark.parametrize("capacity", [1, 3])
def test_questions_in_any_order_get_the_answer_of_a_fresh_matcher(capacity):
    texts = ['{"a": 12, "b": "x"}', '{"a": 305, "b": "yy"}', '{"b": "yy"}', '{"a": 12, "b": "yy"}']
    chance = random.Random(0)
    subject = constraint(capacity=capacity, json_schema=SCHEMA)
    subject._answers = _Forgetful()
    for _ in range(150):
        text = chance.choice(texts)
        part = text[: chance.randint(0, len(text))]
        fresh = constraint("llguidance", json_schema=SCHEMA)
        assert allowed(subject, part) == allowed(fresh, part), part
        assert len(subject._lines) <= capacity


class _Forgetful(dict):
    def __setitem__(self, key: Any, value: Any) -> None:
        self.clear()
        super().__setitem__(key, value)


def test_tokens_that_break_the_grammar_are_named():
    subject = constraint(regex="ab*")
    with pytest.raises(GrammarError, match="token 2 of the output, id 99, breaks the grammar"):
        subject.mask(ids("abc"))
    assert allowed(subject, "ab") == "b."


def test_free_text_ends_at_a_blank_line_or_the_limit():
    subject = constraint(regex="[0-9]", reason_first=6)
    assert len(allowed(subject, "")) == 256  # every byte, but no end
    assert subject.after(ids("abcde")).is_free
    assert allowed(subject, "abcdef") == "0123456789"
    assert allowed(subject, "ab\n\n") == "0123456789"
    assert subject.after(ids("\n\n")).is_free  # nothing was said yet
    assert subject.parts(ids("ab\n\n7"), None) == ("ab\n\n", "7")
    assert subject.judge(ids("ab\n\n7"), None, None).status == "valid"
    assert subject.judge(ids("abc"), None, "cut at 3").status == "incomplete"


def test_forced_text_and_feasible_mass():
    subject = constraint(json_schema=SCHEMA)
    assert subject.forced(ids('{"b": "y')) == b'y"}'
    model = torch.full((257,), -torch.inf)
    model[ord("y")], model[ord("z")] = torch.tensor([0.25, 0.75]).log()
    step = subject.describe(ids('{"b": "y'), model, ord("y"), chr)
    assert (step.num_allowed, step.feasible_mass, step.forced) == (1, 0.25, True)
    assert (step.masked_id, step.masked_label) == (ord("z"), "z")
    assert step.masked_logprob == pytest.approx(-0.28768, abs=1e-4)
    free = subject.describe(ids('{"b": "'), model, ord("y"), chr)
    assert (free.num_allowed, free.forced) == (2, False)


@pytest.mark.parametrize(
    ("fields", "text", "cut_by", "status", "words"),
    [
        ({"json_schema": SCHEMA}, '{"b": "x"}', None, "valid", "jsonschema"),
        (
            {"json_schema": SCHEMA},
            '{"b": "x',
            "cut at the limit of 5 new tokens",
            "incomplete",
            "cut at the limit",
        ),
        ({"json_schema": SCHEMA}, '{"b": "z"}', None, "invalid", "/b: 'z' is not one of"),
        ({"json_schema": SCHEMA}, '{"b": "x", "b": "x"}', None, "invalid", "the key 'b' occurs twice"),
        (
            {"json_schema": {"type": "string", "format": "date"}},
            '"2023-02-30"',
            None,
            "invalid",
            "is not a 'date'",
        ),
        ({"json_schema": {}}, "NaN", None, "invalid", "NaN is no JSON value"),
        ({"json_schema": {}}, "[" * 300, None, "invalid", "nested deeper than 200"),
        ({"regex": "a+"}, "aab", None, "invalid", "does not match the whole text"),
        ({"regex": "a+"}, "aa", "cut", "valid", "matches the whole text"),
        ({"ebnf": 'root ::= "a" "b"'}, "ab", None, "valid", "fresh matcher"),
        ({"ebnf": 'root ::= "a" "b"'}, "a", None, "invalid", "wants more"),
        ({"ebnf": 'root ::= "a" "b"'}, "ac", None, "invalid", "character 2, 'c', breaks the grammar"),
    ],
)
def test_verdicts(fields, text, cut_by, status, words):
    verdict = judge(compiled(**fields), text, cut_by)
    assert verdict.status == status
    assert words in verdict.reason


TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<call>"],
        "tags": [
            {
                "type": "tag",
                "begin": "<call>",
                "content": {"type": "json_schema", "json_schema": {"type": "integer", "maximum": 9}},
                "end": "</call>",
            }
        ],
    },
}


def test_structural_tags():
    grammar = compiled(structural_tag=TAG)
    texts = ["free text", "a <call>7</call> b", "<call>12</call>", "<call> 7</call>", "<call>7"]
    assert [accepts(grammar, text) for text in texts] == [True, True, False, False, False]
    assert [judge(grammar, text, None).status for text in texts] == ["valid", "valid", *["invalid"] * 3]


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ({"type": "other"}, "a structural tag reads"),
        ({"type": "structural_tag", "format": {"type": "lark"}}, "format 'lark' at /format is not supported"),
        (
            {
                "type": "structural_tag",
                "format": {"type": "json_schema", "json_schema": {"not": {"type": "null"}}},
            },
            "in /format: not at /not",
        ),
        (
            {
                "type": "structural_tag",
                "format": {"type": "json_schema", "json_schema": {}, "style": "qwen_xml"},
            },
            "style at /format/style is not supported",
        ),
    ],
)
def test_structural_tags_that_are_refused(tag, words):
    with pytest.raises(GrammarError, match=words):
        compiled(structural_tag=tag)
    with pytest.raises(GrammarError, match="xgrammar only"):
        compiled("llguidance", structural_tag=TAG)
