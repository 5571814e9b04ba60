"""Randomness from a counter: the noise at a place depends on that place and on nothing else."""

from __future__ import annotations

import secrets

import numpy as np
import torch
from torch import Tensor


def draw_seed() -> int:
    """A fresh seed for a run that gave none; below 2**31 so that it is easy to read out and retype."""
    return secrets.randbelow(2**31)


def gumbel(seed: int, sample: int, position: int, size: int) -> Tensor:
    """Standard Gumbel noise for each token id; [size], float32, CPU.

    Philox 4x64 (Salmon et al. 2011, as in numpy) keyed by (seed, sample); `position` is the high word of
    the counter and the token id runs in the low word, so no two places share a number. The sum
    log p + noise has its maximum at token i with probability p_i (Gumbel-max trick).
    """
    bits = np.random.Philox(key=[seed, sample], counter=[0, position, 0, 0]).random_raw(size)
    # 53 random bits, centred in their cells: strictly between 0 and 1, so both logarithms are finite.
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return torch.from_numpy(-np.log(-np.log(uniform))).float()
