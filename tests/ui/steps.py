"""Literal steps for the tests of the page."""

from __future__ import annotations

import math
from typing import Any

from backend.events import Candidates, StageOutcome, TokenDecoded


def step(index: int = 0, **changes: Any) -> TokenDecoded:
    """Four tokens of 50, 25, 15 and 10 %; top-p 0.75 keeps the first two; the second is drawn."""
    model = tuple(math.log(p) for p in (0.5, 0.25, 0.15, 0.10))
    top_p = (math.log(2 / 3), math.log(1 / 3), -math.inf, -math.inf)
    values: dict[str, Any] = {
        "sample": 0,
        "index": index,
        "position": 3 + index,
        "token_id": 21,
        "label": " b",
        "text": " b",
        "model_logprob": model[1],
        "logprob": top_p[1],
        "rank": 2,
        "entropy": 1.2,
        "luck": 1.5,
        "uncut_winner": 23,
        "stages": (StageOutcome("top_p", 0.75, 2, 0.25, True, 0.75),),
        "candidates": Candidates(
            token_ids=(20, 21, 22, 23),
            labels=(" a", " b", "<img src=x>", "\n"),
            model_logprobs=model,
            after=(top_p,),
            cut_by=(-1, -1, 0, 0),
            margins=(None, None, 0.0, 0.15),
            luck=(0.2, 1.5, -0.3, 2.9),
        ),
        "time": 0.5 + index * 0.25,
    }
    return TokenDecoded(**(values | changes))
