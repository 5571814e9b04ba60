"""Admission of schemas: what can be produced is valid, what cannot be enforced is refused by name."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.errors import GrammarError
from backend.grammar.lowering import lower
from backend.grammar.schema.admission import admit
from backend.request import Grammar
from tests.grammar.byte_engines import accepts, compiled

ENGINES = ["xgrammar", "llguidance"]


def possible(schema: Any, texts: list[str], engine: str = "xgrammar") -> list[str]:
    grammar = compiled(engine, json_schema=schema)
    return [text for text in texts if accepts(grammar, text)]


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        # allOf is merged: bounds tightened, keys joined, each key by both
        (
            {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}], "exclusiveMinimum": 3},
            ["4", "5"],
            ["3", "6"],
        ),
        (
            {"allOf": [obj(a={"type": "integer"}), obj(a={"minimum": 5}, b={"type": "null"})]},
            ['{"a": 5, "b": null}'],
            ['{"a": 4, "b": null}', '{"a": 5}'],
        ),
        (
            {"allOf": [{"$ref": "#/$defs/x"}], "maxLength": 2, "$defs": {"x": {"type": "string"}}},
            ['"ab"', '""'],
            ['"abc"'],
        ),
        # alternatives, with what stands beside them
        ({"anyOf": [{"type": "integer"}, {"type": "null"}], "maximum": 3}, ["3", "null"], ["4", '"a"']),
        (
            {"oneOf": [obj(kind={"const": "a"}, x={"type": "integer"}), obj(kind={"const": "b"})]},
            ['{"kind": "a", "x": 1}', '{"kind": "b"}'],
            ['{"kind": "a"}', '{"kind": "b", "x": 1}'],
        ),
        # enums are filtered by whatever stands beside them, also by what is refused elsewhere
        ({"enum": [1, 2, "x", None], "type": "integer", "not": {"const": 1}}, ["2"], ["1", '"x"', "null"]),
        ({"enum": [[1, 1], [1, 2]], "uniqueItems": True}, ["[1, 2]"], ["[1, 1]"]),
        ({"const": {"a": [1, {"b": "é"}]}}, ['{"a": [1, {"b": "é"}]}'], ['{"a": [1]}']),
        # arrays
        (
            {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 1},
            ["[1]", '[1, "a"]'],
            ["[]", '["a"]', '[1, "a", 1]'],
        ),
        ({"type": "array", "items": {"type": "null"}, "maxItems": 1, "uniqueItems": True}, ["[]"], ["[1]"]),
        ({"type": "array", "items": False}, ["[]"], ["[1]"]),
        # objects
        (
            {"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1},
            ['{"a": 1}', '{"b": 1}', '{"a": 1, "b": []}'],
            ["{}"],
        ),
        (
            {"type": "object", "properties": {"a": False, "b": {"type": "null"}}},
            ["{}", '{"b": null}'],
            ['{"a": 1}', '{"a": 1, "b": null}'],
        ),
        (
            {
                "type": "object",
                "required": ["n_x"],
                "patternProperties": {"^n_": {"type": "integer"}},
                "additionalProperties": {"type": "string"},
            },
            ['{"n_x": 1}'],
            ['{"n_x": "a"}', "{}"],
        ),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 1},
            ["{}", '{"any \\" key": 1}'],
            ['{"a": "b"}', '{"a": 1, "b": 2}'],
        ),
        # several types, each with its own keywords
        ({"type": ["string", "null"], "minLength": 2}, ['"ab"', "null"], ['"a"', "1"]),
        # strings by length count characters, however they are written
        ({"type": "string", "minLength": 2, "maxLength": 2}, ['"a\\n"', '"😀é"'], ['"\\n"', '"😀"', '"abc"']),
        ({"type": "number", "minimum": -1.5, "exclusiveMaximum": 2}, ["-1.5", "1.99"], ["-1.51", "2", "2.0"]),
        (
            {
                "$ref": "#/$defs/t",
                "$defs": {"t": {"anyOf": [{"type": "null"}, obj(t={"$ref": "#/$defs/t"})]}},
            },
            ["null", '{"t": {"t": null}}'],
            ["{}", '{"t": 1}'],
        ),
    ],
)
def test_rewritten_schemas_mean_the_same(schema, good, bad, engine):
    assert possible(schema, [*good, *bad], engine) == good
    validator = jsonschema.Draft202012Validator(schema)
    assert all(validator.is_valid(json.loads(text)) for text in good)
    assert not any(validator.is_valid(json.loads(text)) for text in bad if text not in _NARROWED)


# Valid, but not produced, since listed keys close an object.
_NARROWED = ('{"kind": "b", "x": 1}',)


@pytest.mark.parametrize(
    ("schema", "keyword", "pointer"),
    [
        ({"properties": {"a/b": {"not": {"type": "null"}}}}, "not", "/properties/a~1b/not"),
        ({"items": {"if": {}, "then": False}}, "if", "/items/if"),
        ({"type": "array", "contains": {"const": 1}}, "contains", "/contains"),
        ({"type": "integer", "multipleOf": 3}, "multipleOf", "/multipleOf"),
        ({"propertyNames": {"pattern": "a"}}, "propertyNames", "/propertyNames"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired", "/dependentRequired"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties", "/unevaluatedProperties"),
        ({"oneOf": [{"minimum": 1}, {"maximum": 5}]}, "oneOf", "/oneOf"),
        ({"$ref": "#/$defs/none"}, "$ref", "/$ref"),
        ({"$ref": "#name"}, "$ref", "/$ref"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "$schema", "/$schema"),
        ({"items": [{"type": "null"}]}, "items", "/items"),
        ({"type": "strnig"}, "type", "/type"),
        ({"minLength": -1}, "minLength", "/minLength"),
        ({"type": "string", "minLength": 30000}, "minLength", "/minLength"),
        ({"type": "string", "pattern": "(a|b"}, "pattern", "/pattern"),
        ({"$dynamicRef": "#a"}, "$dynamicRef", "/$dynamicRef"),
        ({"type": "object", "minProperties": 2}, "minProperties", "/minProperties"),
    ],
)
def test_what_is_not_enforced_is_refused_by_keyword_and_pointer(schema, keyword, pointer):
    with pytest.raises(GrammarError) as refusal:
        admit(schema)
    assert (refusal.value.keyword, refusal.value.pointer) == (keyword, pointer)
    assert keyword in str(refusal.value)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (False, "at the top, the schema is false"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "no whole number lies between the bounds"),
        ({"type": "number", "exclusiveMinimum": 1, "maximum": 1}, "no number lies between the bounds"),
        ({"enum": [1, 2], "type": "string"}, "no value of the enum"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "no value is both string and null"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength 3 is more than maxLength 2"),
        ({"type": "string", "pattern": "^ab$", "minLength": 3}, "no string has both"),
        ({"properties": {"a": False}, "required": ["a"]}, "the key 'a' is required"),
        ({"$ref": "#/$defs/n", "$defs": {"n": obj(n={"$ref": "#/$defs/n"})}}, "contains itself without end"),
        ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "contains itself without end"),
    ],
)
def test_a_schema_that_nothing_satisfies_is_refused(schema, words):
    with pytest.raises(GrammarError, match="no value can satisfy the schema") as refusal:
        admit(schema)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ('{\n  "type": "string",\n}', 3, 1, "not JSON: line 3, column 1"),
        ('{\n  "type": "array",\n  "uniqueItems": true\n}', 3, 18, "uniqueItems at /uniqueItems"),
        ('{"properties": {"a":\n {"type": "nul"}}}', 2, 11, "type at /properties/a/type"),
        ("[1]", 1, 1, "a JSON Schema is an object"),
        ('{"a": 1, "a": 2}', None, None, "the key 'a' occurs twice"),
        ('{"maximum": NaN}', None, None, "NaN is no JSON value"),
        ("{" * 300, None, None, "nested deeper than 200 brackets"),
        (" " * 100_001, None, None, "100,001 characters"),
    ],
)
def test_errors_name_line_and_column(text, line, column, words):
    with pytest.raises(GrammarError) as refusal:
        lower(Grammar(json_schema=text))
    assert (refusal.value.line, refusal.value.column) == (line, column)
    assert words in str(refusal.value)


def test_deep_and_large_schemas_are_refused():
    deep: dict[str, Any] = {"type": "null"}
    for _ in range(70):
        deep = {"type": "array", "items": deep}
    with pytest.raises(GrammarError, match="nested deeper than 64 levels"):
        admit(deep)
    wide = {"type": "object", "properties": {f"k{n}": {"type": "null"} for n in range(3_001)}}
    with pytest.raises(GrammarError, match="more than 3,000 parts"):
        admit(wide)


def test_narrowing_is_told():
    admitted = admit({"properties": {"a": {}, "b": {}}, "minLenght": 3})
    assert admitted.notes == [
        "minLenght at /minLenght is no keyword of JSON Schema and has no effect",
        "no type is given at the top: only object is produced",
        "the object at the top is closed: keys that are not listed are not produced",
        "keys come in the order of the schema",
    ]


_LEAVES = st.sampled_from(
    [
        {"type": "null"},
        {"type": "boolean"},
        {"type": "integer", "minimum": -3, "maximum": 12},
        {"type": "number", "minimum": 0, "maximum": 2.5},
        {"type": "string", "maxLength": 3},
        {"type": "string", "pattern": "^[ab]+$"},
        {"enum": ["x", 2, None]},
        {"type": ["integer", "null"], "maximum": 5},
    ]
)


def _grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(
            lambda i, n: {"type": "array", "items": i, "minItems": n, "maxItems": n + 1},
            inner,
            st.integers(0, 2),
        ),
        st.builds(
            lambda a, b: {"type": "object", "properties": {"a": a, "b": b}, "required": ["b"]}, inner, inner
        ),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
        st.builds(
            lambda a, b: {"allOf": [{"type": "object", "properties": {"a": a}}, obj(a=b, c={})]}, inner, inner
        ),
    )


def walk(grammar: Any, chance: random.Random, length: int) -> str | None:
    """A random text by the masks; None if it does not end in time."""
    matcher, text = grammar.matcher(), bytearray()
    while len(text) < length:
        allowed = [byte for byte in range(256) if matcher.allowed()[byte]]
        if matcher.is_complete() and (not allowed or chance.random() < 0.5):
            return text.decode()
        closing = [byte for byte in allowed if chr(byte) in '"]},' or chr(byte).isdigit()]
        byte = chance.choice(closing if closing and chance.random() < 0.6 else allowed)
        assert matcher.accept(byte)
        text.append(byte)
    return None


@pytest.mark.parametrize("engine", ENGINES)
def test_whatever_the_masks_lead_to_is_valid(engine):
    found: Counter[str] = Counter()

    @given(st.recursive(_LEAVES, _grown, max_leaves=5), st.integers(0, 10**6))
    @settings(max_examples=40, deadline=None)
    def check(schema: Any, seed: int) -> None:
        validator = jsonschema.Draft202012Validator(schema)
        try:
            grammar = compiled(engine, json_schema=schema)
        except GrammarError as refusal:
            found[str(refusal).split(":")[0]] += 1
            return
        chance = random.Random(seed)
        for _ in range(3):
            text = walk(grammar, chance, 120)
            found["unfinished" if text is None else "valid"] += 1
            if text is not None:
                validator.validate(json.loads(text))

    check()
    assert found["valid"] >= 60
    assert set(found) <= {"valid", "unfinished", "no value can satisfy the schema"}
    assert found["no value can satisfy the schema"] <= 15
    assert found["unfinished"] <= found["valid"] / 10
