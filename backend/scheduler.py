"""The step loop: advances every run to its next forward and packs all of them into one model call.

Single-threaded. Runs are served in the order they arrived. One whose tokens do not fit into the pool waits;
if the pool runs dry in mid-run, the youngest run gives its blocks back and is recomputed later, which
gives the same text, since neither logits nor noise depend on what else runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from backend.decoding.forward import Forward, Strategy
from backend.errors import OutOfBlocks, PlaygroundError
from backend.events import (
    BlocksChanged,
    Event,
    Finished,
    FinishReason,
    Preempted,
    Prefilled,
    SampleFinished,
    SampleSelected,
    TokenDecoded,
    Waiting,
)
from backend.kv.block_manager import BlockManager
from backend.model.runner import ModelRunner, Piece
from backend.sequence import Sequence

# Prompt tokens computed per step: short enough that a cancel or a neighbour's next token never waits
# long behind somebody's long prompt.
PREFILL_TOKENS_PER_STEP = 256

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Run:
    """One request in the loop; `emit` receives its events as they happen."""

    strategy: Strategy
    emit: Callable[[Event], None]
    num_prompt_tokens: int
    use_cache: bool = True
    submitted: float = field(default_factory=time.perf_counter)
    pending: Forward | None = None
    logits: dict[Sequence, list[Tensor]] = field(default_factory=dict)
    prefilling: bool = True
    waiting_for: int = 0
    done: bool = False
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    prefill_seconds: float = 0.0
    first_token_time: float | None = None
    last_token_time: float = 0.0
    sample_reasons: dict[int, FinishReason] = field(default_factory=dict)
    selected: int = 0

    def take_logits(self) -> list[Tensor]:
        """The logits of the pending forward, in the order of its sequences."""
        assert self.pending is not None
        return [torch.cat(self.logits[sequence]) for sequence in self.pending.sequences]

    def report(self, event: Event) -> None:
        """Stamp an event, count it and pass it on."""
        now = time.perf_counter() - self.submitted
        if isinstance(event, TokenDecoded):
            self.num_output_tokens += 1
            self.first_token_time = now if self.first_token_time is None else self.first_token_time
            self.last_token_time = now
        elif isinstance(event, SampleFinished):
            self.sample_reasons[event.sample] = event.reason
        elif isinstance(event, SampleSelected):
            self.selected = event.sample
        self.emit(replace(event, time=now))

    def finished(self, reason: FinishReason, message: str = "") -> Finished:
        first = self.first_token_time
        decoding = self.last_token_time - first if first is not None else 0.0
        rate = (self.num_output_tokens - 1) / decoding if decoding > 0 else None
        return Finished(
            reason=reason,
            message=message,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self.num_output_tokens,
            time_to_first_token=first,
            prefill_seconds=self.prefill_seconds,
            decode_seconds=decoding,
            tokens_per_second=rate,
        )


@dataclass(frozen=True)
class _Part:
    """One piece of this step's model call and whose it is."""

    run: Run
    sequence: Sequence
    piece: Piece
    num_tokens: int  # length of the computed sequence afterwards


