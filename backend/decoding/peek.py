"""The two distributions of one speculative step, without taking it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from backend.decoding.drafters.drafter import Drafter
from backend.decoding.forward import Context, Forward, Strategy
from backend.sampling.processors import History


@dataclass
class Peeked:
    """What a draft and the target make of the next token, both after all stages.

    Attributes:
        target: [V], sums to 1.
        draft: [V], what the guess is drawn from; None for a guess without a distribution.
        guess: the token drafted under the request's seed; None where the source has no guess.
    """

    target: Tensor
    draft: Tensor | None
    guess: int | None


def peek(context: Context, drafter: Drafter, found: list[Peeked]) -> Strategy:
    """Puts the distributions of the token after the context's prompt into `found`; yields no token."""
    reader = context.root
    try:
        draft = yield from drafter.draft(list(reader.token_ids), 1)
        (logits,) = yield Forward((reader,))
        history = History(reader.token_ids, reader.num_prompt_tokens)
        target = context.pipeline.process(logits[-1], history).exp()
        probabilities = draft.probabilities[0] if draft.probabilities else None
        found.append(Peeked(target, probabilities, draft.token_ids[0] if draft.token_ids else None))
    finally:
        drafter.close()
        context.blocks.free(reader)
