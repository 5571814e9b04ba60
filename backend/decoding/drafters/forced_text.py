"""Forced text: what a grammar leaves no choice about, guessed as the tokenizer would write it."""

from __future__ import annotations

from collections.abc import Generator

from torch import Tensor

from backend.decoding.drafters.drafter import Draft
from backend.decoding.forward import Context, Forward


class ForcedText:
    """Costs no model call; guesses nothing where the grammar leaves a choice."""

    def __init__(self, context: Context):
        self._context = context

    def draft(self, token_ids: list[int], count: int) -> Generator[Forward, list[Tensor], Draft]:
        """The forced text as tokens. The model may cut it into others: each is checked like any guess."""
        yield from ()  # no forward: the other sources are generators because they need some
        constraint = self._context.constraint
        assert constraint is not None
        forced = constraint.forced(token_ids[self._context.root.num_prompt_tokens :])
        text = forced.decode("utf-8", "ignore")
        guess = self._context.vocabulary.encode(text, add_special_tokens=False) if text else []
        return Draft(guess[:count], None)

    def close(self) -> None:
        """Nothing is held."""
