"""Beams whose line can go on no further, and one beam as greedy search."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backend import BeamSearch, Engine, Grammar, PlaygroundError, Request, Sample, SamplingParams
from tests import models

GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = models.engine(num_blocks=96)
    yield engine
    engine.close()


def search(engine: Engine, regex: str, strategy: BeamSearch | Sample):
    request = Request(
        "x",
        grammar=Grammar(regex=regex),
        strategy=strategy,
        sampling=SamplingParams(no_repeat_ngram_size=1),
        max_new_tokens=24,
    )
    return engine.generate(request)


@pytest.mark.parametrize("strategy", [BeamSearch(8), BeamSearch(4), BeamSearch(4, num_beam_groups=2)])
def test_a_dead_line_drops_out_and_the_finished_ones_are_returned(engine, strategy):
    trace = search(engine, "(ab){8}|c|d|ef", strategy)
    assert set(trace.samples) <= {"c", "d", "ef"}
    assert trace.samples


def test_where_every_line_is_dead_the_message_names_who_took_the_tokens(engine):
    words = r"grammar = regex left no token to choose from: no_repeat_ngram_size = 1 had taken what it allows"
    for strategy in (BeamSearch(2), BeamSearch(1), Sample()):
        with pytest.raises(PlaygroundError, match=words):
            search(engine, "(ab){8}", strategy)


@pytest.mark.parametrize("prompt", ["The house", "one two one two", "aaaa", "x = "])
@pytest.mark.parametrize("sampling", [{"repetition_penalty": 1.3}, {"frequency_penalty": 0.7}, {}])
def test_one_beam_is_greedy_search(engine, prompt, sampling):
    greedy = Request(prompt, sampling=SamplingParams(temperature=0, **sampling), max_new_tokens=24)
    beam = Request(prompt, sampling=SamplingParams(**sampling), strategy=BeamSearch(1), max_new_tokens=24)
    assert engine.generate(beam).text == engine.generate(greedy).text
