"""Speculative decoding: tokens are guessed cheaply and checked by the target in one forward."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from backend.decoding import rejection
from backend.decoding.drafters.drafter import Draft, Drafter
from backend.decoding.forward import Context, Forward, Strategy
from backend.decoding.lane import Lane
from backend.events import DraftedToken, DraftVerified, Residual
from backend.request import Speculative
from backend.sampling import noise, ranking
from backend.sampling.pipeline import Choice, Place, Position
from backend.sampling.processors import History
from backend.sequence import Sequence

# Tokens of a residual distribution that are recorded.
NUM_RESIDUAL = 20


@dataclass(frozen=True)
class _Round:
    """What a check gave: one choice per accepted draft, and one more by the target's own draw.

    `next_is` tells what that last one is; "none" where an accepted draft ended the text.
    """

    choices: list[Choice]
    drafted: tuple[DraftedToken, ...]
    residual: Residual | None
    next_is: Literal["recovered", "bonus", "none"]

    @property
    def num_accepted(self) -> int:
        return sum(token.status == "accepted" for token in self.drafted)

    @property
    def next_choice(self) -> Choice | None:
        return None if self.next_is == "none" else self.choices[-1]


def speculative(
    context: Context, params: Speculative, drafter: Drafter, reports_all: bool = True
) -> Strategy:
    """Draft, check k drafts in one forward of k + 1 tokens, keep what is right, repeat.

    With verify "rejection" every token has exactly the target's distribution; with "coupled" the text is
    that of plain sampling under the same seed. `reports_all`: also rounds without a draft.
    """
    reader = context.root
    lane = Lane(context, Sequence(list(context.prompt_ids), reader.num_prompt_tokens), 0)
    length = params.num_draft_tokens
    number = 0
    try:
        while not lane.finished:
            started = time.perf_counter()
            known = len(lane.sequence)
            draft = yield from drafter.draft(list(lane.sequence.token_ids), _room(context, lane, length))
            drafted_at = time.perf_counter()
            reader.token_ids.extend(draft.token_ids)
            (logits,) = yield Forward((reader,), num_logits=len(draft.token_ids) + 1)
            checked_at = time.perf_counter()
            checked = _check(context, params, reader, known, draft, logits)
            if reports_all or draft.token_ids:
                yield _describe(context, checked, number, lane, drafted_at - started, checked_at - drafted_at)
            context.blocks.truncate(reader, known + checked.num_accepted)
            if checked.next_choice is not None:
                reader.append(checked.next_choice.token_id)
            for choice in checked.choices:
                if not lane.finished:
                    yield from lane.accept(choice)
            if params.adaptive:
                length = _adapted(length, checked.num_accepted, len(draft.token_ids), params.num_draft_tokens)
            number += 1
    finally:
        drafter.close()
        context.blocks.free(reader)


def _describe(
    context: Context, checked: _Round, number: int, lane: Lane, draft_seconds: float, verify_seconds: float
) -> DraftVerified:
    choice = checked.next_choice
    return DraftVerified(
        number=number,
        index=lane.sequence.num_output_tokens,
        drafted=checked.drafted,
        num_accepted=checked.num_accepted,
        next_token_id=None if choice is None else choice.token_id,
        next_label="" if choice is None else context.vocabulary.label(choice.token_id),
        next_is=checked.next_is,
        residual=checked.residual,
        draft_seconds=draft_seconds,
        verify_seconds=verify_seconds,
        next_special=choice is not None and context.vocabulary.is_special(choice.token_id),
    )


def _room(context: Context, lane: Lane, length: int) -> int:
    """Drafts that can still be used: one token comes from the target anyway."""
    left = min(
        context.request.max_new_tokens - lane.sequence.num_output_tokens,
        context.context_length - len(lane.sequence),
    )
    return max(0, min(length, left - 1))


def _adapted(length: int, num_accepted: int, num_drafted: int, longest: int) -> int:
    """Grow by two on full acceptance, shrink by one on a rejection in the first half."""
    if num_drafted and num_accepted == num_drafted:
        return min(length + 2, longest)
    return max(1, length - 1) if num_accepted * 2 < num_drafted else length


def _check(
    context: Context, params: Speculative, reader: Sequence, known: int, draft: Draft, logits: Tensor
) -> _Round:
    """Check the drafts in order until one is rejected or ends the text.

    Stages see the drafts before each position as output.
    """
    verify = _coupled if params.verify == "coupled" else _rejection
    choices: list[Choice] = []
    drafted: list[DraftedToken] = []
    left: Residual | None = None
    next_is: Literal["recovered", "bonus", "none"] = "bonus"
    histories = [
        History(reader.token_ids[: known + offset], reader.num_prompt_tokens) for offset in range(len(logits))
    ]
    for offset, position in enumerate(context.pipeline.positions(logits, histories)):
        choice, token, left = verify(context, draft, offset, position)
        choices.append(choice)
        if token is None:
            break
        drafted.append(token)
        if token.status == "rejected":
            next_is = "recovered"
            break
        if context.end_after(reader, token.token_id, known + offset) is not None:
            next_is = "none"
            break
    unused = (
        _drafted(context, draft, offset, "unused") for offset in range(len(drafted), len(draft.token_ids))
    )
    return _Round(choices, (*drafted, *unused), left, next_is)


_Status = Literal["accepted", "rejected", "unused"]
_Verdict = tuple[Choice, DraftedToken | None, Residual | None]


def _coupled(context: Context, draft: Draft, offset: int, position: Position) -> _Verdict:
    """The target draws as it would alone; a draft is right if it is that token."""
    choice = position.choose(Place(context.seed, 0, len(position.history.token_ids)))
    if offset == len(draft.token_ids):
        return choice, None, None
    token_id = draft.token_ids[offset]
    p = float(position.logprobs[token_id].exp())
    token = _drafted(context, draft, offset, "accepted" if choice.token_id == token_id else "rejected", p)
    return choice, token, None


def _rejection(context: Context, draft: Draft, offset: int, position: Position) -> _Verdict:
    place = len(position.history.token_ids)
    if offset == len(draft.token_ids):
        return position.choose(Place(context.seed, 0, place)), None, None
    target = position.logprobs.exp()
    guess = None if draft.probabilities is None else draft.probabilities[offset]
    token_id = draft.token_ids[offset]
    uniform = noise.uniform(context.seed, 0, place, noise.ACCEPT)
    checked = rejection.check(target, guess, token_id, uniform)
    verdict: _Status = "accepted" if checked.accepted else "rejected"
    token = _drafted(context, draft, offset, verdict, checked.p, checked.threshold, uniform)
    if checked.accepted:
        return position.force(token_id), token, None
    left = rejection.residual(target, guess, token_id)
    luck = noise.gumbel(context.seed, 0, place, left.numel(), noise.RESIDUAL).to(left.device)
    recovered = rejection.draw(left, luck)
    described = _describe_residual(context, target, guess, (token_id, recovered), left)
    return position.force(recovered), token, described


def _drafted(
    context: Context,
    draft: Draft,
    offset: int,
    status: _Status,
    p: float | None = None,
    threshold: float | None = None,
    uniform: float | None = None,
) -> DraftedToken:
    token_id = draft.token_ids[offset]
    return DraftedToken(
        token_id=token_id,
        label=context.vocabulary.label(token_id),
        status=status,
        p=p,
        q=1.0 if draft.probabilities is None else float(draft.probabilities[offset][token_id]),
        threshold=threshold,
        uniform=uniform,
        special=context.vocabulary.is_special(token_id),
    )


def _describe_residual(
    context: Context, target: Tensor, guess: Tensor | None, named: tuple[int, int], left: Tensor
) -> Residual:
    """The best of `left`, and the `named` tokens: the rejected and the recovered one."""
    ids = ranking.best(left + target * 1e-6, NUM_RESIDUAL).tolist()
    token_id = named[0]
    ids = [token_id, *(other for other in ids if other != token_id)]
    ids += [] if named[1] in ids else [named[1]]
    return Residual(
        token_ids=tuple(ids),
        labels=tuple(context.vocabulary.label(at) for at in ids),
        p=tuple(float(target[at]) for at in ids),
        q=tuple(float(at == token_id) if guess is None else float(guess[at]) for at in ids),
        residual=tuple(float(left[at]) for at in ids),
    )
