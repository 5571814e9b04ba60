"""Beams: the greedy text that is laid over a search is scored as the search scores its own."""

import math

import pytest

from backend import BeamSearch, Engine, Request, SamplingParams
from backend.events import BeamStepped
from tests import models
from ui.tabs.beams import greedy


@pytest.fixture(scope="module")
def engine() -> Engine:
    return models.engine(models.llama())


@pytest.mark.parametrize("length_penalty", [0.0, -1.0, 0.5, 1.0, 3.0])
def test_the_greedy_text_is_scored_with_the_length_penalty_of_the_search(
    engine: Engine, length_penalty: float
) -> None:
    search = Request(
        (1, 2, 3),
        sampling=SamplingParams(),
        strategy=BeamSearch(num_beams=3, length_penalty=length_penalty),
        max_new_tokens=6,
        num_candidates=0,
    )
    events = engine.generate(greedy(search)).events
    steps = [event for event in events if isinstance(event, BeamStepped)]
    kept = [(step.step + 1, node) for step in steps for node in step.nodes if node.status == "kept"]
    assert len(kept) >= 4
    for length, node in kept:
        assert math.isclose(node.score, node.cum_logprob / length**length_penalty, rel_tol=1e-6)
