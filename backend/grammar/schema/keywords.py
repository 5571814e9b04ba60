"""The keywords of JSON Schema: which are enforced, which are refused and why, and which say nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MAX_BRANCHES = 64  # alternatives

_ANNOTATIONS = frozenset(
    [
        *("$schema", "$comment", "$defs", "definitions", "$anchor", "$vocabulary", "title", "description"),
        *("default", "examples", "deprecated", "readOnly", "writeOnly", "contentEncoding"),
        *("contentMediaType", "contentSchema"),
    ]
)
# keyword: why there is no exact and small form of it
REFUSED = {
    "not": "what is forbidden cannot be masked in general; list what is allowed (enum)",
    "if": "conditions are not enforced",
    "dependentRequired": "dependencies between keys are not enforced",
    "dependentSchemas": "dependencies between keys are not enforced",
    "dependencies": "dependencies between keys are not enforced",
    "contains": "a search among items is not enforced",
    "propertyNames": "names are constrained by properties or patternProperties only",
    "unevaluatedProperties": "what other keywords have seen is not tracked; use additionalProperties",
    "unevaluatedItems": "what other keywords have seen is not tracked; use items",
    "$dynamicRef": "dynamic references are not followed",
    "$recursiveRef": "dynamic references are not followed",
    "$id": "a second base address inside a schema is not followed",
    "$dynamicAnchor": "dynamic references are not followed",
}
# Without an effect, since the keyword they belong to is not there (or this value says nothing).
_IDLE: dict[str, Callable[[dict[str, Any]], bool]] = {
    "if": lambda s: "then" not in s and "else" not in s,
    "then": lambda s: "if" not in s,
    "else": lambda s: "if" not in s,
    "minContains": lambda s: "contains" not in s,
    "maxContains": lambda s: "contains" not in s,
    "uniqueItems": lambda s: s["uniqueItems"] is False,
    "not": lambda s: s["not"] is False,
    "propertyNames": lambda s: s["propertyNames"] in (True, {}),
    "unevaluatedProperties": lambda s: s["unevaluatedProperties"] in (True, {}),
    "unevaluatedItems": lambda s: s["unevaluatedItems"] in (True, {}),
    "dependentRequired": lambda s: not any(s["dependentRequired"].values()),
    "multipleOf": lambda s: s["multipleOf"] == 1 and s.get("type") == "integer",
}
OF_TYPE = {
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "additionalItems"),
    "object": (
        *("properties", "required", "additionalProperties", "patternProperties"),
        *("minProperties", "maxProperties"),
    ),
}
OF_TYPE["integer"] = OF_TYPE["number"]
_COMBINING = ("$ref", "allOf", "anyOf", "oneOf", "type", "enum", "const")
KNOWN = frozenset((*_COMBINING, *(keyword for group in OF_TYPE.values() for keyword in group)))
_OTHERS = frozenset(("then", "else", "minContains", "maxContains"))


def is_idle(name: str, schema: dict[str, Any], path: str) -> bool:
    """Whether a known keyword has no effect where it stands."""
    if name in _ANNOTATIONS or (name == "$id" and path == ""):
        return True
    return name in _IDLE and _IDLE[name](schema)


def is_enforced(name: str) -> bool:
    """Whether it limits what is valid, so that it matters if a draft does not read it."""
    return name in KNOWN or name in REFUSED or name in _OTHERS


def is_keyword(name: str) -> bool:
    """Whether JSON Schema knows it, enforced here or not."""
    return name in KNOWN or name in REFUSED or name in _ANNOTATIONS or name in _OTHERS
