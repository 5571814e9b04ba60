"""Many runs of one prompt, a knob or two moved from run to run, in batches."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backend.errors import PlaygroundError, RequestError
from backend.events import Event, Finished, SampleFinished, TokenDecoded
from backend.metrics import TextMetrics, describe
from backend.protocol import EngineProtocol, RunStream
from backend.request import Request
from backend.stages import STAGES

WIDTH = 16  # runs in one batch: beyond that, a CPU gains little
MAX_RUNS = 400


@dataclass(frozen=True)
class Axis:
    """One knob and the values it takes."""

    knob: str
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.knob not in STAGES or STAGES[self.knob].neutral is None:
            raise RequestError(f"a sweep moves a number among the sampling settings, not {self.knob!r}")
        if not self.values:
            raise RequestError(f"the sweep over {self.knob} has no values")

    @classmethod
    def spaced(cls, knob: str, low: float, high: float, count: int) -> Axis:
        """`count` equal steps of a knob, both ends included; see `spaced`.

        Raises:
            RequestError: no such knob, or count is not 1 to 50.
        """
        return cls(knob, spaced(low, high, count, knob in STAGES and STAGES[knob].whole))


@dataclass(frozen=True)
class Outcome:
    """One finished run.

    Attributes:
        survivors: mean over the steps of the tokens still possible after all stages; None without stages.
        acted: per switched-on stage, the share of steps at which it changed any probability.
        error: why the run could not be made; empty otherwise.
    """

    index: int
    text: str
    reason: str
    metrics: TextMetrics
    survivors: float | None
    acted: dict[str, float]
    tokens_per_second: float | None
    error: str = ""


def spaced(low: float, high: float, count: int, whole: bool = False) -> tuple[float, ...]:
    """`count` equal steps from low to high, both included; `whole` rounds and drops doubles.

    Raises:
        RequestError: count is not 1 to 50.
    """
    if not 1 <= count <= 50:
        raise RequestError(f"a knob takes 1 to 50 values, got {count}")
    width = (high - low) / (count - 1) if count > 1 else 0.0
    values = [round(low + width * place, 6) for place in range(count)]
    return tuple(dict.fromkeys(round(value) for value in values)) if whole else tuple(dict.fromkeys(values))


def requests(base: Request, axes: Sequence[Axis], num_seeds: int) -> list[Request]:
    """Every combination of the axes' values under `num_seeds` seeds from base.seed up; the seed runs fastest.

    All combinations share their seeds, so that two of them differ by the knob alone.

    Raises:
        RequestError: a value is out of range, or there are too many runs.
    """
    if not 1 <= len(axes) <= 2:
        raise RequestError(f"a sweep has one knob or two, got {len(axes)}")
    if len({axis.knob for axis in axes}) < len(axes):
        raise RequestError(f"both knobs of the sweep are {axes[0].knob}")
    count = num_seeds
    for axis in axes:
        count *= len(axis.values)
    if not num_seeds >= 1 or count > MAX_RUNS:
        raise RequestError(f"the sweep would take {count:,} runs; 1 to {MAX_RUNS} are possible")
    combinations: list[dict[str, Any]] = [{}]
    for axis in axes:
        combinations = [{**chosen, axis.knob: value} for chosen in combinations for value in axis.values]
    seed = base.seed or 0
    return [
        # One candidate is the least that has the stages recorded.
        replace(base, sampling=replace(base.sampling, **chosen), seed=seed + place, num_candidates=1)
        for chosen in combinations
        for place in range(num_seeds)
    ]


class Sweep:
    """Runs requests, some at a time, and gives each Outcome as soon as its run has ended.

    Closing it ends the runs that go on and starts no more; iteration then ends.
    """

    def __init__(self, engine: EngineProtocol, requests: Sequence[Request], width: int = WIDTH):
        self._engine = engine
        self._waiting = deque(enumerate(requests))
        self._left = len(requests)
        self._lock = threading.Lock()
        self._closed = False
        self._running: set[RunStream] = set()
        self._ended: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
        self._workers = [
            threading.Thread(target=self._work, name="sweep", daemon=True)
            for _ in range(min(width, len(requests)))
        ]
        for worker in self._workers:
            worker.start()

    def __iter__(self) -> Iterator[Outcome]:
        going = len(self._workers)
        while going:
            outcome = self._ended.get()
            if outcome is None:
                going -= 1
            else:
                yield outcome

    def close(self) -> None:
        """End the runs that go on and start no more; returns once they have ended."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for stream in running:
            stream.cancel()
        for stream in running:
            stream.close()

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _work(self) -> None:
        try:
            while (started := self._start()) is not None:
                index, stream = started
                outcome = stream if isinstance(stream, Outcome) else fold(index, stream)
                if not isinstance(stream, Outcome):
                    with self._lock:
                        self._running.discard(stream)
                if outcome.reason != "cancelled":
                    self._ended.put(outcome)
        finally:
            self._ended.put(None)

    def _start(self) -> tuple[int, RunStream | Outcome] | None:
        with self._lock:
            if self._closed or not self._waiting:
                return None
            index, request = self._waiting.popleft()
            try:
                stream = self._engine.stream(request)
            except PlaygroundError as error:
                return index, Outcome(index, "", "error", describe([]), None, {}, None, str(error))
            self._running.add(stream)
            return index, stream


def fold(index: int, events: Iterable[Event]) -> Outcome:
    """The Outcome of a run's events; candidate tables are dropped as they come."""
    steps: list[TokenDecoded] = []
    finished: Finished | None = None
    text = ""
    for event in events:
        if isinstance(event, TokenDecoded) and event.sample == 0:
            steps.append(replace(event, candidates=None))
        elif isinstance(event, SampleFinished) and event.sample == 0:
            text = event.text
        elif isinstance(event, Finished):
            finished = event
    kept = [step.stages[-1].num_kept for step in steps if step.stages]
    return Outcome(
        index=index,
        text=text,
        reason=finished.reason if finished else "cancelled",
        metrics=describe(steps),
        survivors=sum(kept) / len(kept) if kept else None,
        acted=_acted(steps),
        tokens_per_second=finished.tokens_per_second if finished else None,
        error=finished.message if finished else "",
    )


def _acted(steps: Sequence[TokenDecoded]) -> dict[str, float]:
    counts: dict[str, int] = {}
    for step in steps:
        for outcome in step.stages:
            counts[outcome.stage] = counts.get(outcome.stage, 0) + outcome.changed
    return {stage: count / len(steps) for stage, count in counts.items()}
