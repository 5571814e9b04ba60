"""A model that guesses: a smaller one with the same tokenizer, or the target with layers left out."""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor

from backend.decoding.drafters.drafter import Draft
from backend.decoding.forward import Context, Forward
from backend.kv.block_manager import BlockManager
from backend.sampling import noise
from backend.sampling.processors import History
from backend.sequence import Sequence


class ModelDraft:
    """Draws tokens one by one from a draft model, through the same stages as the target.

    Args:
        model: name of the draft's pool in the engine. blocks: the bookkeeping of that pool.
        shares_luck: draw with the target's own noise, so that equal distributions draw equal tokens.
        context_length: tokens the draft model can read; drafts end there.
    """

    def __init__(
        self, context: Context, model: str, blocks: BlockManager, shares_luck: bool, context_length: int
    ):
        self._context = context
        self._model = model
        self._blocks = blocks
        self._context_length = context_length
        self._stream = noise.TOKEN if shares_luck else noise.DRAFT
        self._sequence = Sequence([], context.root.num_prompt_tokens, context.root.salt)

    def draft(self, token_ids: list[int], count: int) -> Generator[Forward, list[Tensor], Draft]:
        """As Drafter.draft, one forward of the draft model for each token; q is [V] for each."""
        count = min(count, self._context_length - len(token_ids) + 1)
        if count > 0:
            self._follow(token_ids)
        drawn: list[int] = []
        probabilities: list[Tensor] = []
        for _ in range(count):
            (logits,) = yield Forward((self._sequence,), model=self._model)
            history = History(self._sequence.token_ids, self._sequence.num_prompt_tokens)
            logprobs = self._context.pipeline.process(logits[-1], history)
            position = len(self._sequence)
            luck = noise.gumbel(self._context.seed, 0, position, logprobs.numel(), self._stream)
            drawn.append(int(torch.argmax(logprobs + luck.to(logprobs.device))))
            probabilities.append(logprobs.exp())
            self._sequence.append(drawn[-1])
        return Draft(drawn, probabilities)

    def close(self) -> None:
        """Give the draft model's blocks back."""
        self._blocks.free(self._sequence)

    def _follow(self, token_ids: list[int]) -> None:
        """Drop what was not confirmed and take in what was."""
        own = self._sequence.token_ids
        common = next((i for i, (a, b) in enumerate(zip(own, token_ids, strict=False)) if a != b), None)
        self._blocks.truncate(self._sequence, min(len(own), len(token_ids)) if common is None else common)
        own.extend(token_ids[len(own) :])
