"""How numbers are shown: the one place where a share, a probability or a log-probability becomes a figure."""

from __future__ import annotations

import math


def number(value: float, digits: int = 5) -> float | str:
    """`value` to some significant digits, infinities as the text "inf" or "-inf": strict JSON has none."""
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return float(f"{value:.{digits}g}")


def bits(nats: float) -> float:
    return nats / math.log(2)


def probability(logprob: float) -> float:
    return math.exp(logprob)


def percent(value: float | None) -> str:
    """A share from 0 to 1 as text: 12.3 %, 0.045 %, <0.001 %; a dash for None. As percent of shared.js."""
    if value is None:
        return "–"
    if value <= 0:
        return "0 %"
    scaled = value * 100
    if scaled < 0.001:
        return "<0.001 %"
    if scaled < 1:
        return f"{scaled:.2g} %"
    return f"{'>99.9' if 99.95 <= scaled < 100 else f'{scaled:.1f}'} %"


def fixed(value: float | None, digits: int) -> str:
    """With that many digits behind the point; a dash for None."""
    return "–" if value is None else f"{value:.{digits}f}"
