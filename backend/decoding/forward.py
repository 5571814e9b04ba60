"""What a decoding strategy may yield, and what it is given to work with.

A strategy is a generator. It yields events (for the viewer) and forwards (for the model); the value of
yielding a forward is its logits, one tensor [num_logits, vocab_size] per sequence. It never calls the model,
so it can be tested by sending it literal logits.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from backend.events import Event, FinishReason
from backend.grammar.constraint import Constraint
from backend.kv.block_manager import BlockManager
from backend.request import Request
from backend.sampling.pipeline import Pipeline
from backend.sequence import Sequence
from backend.text import Vocabulary

TARGET = "target"


@dataclass(frozen=True)
class Forward:
    """These sequences need logits: all their tokens that are not in the cache yet are computed.

    Attributes:
        num_logits: logits are wanted for this many of the last positions of each sequence.
        model: TARGET, or the name of a draft model; each has a pool of its own.
        hidden_states: the last layer's hidden states are wanted as well. The value of the yield then goes on,
            after the logits of all sequences, with the hidden states of each; [num_logits, hidden_size].
    """

    sequences: tuple[Sequence, ...]
    num_logits: int = 1
    model: str = TARGET
    hidden_states: bool = False


@dataclass(frozen=True)
class Context:
    """All a strategy works with.

    Attributes:
        prompt_ids: the prompt, and the fixed output of a branch.
        root: the sequence of those, nothing computed yet.
        seed: the one used, also where the request has none.
        eos_ids: ids that end a text.
        context_length: tokens the model can hold.
        constraint: the grammar; None without one.
    """

    request: Request
    prompt_ids: tuple[int, ...]
    root: Sequence
    seed: int
    pipeline: Pipeline
    vocabulary: Vocabulary
    blocks: BlockManager
    eos_ids: frozenset[int]
    context_length: int
    constraint: Constraint | None = None

    def end_after(
        self, sequence: Sequence, token_id: int, num_before: int | None = None
    ) -> FinishReason | None:
        """Why the text ends with `token_id`, by an end token or since the grammar allows nothing more.

        `num_before`: how many tokens of the sequence stand before it; None for all of them.
        """
        if token_id in self.eos_ids:
            return "eos"
        if self.constraint is not None:
            output_ids = sequence.token_ids[sequence.num_prompt_tokens : num_before]
            return "grammar" if self.constraint.is_over([*output_ids, token_id]) else None
        return None


Strategy = Generator[Event | Forward, list[Tensor], Any]
