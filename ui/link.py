"""Links that restore the page: prompt, model, tab with its fields, knobs, seed and the selected token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from backend.errors import RequestError
from backend.stages import ORDERS, completed
from ui import knobs

MAX_CHARACTERS = 6000


@dataclass(frozen=True)
class Link:
    """What a link holds.

    Attributes:
        settings: the knobs; those left out are at their defaults.
        fields: the tab's own settings as JSON text; the tab knows which there are.
        token: index of the token looked at; None follows the newest.
        model: the model the text was made with; empty if nothing ran.
    """

    prompt: str
    tab: str = "inspect"
    settings: Mapping[str, Any] = field(default_factory=lambda: dict(knobs.DEFAULTS))
    fields: str = "{}"
    token: int | None = None
    model: str = ""

    def query(self) -> str:
        """The link's query string. What is at its default is left out.

        Raises:
            RequestError: the prompt does not fit into a link.
        """
        query = {"prompt": self.prompt, "tab": self.tab}
        for name, default in knobs.DEFAULTS.items():
            value = self.settings.get(name, default)
            if value != default:
                query[name] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if self.fields != "{}":
            query["fields"] = self.fields
        if self.token is not None:
            query["token"] = str(self.token)
        if self.model:
            query["model"] = self.model
        encoded = urlencode(query)
        if len(encoded) > MAX_CHARACTERS:
            raise RequestError(
                f"the link would have {len(encoded):,} characters, at most {MAX_CHARACTERS:,} work"
            )
        return encoded


def parse(query: Mapping[str, str]) -> Link:
    """The Link of a query string taken apart.

    Raises:
        RequestError: a value in it is malformed or out of range.
    """
    settings = dict(knobs.DEFAULTS)
    for name in knobs.DEFAULTS:
        if name in query:
            settings[name] = _setting(name, query[name])
    knobs.request(query.get("prompt") or "-", settings, "")
    token = query.get("token")
    if token is not None and not token.isdecimal():
        raise RequestError(f"token in the link must be a whole number, got {token!r}")
    return Link(
        prompt=query.get("prompt", ""),
        tab=query.get("tab", "inspect"),
        settings=settings,
        fields=query.get("fields", "{}"),
        token=None if token is None else int(token[:9]),
        model=query.get("model", ""),
    )


def _setting(name: str, text: str) -> Any:
    if name == "order" and text in ORDERS:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise RequestError(f"{name} in the link cannot be read: {text[:80]!r}") from None
    return list(completed(value)) if name == "order" and isinstance(value, list) else value
