"""Jump-forward: runs of text that a grammar forces are appended in one forward."""

from __future__ import annotations

from backend.decoding.drafters.forced_text import ForcedText
from backend.decoding.forward import Context, Strategy
from backend.decoding.speculative import speculative
from backend.request import MAX_DRAFT_TOKENS, Speculative


def jump_forward(context: Context) -> Strategy:
    """Plain sampling, token for token, in fewer calls.

    What is forced is the text, not how it is cut into tokens; so the forced text is a guess, and coupled
    checking keeps the tokens that would have been drawn one by one.
    """
    params = Speculative(draft="forced_text", num_draft_tokens=MAX_DRAFT_TOKENS, verify="coupled")
    return speculative(context, params, ForcedText(context), reports_all=False)
