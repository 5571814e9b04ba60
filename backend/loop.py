"""Who turns the step loop: a thread that owns the model, or whoever waits for an event."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from backend.errors import PlaygroundError
from backend.events import Event
from backend.scheduler import Pool, Run, Scheduler

log = logging.getLogger(__name__)
T = TypeVar("T")


class Loop:
    """Turns a scheduler. Everything said to it from other threads waits in an inbox for the end of a step.

    With `inline` there is no thread: the caller that waits for an event makes the steps.
    """

    def __init__(self, scheduler: Scheduler, inline: bool):
        self._scheduler = scheduler
        self._inline = inline
        self._step_lock = threading.Lock()
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._thread_lock = threading.Lock()

    def add(self, run: Run) -> None:
        """Take a run in; a closing loop either refuses it here or ends it.

        Raises:
            PlaygroundError: the loop is closed.
        """
        with self._thread_lock:
            if self._closed:
                raise PlaygroundError("the engine is closed")
            if self._thread is None and not self._inline:
                self._thread = threading.Thread(target=self._turn_until_closed, name="engine", daemon=True)
                self._thread.start()
                # A thread that is inside torch when the interpreter goes away takes the process down.
                atexit.register(self.close)
            self._tell(lambda: self._scheduler.add(run))

    def add_pool(self, name: str, pool: Pool) -> None:
        """Make a draft model known to the scheduler."""
        self._tell(lambda: self._scheduler.add_pool(name, pool))

    def cancel(self, run: Run, ended: threading.Event) -> None:
        """Cancel a run and wait until it has `ended`."""
        self._tell(lambda: self._scheduler.cancel(run))
        if self._inline:
            with self._step_lock:
                self._read_inbox()
        else:
            ended.wait()

    def cancel_later(self, run: Run) -> None:
        """Cancel a run before the next step, without waking a loop that sleeps; never waits."""
        self._inbox.append(lambda: self._scheduler.cancel(run))

    def ask(self, question: Callable[[Scheduler], T]) -> T:
        """The answer to a question that only makes sense between two steps."""
        answers: queue.SimpleQueue[T] = queue.SimpleQueue()
        with self._thread_lock:
            has_loop = self._thread is not None and not self._closed
        if has_loop:
            self._tell(lambda: answers.put(question(self._scheduler)))
        while True:
            try:
                return answers.get(timeout=1.0 if has_loop else 0)
            except queue.Empty:
                if has_loop and not self._closed:
                    continue
            with self._step_lock:
                self._read_inbox()
                answers.put(question(self._scheduler))

    def next_event(self, events: queue.SimpleQueue[Event]) -> Event:
        """The next of a run's events, waiting or working for it."""
        if not self._inline:
            return events.get()
        while True:
            try:
                return events.get_nowait()
            except queue.Empty:
                self._turn()

    def close(self) -> None:
        """Stop; runs that still go on are cancelled."""
        with self._thread_lock:
            self._closed = True
            thread = self._thread
        atexit.unregister(self.close)
        self._wake.set()
        if thread is not None:
            thread.join()
        self._end_everything()

    def _tell(self, message: Callable[[], None]) -> None:
        self._inbox.append(message)
        self._wake.set()

    def _turn_until_closed(self) -> None:
        while not self._closed:
            self._turn()
            if self._scheduler.idle and not self._inbox:
                self._wake.wait()
                self._wake.clear()
        self._end_everything()

    def _turn(self) -> None:
        """Do what the inbox asks, then one step."""
        with self._step_lock:
            try:
                self._read_inbox()
                self._scheduler.step()
            except Exception as error:  # whatever it is, nobody may be left waiting for an event
                log.exception("the step loop failed")
                self._scheduler.end_all("error", f"{type(error).__name__}: {error}")

    def _read_inbox(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def _end_everything(self) -> None:
        with self._step_lock:
            self._read_inbox()
            self._scheduler.end_all("cancelled")
