"""One line of output: from chosen tokens to events, and when it ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from backend.decoding.forward import Context
from backend.events import Event, FinishReason, Judged, SampleFinished, TokenDecoded
from backend.grammar.constraint import Constraint
from backend.sampling.pipeline import Choice
from backend.sequence import Sequence
from backend.text import OutputText, Released


class Lane:
    """One sample while it grows.

    Tokens whose text may still turn out to be part of a stop string are held back; text, ids and rows
    always end at the same token.

    Attributes:
        num_released: tokens shown so far. cum_logprob: sum of the model's log-probabilities of those.
    """

    def __init__(self, context: Context, sequence: Sequence, sample: int):
        self.sequence = sequence
        self.sample = sample
        self.finish_reason: FinishReason | None = None
        self._context = context
        self._text = OutputText(context.vocabulary, context.request.stop, context.request.output_prefix)
        self._held: deque[TokenDecoded] = deque()
        self.num_released = 0
        self.cum_logprob = 0.0

    @property
    def text(self) -> str:
        """What is shown so far."""
        return self._text.text

    @property
    def finished(self) -> bool:
        """Whether its text has ended, for whatever reason."""
        return self.finish_reason is not None

    def accept(self, choice: Choice) -> Iterator[Event]:
        """Append a drawn token; yields the rows that are final by now, and SampleFinished at the end."""
        ends = self._context.end_after(self.sequence, choice.token_id)
        yield from self.record(choice)
        if self.finished:
            yield from self._finished()
        elif (reason := ends or self._limit_reached()) is not None:
            yield from self.finish(reason)

    def record(self, choice: Choice, forced: bool = False) -> Iterator[Event]:
        """Append a token whatever the limits; only a stop string can end the lane."""
        self._held.append(self._row(choice, forced))
        self.sequence.append(choice.token_id)
        yield from self._release(self._text.push(choice.token_id), None)

    def finish(
        self, reason: FinishReason, cum_logprob: float | None = None, score: float | None = None
    ) -> Iterator[Event]:
        """No token follows: release what is held back. A search passes its own sum and score."""
        yield from self._release(self._text.finish(), reason)
        yield from self._finished(cum_logprob, score)

    def _finished(self, cum_logprob: float | None = None, score: float | None = None) -> Iterator[Event]:
        assert self.finish_reason is not None
        if (constraint := self._context.constraint) is not None:
            yield self._judged(constraint, self.finish_reason)
        yield SampleFinished(
            sample=self.sample,
            reason=self.finish_reason,
            text=self.text,
            num_tokens=self.num_released,
            cum_logprob=self.cum_logprob if cum_logprob is None else cum_logprob,
            score=score,
        )

    def _judged(self, constraint: Constraint, reason: FinishReason) -> Judged:
        output_ids = self.sequence.token_ids[self.sequence.num_prompt_tokens :]
        request = self._context.request
        shown = None
        if reason == "stop":
            shown = self._context.vocabulary.text(request.output_prefix) + self.text
        cut_by = {
            "length": f"cut at the limit of {request.max_new_tokens} new tokens",
            "context_full": f"cut where the context ends, at {self._context.context_length:,} tokens",
            "stop": "cut by a stop string",
        }.get(reason)
        verdict = constraint.judge(output_ids, shown, cut_by)
        free_text, structure = constraint.parts(output_ids, shown)
        return Judged(self.sample, verdict.status, verdict.reason, free_text, structure)

    def _limit_reached(self) -> FinishReason | None:
        if self.sequence.num_output_tokens >= self._context.request.max_new_tokens:
            return "length"
        if len(self.sequence) >= self._context.context_length:
            return "context_full"
        return None

    def _row(self, choice: Choice, forced: bool) -> TokenDecoded:
        return TokenDecoded(
            sample=self.sample,
            index=self.sequence.num_output_tokens,
            position=len(self.sequence),
            token_id=choice.token_id,
            label=self._context.vocabulary.label(choice.token_id),
            text="",
            model_logprob=choice.model_logprob,
            logprob=choice.logprob,
            rank=choice.rank,
            entropy=choice.entropy,
            luck=choice.luck,
            uncut_winner=choice.uncut_winner,
            stages=choice.stages,
            candidates=choice.candidates,
            forced=forced,
            grammar=choice.grammar,
            special=self._context.vocabulary.is_special(choice.token_id),
        )

    def _release(self, released: Released, reason: FinishReason | None) -> Iterator[TokenDecoded]:
        for number, text in enumerate(released.texts, start=1):
            row = self._held.popleft()
            clipped = released.clipped and number == len(released.texts)
            self.num_released += 1
            self.cum_logprob += row.model_logprob
            yield replace(row, text=text, label=text if clipped else row.label)
        self.finish_reason = "stop" if released.stopped else reason
