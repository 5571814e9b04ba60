"""Local $refs of one schema: what they name, and whether they lead anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from backend.errors import GrammarError
from backend.grammar import validation
from backend.grammar.schema.keywords import REFUSED
from backend.grammar.schema.nodes import refusal

MAX_MERGED = 32  # references followed inside one another while schemas are merged


class References:
    """What the references of a schema name.

    Attributes:
        definitions: in the small form, by the names that its $refs use.
        names: of the definitions, by JSON pointer in the schema.
    """

    def __init__(self, schema: Any):
        self._schema = schema
        self._merging: list[str] = []
        self.definitions: dict[str, dict[str, Any]] = {}
        self.names: dict[str, str] = {}

    def resolve(self, reference: str, path: str) -> tuple[Any, str]:
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
                    raise refusal("$id", pointer, REFUSED["$id"])
                found = found[int(name)] if isinstance(found, list) else found[name]
            except (KeyError, IndexError, ValueError, TypeError):
                raise refusal("$ref", path, f"{reference!r} names nothing in this schema") from None
        if not isinstance(found, (dict, bool)):
            raise refusal("$ref", path, f"{reference!r} names no schema")
        return found, pointer

    @contextmanager
    def merged(self, reference: str, path: str) -> Iterator[tuple[Any, str]]:
        """What `resolve` gives, while it is merged with what stands beside it.

        Raises:
            GrammarError: the reference leads into itself.
        """
        target, pointer = self.resolve(reference, path)
        if pointer in self._merging or len(self._merging) > MAX_MERGED:
            raise refusal("$ref", path, "a reference to itself cannot stand beside other keywords")
        self._merging.append(pointer)
        try:
            yield target, pointer
        finally:
            self._merging.pop()

    def followed(self, node: dict[str, Any]) -> dict[str, Any]:
        """A node, or what it refers to."""
        for _ in range(8):
            if "$ref" not in node:
                break
            node = self.definitions[node["$ref"].removeprefix("#/$defs/")]
        return node

    def check_loops(self, root: dict[str, Any]) -> None:
        """References that lead back to themselves without any content say nothing at all."""
        for node in (root, *self.definitions.values()):
            seen: list[str] = []
            while "$ref" in node:
                name = node["$ref"].removeprefix("#/$defs/")
                if name in seen:
                    at = {value: key for key, value in self.names.items()}
                    chain = " -> ".join("#" + at[step] for step in (*seen[seen.index(name) :], name))
                    raise GrammarError(f"$ref: the references {chain} lead in a circle", keyword="$ref")
                seen.append(name)
                node = self.definitions[name]

    def check_ends(self, root: dict[str, Any]) -> None:
        """Every part has some value of finite size; a text that came into one that has none could never end.

        Raises:
            GrammarError: names the part.
        """
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
            found = {name for name, node in self.definitions.items() if name not in ends and has_value(node)}
            if not found:
                break
            ends |= found
        if not has_value(root):
            what = "no value can satisfy the schema: a required part contains itself without end"
            raise GrammarError(what, keyword="$ref")
        for place, name in self.names.items():
            if name not in ends:
                raise GrammarError(
                    f"$ref: every value of #{place} contains itself without end, so that none can be written",
                    keyword="$ref",
                    pointer=place,
                )
