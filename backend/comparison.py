"""Where two runs under one seed part ways, and which stage made them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from backend.events import TokenDecoded
from backend.protocol import EngineProtocol
from backend.request import Sample, SamplingParams
from backend.stages import STAGES, measured
from backend.trace import Trace

Kind = Literal["stages", "ended", "seed", "prompt", "model", "strategy", "rounding"]
ORDER = "order"  # stands among the stages of a cause where their order is what differs


@dataclass(frozen=True)
class Cut:
    """A run lost the token that the other one drew.

    Attributes:
        run: 0 or 1, the run in which it was cut. rank: of the token under the model, from 1.
        stage, setting: what cut it.
        reached, limit: what it was measured at and what it had to keep to, in the unit of the stage (see
            stages.StageSpec.unit); None where the stage has none.
    """

    run: int
    token_id: int
    label: str
    rank: int
    stage: str
    setting: float | str
    reached: float | None
    limit: float | None


@dataclass(frozen=True)
class Difference:
    """The first step at which two runs differ.

    Attributes:
        index: place in the output. labels: what each run has there; "" where it has ended.
        kind: "stages" if sampling settings made the difference, named in `causes`; "ended" if one run went on
            where the other had reached its limit; else what the two do not share.
        causes: the fewest stages which, switched off in both runs at this step, make both draw one token.
        cut: the token that one run drew and a stage of `causes` made impossible in the other, if so.
        leads: log-probability plus luck of its own token over that of the other run's, in each run, nats:
            by how much each was won; None where the tables do not hold both tokens.
    """

    index: int
    token_ids: tuple[int | None, int | None]
    labels: tuple[str, str]
    kind: Kind
    causes: tuple[str, ...] = ()
    cut: Cut | None = None
    leads: tuple[float | None, float | None] = (None, None)


def first_difference(engine: EngineProtocol, one: Trace, two: Trace) -> Difference | None:
    """Where two runs of one prompt part ways and why; None if their tokens are the same.

    A cause is not guessed from the record: both steps are computed again without the stage.

    Raises:
        RequestError, PlaygroundError: as Engine.generate.
    """
    steps = (one.steps(), two.steps())
    index = first_unequal(*steps)
    if index is None:
        return None
    at = tuple(found[index] if index < len(found) else None for found in steps)
    first, second = at
    token_ids = (first.token_id if first else None, second.token_id if second else None)
    labels = (first.label if first else "", second.label if second else "")
    apart = _not_shared(one, two)
    if apart is not None or first is None or second is None:
        return Difference(index, token_ids, labels, apart or "ended")
    causes = _causes(engine, one, two, index, (first, second))
    kind: Kind = "stages" if causes else "rounding"
    cut = _cut(first, second, causes) if causes else None
    return Difference(index, token_ids, labels, kind, causes, cut, _leads(first, second))


def differing_stages(one: SamplingParams, two: SamplingParams) -> tuple[str, ...]:
    """Stages set differently, in pipeline order, and ORDER where the order of those in use differs."""
    found = [stage for stage in STAGES if getattr(one, stage) != getattr(two, stage)]
    in_use = {*one.switched_on, *two.switched_on}
    orders = [[stage for stage in params.stage_order if stage in in_use] for params in (one, two)]
    if orders[0] != orders[1]:
        found.append(ORDER)
    return tuple(found)


def first_unequal(one: Sequence[TokenDecoded], two: Sequence[TokenDecoded], ended: bool = True) -> int | None:
    """Place of the first token that differs, None where there is none.

    If one text is the beginning of the other they differ behind its end, but only if both have `ended`.
    """
    for index, (left, right) in enumerate(zip(one, two, strict=False)):
        if left.token_id != right.token_id:
            return index
    return min(len(one), len(two)) if ended and len(one) != len(two) else None


def _not_shared(one: Trace, two: Trace) -> Kind | None:
    """What the runs differ in beside their sampling settings; None if they can be explained by these."""
    if one.started.model != two.started.model:
        return "model"
    if one.started.prompt_token_ids != two.started.prompt_token_ids:
        return "prompt"
    if not (isinstance(one.request.strategy, Sample) and isinstance(two.request.strategy, Sample)):
        return "strategy"
    greedy = all(trace.request.sampling.temperature == 0 for trace in (one, two))
    if one.started.seed != two.started.seed and not greedy:
        return "seed"
    return None


def _causes(
    engine: EngineProtocol, one: Trace, two: Trace, index: int, at: tuple[TokenDecoded, TokenDecoded]
) -> tuple[str, ...]:
    differing = differing_stages(one.request.sampling, two.request.sampling)
    suspects = {_cut_by(at[1], at[0].token_id), _cut_by(at[0], at[1].token_id)}
    for stages in _smallest_first(sorted(differing, key=lambda stage: stage not in suspects)):
        drawn = {_drawn_without(engine, trace, index, stages) for trace in (one, two)}
        if len(drawn) == 1:
            return stages
    return ()


def _smallest_first(stages: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for size in range(1, len(stages) + 1):
        yield from combinations(stages, size)


def _drawn_without(engine: EngineProtocol, trace: Trace, index: int, stages: Sequence[str]) -> int:
    """The token that the run would have drawn at `index` with these stages switched off there."""
    request = replace(
        trace.request,
        prompt=trace.started.prompt_token_ids,
        chat=False,
        seed=trace.started.seed,
        sampling=trace.request.sampling.without(stages),
        output_prefix=trace.token_ids[:index],
        max_new_tokens=max(trace.request.max_new_tokens, index + 1),
        num_candidates=0,
    )
    return engine.evaluate(request).token_id


def _cut_by(step: TokenDecoded, token_id: int) -> str | None:
    """The stage of a step that made a token impossible, as far as its table tells."""
    table = step.candidates
    if table is None or token_id not in table.token_ids:
        return None
    stage = table.cut_by[table.token_ids.index(token_id)]
    return step.stages[stage].stage if stage >= 0 else None


def _cut(first: TokenDecoded, second: TokenDecoded, causes: Sequence[str]) -> Cut | None:
    for run, (step, other) in enumerate(((first, second), (second, first))):
        stage = _cut_by(step, other.token_id)
        if stage is not None and (stage in causes or ORDER in causes):
            return _described(run, step, other)
    return None


def _described(run: int, step: TokenDecoded, lost: TokenDecoded) -> Cut:
    table = step.candidates
    assert table is not None
    place = table.token_ids.index(lost.token_id)
    outcome, margin = step.stages[table.cut_by[place]], table.margins[place]
    found = measured(outcome.stage, outcome.setting, outcome.threshold, margin)
    reached, limit = found or (None, None)
    return Cut(run, lost.token_id, lost.label, lost.rank, outcome.stage, outcome.setting, reached, limit)


def _leads(first: TokenDecoded, second: TokenDecoded) -> tuple[float | None, float | None]:
    return _lead(first, second.token_id), _lead(second, first.token_id)


def _lead(step: TokenDecoded, other_id: int) -> float | None:
    table = step.candidates
    if table is None or other_id not in table.token_ids:
        return None
    place = table.token_ids.index(other_id)
    final = (table.after[-1] if table.after else table.model_logprobs)[place]
    return math.inf if final == -math.inf else step.logprob + step.luck - final - table.luck[place]
