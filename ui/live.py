"""Live events of a run in small batches, so that a page can be redrawn at its own pace."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

from backend import Event, EventStream
from backend.events import Finished


def batches(stream: EventStream, period: float = 0.05) -> Iterator[list[Event]]:
    """Yield the events of about `period` seconds at a time, until Finished.

    A list is empty while nothing happens, so the consumer gets control several times a second and can
    stop a run that only waits. Closing this iterator closes the stream: the run ends and its blocks are free.
    """
    arrived: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def pump() -> None:
        for event in stream:
            arrived.put(event)

    threading.Thread(target=pump, name="events", daemon=True).start()
    try:
        finished = False
        while not finished:
            batch = _collect(arrived, period)
            finished = any(isinstance(event, Finished) for event in batch)
            yield batch
    finally:
        stream.close()


def _collect(arrived: queue.SimpleQueue[Event], period: float) -> list[Event]:
    """What arrives within `period` of the first event; at most 4 periods of silence."""
    batch: list[Event] = []
    deadline = time.monotonic() + 4 * period
    while (left := deadline - time.monotonic()) > 0:
        try:
            event = arrived.get(timeout=left)
        except queue.Empty:
            break
        if not batch:
            deadline = time.monotonic() + period
        batch.append(event)
        if isinstance(event, Finished):
            break
    return batch
