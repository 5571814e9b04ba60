"""Numbers, strings, arrays and objects in the small form."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from backend.errors import GrammarError
from backend.grammar import patterns, rules, validation
from backend.grammar.formats import NARROWED
from backend.grammar.formats import PATTERNS as FORMATS
from backend.grammar.schema.findings import Findings
from backend.grammar.schema.keywords import MAX_BRANCHES
from backend.grammar.schema.nodes import Impossible, bounds, choice, closed, pointer, refusal, whole

MAX_ITEMS = 10_000


class Shapes:
    """Builds the nodes of one type out of the keywords that belong to it.

    `node` rewrites a schema inside another; `merge` makes one of several that all hold. `takes_lengths`: see
    admission.admit. Each method raises Impossible where no value has the shape, and GrammarError where it
    cannot be enforced exactly.
    """

    def __init__(
        self,
        findings: Findings,
        node: Callable[[Any, str], dict[str, Any]],
        merge: Callable[[list[tuple[Any, str]]], dict[str, Any]],
        takes_lengths: bool,
    ):
        self._findings = findings
        self._node = node
        self._merge = merge
        self._takes_lengths = takes_lengths

    def of_type(self, name: str, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """The node of a type of JSON Schema."""
        if name in ("integer", "number"):
            return self.number(name, schema, path)
        build = {"string": self.string, "array": self.array, "object": self.object}.get(name)
        return {"type": name} if build is None else build(schema, path)

    def number(self, name: str, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """An integer or number within bounds."""
        if "multipleOf" in schema:
            raise refusal("multipleOf", path, "divisibility is not enforced")
        low, high = bounds(schema, path)
        node: dict[str, Any] = {"type": name}
        if name == "integer":
            ends = [whole(end, up) for end, up in ((low, True), (high, False))]
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

    def string(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """A string by pattern or format, of a length in characters."""
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
            if name in NARROWED:
                self._findings.note(
                    f"only simple texts of format {name!r} are produced at {path or 'the top'}"
                )
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
        return {"type": "string", "pattern": self._findings.named(within)} | lengths

    def _countable(self, node: patterns.Node, path: str) -> patterns.Node:
        """What xgrammar can count fast."""
        if self._takes_lengths or rules.counted_plainly(node) == node:
            return node
        self._findings.note(f"the string at {path or 'the top'} holds no quotes, backslashes and line breaks")
        return rules.counted_plainly(node)

    def array(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """An array of given first items and a rule for the rest."""
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
                prefix.append(self._node(item, pointer(path, "prefixItems", number)))
            rest = self._node(schema.get("items", True), pointer(path, "items"))
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

    def object(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """A closed object where keys are named, else a map."""
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
            self._findings.note(
                f"the object at {path or 'the top'} is closed: keys that are not listed are not produced"
            )
        if len(properties) > 1:
            self._findings.note("keys come in the order of the schema")
        return self._counted(properties, required, low, high, path)

    def _property(self, schema: dict[str, Any], key: str, path: str) -> dict[str, Any]:
        """What the value of a key must be, by properties, patternProperties and additionalProperties."""
        found = []
        if key in schema.get("properties", {}):
            found.append((schema["properties"][key], pointer(path, "properties", key)))
        for pattern, part in schema.get("patternProperties", {}).items():
            if validation.matches(pattern, key):
                found.append((part, pointer(path, "patternProperties", pattern)))
        if not found:
            found.append((schema.get("additionalProperties", True), pointer(path, "additionalProperties")))
        if len(found) == 1:
            return self._node(*found[0])
        return self._node(self._merge(found), found[0][1])

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
            return choice([closed(properties, [*required, key]) for key in optional])
        return closed(properties, required)

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
            return closed({}, [])
        if not by_pattern:
            try:
                value = self._node(rest, pointer(path, "additionalProperties"))
            except Impossible as error:
                if low:
                    raise Impossible(path, f"a key is needed, but {error.reason}") from None
                return closed({}, [])
            return {"type": "object", "additionalProperties": value} | counts
        if len(by_pattern) > 1:
            raise refusal("patternProperties", path, "a key may match several patterns; give one")
        ((pattern, part),) = by_pattern.items()
        place = pointer(path, "patternProperties", pattern)
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
            return closed({}, [])
        if rest is not False:
            self._findings.note(f"the object at {path or 'the top'} has only keys of its pattern")
        return {
            "type": "object",
            "patternProperties": {self._findings.named(self._countable(key, place), "key"): value},
            "additionalProperties": False,
        } | counts
