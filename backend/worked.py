"""Worked numbers: the formulas of decoding on small inputs, through the very stages that runs use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from backend.decoding.rejection import expected_tokens
from backend.decoding.selection import length_normalised
from backend.errors import RequestError
from backend.kv.block_manager import BlockManager
from backend.request import SamplingParams
from backend.sampling.pipeline import Pipeline
from backend.sampling.processors import History

MAX_NUMBERS = 50
TAIL = 100_000  # tokens that share the probability which a list leaves over


@dataclass(frozen=True)
class Nucleus:
    """Tokens, most likely first: probability, cumulative probability, probability afterwards (0 if cut)."""

    probabilities: tuple[float, ...]
    cumulative: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def num_kept(self) -> int:
        """Tokens that are not cut."""
        return sum(value > 0 for value in self.after)

    @property
    def kept_mass(self) -> float:
        """Their probability before the cut, 0 to 1."""
        return sum(p for p, after in zip(self.probabilities, self.after, strict=True) if after > 0)


@dataclass(frozen=True)
class Rounds:
    """Speculation: tokens per check, its limit for ever longer drafts, and the share of it reached."""

    tokens: float
    ceiling: float
    share: float


@dataclass(frozen=True)
class Waste:
    """What a request reserves and does not use, in tokens and as shares.

    Attributes:
        reserved_share: unused part of one buffer of the longest length.
        num_blocks: blocks taken instead. last_used: tokens in the last of them.
        block_share: unused part of those blocks. worst_share: the most it can be at that number of blocks.
    """

    reserved_share: float
    num_blocks: int
    last_used: int
    block_share: float
    worst_share: float


def numbers(text: str) -> list[float]:
    """Numbers separated by commas or spaces.

    Raises:
        RequestError: none, too many, or something that is no finite number.
    """
    words = text.replace(",", " ").split()
    if not 1 <= len(words) <= MAX_NUMBERS:
        raise RequestError(f"give 1 to {MAX_NUMBERS} numbers, got {len(words)}")
    found = []
    for word in words:
        try:
            value = float(word)
        except ValueError:
            raise RequestError(f"{word[:20]!r} is not a number") from None
        if not math.isfinite(value) or abs(value) > 1e6:
            raise RequestError(f"{word[:20]!r} is not between -1e6 and 1e6")
        found.append(value)
    return found


def softmax(logits: Sequence[float], temperature: float) -> list[float]:
    """p_i = exp(z_i / T) / sum_j exp(z_j / T); T = 0 is greedy."""
    return _after(torch.tensor(logits, dtype=torch.float32), SamplingParams(temperature=temperature))


def nucleus(probabilities: Sequence[float], top_p: float) -> Nucleus:
    """The smallest set of best tokens whose probability reaches top_p."""
    return _cut(probabilities, SamplingParams(top_p=top_p))


def min_p(probabilities: Sequence[float], share: float) -> tuple[float, Nucleus]:
    """The cutoff, share times the best probability, and what it leaves."""
    return share * max(probabilities), _cut(probabilities, SamplingParams(min_p=share))


def rounds(acceptance: float, num_draft_tokens: int) -> Rounds:
    """Expected tokens per check, (1 - a^(k+1)) / (1 - a) (Leviathan et al. 2023)."""
    if not 0 <= acceptance <= 1 or not 1 <= num_draft_tokens <= 100:
        raise RequestError(f"acceptance is 0 to 1 and k 1 to 100, got {acceptance} and {num_draft_tokens}")
    tokens = expected_tokens(acceptance, num_draft_tokens)
    ceiling = math.inf if acceptance == 1 else 1 / (1 - acceptance)
    return Rounds(tokens, ceiling, tokens / ceiling)


def beam_score(cum_logprob: float, length: int, length_penalty: float) -> float:
    """Sum of log-probabilities over length ** length_penalty."""
    if not 1 <= length <= 10_000 or not abs(length_penalty) <= 10:
        raise RequestError(f"length is 1 to 10,000 and the penalty -10 to 10, got {length}, {length_penalty}")
    return length_normalised(cum_logprob, length, length_penalty)


def waste(num_tokens: int, buffer: int, block_size: int) -> Waste:
    """One buffer of the longest length against blocks as they are needed (Kwon et al. 2023)."""
    if not 1 <= num_tokens <= buffer <= 10_000_000 or not 1 <= block_size <= 100_000:
        raise RequestError(f"{num_tokens} tokens must be 1 or more and fit the buffer of {buffer}")
    blocks = BlockManager(1, block_size).num_blocks_for(num_tokens)
    room = blocks * block_size
    return Waste(
        reserved_share=1 - num_tokens / buffer,
        num_blocks=blocks,
        last_used=num_tokens - (blocks - 1) * block_size,
        block_share=1 - num_tokens / room,
        worst_share=(block_size - 1) / room,
    )


def _after(logits: torch.Tensor, params: SamplingParams) -> list[float]:
    values: list[float] = Pipeline(params, str).process(logits, History((), 0)).exp().tolist()
    return values


def _cut(probabilities: Sequence[float], params: SamplingParams) -> Nucleus:
    if min(probabilities) < 0 or not 0 < sum(probabilities) <= 1 + 1e-6:
        total = sum(probabilities)
        raise RequestError(f"probabilities are not negative and add up to at most 1, these to {total:.4g}")
    ordered = sorted(probabilities, reverse=True)
    rest = 1 - sum(ordered)  # the tail that is not listed: many tokens, each too small to matter
    tail = [rest / TAIL] * TAIL if rest > 1e-6 else []
    after = _after(torch.tensor([*ordered, *tail], dtype=torch.float64).log().float(), params)
    reached = 0.0
    cumulative = []
    for value in ordered:
        reached += value
        cumulative.append(reached)
    return Nucleus(tuple(ordered), tuple(cumulative), tuple(after[: len(ordered)]))
