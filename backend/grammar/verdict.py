"""The verdict on a result, by a reader that had no part in making it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import regex

from backend.errors import GrammarError
from backend.grammar import json_source, validation
from backend.grammar.compiler import Compiled
from backend.grammar.lowering import kind_of

REGEX_SECONDS = 1.0
Status = Literal["valid", "incomplete", "invalid"]


class Verdict(NamedTuple):
    """`reason` says what is wrong, or by what it was found valid."""

    status: Status
    reason: str


def judge(compiled: Compiled, text: str, cut_by: str | None) -> Verdict:
    """Read a structure.

    `cut_by`: what ended the run before the model did ("48 tokens"), else None. A text that is not valid is
    then incomplete.
    """
    wrong, by = _READERS[kind_of(compiled.grammar)](compiled, text)
    if wrong is None:
        return Verdict("valid", by)
    if cut_by is not None:
        return Verdict("incomplete", f"{cut_by}; {wrong}")
    return Verdict("invalid", wrong)


def _json(compiled: Compiled, text: str) -> tuple[str | None, str]:
    return _wrong_json(
        str(compiled.grammar.json_schema), text
    ), "parsed, and valid by jsonschema with formats"


def _wrong_json(schema_text: str, text: str) -> str | None:
    try:
        value = json_source.parse(text)
    except ValueError as error:
        return f"not JSON: {error}"
    try:
        return validation.reason(json_source.unwrapped(json_source.parse(schema_text))[0], value)
    except GrammarError as error:
        return str(error)


def _regex(compiled: Compiled, text: str) -> tuple[str | None, str]:
    pattern = str(compiled.grammar.regex)
    try:
        found = regex.fullmatch(pattern, text, timeout=REGEX_SECONDS)
    except TimeoutError:
        return "the pattern takes too long to match", ""
    return (
        None if found else "the pattern does not match the whole text"
    ), "the pattern matches the whole text"


def _fresh(compiled: Compiled, text: str) -> tuple[str | None, str]:
    matcher = compiled.matcher()
    for number, character in enumerate(text):
        if not matcher.accept_bytes(character.encode()):
            return f"character {number + 1}, {character!r}, breaks the grammar", ""
    return (None if matcher.is_complete() else "the grammar wants more"), "a fresh matcher accepts all of it"


def _tags(compiled: Compiled, text: str) -> tuple[str | None, str]:
    wrong, by = _fresh(compiled, text)
    if wrong is not None:
        return wrong, by
    tags = json_source.parse(str(compiled.grammar.structural_tag))
    for begin, end, schema in _schemas(tags):
        for content in _between(text, begin, end):
            if wrong := _wrong_json(schema, content):
                return f"inside {begin!r}: {wrong}", ""
    return None, f"{by}, and jsonschema every call in it"


def _schemas(node: Any) -> Iterator[tuple[str, str, str]]:
    """(begin, end, schema) of every tag with a JSON schema."""
    if isinstance(node, list):
        for item in node:
            yield from _schemas(item)
    if isinstance(node, dict):
        content = node.get("content")
        if node.get("type") == "tag" and isinstance(content, dict) and content.get("type") == "json_schema":
            end = node["end"] if isinstance(node["end"], str) else node["end"][0]
            yield node["begin"], end, json.dumps(content["json_schema"])
        for value in node.values():
            yield from _schemas(value)


def _between(text: str, begin: str, end: str) -> Iterator[str]:
    place = 0
    while (start := text.find(begin, place)) >= 0:
        start += len(begin)
        place = text.find(end, start) if end else len(text)
        if place < 0:
            return
        yield text[start:place]


_READERS = {"json_schema": _json, "regex": _regex, "ebnf": _fresh, "structural_tag": _tags}
