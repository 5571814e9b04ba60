"""Schemas as people have them: older drafts, wrappers of APIs, formats, large numbers."""

from __future__ import annotations

import json

import pytest

from backend.errors import GrammarError
from backend.grammar.verdict import judge
from tests.grammar.byte_engines import accepts, compiled

ENGINES = ["xgrammar", "llguidance"]
DRAFT = "http://json-schema.org/draft-0{}/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
PERSON = {
    "type": "object",
    "properties": {"a": {"$ref": "#/definitions/p"}},
    "definitions": {"p": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def check(schema, good, bad, engine="xgrammar"):
    grammar = compiled(engine, json_schema=schema)
    assert [text for text in [*good, *bad] if accepts(grammar, text)] == good
    assert [judge(grammar, text, None).status for text in good] == ["valid"] * len(good)
    return grammar


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "uri",
    [
        *(DRAFT.format(number) for number in (4, 6, 7)),
        "https://json-schema.org/draft-07/schema",
        DRAFT_2019,
        "https://json-schema.org/draft/2020-12/schema",
        "http://json-schema.org/schema#",
    ],
)
def test_an_everyday_schema_of_any_draft(engine, uri):
    check(PERSON | {"$schema": uri}, ['{"a": 1}'], ['{"a": "x"}', "{}"], engine)


@pytest.mark.parametrize(
    ("draft", "schema", "good", "bad"),
    [
        (4, {"type": "integer", "minimum": 3, "exclusiveMinimum": True}, ["4"], ["3"]),
        (4, {"type": "integer", "maximum": 3, "exclusiveMaximum": False}, ["3"], ["4"]),
        (4, {"id": "http://x.y/z", "type": "null"}, ["null"], ["1"]),
        (4, {"type": "integer", "enum": [1, 2.0]}, ["1"], ["2", "2.0"]),
        (4, {"type": "integer", "const": 3}, ["3", "4"], ["x"]),
        (6, {"const": "x"}, ['"x"'], ['"y"']),
        (
            6,
            {"$id": "#here", "type": "array", "items": {"$id": "#there", "type": "null"}},
            ["[null]"],
            ["[1]"],
        ),
        (7, {"items": [{"type": "null"}, True], "type": "array", "maxItems": 1}, ["[null]"], ["[1]"]),
        (7, {"type": "array", "items": [{"const": 1}], "additionalItems": False}, ["[1]"], ["[1, 1]"]),
        (
            7,
            {"type": "array", "items": [{"const": 1}], "additionalItems": {"const": 2}},
            ["[1, 2]"],
            ["[1, 1]"],
        ),
        (7, {"type": "array", "items": {"const": 1}, "additionalItems": False}, ["[1, 1]"], ["[2]"]),
        (
            7,
            {"$ref": "#/definitions/p", "minimum": 5, "definitions": {"p": {"type": "integer"}}},
            ["3"],
            ["x"],
        ),
        (
            7,
            {"type": "object", "properties": {"id": {"type": "null"}}, "required": ["id"]},
            ['{"id": null}'],
            [],
        ),
        (7, {"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}}, ["[2]"], ["[1]"]),
    ],
)
def test_each_draft_is_read_by_its_own_rules(draft, schema, good, bad):
    check(schema | {"$schema": DRAFT.format(draft)}, good, bad)


def test_2019_09_has_tuples_and_siblings_of_references():
    schema = {"$schema": DRAFT_2019, "type": "array", "items": [{"const": 1}], "additionalItems": False}
    check(schema, ["[1]"], ["[2]", "[1, 1]"])
    ref = {"$schema": DRAFT_2019, "$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n", "minimum": 5}
    check(ref, ["5"], ["4"])


def test_what_a_draft_does_not_read_is_named():
    grammar = compiled(json_schema={"$schema": DRAFT.format(4), "const": 3, "type": "integer"})
    assert grammar.notes == ("const at /const is not read by the draft that $schema names",)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$schema": DRAFT.format(3), "type": "null"}, "drafts 4, 6, 7, 2019-09 and 2020-12 are"),
        ({"$schema": DRAFT.format(7), "dependencies": {"a": ["b"]}, "type": "object"}, "dependentRequired"),
        ({"$schema": DRAFT.format(7), "type": "object", "properties": {"a": {"$id": "x"}}}, r"\$id"),
        ({"$schema": DRAFT.format(4), "properties": {"a": {"id": "http://x/y"}}}, r"\$id"),
        ({"$schema": DRAFT.format(6), "exclusiveMinimum": True, "type": "integer"}, "draft 4"),
    ],
)
def test_what_no_draft_can_give_is_refused_by_name(schema, words):
    with pytest.raises(GrammarError, match=words):
        compiled(json_schema=schema)


WHOLE = "/response_format/json_schema/schema"
INNER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("wrapped", "place"),
    [
        ({"name": "ev", "strict": True, "schema": INNER}, "/schema"),
        ({"type": "json_schema", "json_schema": {"name": "ev", "schema": INNER}}, "/json_schema/schema"),
        ({"type": "function", "function": {"name": "f", "parameters": INNER}}, "/function/parameters"),
        ({"name": "f", "description": "d", "parameters": INNER}, "/parameters"),
        ({"name": "tool", "inputSchema": INNER}, "/inputSchema"),
        ({"name": "tool", "input_schema": INNER}, "/input_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": INNER}}}, WHOLE),
    ],
)
def test_a_wrapper_is_taken_off_and_that_is_said(wrapped, place):
    grammar = compiled(json_schema=wrapped)
    assert grammar.notes[0] == f"the schema at {place} is used; what stands around it is no schema"
    assert accepts(grammar, '{"a": 1}')
    assert [judge(grammar, text, None).status for text in ('{"a": 1}', "false")] == ["valid", "invalid"]


