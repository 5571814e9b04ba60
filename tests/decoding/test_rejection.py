"""The exact check against closed forms and worked numbers."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare

from backend.decoding import rejection
from backend.sampling import noise


def marginal(
    target: list[float], draft: list[float] | None, guess: int | None, draws: int = 20_000
) -> list[int]:
    """Counts of the emitted token when a draft is drawn, checked, and replaced where it is rejected."""
    p = torch.tensor(target)
    q = None if draft is None else torch.tensor(draft)
    counts = [0] * len(target)
    for seed in range(draws):
        token_id = guess
        if token_id is None:
            assert q is not None
            token_id = rejection.draw(q, noise.gumbel(seed, 0, 0, len(target), noise.DRAFT))
        checked = rejection.check(p, q, token_id, noise.uniform(seed, 0, 0, noise.ACCEPT))
        if not checked.accepted:
            left = rejection.residual(p, q, token_id)
            token_id = rejection.draw(left, noise.gumbel(seed, 0, 0, len(target), noise.RESIDUAL))
        counts[token_id] += 1
    return counts


def fits(counts: list[int], probabilities: list[float]) -> bool:
    assert all(count == 0 for count, p in zip(counts, probabilities, strict=True) if p == 0)
    pairs = [(c, p * sum(counts)) for c, p in zip(counts, probabilities, strict=True) if p > 0]
    return bool(chisquare(*zip(*pairs, strict=True)).pvalue > 1e-4)


def test_a_sampled_draft_leaves_the_target_distribution() -> None:
    """C01."""
    assert fits(marginal([0.5, 0.2, 0.2, 0.1], [0.1, 0.6, 0.2, 0.1], None), [0.5, 0.2, 0.2, 0.1])


def test_a_guess_without_a_distribution_is_a_point_mass() -> None:
    """C01: accepted with probability .2, else the residual [.625, 0, .25, .125]."""
    target = torch.tensor([0.5, 0.2, 0.2, 0.1])
    assert rejection.check(target, None, 1, 0.19).accepted
    assert not rejection.check(target, None, 1, 0.21).accepted
    assert rejection.residual(target, None, 1).tolist() == pytest.approx([0.625, 0, 0.25, 0.125])
    assert fits(marginal([0.5, 0.2, 0.2, 0.1], None, 1), [0.5, 0.2, 0.2, 0.1])


def test_both_distributions_are_taken_after_the_cuts() -> None:
    """C02: top_k = 2 on both."""
    target = [0.35 / 0.65, 0.3 / 0.65, 0.0, 0.0]
    draft = [0.5 / 0.75, 0.0, 0.25 / 0.75, 0.0]
    assert target[:2] == pytest.approx([0.53846, 0.46154], abs=1e-5)
    assert fits(marginal(target, draft, None), target)


@pytest.mark.parametrize("token_id", range(4))
def test_equal_distributions_accept_everything(token_id: int) -> None:
    """C04."""
    same = torch.tensor([0.4, 0.3, 0.2, 0.1])
    assert rejection.check(same, same, token_id, 0.999999).accepted


def test_a_residual_of_nothing_is_the_target_and_no_nan() -> None:
    """C04."""
    same = torch.tensor([0.4, 0.3, 0.2, 0.1])
    assert torch.equal(rejection.residual(same, same, 0), same)
    certain = torch.tensor([0.0, 1.0])
    assert torch.equal(rejection.residual(certain, None, 1), certain)


def test_a_token_the_target_rules_out_is_never_accepted() -> None:
    target = torch.tensor([1.0, 0.0])
    assert not rejection.check(target, torch.tensor([0.0, 1.0]), 1, 1e-300).accepted


@pytest.mark.parametrize(
    ("acceptance", "k", "tokens"),
    [
        (0.6, 4, 2.31),
        (0.6, 8, 2.47),
        (0.7, 4, 2.77),
        (0.7, 8, 3.20),
        (0.8, 4, 3.36),
        (0.8, 8, 4.33),
        (0.9, 4, 4.10),
        (0.9, 8, 6.13),
        (0.75, 6, 3.47),
        (0.6, 3, 2.176),
        (1.0, 5, 6.0),
        (0.0, 5, 1.0),
    ],
)
def test_expected_tokens_per_check(acceptance: float, k: int, tokens: float) -> None:
    assert rejection.expected_tokens(acceptance, k) == pytest.approx(tokens, abs=0.0051)
