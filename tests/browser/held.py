"""What the process of the server holds, to see that nothing stays behind."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Memory that allocators keep for themselves; one kept run with its trace would be of this order.
SLACK_MEGABYTES = 48


class Held:
    """Memory and threads at the time it is made."""

    def __init__(self) -> None:
        gc.collect()
        self._megabytes = _megabytes()
        self._threads = _threads()

    def check(self, kept: float = 0) -> None:
        """Nothing of it has grown since, but for `kept` megabytes."""
        gc.collect()
        grown = _megabytes() - self._megabytes
        assert grown < kept + SLACK_MEGABYTES, f"{grown:.0f} MB more than before"
        assert _threads() <= self._threads
        print(f"memory grew by {grown:.1f} MB, {_threads()} threads")


def _megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES / 1e6


def _threads() -> int:
    """Without those that the web server keeps ready for its handlers."""
    return sum("AnyIO" not in thread.name for thread in threading.enumerate())
