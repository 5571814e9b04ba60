"""Prompt lookup: what followed the last few tokens when they last occurred (Saxena 2023)."""

from __future__ import annotations

from collections.abc import Generator

from torch import Tensor

from backend.decoding.drafters.drafter import Draft
from backend.decoding.forward import Forward

# Longer matches are tried first: they are rarer and more often right.
NGRAM_SIZES = (4, 3, 2)


class PromptLookup:
    """Looks the end of the text up in the text itself; costs no model call."""

    def __init__(self) -> None:
        self._num_indexed = 1
        self._following: dict[tuple[int, ...], int] = {}  # n-gram -> place after its latest occurrence

    def draft(self, token_ids: list[int], count: int) -> Generator[Forward, list[Tensor], Draft]:
        """The tokens that followed the longest end of the text when it last occurred, if it ever did."""
        yield from ()  # no forward: the other sources are generators because they need some
        self._index(token_ids)
        for size in NGRAM_SIZES:
            place = self._following.get(tuple(token_ids[-size:])) if len(token_ids) >= size else None
            if place is not None:
                return Draft(token_ids[place : place + count], None)
        return Draft([], None)

    def close(self) -> None:
        self._following.clear()

    def _index(self, token_ids: list[int]) -> None:
        """Enter every n-gram that something follows; confirmed tokens never change."""
        for place in range(self._num_indexed, len(token_ids)):
            for size in NGRAM_SIZES:
                if place >= size:
                    self._following[tuple(token_ids[place - size : place])] = place
        self._num_indexed = max(len(token_ids), 1)
