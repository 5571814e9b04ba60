"""The order in which the server draws.

Two handlers of one page may answer out of order: one looks at a run that goes on, the other tells of its end,
and the first arrives last. Every picture of a View carries a number taken before it looks, and the page keeps
the picture with the highest one (components/shared.js).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

_numbers = itertools.count(1)


def ordered(look: Callable[[], Any]) -> Any:
    """What `look` returns, with "drawn": a number higher than all before, taken before it looks."""
    number = next(_numbers)
    picture = look()
    return {**picture, "drawn": number} if isinstance(picture, dict) else picture
