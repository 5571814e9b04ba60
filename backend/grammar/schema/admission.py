"""Admission of one schema, from its top; see the package for the small form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from backend.errors import GrammarError
from backend.grammar import patterns, validation
from backend.grammar.schema import nodes
from backend.grammar.schema.drafts import modern
from backend.grammar.schema.exclusion import check_exclusive
from backend.grammar.schema.findings import Findings
from backend.grammar.schema.keywords import KNOWN, MAX_BRANCHES, OF_TYPE, REFUSED
from backend.grammar.schema.merging import Merger
from backend.grammar.schema.nodes import Impossible, refusal
from backend.grammar.schema.references import References
from backend.grammar.schema.shapes import Shapes

MAX_DEPTH = 64
MAX_NODES = 3_000


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
        validation.check_schema(schema)
        self._findings = Findings()
        self._schema = schema = modern(schema, validation.draft_of(schema), self._findings)
        self._references = References(schema)
        self._merger = Merger(self._references, self._findings)
        self._shapes = Shapes(self._findings, self._node, self._merger.merged, takes_lengths)
        self._num_nodes = 0
        self._depth = 0

    def run(self) -> Admitted:
        try:
            root = self._node(self._schema, "")
        except Impossible as error:
            place = error.path or "the top"
            raise GrammarError(
                f"no value can satisfy the schema: at {place}, {error.reason}", pointer=error.path
            ) from None
        self._references.check_loops(root)
        self._references.check_ends(root)
        return Admitted(root, self._references.definitions, self._findings.patterns, self._findings.notes)

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
        rest = self._findings.effective(schema, path)
        if "const" in rest or "enum" in rest:
            return self._finite_values(schema, path)
        for name in rest:
            if name not in KNOWN:
                raise refusal(name, path, REFUSED.get(name, "it is not enforced"))
        if "$ref" in rest and len(rest) == 1:
            return self._reference(rest["$ref"], path)
        for name, combine in (("$ref", self._inlined), ("allOf", self._all_of)):
            if name in rest:
                return combine(rest, path)
        if "anyOf" in rest or "oneOf" in rest:
            return self._any_of(rest, path)
        return self._of_types(rest, path)

    def _finite_values(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """An enum, filtered by everything that stands beside it."""
        values = [schema["const"]] if "const" in schema else schema["enum"]
        allowed = [
            value for value in values if validation.reason(self._schema, value, path, part=schema) is None
        ]
        if not allowed:
            raise Impossible(path, "no value of the enum satisfies what stands beside it")
        return nodes.choice([nodes.constant(value, path) for value in allowed])

    def _reference(self, reference: str, path: str) -> dict[str, Any]:
        known = self._references
        target, pointer = known.resolve(reference, path)
        if pointer not in known.names:
            name = f"d{len(known.names)}"
            known.names[pointer] = name
            known.definitions[name] = {"pending": pointer}
            depth, self._depth = self._depth, 0  # a reference is not deeper for being used deep inside
            try:
                known.definitions[name] = self._node(target, pointer)
            except Impossible as error:
                known.definitions[name] = {"impossible": error}
                raise
            except RecursionError:
                raise refusal("$ref", path, "too long a chain of references") from None
            finally:
                self._depth = depth
        found = known.definitions[known.names[pointer]]
        if "impossible" in found:
            raise found["impossible"]
        return {"$ref": f"#/$defs/{known.names[pointer]}"}

    def _inlined(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """$ref with siblings: both hold."""
        rest = {name: value for name, value in schema.items() if name != "$ref"}
        with self._references.merged(schema["$ref"], path) as part:
            return self._node(self._merger.merged([part, (rest, path)]), path)

    def _all_of(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        rest = {name: value for name, value in schema.items() if name != "allOf"}
        parts = [(rest, path)]
        for number, branch in enumerate(schema["allOf"]):
            parts.append((branch, nodes.pointer(path, "allOf", number)))
        return self._node(self._merger.merged(parts), path)

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
                    branch = self._merger.merged([(rest, path), (branch, place)])
                options.append(self._node(branch, place))
            except Impossible as error:
                reasons.append(error)
        if not options:
            raise Impossible(path, f"none of the alternatives of {name} can be met ({reasons[0].reason})")
        if name == "oneOf":
            check_exclusive(options, self._references, path)
        return nodes.choice(options)

    def _of_types(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        given = schema.get("type")
        types = [given] if isinstance(given, str) else given
        if types is None:
            types = [
                name
                for name in ("number", "string", "array", "object")
                if any(keyword in schema for keyword in OF_TYPE[name])
            ]
            if not types:
                return {}
            self._findings.note(
                f"no type is given at {path or 'the top'}: only {' or '.join(types)} is produced"
            )
        if "number" in types:
            types = [name for name in types if name != "integer"]
        options: list[dict[str, Any]] = []
        error: Impossible | None = None
        for name in types:
            own = {keyword: schema[keyword] for keyword in OF_TYPE.get(name, ()) if keyword in schema}
            try:
                options.append(self._shapes.of_type(name, own, path))
            except Impossible as found:
                error = found
        if not options and error is not None:
            raise error
        return nodes.choice(options)
