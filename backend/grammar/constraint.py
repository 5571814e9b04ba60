"""Constraint: what a grammar allows after given tokens, for one request."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.errors import GrammarError
from backend.events import GrammarStep
from backend.grammar.compiler import Compiled
from backend.grammar.lowering import KINDS, kind_of
from backend.grammar.matcher import Matcher, Tokens
from backend.grammar.verdict import Verdict, judge

# A blank line ends the free text early; what stands before it must say something.
_END_OF_REASONING = b"\n\n"
MAX_FORCED = 128  # bytes looked ahead at one step; forced text itself may be of any length


class Allowed(NamedTuple):
    """The state after some tokens.

    Attributes:
        mask: which tokens may follow, end tokens included; [vocab_size], bool.
        is_over: the text is complete and only an end token may follow.
        is_free: still in the free text before the structure.
    """

    mask: Tensor
    is_over: bool
    is_free: bool


class _Line:
    """A matcher and the tokens it has taken."""

    def __init__(self, matcher: Matcher, token_ids: list[int]):
        self.matcher = matcher
        self.token_ids = token_ids

    def common(self, token_ids: Sequence[int]) -> int:
        """Length of the common beginning."""
        own = self.token_ids
        if list(token_ids[: len(own)]) == own:
            return len(own)
        return next(i for i, (a, b) in enumerate(zip([*own, -1], [*token_ids, -2], strict=False)) if a != b)


class Constraint:
    """Answers by the tokens of the output alone, so lines can fork, roll back and be recomputed freely.

    A few matchers are kept, each at the end of the line it last followed; the one that shares most with a
    question is moved there: forward, back (rejected drafts), or as a fork where lines part (beams).

    Args:
        capacity: how many lines are followed at once; more of them are right, too, but slower.
    """

    def __init__(self, compiled: Compiled, tokens: Tokens, capacity: int):
        self._compiled = compiled
        self._lines = [_Line(compiled.matcher(), [])]
        self._tokens = tokens
        self._capacity = capacity
        self._reason_first = compiled.grammar.reason_first
        self.kind = KINDS[kind_of(compiled.grammar)]
        self._end_ids = np.array(sorted(tokens.end_ids), dtype=np.int64)
        self._ordinary = np.array([bool(text) for text in tokens.texts], dtype=np.bool_)
        self._ordinary[self._end_ids] = False
        self._first_bytes = np.array([text[0] if text else 0 for text in tokens.texts], dtype=np.uint8)
        self._byte_ids = {text[0]: number for number, text in enumerate(tokens.texts) if len(text) == 1}
        self._answers: dict[tuple[int, ...], Allowed] = {}

    def after(self, output_ids: Sequence[int]) -> Allowed:
        """What may follow these tokens.

        Raises:
            GrammarError: they break the grammar; names the first that does.
        """
        key = tuple(output_ids)
        if key not in self._answers:
            while len(self._answers) >= 4 * self._capacity:
                del self._answers[next(iter(self._answers))]
            self._answers[key] = self._answer(output_ids)
        return self._answers[key]

    def mask(self, output_ids: Sequence[int]) -> Tensor:
        """Which tokens may follow; [vocab_size], bool."""
        return self.after(output_ids).mask

    def is_over(self, output_ids: Sequence[int]) -> bool:
        """Whether the structure is complete and nothing but the end may follow."""
        return self.after(output_ids).is_over

    def forced(self, output_ids: Sequence[int], limit: int = MAX_FORCED) -> bytes:
        """Bytes that must follow, at most `limit` of them.

        Found by masks, one for each byte: the engines' own functions know no limit.
        """
        start = self.structure_start(output_ids)
        if len(output_ids) < start or self.after(output_ids).is_over:
            return b""
        matcher = self._at(list(output_ids[start:]), start).fork()
        found = bytearray()
        while len(found) < limit and not matcher.is_complete():
            allowed = (matcher.allowed() & self._ordinary).nonzero()[0]
            firsts = self._first_bytes[allowed]
            if not len(firsts) or (firsts != firsts[0]).any():
                break
            byte = int(firsts[0])
            if byte not in self._byte_ids or not matcher.accept(self._byte_ids[byte]):
                break
            found.append(byte)
        return bytes(found)

    def describe(
        self, output_ids: Sequence[int], model: Tensor, token_id: int, label: Callable[[int], str]
    ) -> GrammarStep:
        """What the grammar meant where `token_id` was chosen, given the model's log-probabilities [V]."""
        allowed = self.after(output_ids)
        mask = allowed.mask.to(model.device)
        best = int(torch.argmax(model))
        masked = None if bool(mask[best]) else best
        num_allowed = int(mask.sum())
        text = self._tokens.texts[token_id]
        return GrammarStep(
            num_allowed=num_allowed,
            feasible_mass=min(1.0, float(model[mask].exp().sum(dtype=torch.float64))),
            masked_id=masked,
            masked_label=None if masked is None else label(masked),
            masked_logprob=None if masked is None else float(model[masked]),
            forced=num_allowed == 1 or (bool(text) and self.forced(output_ids, len(text)) == text),
            is_free=allowed.is_free,
        )

    def judge(self, output_ids: Sequence[int], shown: str | None, cut_by: str | None) -> Verdict:
        """The verdict on an output. `cut_by` as in verdict.judge.

        `shown` is the text of the output where that is less than its tokens say (a stop string).
        """
        if len(output_ids) < self.structure_start(output_ids):
            return Verdict("incomplete", f"{cut_by or 'the run ended'} before the structure began")
        return judge(self._compiled, self.parts(output_ids, shown)[1], cut_by)

    def parts(self, output_ids: Sequence[int], shown: str | None) -> tuple[str, str]:
        """(free text, structure) of an output; end tokens and a last character that is cut add nothing."""
        start = self.structure_start(output_ids)
        texts = [self._tokens.texts[token_id] for token_id in output_ids]
        free, structure = (
            codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(part))
            for part in (texts[:start], texts[start:])
        )
        return (free, structure) if shown is None else (shown[: len(free)], shown[len(free) :])

    def structure_start(self, output_ids: Sequence[int]) -> int:
        """Number of tokens before the structure; past the end while it has not begun."""
        if not self._reason_first:
            return 0
        text = b""
        for number, token_id in enumerate(output_ids[: self._reason_first], start=1):
            text += self._tokens.texts[token_id]
            if text.strip() and text.rstrip(b" ").endswith(_END_OF_REASONING):
                return number
        return self._reason_first

    def _answer(self, output_ids: Sequence[int]) -> Allowed:
        if output_ids and output_ids[-1] in self._tokens.end_ids:
            return Allowed(self._masked(np.zeros_like(self._ordinary), True), True, False)
        start = self.structure_start(output_ids)
        if len(output_ids) < start:
            return Allowed(self._masked(self._ordinary, False), False, True)
        matcher = self._at(list(output_ids[start:]), start)
        allowed = matcher.allowed() & self._ordinary
        complete = matcher.is_complete()
        return Allowed(self._masked(allowed, complete), complete and not allowed.any(), False)

    def _masked(self, allowed: NDArray[np.bool_], may_end: bool) -> Tensor:
        mask = allowed.copy()
        mask[self._end_ids] = may_end
        return torch.from_numpy(mask)

    def _at(self, token_ids: list[int], start: int) -> Matcher:
        """A matcher after these tokens; `start` of the output's tokens stand before them."""
        best = max(self._lines, key=lambda line: line.common(token_ids))
        common = best.common(token_ids)
        if common < len(best.token_ids) and len(self._lines) < self._capacity:
            best = _Line(best.matcher.fork(), list(best.token_ids))
            self._lines.append(best)
        if common < len(best.token_ids):
            best.matcher.rollback(len(best.token_ids) - common)
            del best.token_ids[common:]
        self._lines.remove(best)
        self._lines.append(best)  # the least recently used comes first, and is taken among equals
        for token_id in token_ids[common:]:
            if not self._tokens.texts[token_id] or not best.matcher.accept(token_id):
                place = start + len(best.token_ids)
                raise GrammarError(f"token {place} of the output, id {token_id}, breaks the grammar")
            best.token_ids.append(token_id)
        return best.matcher
