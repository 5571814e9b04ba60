"""The order in which the server draws.

Two handlers of one page may answer out of order: one looks at a run that goes on, the other tells of its end,
and the first arrives last. Every picture of a View carries a number taken before it looks, and the page keeps
the picture with the highest one (components/shared.js).
"""

from __future__ import annotations

import itertools

_numbers = itertools.count(1)


def drawn() -> int:
    """A number higher than all before; take it before reading what is drawn."""
    return next(_numbers)
