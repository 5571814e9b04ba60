"""Best of n: samples that share the prompt's blocks, one of which is selected."""

from __future__ import annotations

from backend.decoding import selection
from backend.decoding.forward import Context, Strategy
from backend.decoding.lane import Lane
from backend.decoding.sample import sample
from backend.events import SampleSelected
from backend.request import BestOf


def best_of(context: Context, params: BestOf) -> Strategy:
    """Draw params.n samples and select one by the rule params.select."""
    lanes = yield from sample(context, params.n)
    yield _select(params, lanes)


def _select(params: BestOf, lanes: list[Lane]) -> SampleSelected:
    """Score every sample."""
    texts = [lane.text for lane in lanes]
    answers = tuple(selection.extract_answer(text, params.answer) for text in texts)
    matrix = selection.similarities(texts) if params.select == "mbr" else ()
    sums, lengths = [lane.cum_logprob for lane in lanes], [lane.num_released for lane in lanes]
    scores = selection.scores(params.select, sums, lengths, answers, matrix)
    return SampleSelected(params.select, selection.best(scores), scores, answers, matrix)
