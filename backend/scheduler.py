"""The step loop: advances every run to its next forward and packs all of them into one model call.

Single-threaded. Runs are served in the order they arrived. One whose tokens do not fit into the pool waits;
if the pool runs dry in mid-run, the youngest run gives its blocks back and is recomputed later, which
gives the same text, since neither logits nor noise depend on what else runs.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from backend.decoding.forward import TARGET, Forward, Strategy
from backend.errors import OutOfBlocks, PlaygroundError
from backend.events import (
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
from backend.pool_watch import PoolWatch
from backend.sequence import Sequence

# Prompt tokens computed per step: short enough that a cancel or a neighbour's next token never waits
# long behind somebody's long prompt.
PREFILL_TOKENS_PER_STEP = 256

log = logging.getLogger(__name__)
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Pool:
    """A model, its cache, and the bookkeeping of that cache."""

    runner: ModelRunner
    blocks: BlockManager
    copies: dict[int, int] = field(default_factory=dict, compare=False)  # source by copy, not yet done

    def copy_later(self, pairs: list[tuple[int, int]]) -> None:
        """Note (source, copy) pairs of blocks; one call for all beams is far quicker than one for each."""
        if any(source in self.copies for source, _ in pairs):
            self.copy_now()
        self.copies.update((copy, source) for source, copy in pairs)

    def copy_now(self) -> None:
        """Copy what was noted. A block given to someone else meanwhile holds nothing of theirs yet."""
        self.runner.copy_blocks([(source, copy) for copy, source in self.copies.items()])
        self.copies.clear()


@dataclass(eq=False)
class Run:
    """One request in the loop; `emit` receives its events as they happen.

    `held` are the sequences it may have blocks for, and in which pool. `parent` is a run whose blocks it
    shares where that still goes on when this one is admitted.
    """

    strategy: Strategy
    emit: Callable[[Event], None]
    num_prompt_tokens: int
    use_cache: bool = True
    submitted: float = field(default_factory=time.perf_counter)
    pending: Forward | None = None
    held: dict[Sequence, Pool] = field(default_factory=dict)
    logits: dict[Sequence, list[Tensor]] = field(default_factory=dict)
    hidden: dict[Sequence, list[Tensor]] = field(default_factory=dict)
    prefilling: bool = True
    was_preempted: bool = False
    waiting_for: int = 0
    done: bool = False
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    prefill_seconds: float = 0.0
    first_token_time: float | None = None
    last_token_time: float = 0.0
    sample_reasons: dict[int, FinishReason] = field(default_factory=dict)
    selected: int = 0
    parent: Run | None = None
    number: int = field(default_factory=lambda: next(_numbers))

    @property
    def wanted(self) -> Forward:
        """The forward the strategy waits for."""
        assert self.pending is not None
        return self.pending

    def want(self, forward: Forward, pool: Pool) -> None:
        """The strategy waits for this forward over this pool; sequences without blocks are let go."""
        self.pending = forward
        self.held = {sequence: place for sequence, place in self.held.items() if sequence.block_table}
        self.held.update(dict.fromkeys(forward.sequences, pool))
        for sequence in forward.sequences:
            sequence.run = self.number

    @property
    def starts_afresh(self) -> bool:
        """Whether a sequence of the pending forward has nothing in the cache yet: a prompt is to be read."""
        if not self.use_cache:
            return self.num_output_tokens == 0
        return any(not sequence.block_table for sequence in self.wanted.sequences)

    def take_results(self) -> list[Tensor]:
        """What the pending forward asked for, in the order of its sequences."""
        asked = (self.logits, self.hidden) if self.wanted.hidden_states else (self.logits,)
        return [torch.cat(found[sequence]) for found in asked for sequence in self.wanted.sequences]

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
        """Its last event, with times in seconds and tokens per second after the first token."""
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


@dataclass(frozen=True, eq=False)
class _Part:
    """One piece of this step's model calls and whose it is."""

    run: Run
    pool: Pool
    sequence: Sequence
    piece: Piece
    num_tokens: int  # length of the computed sequence afterwards


_Result = tuple[Tensor, Tensor | None]  # logits and hidden states of a part


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch on one core. Sampling is many small operations: waiting for a second core at each costs
    more than it brings, and a hundred times more while that core is busy with the page or a browser.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


