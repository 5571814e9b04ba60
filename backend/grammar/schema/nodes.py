"""Nodes of the small form: how they are built and compared, and how a part of a schema is refused by name."""

from __future__ import annotations

import math
from typing import Any

from backend.errors import GrammarError

MAX_EXACT = 2**53
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


class Impossible(Exception):
    """A part of a schema that no value satisfies."""

    def __init__(self, path: str, reason: str):
        super().__init__(reason)
        self.path = path
        self.reason = reason


def pointer(path: str, *parts: str | int) -> str:
    """A JSON pointer with further parts, which are escaped."""
    return path + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def refusal(keyword: str, path: str, why: str) -> GrammarError:
    """The error that refuses a keyword of the schema at `path`."""
    place = pointer(path, keyword)
    return GrammarError(f"{keyword} at {place}: {why}", keyword=keyword, pointer=place)


def closed(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """An object with these keys and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def choice(options: list[dict[str, Any]]) -> dict[str, Any]:
    """Any of the options: one enum where all are enums, the option itself where it is alone."""
    flat: list[dict[str, Any]] = []
    for option in options:
        flat.extend(option.get("anyOf", (option,)))
    values = [value for option in flat if "enum" in option for value in option["enum"]]
    if values and all("enum" in option for option in flat):
        return {"enum": values}
    return flat[0] if len(flat) == 1 else {"anyOf": flat}


def constant(value: Any, path: str) -> dict[str, Any]:
    """A value with parts becomes a shape with one value for each part.

    Raises:
        GrammarError: a number that engines do not write exactly.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) > MAX_EXACT:
        what = f"{value} is beyond 2^53, where numbers are not exact; write it as a string"
        raise GrammarError(f"number at {path or 'the top'}: {what}", keyword="enum", pointer=path)
    if isinstance(value, dict):
        return closed({key: constant(part, path) for key, part in value.items()}, list(value))
    if isinstance(value, list):
        parts = [constant(part, path) for part in value]
        shape = {"type": "array", "minItems": len(parts), "maxItems": len(parts), "items": False}
        return shape | ({"prefixItems": parts} if parts else {})
    return {"enum": [value]}


def same(left: Any, right: Any) -> bool:
    """Equality as JSON means it: true is not 1, 1.0 is 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


def kinds(node: dict[str, Any]) -> frozenset[str]:
    """The JSON types of its values, integers among the numbers; all types where it does not say."""
    if "enum" in node:
        names = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string"}
        return frozenset(names[type(value)] for value in node["enum"])
    if "type" in node:
        return frozenset(["number" if node["type"] == "integer" else node["type"]])
    return frozenset("number" if name == "integer" else name for name in TYPES)


def bounds(schema: dict[str, Any], path: str) -> tuple[tuple[float, bool], tuple[float, bool]]:
    """((lower end, is it open), (upper end, is it open))."""
    low, high = (-math.inf, False), (math.inf, False)
    for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        value = schema.get(name)
        if value is None:
            continue
        if abs(value) > 10**15:
            raise refusal(name, path, "bounds beyond 10^15 are not enforced exactly")
        is_open = name.startswith("exclusive")
        if name.endswith("inimum"):
            low = max(low, (value, is_open))
        else:
            high = min(high, (value, not is_open))
    return low, (high[0], not high[1] if not math.isinf(high[0]) else False)


def whole(end: tuple[float, bool], up: bool) -> int | None:
    """The first whole number inside a bound."""
    value, is_open = end
    if math.isinf(value):
        return None
    nearest = math.ceil(value) if up else math.floor(value)
    return nearest + (1 if up else -1) if is_open and nearest == value else nearest
