"""Several runs of an engine, one after the other, as if they were one stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from backend import Event, Request
from backend.errors import PlaygroundError
from backend.protocol import EngineProtocol, RunStream


class Series:
    """Each request starts when the one before has ended; closing ends the one that runs and starts no more.

    Attributes:
        error: why a later request could not be started; None while all is well.
    """

    def __init__(self, engine: EngineProtocol, requests: Sequence[Request]):
        """Starts the first request.

        Raises:
            RequestError: it is refused.
        """
        self._engine = engine
        self._later = list(requests[1:])
        self._lock = threading.Lock()
        self._closed = False
        self._stream: RunStream | None = engine.stream(requests[0])
        self.error: PlaygroundError | None = None

    def __iter__(self) -> Iterator[Event]:
        while self._stream is not None:
            yield from self._stream
            self._start_next()

    def _start_next(self) -> None:
        with self._lock:
            self._stream = None
            if self._later and not self._closed:
                try:
                    self._stream = self._engine.stream(self._later.pop(0))
                except PlaygroundError as error:
                    self.error = error

    def close(self) -> None:
        with self._lock:
            self._closed = True
            stream = self._stream
        if stream is not None:
            stream.close()

    def __enter__(self) -> Series:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