class Scheduler:
    """Runs strategies over one target model and any number of draft models."""

    def __init__(self, target: Pool):
        self._pools = {TARGET: target}
        self._waiting: list[Run] = []
        self._running: list[Run] = []
        # A watch ends when whoever reads it lets go of it.
        self._watches: weakref.WeakSet[PoolWatch] = weakref.WeakSet()

    @property
    def idle(self) -> bool:
        """Whether no run waits or goes on."""
        return not (self._waiting or self._running)

    def add_pool(self, name: str, pool: Pool) -> None:
        """Make a draft model known under the name that forwards use."""
        self._pools[name] = pool

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

    def watch(self, visitor: str) -> PoolWatch:
        """A watch on the target's pool that shows the runs of this visitor."""
        self._tell_watches()
        blocks = self._pools[TARGET].blocks
        living = [
            (run.number, sequence)
            for run in (*self._waiting, *self._running)
            for sequence, pool in run.held.items()
            if pool.blocks is blocks
        ]
        watch = PoolWatch(visitor, blocks, living)
        self._watches.add(watch)
        return watch

    @torch.inference_mode()
    def step(self) -> None:
        """Admit what fits, do one call per model in demand, and hand every run its logits."""
        self._admit()
        parts = self._plan()
        results: dict[_Part, _Result | Exception] = {}
        for pool in self._pools.values():
            own = [part for part in parts if part.pool is pool]
            if own:
                started = time.perf_counter()
                results.update(self._forward(pool, own))
                self._count_prefill(own, time.perf_counter() - started)
        with _one_thread():
            self._deliver(parts, results)
        self._tell_watches()

    def _admit(self) -> None:
        self._waiting.sort(key=lambda run: run.submitted)
        while self._waiting and self._fits(self._waiting[0]):
            self._running.append(self._waiting.pop(0))
        self._running.sort(key=lambda run: run.submitted)

    def _fits(self, run: Run) -> bool:
        """Whether all tokens of the pending forward have room.

        That is beside what those already admitted have yet to take, and one block for each running sequence.
        """
        if not run.use_cache:
            return True
        blocks, (first, *others) = self._pool(run).blocks, run.wanted.sequences
        needed = self._num_needed(run, first) + blocks.num_own_blocks(first, others)
        free = blocks.num_free_blocks - sum(self._num_outstanding(other, blocks) for other in self._running)
        fits = needed + sum(len(other.wanted.sequences) for other in self._running) <= free
        if fits:
            self._reuse(run, first)
        elif run.waiting_for != needed:
            run.waiting_for = needed
            run.report(Waiting(needed, free))
        return fits

    def _num_outstanding(self, run: Run, blocks: BlockManager) -> int:
        """Blocks of this pool that a run already admitted is yet to reserve for its prompt."""
        if not (run.prefilling and run.use_cache) or self._pool(run).blocks is not blocks:
            return 0
        first, *others = run.wanted.sequences
        fresh = [sequence for sequence in others if not sequence.block_table]
        begun = [sequence for sequence in run.wanted.sequences if sequence not in fresh]
        needed = sum(blocks.num_needed(sequence, len(sequence)) for sequence in begun)
        return needed + blocks.num_own_blocks(first, fresh)

    def _num_needed(self, run: Run, sequence: Sequence) -> int:
        """Free blocks that the sequence would take, those it finds in the cache included."""
        blocks = self._pool(run).blocks
        parent = self._parent_of(run, sequence)
        if sequence.block_table:
            return blocks.num_needed(sequence, len(sequence))
        if parent is not None and (common := blocks.num_common(sequence, parent)):
            copied = common % blocks.block_size > 0
            return blocks.num_blocks_for(len(sequence)) - blocks.num_blocks_for(common) + copied
        limit = len(sequence) - run.wanted.num_logits
        found = blocks.find(sequence.token_ids[: max(0, limit)], sequence.salt)
        in_use = sum(blocks.ref_count(block_id) > 0 for block_id in found)
        return blocks.num_blocks_for(len(sequence)) - in_use

    def _reuse(self, run: Run, sequence: Sequence) -> None:
        """Let a sequence without blocks start from what is in the cache."""
        if not sequence.block_table:
            blocks = self._pool(run).blocks
            cached = self._share(run, sequence) or blocks.reuse(
                sequence, len(sequence) - run.wanted.num_logits
            )
            # What a preempted run finds is its own; what a draft finds is not the target's.
            if not run.was_preempted and run.wanted.model == TARGET:
                run.num_cached_tokens = cached

    def _share(self, run: Run, sequence: Sequence) -> int:
        """Start a forked run from its parent's blocks, the last one included; the tokens covered."""
        parent = self._parent_of(run, sequence)
        return 0 if parent is None else self._pool(run).blocks.share(sequence, parent)

    def _parent_of(self, run: Run, sequence: Sequence) -> Sequence | None:
        """Of the sequences of the run it was forked from, the one that has most in common with this one."""
        if run.parent is not None and run.parent.done:
            run.parent = None
        if run.parent is None or run.wanted.model != TARGET or run.wanted.num_logits != 1:
            return None
        blocks = self._pool(run).blocks
        others = [
            other
            for other, pool in run.parent.held.items()
            if pool.blocks is blocks and other.salt == sequence.salt
        ]
        return max(others, key=lambda other: blocks.num_common(sequence, other), default=None)

    def _pool(self, run: Run) -> Pool:
        return self._pools[run.wanted.model]

    def _plan(self) -> list[_Part]:
        """This step's pieces, oldest run first; room is reserved for all of them."""
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
        """This step's pieces of one run; younger runs may lose their blocks for it.

        Raises:
            OutOfBlocks: the run is itself the youngest.
        """
        pool, pending = self._pool(run), run.wanted
        parts = []
        for sequence in pending.sequences:
            if not run.use_cache:
                asked = (pending.num_logits, sequence.is_long, pending.hidden_states)
                piece = Piece(list(sequence.token_ids), 0, None, *asked)
                parts.append(_Part(run, pool, sequence, piece, len(sequence)))
                continue
            if run.prefilling:
                self._reuse(run, sequence)
            start = sequence.num_computed_tokens
            missing = len(sequence) - start
            end = start + (min(missing, max(budget, 0)) if run.prefilling else missing)
            if end > start:
                budget -= end - start
                self._reserve(run, sequence, end)
                num_logits = max(0, end - max(start, len(sequence) - pending.num_logits))
                asked = (num_logits, sequence.is_long, pending.hidden_states)
                piece = Piece(sequence.token_ids[start:end], start, sequence.block_table, *asked)
                parts.append(_Part(run, pool, sequence, piece, end))
                if run.prefilling:
                    # One at a time: once this one is in the cache, the next finds what they share.
                    break
        return parts

    def _reserve(self, run: Run, sequence: Sequence, num_tokens: int) -> None:
        """Room for a sequence, at the price of younger runs if need be.

        Raises:
            OutOfBlocks: the run is itself the youngest.
        """
        pool = self._pool(run)
        while pool.blocks.num_needed(sequence, num_tokens) > pool.blocks.num_free_blocks:
            youngest = self._running[-1]
            if youngest is run:
                raise OutOfBlocks("no younger run to take blocks from")
            self._preempt(youngest)
        pool.copy_later(pool.blocks.reserve(sequence, num_tokens))

    def _preempt(self, run: Run) -> None:
        """Take every block of a run, in all pools; its pending forward will compute all of it anew."""
        num_tokens = sum(sequence.num_computed_tokens for sequence in run.wanted.sequences)
        self._pools[TARGET].blocks.note_preempted(run.wanted.sequences[0])
        for sequence, pool in run.held.items():
            pool.blocks.free(sequence)
        self._running.remove(run)
        self._waiting.append(run)
        run.logits.clear()
        run.hidden.clear()
        run.prefilling = run.was_preempted = True
        run.waiting_for = 0
        run.report(Preempted(num_tokens))

    def _forward(self, pool: Pool, parts: list[_Part]) -> dict[_Part, _Result | Exception]:
        """The results. Where the call fails, each run is tried alone, so that one cannot fail another."""
        try:
            pool.copy_now()
            found = iter(pool.runner.forward([part.piece for part in parts]))
            logits = [next(found) for _ in parts]
            hidden = [next(found) if part.piece.hidden_states else None for part in parts]
            return dict(zip(parts, zip(logits, hidden, strict=True), strict=True))
        except Exception as error:
            runs = {part.run: None for part in parts}
            if len(runs) == 1:
                return dict.fromkeys(parts, error)
        results: dict[_Part, _Result | Exception] = {}
        for run in runs:
            results.update(self._forward(pool, [part for part in parts if part.run is run]))
        return results

    def _count_prefill(self, parts: list[_Part], seconds: float) -> None:
        """Charge each prompt its share of a call, by tokens."""
        total = sum(len(part.piece.token_ids) for part in parts)
        for part in parts:
            if part.run.prefilling and part.run.wanted.model == TARGET:
                share = seconds * len(part.piece.token_ids) / total
                part.run.prefill_seconds += share
                cached = part.sequence.num_cached_tokens
                part.run.report(Prefilled(len(part.sequence), part.num_tokens, cached, share))

    def _deliver(self, parts: list[_Part], results: dict[_Part, _Result | Exception]) -> None:
        for part in parts:
            result = results[part]
            if part.run.done:
                continue
            if isinstance(result, Exception):
                self._fail(part.run, result)
                continue
            if part.run.use_cache:
                part.pool.blocks.commit(part.sequence, part.num_tokens)
            logits, hidden = result
            part.run.logits.setdefault(part.sequence, []).append(logits)
            if hidden is not None:
                part.run.hidden.setdefault(part.sequence, []).append(hidden)
        for run in {part.run: None for part in parts}:
            if not run.done and self._complete(run):
                self._advance(run, run.take_results())

    def _complete(self, run: Run) -> bool:
        if not run.use_cache:
            return True
        return all(len(sequence) == sequence.num_computed_tokens for sequence in run.wanted.sequences)

    def _advance(self, run: Run, logits: list[Tensor] | None) -> None:
        """Run a strategy on to its next forward, or to its end."""
        run.logits, run.hidden = {}, {}
        try:
            item = next(run.strategy) if logits is None else run.strategy.send(logits)
            while not isinstance(item, Forward):
                run.report(item)
                item = next(run.strategy)
            run.want(item, self._pools[item.model])
            run.prefilling = run.starts_afresh
        except StopIteration:
            self._end(run, run.sample_reasons.get(run.selected, "length"))
        except Exception as error:
            self._fail(run, error)

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
        self._tell_watches()  # first: whoever reads the end looks at the pool
        run.report(run.finished(reason, message))

    def _tell_watches(self) -> None:
        """Pass on what happened to the target's blocks; those of drafts are not shown."""
        for name, pool in self._pools.items():
            for change in pool.blocks.drain_journal():
                for watch in self._watches if name == TARGET else ():
                    watch.add(change)
