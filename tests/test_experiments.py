"""The proof by many draws: it accepts the right rule, and it can fail."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import chi2, chisquare

from backend import Request, RequestError, SamplingParams, Speculative
from backend.decoding import rejection
from backend.experiments import fit, prove_step, prove_tables
from tests import models
from tests.running import audit

TARGET = torch.tensor([0.5, 0.2, 0.2, 0.1])
DRAFT = torch.tensor([0.1, 0.6, 0.2, 0.1])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("draft", [DRAFT, None], ids=["distribution", "point mass"])
def test_speculative_draws_fit_the_target_and_careless_ones_do_not(draft, seed):
    proof = prove_tables(TARGET, draft, 1, 20_000, seed)
    assert proof.speculative.fit.p_value > 1e-4
    assert proof.plain.fit.p_value > 1e-4
    assert proof.careless.fit.p_value < 1e-12
    for series in (proof.speculative, proof.plain, proof.careless):
        assert sum(series.counts) == 20_000
        assert len(series.counts) == 5


def test_acceptance_is_the_overlap_of_the_two_distributions():
    proof = prove_tables(TARGET, DRAFT, 1, 100_000)
    assert proof.acceptance == pytest.approx(0.1 + 0.2 + 0.2 + 0.1)
    assert proof.num_accepted / 100_000 == pytest.approx(0.6, abs=0.01)
    assert prove_tables(TARGET, None, 1, 10).acceptance == pytest.approx(0.2)


def test_equal_distributions_accept_every_draft():
    proof = prove_tables(TARGET, TARGET.clone(), 0, 5_000)
    assert proof.num_accepted == 5_000


def test_one_possible_token_is_always_drawn():
    certain = torch.tensor([0.0, 1.0, 0.0])
    proof = prove_tables(certain, None, 2, 1_000)
    assert (proof.num_accepted, proof.token_ids) == (0, (1,))
    assert proof.speculative.counts == (1_000, 0)
    assert (proof.speculative.fit.num_bins, proof.speculative.fit.p_value) == (1, 1.0)


def test_tokens_beyond_those_shown_are_counted_as_other():
    flat = torch.full((100,), 0.01)
    proof = prove_tables(flat, flat, 0, 5_000)
    assert len(proof.labels) == 12
    assert sum(proof.plain.counts) == 5_000
    assert proof.plain.counts[-1] > 4_000
    assert proof.p_other == pytest.approx(0.88)


def test_the_fit_is_that_of_scipy():
    counts = torch.tensor([480, 215, 190, 115])
    ours = fit(counts, TARGET)
    theirs = chisquare([480, 215, 190, 115], [500, 200, 200, 100])
    assert ours.statistic == pytest.approx(theirs.statistic)
    assert ours.p_value == pytest.approx(theirs.pvalue)
    assert ours.num_bins == 4


def test_rare_tokens_share_a_bin_and_impossible_ones_refute():
    probabilities = torch.tensor([0.9, 0.09, 0.004, 0.003, 0.003])
    ours = fit(torch.tensor([910, 80, 5, 3, 2]), probabilities)
    statistic = 10**2 / 900 + 10**2 / 90 + 0
    assert ours.num_bins == 3
    assert ours.statistic == pytest.approx(statistic, rel=1e-4)
    assert ours.p_value == pytest.approx(chi2.sf(statistic, 2), rel=1e-4)
    few = fit(torch.tensor([91, 9, 0, 0, 0]), probabilities)
    assert few.num_bins == 2
    assert math.isinf(fit(torch.tensor([1, 1]), torch.tensor([1.0, 0.0])).statistic)


def test_thresholds_are_those_of_single_checks():
    ids = torch.tensor([0, 1, 2, 3, 1])
    for draft in (DRAFT, None):
        many = rejection.thresholds(TARGET, draft, ids).tolist()
        assert many == pytest.approx([rejection.check(TARGET, draft, i, 0.5).threshold for i in ids.tolist()])
    assert rejection.thresholds(TARGET, torch.tensor([1.0, 0, 0, 0]), torch.tensor([1])).tolist() == [0.0]


@pytest.mark.parametrize("draws", [0, -1, 200_001])
def test_a_number_of_draws_out_of_range_is_refused(draws):
    with pytest.raises(RequestError, match="from 1 to 200000"):
        prove_tables(TARGET, DRAFT, 1, draws)


def test_a_step_of_a_model_is_proved_and_leaves_no_blocks():
    engine = models.engine()
    sampling = SamplingParams(temperature=1.2, top_k=20, repetition_penalty=1.3)
    request = Request(
        "abcabc",
        sampling=sampling,
        strategy=Speculative("layer_skip", 4, skip_layers=(1,)),
        output_prefix=(70, 71),
    )
    proof = prove_step(engine, request, num_draws=20_000)
    plain = engine.evaluate(request)
    assert plain.candidates is not None
    column = dict(zip(plain.candidates.token_ids, plain.candidates.after[-1], strict=True))
    for token_id, p in zip(proof.token_ids, proof.p, strict=True):
        assert p == pytest.approx(math.exp(column[token_id]), abs=1e-5)
    assert proof.speculative.fit.p_value > 1e-4
    assert 0 < proof.acceptance < 1
    audit(engine)
    engine.close()


def test_a_lookup_without_a_match_has_nothing_to_prove():
    engine = models.engine()
    request = Request("abcdefgh", strategy=Speculative())
    with pytest.raises(RequestError, match="no guess here"):
        prove_step(engine, request)
    listed = prove_step(engine, request, guess=70, num_draws=100).token_ids
    proof = prove_step(engine, request, guess=listed[1], num_draws=100)
    assert proof.token_ids == listed
    assert proof.q == tuple(float(token_id == listed[1]) for token_id in listed)
    with pytest.raises(RequestError, match="speculative"):
        prove_step(engine, Request("a"))
    audit(engine)
    engine.close()
