"""A schema of an older draft (4, 6, 7, 2019-09), by its own rules, as one of 2020-12 that says the same."""

from __future__ import annotations

from typing import Any

from backend.grammar.schema import keywords
from backend.grammar.schema.findings import Findings
from backend.grammar.schema.nodes import pointer

# Keywords, by the first draft that has them: earlier ones do not read them.
_SINCE = {
    6: ("const", "contains", "propertyNames", "examples"),
    7: ("if", "then", "else", "readOnly", "writeOnly", "contentMediaType", "contentEncoding"),
    2019: (
        *("dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems"),
        *("minContains", "maxContains", "$anchor", "$recursiveRef", "$recursiveAnchor", "deprecated"),
    ),
    2020: ("prefixItems", "$dynamicRef", "$dynamicAnchor"),
}
_ONE = (
    *("additionalProperties", "propertyNames", "contains", "not", "if", "then", "else", "items"),
    *("additionalItems", "unevaluatedItems", "unevaluatedProperties"),
)
_LIST = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAP = ("properties", "patternProperties", "definitions", "$defs", "dependentSchemas")


def modern(schema: Any, draft: int, findings: Findings, path: str = "") -> Any:
    """The schema in 2020-12; `draft` is 4, 6, 7, 2019 or 2020. What it does not read gets a note."""
    if draft == 2020 or not isinstance(schema, dict):
        return schema
    unread = [name for since, names in _SINCE.items() if since > draft for name in names if name in schema]
    if draft < 2019 and "$ref" in schema:  # everything beside it is ignored, but may hold definitions
        kept = ("$ref", "definitions", "$defs")
        unread += [name for name in schema if name not in kept and name not in unread]
    for name in unread:
        if keywords.is_enforced(name):
            findings.note(f"{name} at {pointer(path, name)} is not read by the draft that $schema names")
    result = {
        name: _inner(name, value, draft, findings, pointer(path, name))
        for name, value in schema.items()
        if name not in unread
    }
    result.pop("$schema", None)
    _identifier(result, draft, path)
    _array(result)
    if draft == 4:
        _draft_4(result)
    if draft < 2019:
        _dependencies(result)
    return result


def _inner(name: str, value: Any, draft: int, findings: Findings, path: str) -> Any:
    if name in _MAP and isinstance(value, dict):
        return {key: modern(part, draft, findings, pointer(path, key)) for key, part in value.items()}
    if name == "dependencies" and isinstance(value, dict):
        return {key: modern(part, draft, findings, pointer(path, key)) for key, part in value.items()}
    if (name in _LIST or name == "items") and isinstance(value, list):
        return [modern(part, draft, findings, pointer(path, number)) for number, part in enumerate(value)]
    return modern(value, draft, findings, path) if name in _ONE else value


def _identifier(schema: dict[str, Any], draft: int, path: str) -> None:
    """`id` of draft 4 is $id; before 2019-09 one that begins with # is an anchor."""
    own = schema.pop("id", None) if draft == 4 else schema.get("$id")
    if draft == 4:
        schema.pop("$id", None)
    if isinstance(own, str) and path and not (draft < 2019 and own.startswith("#")):
        schema["$id"] = own
    elif path:
        schema.pop("$id", None)


def _array(schema: dict[str, Any]) -> None:
    rest = schema.pop("additionalItems", None)  # says nothing unless items is a list
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if rest is not None:
            schema["items"] = rest
    if schema.get("prefixItems") == []:
        del schema["prefixItems"]


def _draft_4(schema: dict[str, Any]) -> None:
    for plain in ("minimum", "maximum"):
        strict = f"exclusive{plain.capitalize()}"
        if schema.pop(strict, False) is True and plain in schema:
            schema[strict] = schema.pop(plain)
    types = schema.get("type")
    if types == "integer" and "enum" in schema:  # in draft 4 1.0 is no integer
        schema["enum"] = [value for value in schema["enum"] if not isinstance(value, float)]
        if not schema["enum"]:
            schema["not"] = True


def _dependencies(schema: dict[str, Any]) -> None:
    for key, needs in schema.pop("dependencies", {}).items():
        name = "dependentRequired" if isinstance(needs, list) else "dependentSchemas"
        schema.setdefault(name, {})[key] = needs
