"""The row of settings that belong to one tab alone, beside the knobs that all tabs share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from backend.errors import RequestError
from backend.protocol import Capabilities
from ui import components


class Fields:
    """A row of inputs, what they start with, and what each may hold.

    An input is a mapping: name, title, kind (number, select, check, text or area), start, hint; of a number
    min, max and step, of a select its options as [value, title]; `unless` {other: value} hides it while the
    other holds that value, `needs` names a capability of the engine without which it is greyed.

    Attributes:
        html: the component; its value holds the "values" by name and a "number" that the server counts up
            when it, not the reader, sets them.
    """

    def __init__(
        self,
        tab: str,
        inputs: list[dict[str, Any]],
        note: str = "",
        start: Mapping[str, Any] | None = None,
        component: str = "fields",
        spec: Any = None,
    ):
        """`note` stands under the inputs; a `component` other than "fields" has a `spec` of its own.

        `start` holds values that go before those of the inputs, or that the component has besides them.
        """
        self.inputs, self.start, self.note = inputs, starts(inputs) | dict(start or {}), note
        drawn_by = inputs if spec is None else spec
        self.html = components.build(component, self.value(1), f"pg-{tab}-fields", spec=drawn_by)

    def value(self, number: int, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The component's value with `values` set and the rest at its start."""
        return {"number": number, "values": self.start | dict(values or {}), "note": self.note}

    def read(self, sent: Any) -> dict[str, Any]:
        """Every field's value out of what the page sent; what is missing or unknown stays at its start."""
        values = sent.get("values") if isinstance(sent, dict) else None
        known = values if isinstance(values, dict) else {}
        return {name: known.get(name, default) for name, default in self.start.items()}

    def checked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """As `check`, over the fields of this row."""
        return check(self.inputs, values)

    def changed(self, sent: Any) -> dict[str, Any]:
        """The values that differ from the start, for a link."""
        return {name: value for name, value in self.read(sent).items() if value != self.start[name]}

    def lacking(self, capabilities: Capabilities) -> dict[str, str]:
        """Why some of the fields cannot be served, by name."""
        needed = {field["name"]: [field["needs"]] for field in self.inputs if "needs" in field}
        reasons = {name: capabilities.lacking(needs) for name, needs in needed.items()}
        return {name: reason for name, reason in reasons.items() if reason}

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


def check(inputs: list[dict[str, Any]], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, each held against the limits of its field; hidden fields are not looked at.

    Raises:
        RequestError: a value is of another kind or out of range; the message names the field by its title.
    """
    found = dict(values)
    for field in inputs:
        if any(values.get(name) == value for name, value in field.get("unless", {}).items()):
            continue
        value, wanted = values[field["name"]], ""
        match field["kind"]:
            case "number":
                low, high = field["min"], field["max"]
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                is_whole = isinstance(field["step"], int)
                if not is_number or not low <= value <= high or (is_whole and value != int(value)):
                    wanted = f"a {'whole ' * is_whole}number from {low:,} to {high:,}"
                elif is_whole:
                    found[field["name"]] = int(value)
            case "select":
                options = [option[0] for option in field["options"]]
                wanted = "" if value in options else f"one of {', '.join(filter(None, options))}"
            case "check":
                wanted = "" if isinstance(value, bool) else "true or false"
            case _:
                wanted = "" if isinstance(value, str) else "text"
        if wanted:
            raise RequestError(f"{field['title']} must be {wanted}, got {value!r:.40}")
    return found


def starts(inputs: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What the inputs hold before anyone has touched them."""
    return {field["name"]: field["start"] for field in inputs}


def number(
    name: str, title: str, low: float, high: float, start: float, hint: str, step: float = 1, **more: Any
) -> dict[str, Any]:
    """An input for a number; only whole ones where the step is whole."""
    limits = {"min": low, "max": high, "step": step, "start": start}
    return {"name": name, "title": title, "kind": "number", **limits, "hint": hint, **more}


def select(name: str, title: str, options: Mapping[str, str], hint: str, **more: Any) -> dict[str, Any]:
    """An input that offers the options, values to titles; it starts with the first, or with `start`."""
    choices = list(map(list, options.items()))
    first = {"start": choices[0][0], "options": choices}
    return {"name": name, "title": title, "kind": "select", **first, "hint": hint, **more}


def tick(name: str, title: str, start: bool, hint: str, **more: Any) -> dict[str, Any]:
    """A box to tick."""
    return {"name": name, "title": title, "kind": "check", "start": start, "hint": hint, **more}


def typed(name: str, title: str, kind: str, hint: str = "", **more: Any) -> dict[str, Any]:
    """An input for a line ("text") or several ("area"); it starts empty."""
    return {"name": name, "title": title, "kind": kind, "start": "", "hint": hint, **more}


def _alike(value: Any, start: Any) -> bool:
    """Whether a value can stand where `start` stands: a number for a number, text for text."""
    if isinstance(start, bool) or isinstance(value, bool):
        return isinstance(start, bool) and isinstance(value, bool)
    if isinstance(start, int | float):
        return isinstance(value, int | float)
    return isinstance(value, type(start))
