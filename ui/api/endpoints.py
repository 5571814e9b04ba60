"""What the classes of endpoints share: wiring, the caller's settings, and errors that a caller can read."""

# No postponed annotations here: gradio reads the return types from the live annotation.

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr

from backend import Request
from backend.errors import PlaygroundError, RequestError
from ui import knobs
from ui.loading import Loader


class Endpoints:
    """Endpoints over the engine that `loader` provides; each public method of a subclass is one."""

    def __init__(self, loader: Loader):
        self.loader = loader

    def wire(self) -> None:
        for name in vars(type(self)):
            if not name.startswith("_"):
                gr.api(getattr(self, name), api_name=name, concurrency_limit=None)


def request(prompt: str, settings: Any) -> Request:
    """The Request of a prompt and of the caller's settings over neutral ones; no run shares its cache.

    Raises:
        RequestError: a name is not known, or a value has the wrong type or is out of range.
    """
    return knobs.request(prompt, known(settings), secrets.token_hex(16))


def known(settings: Any) -> dict[str, Any]:
    """The caller's settings over neutral ones.

    Raises:
        RequestError: a name is not known.
    """
    given = {} if settings is None else settings
    if not isinstance(given, dict):
        raise RequestError(f"settings must map names to values, got {given!r}")
    unknown = sorted(set(given) - set(knobs.DEFAULTS))
    if unknown:
        raise RequestError(
            f"settings has the unknown name {unknown[0]!r}; known: {', '.join(knobs.DEFAULTS)}"
        )
    return knobs.DEFAULTS | {"temperature": 1.0, "top_p": 1.0} | given


@contextmanager
def readable_errors() -> Iterator[None]:
    """What is refused on purpose reaches the caller as text, without a traceback.

    Raises:
        gr.Error: the text.
    """
    try:
        yield
    except PlaygroundError as error:
        raise gr.Error(str(error), print_exception=False) from None
