"""A walk into a grammar before any run: whether its masks can be made, and fast enough."""

from __future__ import annotations

import random
import time

from backend.errors import GrammarError, PlaygroundError
from backend.grammar.matcher import Matcher

MAX_MASK_SECONDS = 0.03
STEPS, SECONDS = 32, 0.5


def probe(matcher: Matcher, hint: str) -> None:
    """Walk into the grammar at random and time the masks, so that no run fails or waits for slow ones.

    Raises:
        GrammarError: no text is allowed, the engine fails, or masks take longer than MAX_MASK_SECONDS (`hint`
            says what to do).
    """
    try:
        if not matcher.allowed().any() and not matcher.is_complete():
            raise GrammarError("the grammar allows no text at all")
        _walk(matcher, hint)
    except GrammarError:
        raise
    except PlaygroundError as error:
        raise GrammarError(f"the grammar is too large to be run: {error}") from None


def _walk(matcher: Matcher, hint: str) -> None:
    chance = random.Random(0)
    slow: list[float] = []
    ends = time.perf_counter() + SECONDS
    for _ in range(STEPS):
        started = time.thread_time()  # of this thread alone: a busy machine must not refuse a grammar
        allowed = matcher.allowed().nonzero()[0]
        seconds = time.thread_time() - started
        slow += [seconds] if seconds > MAX_MASK_SECONDS else []
        if len(slow) > 1:  # one alone may be the machine's doing
            raise GrammarError(
                f"a mask of this grammar takes {min(slow) * 1000:.0f} ms, "
                f"at most {MAX_MASK_SECONDS * 1000:.0f} ms are allowed; {hint}"
            )
        if time.perf_counter() > ends or not len(allowed):
            break
        if not matcher.accept(int(chance.choice(allowed))):
            raise PlaygroundError("a token that the mask allows is not taken")