def test_a_schema_with_keys_of_a_wrapper_is_no_wrapper():
    schema = {
        "type": "object",
        "title": "x",
        "properties": {"schema": {"type": "null"}},
        "required": ["schema"],
    }
    check(schema, ['{"schema": null}'], ["{}"])


def test_a_refusal_inside_a_wrapper_names_its_line():
    text = '{"name": "x", "schema":\n  {"type": "array",\n   "contains": {"const": 1}}}'
    with pytest.raises(GrammarError, match="contains at /contains") as refusal:
        compiled(json_schema=text)
    assert refusal.value.line == 3


FORMATS = {
    "uri": (["https://a.b/c?d=1#e", "urn:isbn:1", "mailto:a@b", "x:"], ["a b", "a", "/a", "http://a b"]),
    "uri-reference": (["a/b", "#x", "/a", "", "http://x", "a%20b?c"], ["a b", "%zz", "a\\b"]),
    "hostname": (["a.b.c", "localhost", "x-1.io"], ["-a", "a..b", "a_b"]),
    "ipv6": (["::1", "::", "1:2:3:4:5:6:7:8", "1::8", "fe80::1:2"], ["1:2", "1::2::3", ":::", "12345::"]),
    "duration": (["P1Y2M3D", "PT1H30M", "P2W", "P1DT1S"], ["P", "PT", "P1Y1D", "P1W1D", "1D"]),
    "json-pointer": (["", "/a/b~1", "/0", "//"], ["a", "/a~2"]),
    "relative-json-pointer": (["0", "1/a", "0#"], ["x", "01", "-1"]),
    "regex": (["^a+$", "[a-z]{2}", "x.y"], ["(", "a**", "["]),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", list(FORMATS))
def test_formats_are_enforced(engine, name):
    good, bad = FORMATS[name]
    quoted = [[json.dumps(text) for text in texts] for texts in (good, bad)]
    check({"type": "string", "format": name}, *quoted, engine)


@pytest.mark.parametrize("name", ["int32", "password", "color", "binary"])
def test_unknown_formats_are_annotations_with_a_note(name):
    grammar = check({"type": "string", "format": name}, ['"x"'], ["1"])
    assert grammar.notes == (f"format {name!r} at /format is an annotation and not enforced",)
    check({"type": "integer", "format": name}, ["3"], ['"3"'])
    check({"format": name}, ["3", '"3"'], [])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "schema",
    [
        {"const": 175928847299117063},
        {"const": 12345678901234567890},
        {"enum": [1, -(2**53) - 1]},
        {"const": {"a": [1e300]}},
    ],
)
def test_numbers_that_are_not_exact_are_refused(engine, schema):
    with pytest.raises(GrammarError, match=r"beyond 2\^53"):
        compiled(engine, json_schema=schema)
    check({"const": 2**53}, [str(2**53)], [str(2**53 - 1), str(2**53 + 1)], engine)


@pytest.mark.parametrize(
    "text", ['{"const": 1e999}', '{"enum": [-1e400]}', '{"type": "number", "minimum": 1e309}']
)
def test_numbers_beyond_floats_are_refused_as_such(text):
    with pytest.raises(GrammarError, match="is too large for a number"):
        compiled(json_schema=text)
