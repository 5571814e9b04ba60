"""Calls in threads of their own, for fair turns within one process.

A thread that ran OpenMP keeps its helper threads for as long as it lives, and libgomp lets nobody spin while
more threads are about than cores: whoever is measured then pays for the other. A thread that has ended
leaves none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def in_thread(call: Callable[[], Any]) -> Any:
    """The value of `call`, computed in a thread that ends with it."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((True, call()))
        except Exception as error:
            outcome.append((False, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    succeeded, value = outcome[0]
    if not succeeded:
        raise value
    return value
