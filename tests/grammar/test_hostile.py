"""Input that could hurt the server: text without end, huge forced text, grammars that cannot run."""

from __future__ import annotations

import pytest

from backend.errors import GrammarError
from backend.grammar import ebnf
from backend.grammar.constraint import MAX_FORCED, Constraint
from tests.grammar.byte_engines import BYTES, accepts, compiled

ENGINES = ["xgrammar", "llguidance"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "source",
    [
        'root ::= "ok" | trap\ntrap ::= "x" trap',
        'root ::= "ok" trap?\ntrap ::= "x" trap',
        'root ::= "ok" ("x" other)*\nother ::= "y" third\nthird ::= other "z"',
        'root ::= "ok" | ("x" | "y") trap{2}\ntrap ::= trap "x"',
    ],
)
def test_alternatives_without_an_end_are_left_out_with_a_note(engine, source):
    grammar = compiled(engine, ebnf=source)
    assert "can only go on without end" in grammar.notes[0]
    assert accepts(grammar, "ok")
    assert not grammar.matcher().allowed()[ord("x")]


ENDLESS = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}


@pytest.mark.parametrize(
    "part",
    [
        {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"type": "integer"}}},
        {"type": "array", "items": {"$ref": "#/$defs/n"}},
        {"type": "object", "additionalProperties": {"$ref": "#/$defs/n"}},
    ],
)
def test_a_reference_without_an_end_is_refused_wherever_it_stands(part):
    with pytest.raises(GrammarError, match=r"every value of #/\$defs/n contains itself without end"):
        compiled(json_schema=part | {"$defs": {"n": ENDLESS}})


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "fields",
    [
        {"ebnf": 'root ::= a{1000}\na ::= "x"{1000}'},
        {
            "ebnf": "root ::= r0\n"
            + "\n".join(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(18))
            + '\nr18 ::= "xx"'
        },
        {"regex": "x{9000}y"},
        {"json_schema": {"const": "x" * 5_000}},
    ],
)
def test_forced_text_of_any_length_is_looked_at_in_small_parts(engine, fields):
    subject = Constraint(compiled(engine, **fields), BYTES, 2)
    start = b'"' if "json_schema" in fields else b""
    assert subject.forced(list(start)) == b"x" * MAX_FORCED
    assert subject.forced(list(start), limit=5) == b"x" * 5


@pytest.mark.parametrize("count", [505, 700])
def test_a_grammar_that_compiles_but_cannot_run_is_refused(count):
    schema = {"type": "object", "properties": {f"k{number}": {"type": "null"} for number in range(count)}}
    with pytest.raises(GrammarError):
        compiled("llguidance", json_schema=schema)


def test_every_rule_that_is_kept_can_end():
    found = ebnf.read('root ::= a | b\na ::= "x" a | "y"\nb ::= b "z"')
    assert set(found.rules) == {"root", "a"}
    assert found.rules["root"] == ebnf.Alternatives((ebnf.Name("a"),))


@pytest.mark.parametrize("text", ["\U0001f600", "é", "가", "a\U0001f600"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_character_that_is_cut_leaves_no_replacement_sign(engine, text):
    subject = Constraint(compiled(engine, regex=text), BYTES, 2)
    cut = list(text.encode()[:-1])
    assert subject.parts(cut, None) == ("", text[:-1])
    assert "\ufffd" not in subject.judge(cut, None, "cut").reason