class Scheduler:
    """Runs strategies over one model and one pool."""

    def __init__(self, runner: ModelRunner, blocks: BlockManager):
        self.blocks = blocks
        self._runner = runner
        self._waiting: list[Run] = []
        self._running: list[Run] = []

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._running)

    def add(self, run: Run) -> None:
        """Take a run in; it starts at the next step."""
        self._advance(run, None)
        if not run.done:
            self._waiting.append(run)

    def cancel(self, run: Run) -> None:
        """End a run and give its blocks back; nothing happens if it has ended already."""
        if not run.done:
            self._end(run, "cancelled")

    def end_all(self, reason: FinishReason, message: str = "") -> None:
        """End every run that is waiting or running."""
        for run in (*self._waiting, *self._running):
            self._end(run, reason, message)

    @torch.inference_mode()
    def step(self) -> None:
        """Admit what fits, do one model call, and hand every run its logits."""
        self._admit()
        parts = self._plan()
        if not parts:
            return
        started = time.perf_counter()
        results = self._forward(parts)
        seconds = time.perf_counter() - started
        self._deliver(parts, results, seconds)

    def _admit(self) -> None:
        self._waiting.sort(key=lambda run: run.submitted)
        while self._waiting:
            run = self._waiting[0]
            if not self._fits(run):
                return
            self._running.append(self._waiting.pop(0))
        self._running.sort(key=lambda run: run.submitted)

    def _fits(self, run: Run) -> bool:
        """Whether all tokens of the pending forward have room, beside one block for each running sequence."""
        assert run.pending is not None
        if not run.use_cache:
            return True
        for sequence in run.pending.sequences:
            if not sequence.block_table:
                cached = self.blocks.reuse(sequence, len(sequence) - run.pending.num_logits)
                run.num_cached_tokens = max(run.num_cached_tokens, cached)
        needed = sum(self.blocks.num_needed(sequence, len(sequence)) for sequence in run.pending.sequences)
        spare = sum(len(other.pending.sequences) for other in self._running if other.pending)
        if needed + spare <= self.blocks.num_free_blocks:
            self._report_changes(run)
            return True
        for sequence in run.pending.sequences:
            self.blocks.free(sequence)
        self._report_changes(run)
        if run.waiting_for != needed:
            run.waiting_for = needed
            run.report(Waiting(needed, self.blocks.num_free_blocks))
        return False

    def _plan(self) -> list[_Part]:
        parts: list[_Part] = []
        budget = PREFILL_TOKENS_PER_STEP
        for run in list(self._running):
            if run not in self._running:  # preempted for an older one within this loop
                continue
            try:
                planned = self._parts(run, budget)
            except OutOfBlocks:
                self._preempt(run)
                continue
            parts.extend(planned)
            budget -= sum(len(part.piece.token_ids) for part in planned if run.prefilling)
        return parts

    def _parts(self, run: Run, budget: int) -> list[_Part]:
        """This step's pieces of one run, with room reserved; younger runs may lose theirs for it."""
        assert run.pending is not None
        if not run.use_cache:
            return [self._uncached_part(run, sequence) for sequence in run.pending.sequences]
        parts = []
        for sequence in run.pending.sequences:
            missing = len(sequence) - sequence.num_computed_tokens
            count = min(missing, max(budget, 0)) if run.prefilling else missing
            if count <= 0:
                continue
            budget -= count
            end = sequence.num_computed_tokens + count
            self._reserve(run, sequence, end)
            first_wanted = max(sequence.num_computed_tokens, len(sequence) - run.pending.num_logits)
            new = sequence.token_ids[sequence.num_computed_tokens : end]
            num_logits = max(0, end - first_wanted)
            piece = Piece(new, sequence.num_computed_tokens, sequence.block_table, num_logits)
            parts.append(_Part(run, sequence, piece, end))
        return parts

    def _uncached_part(self, run: Run, sequence: Sequence) -> _Part:
        assert run.pending is not None
        piece = Piece(list(sequence.token_ids), 0, None, run.pending.num_logits)
        return _Part(run, sequence, piece, len(sequence))

    def _reserve(self, run: Run, sequence: Sequence, num_tokens: int) -> None:
        """Room for a sequence, at the price of younger runs if need be.

        Raises:
            OutOfBlocks: the run itself is the youngest.
        """
        while self.blocks.num_needed(sequence, num_tokens) > self.blocks.num_free_blocks:
            youngest = self._running[-1]
            if youngest is run:
                raise OutOfBlocks("no younger run to take blocks from")
            self._preempt(youngest)
        self._runner.copy_blocks(self.blocks.reserve(sequence, num_tokens))
        self._report_changes(run)

    def _preempt(self, run: Run) -> None:
        assert run.pending is not None
        num_tokens = sum(sequence.num_computed_tokens for sequence in run.pending.sequences)
        for sequence in run.pending.sequences:
            self.blocks.free(sequence)
        self._running.remove(run)
        self._waiting.append(run)
        run.logits.clear()
        run.prefilling = True
        run.waiting_for = 0
        self._report_changes(run)
        run.report(Preempted(num_tokens))

    def _forward(self, parts: list[_Part]) -> list[Tensor | Exception]:
        """Logits per part. Where the call fails, each run is tried alone, so that one cannot fail another."""
        try:
            return list(self._runner.forward([part.piece for part in parts]))
        except Exception as error:
            if len({part.run for part in parts}) == 1:
                return [error] * len(parts)
        results: dict[_Part, Tensor | Exception] = {}
        for run in {part.run: None for part in parts}:
            own = [part for part in parts if part.run is run]
            results.update(zip(own, self._forward(own), strict=True))
        return [results[part] for part in parts]

    def _deliver(self, parts: list[_Part], results: list[Tensor | Exception], seconds: float) -> None:
        share = seconds / sum(len(part.piece.token_ids) for part in parts)
        for part, result in zip(parts, results, strict=True):
            if part.run.done:
                continue
            if isinstance(result, Exception):
                self._fail(part.run, result)
                continue
            if part.run.use_cache:
                self.blocks.commit(part.sequence, part.num_tokens)
            part.run.logits.setdefault(part.sequence, []).append(result)
            if part.run.prefilling:
                self._report_prefill(part, share * len(part.piece.token_ids))
        for run in {part.run: None for part in parts}:
            if not run.done and self._complete(run):
                self._advance(run, run.take_logits())

    def _complete(self, run: Run) -> bool:
        assert run.pending is not None
        if not run.use_cache:
            return True
        return all(len(sequence) == sequence.num_computed_tokens for sequence in run.pending.sequences)

    def _report_prefill(self, part: _Part, seconds: float) -> None:
        part.run.prefill_seconds += seconds
        cached = part.sequence.num_cached_tokens
        part.run.report(Prefilled(len(part.sequence), part.num_tokens, cached, seconds))

    def _advance(self, run: Run, logits: list[Tensor] | None) -> None:
        """Run a strategy on to its next forward, or to its end."""
        run.logits = {}
        run.prefilling = logits is None
        try:
            item = next(run.strategy) if logits is None else run.strategy.send(logits)
            while not isinstance(item, Forward):
                self._report_changes(run)
                run.report(item)
                item = next(run.strategy)
            run.pending = item
        except StopIteration:
            self._end(run, run.sample_reasons.get(run.selected, "length"))
        except Exception as error:
            self._fail(run, error)
        self._report_changes(run)

    def _fail(self, run: Run, error: Exception) -> None:
        if isinstance(error, PlaygroundError):
            self._end(run, "error", str(error))
            return
        log.error("a run failed", exc_info=error)
        self._end(run, "error", f"{type(error).__name__}: {error}")

    def _end(self, run: Run, reason: FinishReason, message: str = "") -> None:
        run.done = True
        run.strategy.close()
        for place in (self._waiting, self._running):
            if run in place:
                place.remove(run)
        self._report_changes(run)
        run.report(run.finished(reason, message))

    def _report_changes(self, run: Run) -> None:
        for change in self.blocks.drain_journal():
            run.report(
                BlocksChanged(change.operation, change.sequence_id, change.block_ids, change.num_free_blocks)
            )
