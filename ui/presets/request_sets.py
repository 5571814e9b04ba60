"""Sets of requests for the KV cache tab, read from presets/kv/*.yaml and checked on load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass

from backend import SamplingParams
from backend.validation import CONFIG, choice, number
from ui.presets.files import PRESETS, Count, Line, Paragraph, PresetError, Text, checked, load
from ui.presets.lessons import claims
from ui.runs.crowd import Ask

FOLDER = PRESETS / "kv"
WHOLE = "whole"
POOLS = (WHOLE, "48", "64", "128", "512")


@dataclass(frozen=True, config=CONFIG)
class RequestSet:
    """Requests to be run together, as a lesson: see Lesson for its texts and claims.

    Attributes:
        pool: which pool, one of POOLS. stagger: seconds between starts. buffer: tokens of the contiguous
            buffer they are compared with.
        requests: fields of an Ask each; a prompt may be a list of names of `texts` to be joined.
    """

    name: str
    position: Count
    title: Line
    question: Paragraph
    look_for: Paragraph
    answer: Paragraph
    shows: Sequence[Any]
    pool: Annotated[str, choice(*POOLS), BeforeValidator(str)]
    stagger: Annotated[float, number(0, 60)]
    buffer: Count
    requests: list[dict[str, Any]]
    texts: dict[str, Text] = field(default_factory=dict)
    settings: SamplingParams = field(default_factory=SamplingParams)
    tab: ClassVar[str] = "kv"
    seed: ClassVar[int] = 1
    chat: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.requests:
            raise PresetError("requests must be a list of at least one")
        _ = self.asks  # a wrong one is refused here
        object.__setattr__(self, "shows", claims(self.tab, self.shows))

    @property
    def asks(self) -> tuple[Ask, ...]:
        """The requests, their prompts put together."""
        return tuple(_ask(f"request {place}", row, self.texts) for place, row in enumerate(self.requests, 1))


def load_request_sets(folder: Path = FOLDER) -> dict[str, RequestSet]:
    """All sets of a folder by name; errors as of `load`."""
    return load(folder, RequestSet)


def _ask(place: str, row: dict[str, Any], texts: Mapping[str, str]) -> Ask:
    prompt = row.get("prompt")
    if isinstance(prompt, list):
        unknown = [name for name in prompt if name not in texts]
        if unknown:
            raise PresetError(f"{place}: no text is called {unknown[0]!r}")
        row = row | {"prompt": "\n".join(texts[name].strip() for name in prompt)}
    return checked(Ask, row, place)
