"""Sequence: the tokens of one line of text and where their keys and values lie."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

# Ends the salt of sequences that use a model's long position factors: their keys are others.
LONG_SALT = ":\0long"

_numbers = itertools.count()


@dataclass(eq=False)
class Sequence:
    """Mutable state of one sequence; the block manager alone changes `block_table`.

    Attributes:
        token_ids: prompt and output.
        num_prompt_tokens: how many of them are prompt.
        salt: cached blocks are shared only among sequences of equal salt.
        block_table: logical to physical block ids.
        num_computed_tokens: tokens whose keys and values are in the cache.
        num_cached_tokens: of those, how many were found there instead of computed.
        run: number of the run it belongs to; set by the scheduler.
    """

    token_ids: list[int]
    num_prompt_tokens: int
    salt: str = ""
    block_table: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    run: int = -1
    sequence_id: int = field(default_factory=lambda: next(_numbers))

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_long(self) -> bool:
        """Whether it uses the model's long position factors."""
        return self.salt.endswith(LONG_SALT)

    @property
    def num_output_tokens(self) -> int:
        """Tokens after the prompt, computed or not."""
        return len(self.token_ids) - self.num_prompt_tokens

    def append(self, token_id: int) -> None:
        """Put a token at the end; nothing is computed of it yet."""
        self.token_ids.append(token_id)
