"""Randomness from a counter: the noise at a place depends on that place and on nothing else."""

from __future__ import annotations

import secrets

import numpy as np
import torch
from torch import Tensor


def draw_seed() -> int:
    """A fresh seed for a run that gave none; below 2**31 so that it is easy to read out and retype."""
    return secrets.randbelow(2**31)


# What a number is used for; each purpose has a stream of its own.
TOKEN, DRAFT, ACCEPT, RESIDUAL = range(4)


def gumbel(seed: int, sample: int, position: int, size: int, stream: int = TOKEN) -> Tensor:
    """Standard Gumbel noise for each token id; [size], float32, CPU.

    Philox 4x64 (Salmon et al. 2011, as in numpy) keyed by (seed, sample); `position` and `stream` are high
    words of the counter and the token id runs in the low word, so no two places share a number. The sum
    log p + noise has its maximum at token i with probability p_i (Gumbel-max trick).
    """
    return torch.from_numpy(-np.log(-np.log(_uniforms(seed, sample, position, size, stream)))).float()


def uniform(seed: int, sample: int, position: int, stream: int) -> float:
    """One number, strictly between 0 and 1."""
    return float(_uniforms(seed, sample, position, 1, stream)[0])


def _uniforms(seed: int, sample: int, position: int, size: int, stream: int) -> np.ndarray:
    bits = np.random.Philox(key=[seed, sample], counter=[0, position, stream, 0]).random_raw(size)
    # 52 random bits, centred in their cells: strictly between 0 and 1, so both logarithms are finite. With
    # 53 the centre of the last cell would round up to 1.
    uniforms: np.ndarray = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return uniforms
