"""How far a long stage has come: told to a callback, printed by default."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

Progress = Callable[[str, float], None]
"""Called with a stage in words and the part of that stage done, 0 to 1. A stage that cannot be measured
reports only 0, when it begins, and 1, when it has ended. May be called from a thread."""


class ConsoleProgress:
    """Prints stages to stderr: on a terminal a bar that moves, else a line as each stage begins and ends."""

    def __init__(self) -> None:
        self._stage = ""
        self._shown = -1

    def __call__(self, message: str, fraction: float) -> None:
        percent = int(100 * fraction)
        if message == self._stage and percent == self._shown:
            return
        done = fraction >= 1
        if sys.stderr.isatty():
            filled = int(20 * fraction)
            bar = "#" * filled + "." * (20 - filled)
            print(
                f"\r[{bar}] {percent:3d} %  {message}", end="\n" if done else "", file=sys.stderr, flush=True
            )
        elif message != self._stage or done:
            print(f"{message}{': done' if done else ' ...'}", file=sys.stderr, flush=True)
        self._stage, self._shown = message, percent


def size_of_files(folder: Path) -> int:
    """Bytes of all files below `folder`, 0 without one. Files may come and go meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size if path.is_file() else 0
    return total


@contextlib.contextmanager
def watch_growth(folder: Path, total: int, stage: str, report: Progress) -> Iterator[None]:
    """Report from a thread how many of `total` bytes have arrived in `folder` since the start.

    Reports 1 only after the block has ended without an error.
    """
    before = size_of_files(folder)
    ended = threading.Event()
    report(stage, 0.0)

    def watch() -> None:
        while not ended.wait(0.2):
            report(stage, min((size_of_files(folder) - before) / max(total, 1), 0.99))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    report(stage, 1.0)
