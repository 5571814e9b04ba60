"""JSON as a person types it: parsed strictly, with line and column where something is wrong."""

from __future__ import annotations

import json
from typing import Any

import yaml

from backend.errors import GrammarError

MAX_CHARACTERS = 100_000
MAX_NESTING = 200  # brackets, of a schema and of a result alike


class DuplicateKey(ValueError):
    """The same key twice in one object."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise DuplicateKey(f"the key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON value")


def nesting(text: str) -> int:
    """Deepest level of brackets outside of strings, without parsing."""
    depth = deepest = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def parse(text: str) -> Any:
    """A JSON text without NaN, Infinity and duplicate keys.

    Raises:
        ValueError: it is none; json.JSONDecodeError where the place is known. Also for too deep nesting.
    """
    if nesting(text) > MAX_NESTING:
        raise ValueError(f"nested deeper than {MAX_NESTING} brackets")
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)


def parse_source(text: str, what: str) -> Any:
    """The JSON a grammar is given in.

    Raises:
        GrammarError: it is too large or no JSON; names line and column.
    """
    if len(text) > MAX_CHARACTERS:
        raise GrammarError(f"the {what} has {len(text):,} characters, at most {MAX_CHARACTERS:,} are allowed")
    try:
        return parse(text)
    except json.JSONDecodeError as error:
        raise GrammarError(
            f"the {what} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}",
            line=error.lineno,
            column=error.colno,
        ) from None
    except ValueError as error:
        raise GrammarError(f"the {what} is not JSON: {error}") from None


def place(text: str, pointer: str) -> tuple[int, int] | None:
    """Line and column, from 1, of what a JSON pointer names in a JSON text; None if it cannot be found."""
    try:
        node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, yaml.MappingNode):
                node = next(value for key, value in node.value if key.value == name)
            else:
                node = node.value[int(name)]
        return node.start_mark.line + 1, node.start_mark.column + 1
    except (yaml.YAMLError, StopIteration, ValueError, IndexError, AttributeError, RecursionError):
        return None
