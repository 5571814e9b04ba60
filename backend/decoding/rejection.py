"""The exact check of drafted tokens, as pure functions of distributions (Leviathan et al. 2023).

p is the target's distribution, q the draft's, both after the same stages. A drafted token x is accepted
with probability min(1, p(x) / q(x)); if it is rejected, the residual max(0, p - q), normalised, gives the
recovered token. The result is distributed as p, whatever q is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Check:
    """How one drafted token fared.

    Attributes:
        p, q: its probability under target and draft. threshold: min(1, p / q).
        uniform: the number drawn from [0, 1); the token is accepted if it lies below the threshold.
    """

    p: float
    q: float
    threshold: float
    uniform: float

    @property
    def accepted(self) -> bool:
        """Whether the uniform number lies below the threshold."""
        return self.uniform < self.threshold


def check(target: Tensor, draft: Tensor | None, token_id: int, uniform: float) -> Check:
    """Check a drafted token. `target` and `draft` are [V] and sum to 1; draft None is a point mass on it."""
    p = float(target[token_id])
    q = 1.0 if draft is None else float(draft[token_id])
    # A token the draft gave no chance cannot have been drawn from it; it counts as one it overrated.
    threshold = min(1.0, p / q) if q > 0 else 0.0
    return Check(p, q, threshold, uniform)


def thresholds(target: Tensor, draft: Tensor | None, token_ids: Tensor) -> Tensor:
    """The threshold of `check` for many drafted tokens at once; [N] ids in, [N] out."""
    p = target[token_ids]
    if draft is None:
        return p
    q = draft[token_ids]
    return torch.where(q > 0, (p / q).clamp(max=1.0), torch.zeros_like(p))


def residual(target: Tensor, draft: Tensor | None, token_id: int) -> Tensor:
    """max(0, target - draft), normalised; [V]. Draft None is a point mass on `token_id`.

    Where nothing is left (the distributions agree but for rounding) the target itself is right.
    """
    if draft is None:
        left = target.clone()
        left[token_id] = 0.0
    else:
        left = (target - draft).clamp(min=0.0)
    total = left.sum()
    return left / total if float(total) > 0 else target


def expected_tokens(acceptance: float, num_draft_tokens: int) -> float:
    """Tokens per check of k drafted ones, each accepted with probability a: (1 - a^(k+1)) / (1 - a)."""
    if acceptance == 1:
        return float(num_draft_tokens + 1)
    return (1 - acceptance ** (num_draft_tokens + 1)) / (1 - acceptance)


def draw(probabilities: Tensor, luck: Tensor) -> int:
    """Gumbel-max draw from [V] probabilities with [V] noise."""
    return int(torch.argmax(probabilities.log() + luck))
