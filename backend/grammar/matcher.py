"""What an engine of masks offers, whichever it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from backend.grammar.lowering import Lowered


@dataclass(frozen=True)
class Tokens:
    """The vocabulary as engines take it.

    Attributes:
        texts: bytes of each token, empty for special tokens and ids without one; [vocab_size].
        end_ids: ids that end a text.
    """

    texts: tuple[bytes, ...]
    end_ids: tuple[int, ...]


class Matcher(Protocol):
    """Where a text stands in a grammar. End tokens are no part of the text."""

    def accept(self, token_id: int) -> bool:
        """Advance by a token; False, and no change, if the grammar does not allow it."""
        ...

    def accept_bytes(self, data: bytes) -> bool:
        """Advance by text that was not generated; False if the grammar does not allow it."""
        ...

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens."""
        ...

    def fork(self) -> Matcher:
        """An independent matcher at the same place."""
        ...

    def allowed(self) -> NDArray[np.bool_]:
        """Which tokens may follow; end and special tokens hold no meaning here; [vocab_size]."""
        ...

    def is_complete(self) -> bool:
        """Whether the text may end here."""
        ...


class MaskEngine(Protocol):
    """Compiles grammars for the vocabulary it was made with."""

    def __init__(self, tokens: Tokens): ...

    def compile(self, lowered: Lowered) -> tuple[str, int]:
        """(the compiled grammar as text, number of its rules). May take long; nothing can stop it.

        Raises:
            GrammarError: as the engine sees it, with line and column where there is one.
        """
        ...

    def load(self, text: str) -> Any:
        """A compiled grammar from the text that `compile` gave, in any process of the same vocabulary."""
        ...

    def matcher(self, compiled: Any) -> Matcher:
        """A matcher at the start of a text.

        Raises:
            PlaygroundError: the engine cannot run the grammar.
        """
        ...


def unpacked(bits: NDArray[np.uint8], vocab_size: int) -> NDArray[np.bool_]:
    """One boolean per bit, lowest bit first."""
    return np.unpackbits(bits, count=vocab_size, bitorder="little").view(np.bool_)
