"""The one rule of order among tokens: higher value first, lower id first among equals."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def best(values: Tensor, count: int) -> Tensor:
    """Ids of the `count` best tokens, in order; [count]. `values` is [V], minus infinity allowed.

    Neither torch.topk nor argsort orders equals by id. Taking every value that reaches the count-th
    best and sorting those few stably does, at a small part of the price of a full stable sort.
    """
    count = min(count, values.numel())
    border = torch.topk(values, count).values[-1]
    ids = (values >= border).nonzero().squeeze(-1)
    order = torch.sort(values[ids], descending=True, stable=True).indices
    return ids[order[:count]]


def rank(values: Tensor, token_id: int) -> int:
    """Place of a token, 1 for the best."""
    value = values[token_id]
    better = int((values > value).sum())
    equal_before = int((values[:token_id] == value).sum())
    return better + equal_before + 1


def near(values: Tensor, token_ids: Tensor) -> Tensor:
    """Ids of all tokens at least as good as the worst of `token_ids`, in order; [n]."""
    ids = (values >= values[token_ids].min()).nonzero().squeeze(-1)
    return ids[torch.sort(values[ids], descending=True, stable=True).indices]


def ranks(values: Tensor, token_ids: Tensor) -> list[int]:
    """Place of each token, 1 for the best. `token_ids` is [C], C >= 1, in order."""
    before = near(values, token_ids)
    if before.numel() == token_ids.numel():
        return list(range(1, token_ids.numel() + 1))
    places = torch.empty(values.numel(), dtype=torch.long, device=values.device)
    places[before] = torch.arange(1, before.numel() + 1, device=values.device)
    found: list[int] = places[token_ids].tolist()
    return found


def covering(values: Tensor, weights: Tensor, mass: float, slack: float) -> Tensor:
    """Ids of the shortest run of best tokens whose weights reach `mass` (at least one), in order; [n].

    `weights` is [V] and sums to 1. `slack` is the rounding allowed for in "reaches": a sum that lands on
    `mass` up to slack is enough.
    """
    # Mass sits near the best value: sorting what lies within a few nats of it nearly always suffices.
    best_value, reach = values.max(), 8.0
    while True:
        ids = (values >= best_value - reach).nonzero().squeeze(-1)
        ids = ids[torch.sort(values[ids], descending=True, stable=True).indices]
        cumulative = weights[ids].double().cumsum(-1)
        if cumulative[-1] >= mass - slack or reach == math.inf:
            break
        reach = reach * 2 if reach < 64 else math.inf
    length = min(int((cumulative < mass - slack).sum()) + 1, ids.numel())
    return ids[:length]
