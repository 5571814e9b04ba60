"""Admission of a JSON Schema: rewritten into a small form that engines enforce exactly, or refused by name.

The small form has: true; enum of plain values; null, boolean; integer and number with bounds; string,
free or by pattern; array with prefixItems, items and lengths; object that is closed, or a map; anyOf; $ref to
#/$defs. Everything else is rewritten into these (allOf merged, enums filtered, formats as patterns, lengths
worked into patterns), narrowed with a note, or refused with its keyword and JSON pointer. Narrowing is always
on the safe side: what can be produced is valid, but not every valid text can be produced.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from backend.errors import GrammarError
from backend.grammar import nodes, patterns, rules, validation
from backend.grammar.formats import PATTERNS as FORMATS
from backend.grammar.nodes import Impossible, refusal

MAX_DEPTH = 64
MAX_NODES = 3_000
MAX_BRANCHES = 64
MAX_ITEMS = 10_000

_ANNOTATIONS = frozenset(
    [
        *("$schema", "$comment", "$defs", "definitions", "$anchor", "$vocabulary", "title", "description"),
        *("default", "examples", "deprecated", "readOnly", "writeOnly", "contentEncoding"),
        *("contentMediaType", "contentSchema"),
    ]
)
# keyword: why there is no exact and small form of it
_REFUSED = {
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
_OF_TYPE = {
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "additionalItems"),
    "object": (
        *("properties", "required", "additionalProperties", "patternProperties"),
        *("minProperties", "maxProperties"),
    ),
}
_OF_TYPE["integer"] = _OF_TYPE["number"]
_COMBINING = ("$ref", "allOf", "anyOf", "oneOf", "type", "enum", "const")
_KNOWN = frozenset((*_COMBINING, *(keyword for group in _OF_TYPE.values() for keyword in group)))


@dataclass
class Admitted:
    """A schema in the small form.

    Attributes:
        root: its top; `definitions` are what its $refs name.
        patterns: by the name that a "pattern" ("string0") or a key of patternProperties ("key0") has in the
            small form.
        notes: where less than the schema allows can be produced, one sentence each.
    """

    root: dict[str, Any]
    definitions: dict[str, dict[str, Any]]
    patterns: dict[str, patterns.Node]
    notes: list[str] = field(default_factory=list)

    def document(self, of_pattern: Callable[[str], dict[str, Any]], key: Callable[[str], str]) -> Any:
        """As a schema for an engine; given what stands for a string by pattern, and for a key by pattern."""

        def written(node: Any) -> Any:
            if isinstance(node, list):
                return [written(item) for item in node]
            if not isinstance(node, dict):
                return node
            if node.get("type") == "string" and "pattern" in node:
                rest = {name: node[name] for name in ("minLength", "maxLength") if name in node}
                return of_pattern(node["pattern"]) | rest
            if "enum" in node or "const" in node:
                return node
            named = {name: written(value) for name, value in node.items() if name != "patternProperties"}
            if "properties" in named:
                named["properties"] = {k: written(value) for k, value in node["properties"].items()}
            if "patternProperties" in node:
                entries = node["patternProperties"].items()
                named["patternProperties"] = {key(name): written(value) for name, value in entries}
            return named

        document = written(self.root)
        if self.definitions:
            document = document | {"$defs": {name: written(node) for name, node in self.definitions.items()}}
        return document


def admit(schema: Any, takes_lengths: bool = False) -> Admitted:
    """Rewrite a schema, or refuse it.

    `takes_lengths`: the engine itself enforces minLength and maxLength beside any pattern.

    Raises:
        GrammarError: names keyword and JSON pointer.
    """
    return _Admission(schema, takes_lengths).run()


class _Admission:
    def __init__(self, schema: Any, takes_lengths: bool):
        self._schema = schema
        self._takes_lengths = takes_lengths
        self._patterns: dict[str, patterns.Node] = {}
        self._notes: dict[str, None] = {}
        self._names: dict[str, str] = {}  # JSON pointer of a $ref -> name in the small form
        self._definitions: dict[str, dict[str, Any]] = {}
        self._num_nodes = 0
        self._depth = 0
        self._merging: list[str] = []

    def run(self) -> Admitted:
        validation.check_schema(self._schema)
        try:
            root = self._node(self._schema, "")
        except Impossible as error:
            place = error.path or "the top"
            raise GrammarError(
                f"no value can satisfy the schema: at {place}, {error.reason}", pointer=error.path
            ) from None
        self._check_loops(root)
        if not self._finite(root):
            raise GrammarError(
                "no value can satisfy the schema: a required part contains itself without end", keyword="$ref"
            )
        return Admitted(root, self._definitions, self._patterns, list(self._notes))

    def _note(self, text: str) -> None:
        self._notes[text] = None

    # --- one node ---

    def _node(self, schema: Any, path: str) -> dict[str, Any]:
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES:
            raise GrammarError(f"the schema has more than {MAX_NODES:,} parts", pointer=path)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise GrammarError(f"the schema is nested deeper than {MAX_DEPTH} levels", pointer=path)
        try:
            return self._small(schema, path)
        finally:
            self._depth -= 1

    def _small(self, schema: Any, path: str) -> dict[str, Any]:
        if schema is False:
            raise Impossible(path, "the schema is false")
        if schema is True:
            return {}
        rest = {name: value for name, value in schema.items() if not self._is_idle(name, schema, path)}
        if "const" in rest or "enum" in rest:
            return self._finite_values(schema, path)
        for name in rest:
            if name not in _KNOWN:
                raise refusal(name, path, _REFUSED.get(name, "it is not enforced"))
        if "$ref" in rest and len(rest) == 1:
            return self._reference(rest["$ref"], path)
        for name, combine in (("$ref", self._inlined), ("allOf", self._all_of)):
            if name in rest:
                return combine(rest, path)
        if "anyOf" in rest or "oneOf" in rest:
            return self._any_of(rest, path)
        return self._of_types(rest, path)

    def _is_idle(self, name: str, schema: dict[str, Any], path: str) -> bool:
        if name in _ANNOTATIONS or (name == "$id" and path == ""):
            return True
        if name in _IDLE and _IDLE[name](schema):
            return True
        if name in _KNOWN or name in _REFUSED or name in ("then", "else", "minContains", "maxContains"):
            return False
        self._note(f"{name} at {nodes.pointer(path, name)} is no keyword of JSON Schema and has no effect")
        return True

    def _finite_values(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """An enum, filtered by everything that stands beside it."""
        values = [schema["const"]] if "const" in schema else schema["enum"]
        allowed = [
            value for value in values if validation.reason(self._schema, value, path, part=schema) is None
        ]
        if not allowed:
            raise Impossible(path, "no value of the enum satisfies what stands beside it")
        return nodes.choice([nodes.constant(value) for value in allowed])

    # --- references ---

    def _resolve(self, reference: str, path: str) -> tuple[Any, str]:
        """What a local $ref names, and its JSON pointer."""
        if not reference.startswith("#"):
            raise refusal("$ref", path, f"{reference!r} is outside of this schema; nothing is fetched")
        pointer = validation.unquoted(reference[1:])
        if pointer and not pointer.startswith("/"):
            raise refusal("$ref", path, f"{reference!r} names an anchor; only JSON pointers are followed")
        found = self._schema
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            try:
                if isinstance(found, dict) and "$id" in found and found is not self._schema:
                    raise refusal("$id", pointer, _REFUSED["$id"])
                found = found[int(name)] if isinstance(found, list) else found[name]
            except (KeyError, IndexError, ValueError, TypeError):
                raise refusal("$ref", path, f"{reference!r} names nothing in this schema") from None
        if not isinstance(found, (dict, bool)):
            raise refusal("$ref", path, f"{reference!r} names no schema")
        return found, pointer

    def _reference(self, reference: str, path: str) -> dict[str, Any]:
        target, pointer = self._resolve(reference, path)
        if pointer not in self._names:
            name = f"d{len(self._names)}"
            self._names[pointer] = name
            self._definitions[name] = {"pending": pointer}
            depth, self._depth = self._depth, 0  # a reference is not deeper for being used deep inside
            try:
                self._definitions[name] = self._node(target, pointer)
            except Impossible as error:
                self._definitions[name] = {"impossible": error}
                raise
            except RecursionError:
                raise refusal("$ref", path, "too long a chain of references") from None
            finally:
                self._depth = depth
        found = self._definitions[self._names[pointer]]
        if "impossible" in found:
            raise found["impossible"]
        return {"$ref": f"#/$defs/{self._names[pointer]}"}

    def _inlined(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """$ref with siblings: both hold."""
        target, pointer = self._resolve(schema["$ref"], path)
        if pointer in self._merging or len(self._merging) > 32:
            raise refusal("$ref", path, "a reference to itself cannot stand beside other keywords")
        rest = {name: value for name, value in schema.items() if name != "$ref"}
        self._merging.append(pointer)
        try:
            return self._node(self._merged([(target, pointer), (rest, path)]), path)
        finally:
            self._merging.pop()

    def _check_loops(self, root: dict[str, Any]) -> None:
        """References that lead back to themselves without any content say nothing at all."""
        for node in (root, *self._definitions.values()):
            seen: list[str] = []
            while "$ref" in node:
                name = node["$ref"].removeprefix("#/$defs/")
                if name in seen:
                    at = {value: key for key, value in self._names.items()}
                    chain = " -> ".join("#" + at[step] for step in (*seen[seen.index(name) :], name))
                    raise GrammarError(f"$ref: the references {chain} lead in a circle", keyword="$ref")
                seen.append(name)
                node = self._definitions[name]

    def _finite(self, root: dict[str, Any]) -> bool:
        """Whether some value of finite size satisfies the schema."""
        ends: set[str] = set()

        def has_value(node: dict[str, Any]) -> bool:
            if "$ref" in node:
                return node["$ref"].removeprefix("#/$defs/") in ends
            if "anyOf" in node:
                return any(has_value(option) for option in node["anyOf"])
            if node.get("type") == "object" and "properties" in node:
                return all(has_value(node["properties"][key]) for key in node["required"])
            if node.get("type") == "object" and node.get("minProperties"):
                return any(has_value(v) for v in node.get("patternProperties", {}).values()) or (
                    node.get("additionalProperties") not in (None, False)
                    and has_value(node["additionalProperties"])
                )
            if node.get("type") == "array":
                needed = node.get("minItems", 0)
                prefix = node.get("prefixItems", [])
                first = all(has_value(item) for item in prefix[:needed])
                return first and (needed <= len(prefix) or has_value(node["items"]))
            return True

        while True:
            found = {name for name, node in self._definitions.items() if name not in ends and has_value(node)}
            if not found:
                return has_value(root)
            ends |= found

    # --- combinations ---

    def _all_of(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        rest = {name: value for name, value in schema.items() if name != "allOf"}
        parts = [(rest, path)]
        for number, branch in enumerate(schema["allOf"]):
            parts.append((branch, nodes.pointer(path, "allOf", number)))
        return self._node(self._merged(parts), path)

    def _flat(self, schema: Any, path: str) -> list[tuple[Any, str]]:
        """A schema as parts without $ref and allOf."""
        if not isinstance(schema, dict):
            return [(schema, path)]
        parts = [({k: v for k, v in schema.items() if k not in ("$ref", "allOf")}, path)]
        if "$ref" in schema:
            target, pointer = self._resolve(schema["$ref"], path)
            if pointer in self._merging or len(self._merging) > 32:
                raise refusal("$ref", path, "a reference to itself cannot be merged with other keywords")
            self._merging.append(pointer)
            try:
                parts += self._flat(target, pointer)
            finally:
                self._merging.pop()
        for number, branch in enumerate(schema.get("allOf", ())):
            parts += self._flat(branch, nodes.pointer(path, "allOf", number))
        return parts

    def _merged(self, parts: list[tuple[Any, str]]) -> dict[str, Any]:
        """One schema that says what all of the parts say."""
        flat = [part for schema, path in parts for part in self._flat(schema, path)]
        result: dict[str, Any] = {}
        for schema, path in flat:
            if schema is False:
                raise Impossible(path, "the schema is false")
            if schema is not True:
                kept = {k: v for k, v in schema.items() if not self._is_idle(k, schema, path)}
                result = self._both(result, kept, path)
        return result

    def _both(self, left: dict[str, Any], right: dict[str, Any], path: str) -> dict[str, Any]:
        if not left or not right:
            return left or right
        both = dict(left)
        for name, value in right.items():
            if name in nodes.OBJECT_SHAPE or name in _ARRAY_SHAPE:
                continue
            if name not in left:
                both[name] = value
            elif left[name] != value:
                both |= self._combined(name, left, value, path)
        both |= nodes.both_objects(left, right, path)
        both |= self._both_arrays(left, right, path)
        return both

    def _combined(self, name: str, left: dict[str, Any], value: Any, path: str) -> dict[str, Any]:
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
            return {name: nodes.common_types(mine, value, path)}
        if name == "enum":
            common = [item for item in mine if any(nodes.same(item, other) for other in value)]
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

    def _both_arrays(self, left: dict[str, Any], right: dict[str, Any], path: str) -> dict[str, Any]:
        shapes = [[name for name in _ARRAY_SHAPE if name in side] for side in (left, right)]
        if not shapes[0] or not shapes[1]:
            side = left if shapes[0] else right
            return {name: side[name] for name in _ARRAY_SHAPE if name in side}
        if shapes == [["items"], ["items"]]:
            return {"items": nodes.conjunction([left["items"], right["items"]])}
        raise refusal("prefixItems", path, "items described twice in allOf cannot be merged")

    def _any_of(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """Alternatives; what stands beside them holds in each."""
        name = "anyOf" if "anyOf" in schema else "oneOf"
        rest = {key: value for key, value in schema.items() if key != name}
        options: list[dict[str, Any]] = []
        reasons: list[Impossible] = []
        if len(schema[name]) > MAX_BRANCHES:
            raise refusal(name, path, f"{len(schema[name])} alternatives, at most {MAX_BRANCHES} are allowed")
        for number, branch in enumerate(schema[name]):
            place = nodes.pointer(path, name, number)
            try:
                if rest:
                    branch = self._merged([(rest, path), (branch, place)])
                options.append(self._node(branch, place))
            except Impossible as error:
                reasons.append(error)
        if not options:
            raise Impossible(path, f"none of the alternatives of {name} can be met ({reasons[0].reason})")
        if name == "oneOf":
            self._check_apart(options, path)
        return nodes.choice(options)

    def _check_apart(self, options: list[dict[str, Any]], path: str) -> None:
        for number, left in enumerate(options):
            for other in range(number + 1, len(options)):
                if not self._apart(left, options[other], 4):
                    raise refusal(
                        "oneOf",
                        path,
                        f"alternatives {number} and {other} are not plainly exclusive, and exactly one is "
                        "not enforced otherwise; use anyOf, or a key with a different const in each",
                    )

    def _apart(self, left: dict[str, Any], right: dict[str, Any], depth: int) -> bool:
        """Whether plainly no value satisfies both."""
        if depth == 0:
            return False
        left, right = self._followed(left), self._followed(right)
        for one, two in ((left, right), (right, left)):
            if "anyOf" in one:
                return all(self._apart(option, two, depth - 1) for option in one["anyOf"])
        kinds = [nodes.kinds(left), nodes.kinds(right)]
        if not kinds[0] & kinds[1]:
            return True
        if "enum" in left and "enum" in right:
            return not any(nodes.same(a, b) for a in left["enum"] for b in right["enum"])
        if "properties" in left and "properties" in right:
            shared = set(left["required"]) & set(right["required"])
            if any(
                self._apart(left["properties"][key], right["properties"][key], depth - 1) for key in shared
            ):
                return True
        return False

    def _followed(self, node: dict[str, Any]) -> dict[str, Any]:
        for _ in range(8):
            if "$ref" not in node:
                break
            node = self._definitions[node["$ref"].removeprefix("#/$defs/")]
        return node

    # --- types ---

    def _of_types(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        given = schema.get("type")
        types = [given] if isinstance(given, str) else given
        if types is None:
            types = [
                name
                for name in ("number", "string", "array", "object")
                if any(keyword in schema for keyword in _OF_TYPE[name])
            ]
            if not types:
                return {}
            self._note(f"no type is given at {path or 'the top'}: only {' or '.join(types)} is produced")
        if "number" in types:
            types = [name for name in types if name != "integer"]
        options: list[dict[str, Any]] = []
        error: Impossible | None = None
        for name in types:
            own = {keyword: schema[keyword] for keyword in _OF_TYPE.get(name, ()) if keyword in schema}
            try:
                options.append(_BUILDERS[name](self, own, path))
            except Impossible as found:
                error = found
        if not options and error is not None:
            raise error
        return nodes.choice(options)

    def _plain(self, name: str) -> dict[str, Any]:
        return {"type": name}

    def _number(self, name: str, schema: dict[str, Any], path: str) -> dict[str, Any]:
        if "multipleOf" in schema:
            raise refusal("multipleOf", path, "divisibility is not enforced")
        low, high = nodes.bounds(schema, path)
        node: dict[str, Any] = {"type": name}
        if name == "integer":
            ends = [nodes.whole(end, up) for end, up in ((low, True), (high, False))]
            node |= {
                key: end for key, end in zip(("minimum", "maximum"), ends, strict=True) if end is not None
            }
            if ends[0] is not None and ends[1] is not None and ends[0] > ends[1]:
                raise Impossible(path, "no whole number lies between the bounds")
            return node
        for (value, is_open), plain, strict in (
            (low, "minimum", "exclusiveMinimum"),
            (high, "maximum", "exclusiveMaximum"),
        ):
            if not math.isinf(value):
                node[strict if is_open else plain] = value
        if low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1])):
            raise Impossible(path, "no number lies between the bounds")
        return node

    def _string(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        low, high = schema.get("minLength", 0), schema.get("maxLength")
        if high is not None and high < low:
            raise Impossible(path, f"minLength {low} is more than maxLength {high}")
        if max(low, high or 0) > patterns.MAX_SIZE:
            limit = f"at most {patterns.MAX_SIZE:,} is allowed"
            raise refusal("minLength" if low > patterns.MAX_SIZE else "maxLength", path, limit)
        if "format" in schema and "pattern" in schema:
            raise refusal("format", path, "a format beside a pattern is not enforced")
        node = self._pattern_of(schema, path)
        if node is None:
            if not low and high is None:
                return {"type": "string"}
            node = patterns.Repeat(patterns.Chars(patterns.ANY), 0, None)
        return self._limited(node, int(low), None if high is None else int(high), path)

    def _pattern_of(self, schema: dict[str, Any], path: str) -> patterns.Node | None:
        if "format" in schema:
            name = schema["format"]
            if name not in FORMATS:
                known = ", ".join(FORMATS)
                raise refusal("format", path, f"{str(name)[:40]!r} is not enforced; {known} are")
            return patterns.parse(FORMATS[name])
        if "pattern" not in schema:
            return None
        try:
            return patterns.parse(schema["pattern"], search=True)
        except GrammarError as error:
            raise refusal("pattern", path, str(error)) from None

    def _limited(self, node: patterns.Node, low: int, high: int | None, path: str) -> dict[str, Any]:
        lengths: dict[str, int] = {}
        within = patterns.limited(node, low, high)
        if within is None and self._takes_lengths:
            within = node
            lengths = {"minLength": low} | ({} if high is None else {"maxLength": high})
        if within is None:
            raise refusal(
                "minLength" if low else "maxLength",
                path,
                "a length beside this pattern is not enforced by xgrammar; put it into the pattern, or "
                "choose llguidance",
            )
        if not rules.has_writable_text(within):
            raise Impossible(path, "no string has both this pattern and this length")
        within = self._countable(within, path)
        return {"type": "string", "pattern": self._named(within)} | lengths

    def _countable(self, node: patterns.Node, path: str) -> patterns.Node:
        """What xgrammar can count fast."""
        if self._takes_lengths or rules.counted_plainly(node) == node:
            return node
        self._note(f"the string at {path or 'the top'} holds no quotes, backslashes and line breaks")
        return rules.counted_plainly(node)

    def _named(self, node: patterns.Node, kind: str = "string") -> str:
        name = f"{kind}{len(self._patterns)}"
        self._patterns[name] = node
        return name

    def _array(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        if "additionalItems" in schema and isinstance(schema.get("items"), list):
            raise refusal("additionalItems", path, "of an older draft; use prefixItems and items")
        if isinstance(schema.get("items"), list):
            raise refusal("items", path, "a list is of an older draft; use prefixItems")
        low, high = int(schema.get("minItems", 0)), schema.get("maxItems")
        if high is not None and high < low:
            raise Impossible(path, f"minItems {low} is more than maxItems {high}")
        if schema.get("uniqueItems") and (high is None or high > 1):
            raise refusal("uniqueItems", path, "earlier items are not compared")
        if max(low, high or 0) > MAX_ITEMS:
            raise refusal("maxItems" if low <= MAX_ITEMS else "minItems", path, f"at most {MAX_ITEMS:,}")
        prefix: list[dict[str, Any]] = []
        rest: dict[str, Any] | None = None
        try:
            for number, item in enumerate(schema.get("prefixItems", ())):
                prefix.append(self._node(item, nodes.pointer(path, "prefixItems", number)))
            rest = self._node(schema.get("items", True), nodes.pointer(path, "items"))
        except Impossible as error:  # the array ends before what cannot be
            if len(prefix) < low:
                raise Impossible(path, f"item {len(prefix)} is needed, but {error.reason}") from None
        node: dict[str, Any] = {"type": "array", "minItems": low}
        if rest is None:
            high = len(prefix) if high is None else min(high, len(prefix))
        if high is not None:
            node["maxItems"] = high = int(high)
            prefix = prefix[:high]
        if prefix:
            node["prefixItems"] = prefix
        node["items"] = False if rest is None or (high is not None and high <= len(prefix)) else rest
        return node

    def _object(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        low, high = int(schema.get("minProperties", 0)), schema.get("maxProperties")
        required = list(dict.fromkeys(schema.get("required", ())))
        declared = schema.get("properties", {})
        if not declared and not required:
            return self._map(schema, low, high, path)
        properties: dict[str, Any] = {}
        for key in dict.fromkeys([*declared, *required]):
            try:
                properties[key] = self._property(schema, key, path)
            except Impossible as error:
                if key in required:
                    raise Impossible(path, f"the key {key!r} is required, but {error.reason}") from None
        if schema.get("additionalProperties", True) is not False or schema.get("patternProperties"):
            self._note(
                f"the object at {path or 'the top'} is closed: keys that are not listed are not produced"
            )
        if len(properties) > 1:
            self._note("keys come in the order of the schema")
        return self._counted(properties, required, low, high, path)

    def _property(self, schema: dict[str, Any], key: str, path: str) -> dict[str, Any]:
        """What the value of a key must be, by properties, patternProperties and additionalProperties."""
        found = []
        if key in schema.get("properties", {}):
            found.append((schema["properties"][key], nodes.pointer(path, "properties", key)))
        for pattern, part in schema.get("patternProperties", {}).items():
            if validation.matches(pattern, key):
                found.append((part, nodes.pointer(path, "patternProperties", pattern)))
        if not found:
            found.append(
                (schema.get("additionalProperties", True), nodes.pointer(path, "additionalProperties"))
            )
        if len(found) == 1:
            return self._node(*found[0])
        return self._node(self._merged(found), found[0][1])

    def _counted(
        self, properties: dict[str, Any], required: list[str], low: int, high: int | None, path: str
    ) -> dict[str, Any]:
        if high is not None and high < len(properties):
            if high < len(required):
                raise Impossible(path, f"maxProperties is {high}, but {len(required)} keys are required")
            if high > len(required):
                raise refusal("maxProperties", path, "the number of optional keys is not counted")
            properties = {key: properties[key] for key in properties if key in required}
        if low > len(properties):
            raise Impossible(path, f"minProperties is {low}, but only {len(properties)} keys can be there")
        optional = [key for key in properties if key not in required]
        if low > len(required) and low == len(properties):
            required = list(properties)
        elif low > len(required) + 1 or (low > len(required) and len(optional) > MAX_BRANCHES):
            raise refusal("minProperties", path, "the number of optional keys is not counted")
        elif low > len(required):  # one more, whichever
            return nodes.choice([nodes.closed(properties, [*required, key]) for key in optional])
        return nodes.closed(properties, required)

    def _map(self, schema: dict[str, Any], low: int, high: int | None, path: str) -> dict[str, Any]:
        """An object without named keys: any number of keys by one rule."""
        if low > 1:
            raise refusal("minProperties", path, "keys that may repeat are not counted beyond one")
        if high is not None and high < low:
            raise Impossible(path, f"minProperties {low} is more than maxProperties {high}")
        by_pattern = schema.get("patternProperties", {})
        rest = schema.get("additionalProperties", True)
        counts = {"minProperties": low} if low else {}
        if high is not None:
            counts["maxProperties"] = int(high)
        if high == 0:
            return nodes.closed({}, [])
        if not by_pattern:
            try:
                value = self._node(rest, nodes.pointer(path, "additionalProperties"))
            except Impossible as error:
                if low:
                    raise Impossible(path, f"a key is needed, but {error.reason}") from None
                return nodes.closed({}, [])
            return {"type": "object", "additionalProperties": value} | counts
        if len(by_pattern) > 1:
            raise refusal("patternProperties", path, "a key may match several patterns; give one")
        ((pattern, part),) = by_pattern.items()
        place = nodes.pointer(path, "patternProperties", pattern)
        try:
            key = patterns.parse(pattern, search=True)
        except GrammarError as error:
            raise refusal("patternProperties", path, str(error)) from None
        try:
            value = self._node(part, place)
            if not rules.has_writable_text(key):
                raise Impossible(place, "no key has this pattern")
        except Impossible as error:
            if low:
                raise Impossible(path, f"a key is needed, but {error.reason}") from None
            return nodes.closed({}, [])
        if rest is not False:
            self._note(f"the object at {path or 'the top'} has only keys of its pattern")
        return {
            "type": "object",
            "patternProperties": {self._named(self._countable(key, place), "key"): value},
            "additionalProperties": False,
        } | counts


_ARRAY_SHAPE = ("prefixItems", "items")


_Builder = Callable[[_Admission, dict[str, Any], str], dict[str, Any]]
_BUILDERS: dict[str, _Builder] = {
    "null": lambda self, schema, path: self._plain("null"),
    "boolean": lambda self, schema, path: self._plain("boolean"),
    "integer": lambda self, schema, path: self._number("integer", schema, path),
    "number": lambda self, schema, path: self._number("number", schema, path),
    "string": lambda self, schema, path: self._string(schema, path),
    "array": lambda self, schema, path: self._array(schema, path),
    "object": lambda self, schema, path: self._object(schema, path),
}


def size(admitted: Admitted) -> int:
    """Characters of the small form, for display."""
    return len(json.dumps([admitted.root, admitted.definitions]))
