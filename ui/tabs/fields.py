"""The row of settings that belong to one tab alone, beside the knobs that all tabs share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from backend.errors import RequestError
from ui import components


class Fields:
    """A row of inputs and what they start with.

    Attributes:
        html: the component; its value holds the "values" by name and a "number" that the server counts up
            when it, not the reader, sets them.
    """

    def __init__(
        self, tab: str, spec: Any, start: Mapping[str, Any], note: str = "", component: str = "fields"
    ):
        """`spec` describes the inputs to the component, `note` stands under them."""
        self.start, self.note = dict(start), note
        self.html = components.build(component, self.value(1), f"pg-{tab}-fields", spec=spec)

    def value(self, number: int, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The component's value with `values` set and the rest at its start."""
        return {"number": number, "values": self.start | dict(values or {}), "note": self.note}

    def read(self, sent: Any) -> dict[str, Any]:
        """Every field's value out of what the page sent; what is missing or unknown stays at its start."""
        values = sent.get("values") if isinstance(sent, dict) else None
        known = values if isinstance(values, dict) else {}
        return {name: known.get(name, default) for name, default in self.start.items()}

    def changed(self, sent: Any) -> dict[str, Any]:
        """The values that differ from the start, for a link."""
        return {name: value for name, value in self.read(sent).items() if value != self.start[name]}

    def from_link(self, text: str) -> dict[str, Any]:
        """The values that a link holds.

        Raises:
            RequestError: the text is no JSON object, or a value is not of the kind the field holds.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise RequestError(f"the tab's fields in the link cannot be read: {text[:80]!r}")
        known = {name: value for name, value in values.items() if name in self.start}
        for name, value in known.items():
            if not _alike(value, self.start[name]):
                raise RequestError(f"{name} in the link cannot be {json.dumps(value)[:80]}")
        return known


def _alike(value: Any, start: Any) -> bool:
    """Whether a value can stand where `start` stands: a number for a number, text for text."""
    if isinstance(start, bool) or isinstance(value, bool):
        return isinstance(start, bool) and isinstance(value, bool)
    if isinstance(start, int | float):
        return isinstance(value, int | float)
    return isinstance(value, type(start))
