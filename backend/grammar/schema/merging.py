"""Several schemas that all hold, as one: allOf, $ref with siblings, and what stands beside alternatives."""

from __future__ import annotations

from typing import Any

from backend.grammar import validation
from backend.grammar.schema.findings import Findings
from backend.grammar.schema.keywords import MAX_BRANCHES
from backend.grammar.schema.nodes import Impossible, pointer, refusal, same
from backend.grammar.schema.references import References

_OBJECT_SHAPE = ("properties", "patternProperties", "additionalProperties")
_ARRAY_SHAPE = ("prefixItems", "items")


class Merger:
    """Merges the parts of one schema; references are merged by what they name."""

    def __init__(self, references: References, findings: Findings):
        self._references = references
        self._findings = findings

    def merged(self, parts: list[tuple[Any, str]]) -> dict[str, Any]:
        """One schema that says what all of the parts say; each part with its JSON pointer.

        Raises:
            Impossible: the parts contradict each other.
            GrammarError: they cannot be merged exactly.
        """
        flat = [part for schema, path in parts for part in self._flat(schema, path)]
        result: dict[str, Any] = {}
        for schema, path in flat:
            if schema is False:
                raise Impossible(path, "the schema is false")
            if schema is not True:
                result = _both(result, self._findings.effective(schema, path), path)
        return result

    def _flat(self, schema: Any, path: str) -> list[tuple[Any, str]]:
        """A schema as parts without $ref and allOf."""
        if not isinstance(schema, dict):
            return [(schema, path)]
        parts = [({k: v for k, v in schema.items() if k not in ("$ref", "allOf")}, path)]
        if "$ref" in schema:
            with self._references.merged(schema["$ref"], path) as (target, place):
                parts += self._flat(target, place)
        for number, branch in enumerate(schema.get("allOf", ())):
            parts += self._flat(branch, pointer(path, "allOf", number))
        return parts


def _both(left: dict[str, Any], right: dict[str, Any], path: str) -> dict[str, Any]:
    if not left or not right:
        return left or right
    both = dict(left)
    for name, value in right.items():
        if name in _OBJECT_SHAPE or name in _ARRAY_SHAPE:
            continue
        if name not in left:
            both[name] = value
        elif left[name] != value:
            both |= _combined(name, left, value, path)
    both |= _both_objects(left, right, path)
    both |= _both_arrays(left, right, path)
    return both


def _combined(name: str, left: dict[str, Any], value: Any, path: str) -> dict[str, Any]:
    """One keyword with two different values."""
    mine = left[name]
    if name in ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"):
        return {name: max(mine, value)}
    if name in ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"):
        return {name: min(mine, value)}
    if name == "required":
        return {name: list(dict.fromkeys([*mine, *value]))}
    if name == "uniqueItems":
        return {name: mine or value}
    if name == "type":
        return {name: _common_types(mine, value, path)}
    if name == "enum":
        common = [item for item in mine if any(same(item, other) for other in value)]
        if not common:
            raise Impossible(path, "two enums have no value in common")
        return {name: common}
    if name == "const":
        raise Impossible(path, "two different constants")
    if name in ("anyOf", "oneOf"):
        if name == "oneOf" or len(mine) * len(value) > MAX_BRANCHES:
            raise refusal(name, path, "two lists of alternatives cannot be merged here")
        return {name: [{"allOf": [first, second]} for first in mine for second in value]}
    raise refusal(name, path, "two different values in allOf cannot be merged")


def _both_objects(left: dict[str, Any], right: dict[str, Any], path: str) -> dict[str, Any]:
    """Each key obeys both sides, each with its own properties, patterns and rest."""
    sides = [side for side in (left, right) if any(name in side for name in _OBJECT_SHAPE)]
    if len(sides) < 2:
        return {name: value for side in sides for name, value in side.items() if name in _OBJECT_SHAPE}
    keys = dict.fromkeys(key for side in sides for key in side.get("properties", {}))
    result: dict[str, Any] = {}
    if keys:
        result["properties"] = {key: _conjunction([_rule_of(side, key) for side in sides]) for key in keys}
    rests = [side.get("additionalProperties", True) for side in sides]
    by_pattern = [side.get("patternProperties", {}) for side in sides]
    if any(by_pattern):
        if all(by_pattern) or False in rests or any(rest not in (True, {}) for rest in rests):
            raise refusal("patternProperties", path, "key patterns cannot be merged in allOf")
        result["patternProperties"] = by_pattern[0] or by_pattern[1]
    result["additionalProperties"] = _conjunction(rests)
    return result


def _rule_of(side: dict[str, Any], key: str) -> Any:
    found = [side["properties"][key]] if key in side.get("properties", {}) else []
    found += [
        part
        for pattern, part in side.get("patternProperties", {}).items()
        if validation.matches(pattern, key)
    ]
    return _conjunction(found) if found else side.get("additionalProperties", True)


def _conjunction(schemas: list[Any]) -> Any:
    if False in [schema for schema in schemas if isinstance(schema, bool)]:
        return False
    told = [schema for schema in schemas if schema is not True and schema != {}]
    return told[0] if len(told) == 1 else {"allOf": told} if told else True


def _both_arrays(left: dict[str, Any], right: dict[str, Any], path: str) -> dict[str, Any]:
    shapes = [[name for name in _ARRAY_SHAPE if name in side] for side in (left, right)]
    if not shapes[0] or not shapes[1]:
        side = left if shapes[0] else right
        return {name: side[name] for name in _ARRAY_SHAPE if name in side}
    if shapes == [["items"], ["items"]]:
        return {"items": _conjunction([left["items"], right["items"]])}
    raise refusal("prefixItems", path, "items described twice in allOf cannot be merged")


def _common_types(left: Any, right: Any, path: str) -> list[str]:
    one, two = ([value] if isinstance(value, str) else list(value) for value in (left, right))
    common = [name for name in one if name in two or (name == "integer" and "number" in two)]
    common += [name for name in two if name == "integer" and "number" in one and name not in common]
    if not common:
        raise Impossible(path, f"no value is both {' or '.join(one)} and {' or '.join(two)}")
    return common
