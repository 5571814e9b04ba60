"""What the KV cache tab holds for one visitor: the requests, the pool shown, the reader's place."""

from __future__ import annotations

import threading
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from backend.errors import PlaygroundError
from backend.events import PoolChange
from backend.pool_view import PoolView, fold
from backend.pool_watch import PoolWatch
from backend.protocol import EngineProtocol
from ui.runs.crowd import Crowd, Member

MAX_HISTORY = 60_000  # changes kept for the replay; a longer run starts its history anew


@dataclass
class KvState:
    """See the module.

    Attributes:
        sets: name of the set of requests that fills the list. buffer: tokens of a contiguous buffer.
        engine: whose pool is watched. changes: what happened since then. told: those that the log tells.
        order: the sequences of each run in the order they appeared.
        at: how many changes the replay shows; None follows the newest. turn: when the reader last chose that.
        block, member: what the reader selected. mark: a block another tab points at, and what lies there.
        lock: held while the pool is brought up to date or drawn.
    """

    crowd: Crowd = field(default_factory=Crowd)
    sets: str = ""
    buffer: int = 2048
    engine: EngineProtocol | None = None
    watch: PoolWatch | None = None
    changes: list[PoolChange] = field(default_factory=list)
    told: list[int] = field(default_factory=list)
    order: dict[int, list[int]] = field(default_factory=dict)
    at: int | None = None
    turn: int = 0
    block: int | None = None
    member: str = ""
    mark: dict[str, Any] | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)

    def begin_watch(self, engine: EngineProtocol, visitor: str) -> None:
        """Show that engine's pool from now on."""
        self.engine, self.watch = engine, engine.watch_pool(visitor)
        self.changes, self.told, self.at, self.order = [], [], None, {}
        for sequence in self.watch.start.sequences:
            self.order.setdefault(sequence.run, []).append(sequence.sequence)

    def refresh(self) -> None:
        """Take in what happened since the last call."""
        for change in self.watch.take() if self.watch else ():
            if change.sequence >= 0:
                known = self.order.setdefault(change.run, [])
                if change.sequence not in known:
                    known.append(change.sequence)
            if change.operation != "write":
                self.told.append(len(self.changes))
            self.changes.append(change)

    @property
    def live(self) -> PoolView | None:
        """The pool as of the last `refresh`."""
        return self.watch.pool if self.watch else None

    @property
    def is_full(self) -> bool:
        """Whether the history is too long to go on with, or has a gap."""
        return len(self.changes) > MAX_HISTORY or (self.watch is not None and self.watch.lost)

    @property
    def position(self) -> int:
        return len(self.changes) if self.at is None else min(self.at, len(self.changes))

    def shown(self) -> PoolView | None:
        """The pool at the replay's place."""
        if self.at is None or self.watch is None or self.at >= len(self.changes):
            return self.live
        return fold(self.watch.start, self.changes[: self.at])

    def log(self, count: int) -> list[tuple[int, PoolChange]]:
        """The last told changes before the replay's place, each with its number from 1."""
        end = bisect_right(self.told, self.position - 1)
        return [(place + 1, self.changes[place]) for place in self.told[max(0, end - count) : end]]

    def member_of(self, run: int) -> tuple[int, Member] | None:
        """The request with that run, and its place in the list."""
        for place, member in enumerate(self.crowd.members):
            if member.run == run:
                return place, member
        return None

    def name(self, run: int, sequence: int) -> str:
        """A letter, with the sample's number behind it from the second on."""
        found = self.member_of(run)
        place = self.order.get(run, [sequence]).index(sequence)
        own = found[1].name if found else "another tab"
        return f"{own}.{place + 1}" if place else own

    @property
    def chosen(self) -> Member | None:
        """The request whose text is shown: the selected one, else the first."""
        members = self.crowd.members
        return next(
            (member for member in members if member.name == self.member), members[0] if members else None
        )

    def find(self, name: object) -> Member:
        """The member of that name.

        Raises:
            PlaygroundError: there is none.
        """
        for member in self.crowd.members:
            if member.name == name:
                return member
        raise PlaygroundError(f"there is no request {str(name)[:20]}")
