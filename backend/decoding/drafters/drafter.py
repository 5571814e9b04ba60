"""What a source of drafted tokens looks like to the strategy that checks them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from backend.decoding.forward import Forward


@dataclass(frozen=True)
class Draft:
    """Guessed tokens.

    Attributes:
        token_ids: at most as many as asked for; may be empty.
        probabilities: the distribution each was drawn from, after all stages; [len(token_ids)] tensors of
            [V]. None for guesses without one: each is a point mass.
    """

    token_ids: list[int]
    probabilities: list[Tensor] | None


class Drafter(Protocol):
    """A source; it may ask for forwards of a model of its own."""

    def draft(self, token_ids: list[int], count: int) -> Generator[Forward, list[Tensor], Draft]:
        """Guess up to `count` tokens that follow the confirmed `token_ids`."""
        ...

    def close(self) -> None:
        """Give back whatever the source holds."""
        ...
