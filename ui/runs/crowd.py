"""Several requests at once on one engine: started together or staggered, more added, forked or cancelled."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from backend import Event, Request, RequestError, Sample
from backend.errors import PlaygroundError
from backend.events import Preempted, Prefilled, SampleFinished, TokenDecoded, Waiting
from backend.protocol import EngineProtocol, RunStream
from backend.request import MAX_NEW_TOKENS, MAX_SAMPLES
from backend.validation import CONFIG, whole
from ui.runs.log import Log

MAX_MEMBERS = 32
CLOSING_SECONDS = 5.0


@dataclass(frozen=True)
class Ask:
    """One line of the list: what to continue, how far, and in how many samples; checked when it is run."""

    __pydantic_config__: ClassVar = CONFIG
    prompt: str
    max_new_tokens: Annotated[int, whole(1, MAX_NEW_TOKENS)] = 64
    n: Annotated[int, whole(1, MAX_SAMPLES)] = 1


@dataclass
class Member(Log):
    """One request of the list and what happened to it in the present run.

    Attributes:
        name: a letter. forked_from: the member whose text it goes on from; empty for none.
        due: seconds after the beginning at which it starts. offset: at which it was submitted.
        error: why it was refused.
    """

    name: str
    ask: Ask
    forked_from: str = ""
    due: float = 0.0
    request: Request | None = None
    stream: RunStream | None = None
    offset: float = 0.0
    error: str = ""
    cancelled: bool = False

    def reset(self, due: float) -> None:
        """Forget the last run."""
        self.due, self.offset, self.error, self.cancelled = due, 0.0, "", False
        self.request, self.stream, self.events = None, None, []

    @property
    def run(self) -> int | None:
        """The run's number in the pool's changes."""
        return self.stream.number if self.stream is not None else None

    @property
    def is_live(self) -> bool:
        return self.stream is not None and self.finished is None

    @property
    def num_tokens(self) -> int:
        """Of all samples."""
        return sum(isinstance(event, TokenDecoded) for event in self.events)

    @property
    def text(self) -> str:
        """Of sample 0; a fork's opens with what it took over."""
        return "".join(event.text for event in self.tokens)

    @property
    def state(self) -> str:
        """In a word or two."""
        if self.error:
            return "refused"
        if self.stream is None:
            return "cancelled" if self.cancelled else "not started"
        finished = self.finished
        if finished is not None:
            return finished.reason
        last = next((e for e in reversed(self.events) if not isinstance(e, SampleFinished)), None)
        if isinstance(last, Waiting):
            return f"waits for {last.num_needed_blocks} blocks"
        if isinstance(last, Preempted):
            return "preempted"
        if self.tokens:
            return "running"
        return "prefill" if isinstance(last, Prefilled) else "waiting"


