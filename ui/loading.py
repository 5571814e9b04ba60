"""Loads the model beside the page, so that the page is there first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from backend.errors import PlaygroundError
from backend.protocol import EngineProtocol


class Loader:
    """Calls `load` once in a thread; `message` and `fraction` say how far it is.

    Attributes:
        engine: the engine, None until it is loaded.
        error: why it could not be loaded, for display; empty otherwise.
    """

    def __init__(self, load: Callable[[Callable[[str, float], None]], EngineProtocol]):
        self._load = load
        self._done = threading.Event()
        self.engine: EngineProtocol | None = None
        self.error = ""
        self.message = "Starting"
        self.fraction = 0.0

    def start(self) -> None:
        threading.Thread(target=self._run, name="model-loader", daemon=True).start()

    def _run(self) -> None:
        try:
            self.engine = self._load(self._progress)
        except PlaygroundError as error:
            self.error = str(error)
        except Exception as error:  # the page must say why there is no model, whatever the reason
            self.error = f"The model could not be loaded: {type(error).__name__}: {error}"
            raise
        finally:
            self._done.set()

    def _progress(self, message: str, fraction: float) -> None:
        self.message, self.fraction = message, fraction

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def wait(self, interval: float = 0.25) -> Iterator[str]:
        """Yield the progress line until loading has ended."""
        while not self._done.wait(interval):
            yield f"{self.message} ({self.fraction:.0%})"

    def wait_for(self) -> EngineProtocol:
        """The engine, once loading has ended.

        Raises:
            PlaygroundError: it could not be loaded.
        """
        self._done.wait()
        return self.require()

    def require(self) -> EngineProtocol:
        """The engine.

        Raises:
            PlaygroundError: it is not loaded (yet, or at all).
        """
        if self.engine is None:
            raise PlaygroundError(self.error or f"The model is still loading: {self.message}")
        return self.engine
