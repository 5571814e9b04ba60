"""What the stages of the pipeline are called on the page."""

from __future__ import annotations

TITLES = {
    "temperature": "temperature",
    "top_k": "top-k",
    "top_p": "top-p",
    "min_p": "min-p",
    "typical_p": "typical-p",
    "repetition_penalty": "repetition",
    "frequency_penalty": "frequency",
    "presence_penalty": "presence",
    "no_repeat_ngram_size": "no-repeat",
    "logit_bias": "bias",
    "grammar": "grammar",
}


def title(stage: str) -> str:
    """The stage's name as shown."""
    return TITLES.get(stage, stage)