class Crowd:
    """The list and its present run; iterating yields the events, each kept at its member too, until all end.

    One thread iterates; `add`, `fork` and `cancel` may be called from others meanwhile.

    Attributes:
        began: time.perf_counter() at which the run began.
    """

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.began = 0.0
        self._engine: EngineProtocol | None = None
        self._make: Callable[[Ask], Request] = lambda ask: Request(ask.prompt)
        self._arrived: queue.SimpleQueue[tuple[Member, Event | None]] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._open = False
        self._num_live = 0
        self._num_readers = 0

    def fill(self, asks: list[Ask]) -> None:
        """Replace the list; nothing may be running."""
        with self._lock:
            self.members = []
            for ask in asks:
                self.append(ask)

    def append(self, ask: Ask, forked_from: str = "") -> Member:
        """One more line at the end, not started.

        Raises:
            RequestError: the list is full.
        """
        with self._lock:
            if len(self.members) >= MAX_MEMBERS:
                raise RequestError(f"the list holds at most {MAX_MEMBERS} requests")
            taken = {member.name for member in self.members}
            name = next(name for name in _names() if name not in taken)
            member = Member(name, ask, forked_from)
            self.members.append(member)
            return member

    def begin(self, engine: EngineProtocol, make: Callable[[Ask], Request], stagger: float) -> None:
        """Start the list anew, each line `stagger` seconds after the one before; forks of the last run go.

        A line that can never fit is refused at once and has its `error` set; the others run.

        Raises:
            RequestError: a line makes no valid request; nothing was started.
        """
        with self._lock:
            kept = [member for member in self.members if not member.forked_from]
            if not kept:
                raise RequestError("the list is empty: choose a set of requests or add one")
            requests = [make(member.ask) for member in kept]
            self.members, self._engine, self._make = kept, engine, make
            self._arrived = queue.SimpleQueue()
            self._open, self._num_live, self.began = True, 0, time.perf_counter()
            for place, (member, request) in enumerate(zip(kept, requests, strict=True)):
                member.reset(place * stagger)
                member.request = request
                try:
                    engine.check_room(request)
                except PlaygroundError as error:
                    member.error = str(error)

    def add(self, ask: Ask) -> Member:
        """One more request; it starts at once if the others run.

        Raises:
            RequestError: the list is full, or the line makes no valid request.
        """
        with self._lock:
            request = self._make(ask) if self._open else None
            member = self.append(ask)
            if request is not None:
                member.request, member.due = request, time.perf_counter() - self.began
                self._start(member)
            return member

    def fork(self, member: Member) -> Member:
        """A second continuation of a running request from where its text is now, with luck of its own.

        Raises:
            RequestError: it does not run, or its text has reached its limit.
        """
        with self._lock:
            request, started = member.request, member.started
            if not self._open or not member.is_live or request is None or started is None:
                raise RequestError(f"{member.name} does not run, so there is nothing to fork")
            prefix = (*request.output_prefix, *(token.token_id for token in member.tokens))
            child = replace(
                request,
                prompt=started.prompt_token_ids,
                chat=False,
                output_prefix=prefix,
                seed=secrets.randbelow(2**31),
                strategy=Sample(),
            )
            fork = self.append(replace(member.ask, n=1), member.name)
            fork.request, fork.due = child, time.perf_counter() - self.began
            self._start(fork, member.stream)
            return fork

    def cancel(self, member: Member) -> None:
        """End one request, started or not; returns once its blocks are free."""
        with self._lock:
            member.cancelled = True
            stream = member.stream
        if stream is not None:
            stream.close()

    def remove(self, member: Member) -> None:
        """Take a line off the list; one that runs is cancelled and stays."""
        with self._lock:
            if member.is_live or self._open:
                self.cancel(member)
            elif member in self.members:
                self.members.remove(member)

    def __iter__(self) -> Iterator[Event]:
        self._num_readers += 1
        try:
            yield from self._follow()
        finally:
            self._num_readers -= 1

    def _follow(self) -> Iterator[Event]:
        while True:
            wait = self._start_due()
            if wait is None:
                return
            try:
                member, event = self._arrived.get(timeout=wait)
            except queue.Empty:
                continue
            if event is None:
                with self._lock:
                    self._num_live -= 1
                continue
            member.events.append(event)
            yield event

    def _start_due(self) -> float | None:
        """Start what is due; seconds until the next is, None once nothing is left to happen."""
        with self._lock:
            now = time.perf_counter() - self.began
            later = []
            for member in self.members:
                if member.stream is None and member.request is not None and not member.error:
                    if member.cancelled:
                        continue
                    if member.due <= now:
                        self._start(member)
                    else:
                        later.append(member.due - now)
            if not later and self._num_live == 0 and self._arrived.empty():
                self._open = False
                return None
            return min([0.25, *later])

    def _start(self, member: Member, parent: RunStream | None = None) -> None:
        assert self._engine is not None
        assert member.request is not None
        try:
            stream = self._engine.stream(member.request, parent)
        except PlaygroundError as error:
            member.error = str(error)
            return
        member.stream, member.offset = stream, stream.submitted - self.began
        self._num_live += 1
        arrived = self._arrived

        def pump() -> None:
            for event in stream:
                arrived.put((member, event))
            arrived.put((member, None))

        threading.Thread(target=pump, name="events", daemon=True).start()

    def close(self) -> None:
        """End every request and start no more; returns once whoever iterates has read their last events."""
        with self._lock:
            self._open = False
            members = list(self.members)
        for member in members:
            if member.stream is None or member.is_live:
                self.cancel(member)
        deadline = time.monotonic() + CLOSING_SECONDS
        while self._num_readers and self._num_live and time.monotonic() < deadline:
            time.sleep(0.005)

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _names() -> Iterator[str]:
    """A to Z, then A2, B2 …"""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    yield from letters
    for number in range(2, 100):
        yield from (f"{letter}{number}" for letter in letters)
