"""What the admission of one schema gathers beside the small form."""

from __future__ import annotations

from typing import Any

from backend.grammar import patterns, validation
from backend.grammar.formats import PATTERNS
from backend.grammar.schema import keywords
from backend.grammar.schema.nodes import pointer


class Findings:
    """Patterns by the name they have in the small form, and notes of what is narrowed, each once."""

    def __init__(self) -> None:
        self.patterns: dict[str, patterns.Node] = {}
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> list[str]:
        """In the order they were made."""
        return list(self._notes)

    def note(self, text: str) -> None:
        """Add a sentence; the same one again changes nothing."""
        self._notes[text] = None

    def named(self, node: patterns.Node, kind: str = "string") -> str:
        """A new name for a pattern."""
        name = f"{kind}{len(self.patterns)}"
        self.patterns[name] = node
        return name

    def effective(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """The keywords of a schema that say something; those that are none get a note."""
        for name in schema:
            if not keywords.is_keyword(name):
                self.note(f"{name} at {pointer(path, name)} is no keyword of JSON Schema and has no effect")
        shape = schema.get("format")
        if shape is not None and shape not in PATTERNS and not validation.checks_format(str(shape)):
            place = pointer(path, "format")
            self.note(f"format {str(shape)[:40]!r} at {place} is an annotation and not enforced")
            schema = {name: value for name, value in schema.items() if name != "format"}
        return {
            name: value
            for name, value in schema.items()
            if keywords.is_keyword(name) and not keywords.is_idle(name, schema, path)
        }
