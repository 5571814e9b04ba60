"""Which strategy decodes a request, with which stages, and how many sequences it may hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

from backend.decoding.beam_search import beam_search
from backend.decoding.best_of import best_of
from backend.decoding.drafters.drafter import Drafter
from backend.decoding.forward import Context, Strategy
from backend.decoding.jump_forward import jump_forward
from backend.decoding.sample import sample
from backend.decoding.speculative import speculative
from backend.decoding.stochastic_beams import stochastic_beams
from backend.request import BeamSearch, BestOf, Request, Sample, SamplingParams, Speculative
from backend.stages import DRAW


class Plan(NamedTuple):
    """How a request is decoded. `num_sequences` is the most that grow side by side."""

    decode: Callable[[Context], Strategy]
    sampling: SamplingParams
    num_sequences: int


class DrafterSource(Protocol):
    """Makes drafters; see drafts.Drafts."""

    def prepare(self, params: Speculative) -> Callable[[Context], Drafter]:
        """Check the parameters once; what comes back makes the drafter of one run.

        Raises:
            RequestError: there is no such draft for this model.
        """


def plan(request: Request, drafts: DrafterSource) -> Plan:
    """Choose by the type of request.strategy.

    Raises:
        RequestError: the draft source does not fit.
    """
    return _PLANS[type(request.strategy)](request, drafts)


def _sample(request: Request, drafts: DrafterSource) -> Plan:
    strategy = cast(Sample, request.strategy)
    if request.grammar is not None and request.grammar.jump_forward and strategy.n == 1:
        return Plan(jump_forward, request.sampling, 1)
    return Plan(lambda context: sample(context, strategy.n), request.sampling, strategy.n)


def _best_of(request: Request, drafts: DrafterSource) -> Plan:
    strategy = cast(BestOf, request.strategy)
    return Plan(lambda context: best_of(context, strategy), request.sampling, strategy.n)


def _beam_search(request: Request, drafts: DrafterSource) -> Plan:
    strategy = cast(BeamSearch, request.strategy)
    if strategy.stochastic:
        return Plan(lambda context: stochastic_beams(context, strategy), request.sampling, strategy.num_beams)
    # A search compares sums of log-probabilities; what only shapes a draw takes no part in it.
    sampling = request.sampling.without(DRAW)
    return Plan(lambda context: beam_search(context, strategy), sampling, strategy.num_beams)


def _speculative(request: Request, drafts: DrafterSource) -> Plan:
    strategy = cast(Speculative, request.strategy)
    drafter = drafts.prepare(strategy)
    return Plan(lambda context: speculative(context, strategy, drafter(context)), request.sampling, 1)


_PLANS: dict[type, Callable[[Request, DrafterSource], Plan]] = {
    Sample: _sample,
    BestOf: _best_of,
    BeamSearch: _beam_search,
    Speculative: _speculative,
}
