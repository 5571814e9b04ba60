"""Prompt lookup: what followed the last few tokens when they last occurred (Saxena 2023)."""

from __future__ import annotations

from collections.abc import Generator

from torch import Tensor

from backend.decoding.drafters.drafter import Draft
from backend.decoding.forward import Forward

# Longer matches are tried first: they are rarer and more often right. The copy that was going on comes
# after the longest.
NGRAM_SIZES = (4, 3, 2)


class PromptLookup:
    """Looks the end of the text up in the text itself; costs no model call.

    A copy with a word replaced goes on behind that word: the new word need not have stood there before.
    """

    def __init__(self) -> None:
        self._num_indexed = 1
        self._following: dict[tuple[int, ...], int] = {}  # n-gram -> place after its latest occurrence
        self._copied: tuple[int, int] | None = None  # where the last draft stood, and where it went

    def draft(self, token_ids: list[int], count: int) -> Generator[Forward, list[Tensor], Draft]:
        """What followed the end of the text when it last occurred, or what comes next in the copy."""
        yield from ()  # no forward: the other sources are generators because they need some
        self._index(token_ids)
        place = self._source(token_ids)
        if place is None or count < 1:
            self._copied = None
            return Draft([], None)
        self._copied = place, len(token_ids)
        return Draft(token_ids[place : place + count], None)

    def _source(self, token_ids: list[int]) -> int | None:
        """The place to copy from. Only the longest n-gram says more than the copy that was going on."""
        longest, *shorter = NGRAM_SIZES
        place = self._after(token_ids, longest)
        if place is None:
            place = self._resumed(token_ids)
        for size in shorter:
            if place is None:
                place = self._after(token_ids, size)
        return place

    def _after(self, token_ids: list[int], size: int) -> int | None:
        return self._following.get(tuple(token_ids[-size:])) if len(token_ids) >= size else None

    def _resumed(self, token_ids: list[int]) -> int | None:
        """Where the copy goes on if its first token was right: each token since stands for one there."""
        if self._copied is None:
            return None
        place, began = self._copied
        was_right = len(token_ids) > began and token_ids[place] == token_ids[began]
        return place + len(token_ids) - began if was_right else None

    def close(self) -> None:
        """Forget the index."""
        self._following.clear()
        self._copied = None

    def _index(self, token_ids: list[int]) -> None:
        """Enter every n-gram that something follows; confirmed tokens never change."""
        for place in range(self._num_indexed, len(token_ids)):
            for size in NGRAM_SIZES:
                if place >= size:
                    self._following[tuple(token_ids[place - size : place])] = place
        self._num_indexed = max(len(token_ids), 1)
