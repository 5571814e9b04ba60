"""Experiments on the engine's own distributions: is speculative decoding really lossless?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.decoding import rejection
from backend.decoding.rejection import expected_tokens
from backend.errors import RequestError
from backend.protocol import EngineProtocol
from backend.request import Request, Speculative

__all__ = ["ChiSquare", "Draws", "Proof", "expected_tokens", "prove_step", "prove_tables"]

MAX_DRAWS = 200_000
LEAST_EXPECTED = 5.0  # draws a bin must expect for the chi-square distribution to hold
NUM_SHOWN = 12


@dataclass(frozen=True)
class ChiSquare:
    """Pearson's goodness of fit to the target's distribution.

    Attributes:
        num_bins: tokens that expect at least LEAST_EXPECTED draws, and one bin for all others.
        p_value: how often a truly fitting sample would look as odd or odder; 1 where only one bin exists.
    """

    statistic: float
    num_bins: int
    p_value: float


@dataclass(frozen=True)
class Draws:
    """Draws of one kind: how often each shown token came, and "other" last; and how well all of them fit."""

    counts: tuple[int, ...]
    fit: ChiSquare


@dataclass(frozen=True)
class Proof:
    """Many draws of one step.

    Attributes:
        token_ids, labels, p, q: the tokens shown, likeliest under the target first; the rest is summed up in
            the counts' last entry and in `p_other`, `q_other`.
        speculative: drafted, checked, and replaced by a draw from the residual where rejected.
        plain: drawn from the target.
        careless: as speculative, but a rejected draft is replaced by a draw from the target: the usual bug.
        num_accepted: drafts accepted out of num_draws. acceptance: its expectation, sum of min(p, q).
    """

    num_draws: int
    token_ids: tuple[int, ...]
    labels: tuple[str, ...]
    p: tuple[float, ...]
    q: tuple[float, ...]
    p_other: float
    q_other: float
    speculative: Draws
    plain: Draws
    careless: Draws
    num_accepted: int
    acceptance: float


def prove_step(
    engine: EngineProtocol, request: Request, guess: int | None = None, num_draws: int = 20_000, seed: int = 0
) -> Proof:
    """Draw the next token of a speculative request `num_draws` times.

    The distributions come from one call each of target and draft behind the prompt and `output_prefix`, and
    pass through the request's stages; the draws cost no model.

    Args:
        guess: the token that a source without distributions drafts here; None asks the source.

    Raises:
        RequestError: not a speculative request, it does not fit the model, or the source has no guess here.
        PlaygroundError: the run ended with an error.
    """
    if not isinstance(request.strategy, Speculative):
        raise RequestError("only a step of speculative decoding can be proved")
    found = engine.peek(request)
    wanted = found.guess if guess is None or found.draft is not None else guess
    if wanted is None:
        raise RequestError("the draft has no guess here, so the step is plain decoding")
    return prove_tables(found.target, found.draft, wanted, num_draws, seed, engine.label)


def prove_tables(
    target: Tensor,
    draft: Tensor | None,
    guess: int,
    num_draws: int,
    seed: int = 0,
    label: Callable[[int], str] = str,
) -> Proof:
    """The same for given distributions [V]; `draft` None is a point mass on `guess`.

    Raises:
        RequestError: num_draws is out of range.
    """
    if not 1 <= num_draws <= MAX_DRAWS:
        raise RequestError(f"draws must be a whole number from 1 to {MAX_DRAWS}, got {num_draws}")
    generator = torch.Generator().manual_seed(seed)
    p = target.double().cpu()
    p = p / p.sum()
    q = (
        torch.zeros_like(p).index_fill(0, torch.tensor([guess]), 1.0)
        if draft is None
        else draft.double().cpu()
    )
    drafted = _draw(q, num_draws, generator)
    uniform = torch.rand(num_draws, dtype=torch.float64, generator=generator)
    accepted = uniform < rejection.thresholds(p, None if draft is None else q, drafted)
    left = rejection.residual(p, None if draft is None else q, guess)
    recovered = torch.where(accepted, drafted, _draw(left, num_draws, generator))
    careless = torch.where(accepted, drafted, _draw(p, num_draws, generator))
    plain = _draw(p, num_draws, generator)
    size = p.numel()
    shown = torch.sort(p, descending=True, stable=True).indices[: min(NUM_SHOWN, int((p > 0).sum()))]

    def series(tokens: Tensor) -> Draws:
        counts = torch.bincount(tokens, minlength=size)
        listed = counts[shown].tolist()
        return Draws((*listed, num_draws - sum(listed)), fit(counts, p))

    ids = shown.tolist()
    return Proof(
        num_draws=num_draws,
        token_ids=tuple(ids),
        labels=tuple(label(token_id) for token_id in ids),
        p=tuple(p[shown].tolist()),
        q=tuple(q[shown].tolist()),
        p_other=max(0.0, 1 - float(p[shown].sum())),
        q_other=max(0.0, 1 - float(q[shown].sum())),
        speculative=series(recovered),
        plain=series(plain),
        careless=series(careless),
        num_accepted=int(accepted.sum()),
        acceptance=float(torch.minimum(p, q).sum()),
    )


def fit(counts: Tensor, probabilities: Tensor) -> ChiSquare:
    """Pearson's test of [V] counts against [V] probabilities; rare tokens share one bin."""
    expected = probabilities.double() * counts.sum()
    if bool((counts[probabilities == 0] > 0).any()):
        return ChiSquare(float("inf"), int((expected > 0).sum()), 0.0)
    common = expected >= LEAST_EXPECTED
    seen, wanted = counts[common].double(), expected[common]
    rest, rest_expected = counts[~common].sum().double(), expected[~common].sum()
    if float(rest_expected) >= LEAST_EXPECTED or len(wanted) == 0:
        seen, wanted = torch.cat([seen, rest[None]]), torch.cat([wanted, rest_expected[None]])
    else:  # too few for a bin of their own: they join the rarest of the others
        last = int(torch.argmin(wanted))
        seen[last] += rest
        wanted[last] += rest_expected
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    degrees = len(wanted) - 1
    if degrees == 0:
        return ChiSquare(statistic, 1, 1.0)
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return ChiSquare(statistic, degrees + 1, float(torch.special.gammaincc(half[0], half[1])))


def _draw(probabilities: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` token ids by inverting the cumulative distribution."""
    cumulative = probabilities.cumsum(0)
    uniform = torch.rand(count, dtype=torch.float64, generator=generator) * cumulative[-1]
    # right=True skips tokens of probability 0, where the sum does not grow.
    return torch.searchsorted(cumulative, uniform, right=True).clamp(max=probabilities.numel() - 1)
