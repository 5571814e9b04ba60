"""JSON as a person types it: parsed strictly, with line and column where something is wrong."""

from __future__ import annotations

import json
import math
from typing import Any

import yaml

from backend.errors import GrammarError

MAX_CHARACTERS = 100_000
MAX_NESTING = 200  # brackets, of a schema and of a result alike
_TELLING = ("response_format", "json_schema", "function", "inputSchema", "input_schema")
_WRAPPERS = (*_TELLING, "format", "text", "parameters", "schema")
_WRAPPER_KEYS = {
    *_WRAPPERS,
    *("type", "name", "description", "strict", "title", "annotations", "outputSchema", "cache_control"),
}


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


def _finite(number: str) -> float:
    if math.isinf(value := float(number)):
        raise ValueError(f"{number[:40]} is too large for a number")
    return value


def parse(text: str) -> Any:
    """A JSON text without NaN, Infinity, numbers as large as that, and duplicate keys.

    Raises:
        ValueError: it is none; json.JSONDecodeError where the place is known. Also for too deep nesting.
    """
    if nesting(text) > MAX_NESTING:
        raise ValueError(f"nested deeper than {MAX_NESTING} brackets")
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)


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


def unwrapped(value: Any) -> tuple[Any, str]:
    """(the schema, its JSON pointer) inside what APIs wrap around one, or the value itself and "".

    Known are a response_format, a function or tool of OpenAI or Anthropic, and a tool of MCP. A wrapper has
    only the keys of wrappers, and a name where nothing else tells it from a schema.
    """
    place = ""
    while isinstance(value, dict) and value.keys() <= _WRAPPER_KEYS:
        inner = next((key for key in _WRAPPERS if isinstance(value.get(key), dict)), None)
        if inner is None or not (inner in _TELLING or place or "name" in value):
            break
        value, place = value[inner], f"{place}/{inner}"
    return value, place


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
