"""Stochastic beam search: num_beams different texts, drawn without replacement (Kool et al. 2019).

Every text has one Gumbel-perturbed log-probability; the k largest of all texts are a sample of k without
replacement. They are found top down: the largest perturbed value below a node is known when its children
are drawn, so the children's values are drawn given that maximum, and only the k largest go on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from backend.decoding.beam_search import Hypothesis, end_reason, write_results
from backend.decoding.forward import Context, Forward, Strategy
from backend.events import BeamNode, BeamStepped, FinishReason
from backend.request import BeamSearch
from backend.sampling import noise, ranking
from backend.sampling.pipeline import Choice
from backend.sampling.processors import History
from backend.sampling.softmax import entropy, log_softmax
from backend.sequence import Sequence


def truncated_gumbel(values: Tensor, maximum: float) -> Tensor:
    """Shift Gumbel variables [V] so that their greatest is exactly `maximum`, given that it is.

    -log(exp(-maximum) - exp(-greatest) + exp(-values)), in the stable form of Kool et al., appendix B.
    """
    greatest = values.max()
    below = maximum - values + torch.log1p(-torch.exp((values - greatest).clamp(max=0)))
    return maximum - below.clamp(min=0) - torch.log1p(torch.exp(-below.abs()))


@dataclass
class _Text:
    """One text of the sample so far; `sequence` is None once it has ended."""

    sequence: Sequence | None
    choices: tuple[Choice, ...]
    cum_logprob: float
    perturbed: float
    reason: FinishReason | None = None


@dataclass(frozen=True)
class _Child:
    parent: int
    token_id: int
    logprob: float
    cum_logprob: float
    perturbed: float


def stochastic_beams(context: Context, params: BeamSearch) -> Strategy:
    """Draw params.num_beams texts without replacement, the greatest perturbed value first.

    All sampling stages take part.
    """
    texts = [_Text(context.root, (), 0.0, 0.0)]
    try:
        step = 0
        while growing := [text for text in texts if text.sequence is not None]:
            logits = yield Forward(tuple(text.sequence for text in growing if text.sequence is not None))
            model = [log_softmax(rows[-1].float()) for rows in logits]
            children = [
                child
                for number, (text, logprobs) in enumerate(zip(growing, model, strict=True))
                for child in _children(context, params, text, number, logprobs)
            ]
            ended = [text for text in texts if text.sequence is None]
            children.sort(key=lambda child: -child.perturbed)
            kept = _survivors(children, ended, params.num_beams)
            yield _describe(context, step, children[: 2 * params.num_beams], kept, growing)
            texts = _grow(context, growing, ended, kept, model, params.num_beams)
            step += 1
        texts.sort(key=lambda text: -text.perturbed)
        found = [
            Hypothesis(text.choices, text.reason or "length", text.cum_logprob, text.perturbed)
            for text in texts
        ]
        yield from write_results(context, found[: params.num_return_sequences])
    finally:
        for text in texts:
            if text.sequence is not None:
                context.blocks.free(text.sequence)


def _history(sequence: Sequence) -> History:
    return History(sequence.token_ids, sequence.num_prompt_tokens)


def _children(context: Context, params: BeamSearch, text: _Text, number: int, model: Tensor) -> list[_Child]:
    """The best continuations of one text; more than num_beams of them can never survive."""
    assert text.sequence is not None
    scores = log_softmax(context.pipeline.scores(model, _history(text.sequence)).double())
    luck = noise.gumbel(context.seed, number, len(text.sequence), scores.numel()).to(scores.device)
    totals = scores + text.cum_logprob
    perturbed = totals + luck
    # The first text stands for all texts, whose greatest value is a plain Gumbel variable.
    if text.choices:
        perturbed = truncated_gumbel(perturbed, text.perturbed)
    ids = ranking.best(perturbed, 2 * params.num_beams)
    columns = (ids, scores[ids], totals[ids], perturbed[ids])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [_Child(number, *row) for row in rows if row[3] > -math.inf]


def _survivors(children: list[_Child], ended: list[_Text], num_beams: int) -> list[_Child]:
    """The children among the num_beams largest of children and ended texts together."""
    values = sorted((*(child.perturbed for child in children), *(text.perturbed for text in ended)))
    border = values[-num_beams] if len(values) > num_beams else -math.inf
    return [child for child in children if child.perturbed >= border]


def _grow(
    context: Context,
    growing: list[_Text],
    ended: list[_Text],
    kept: list[_Child],
    model: list[Tensor],
    num_beams: int,
) -> list[_Text]:
    texts = list(ended)
    forks = {id(child): context.blocks.fork(_sequence(growing[child.parent])) for child in kept}
    for child in kept:
        parent, sequence = growing[child.parent], forks[id(child)]
        logprobs = model[child.parent]
        choice = Choice(
            token_id=child.token_id,
            model_logprob=float(logprobs[child.token_id]),
            logprob=child.logprob,
            rank=ranking.rank(logprobs, child.token_id),
            entropy=float(entropy(logprobs)),
            luck=child.perturbed - child.cum_logprob,
            uncut_winner=None,
            stages=(),
            candidates=context.pipeline.model_candidates(logprobs),
            grammar=context.pipeline.grammar_step(logprobs, _history(sequence), child.token_id),
        )
        reason = end_reason(context, sequence, child.token_id)
        if reason is None:
            sequence.append(child.token_id)
        else:
            context.blocks.free(sequence)
        alive = sequence if reason is None else None
        texts.append(_Text(alive, (*parent.choices, choice), child.cum_logprob, child.perturbed, reason))
    for text in growing:
        context.blocks.free(_sequence(text))
    texts.sort(key=lambda text: -text.perturbed)
    return texts[:num_beams]


def _sequence(text: _Text) -> Sequence:
    assert text.sequence is not None
    return text.sequence


def _describe(
    context: Context, step: int, shown: list[_Child], kept: list[_Child], growing: list[_Text]
) -> BeamStepped:
    nodes = []
    beam = 0
    for child in shown:
        ends = end_reason(context, _sequence(growing[child.parent]), child.token_id) is not None
        status: Literal["kept", "finished", "pruned"] = "finished" if ends else "kept"
        if child not in kept:
            status = "pruned"
        nodes.append(
            BeamNode(
                parent=child.parent,
                token_id=child.token_id,
                label=context.vocabulary.label(child.token_id),
                logprob=child.logprob,
                cum_logprob=child.cum_logprob,
                score=child.perturbed,
                status=status,
                beam=beam if status == "kept" else -1,
                special=context.vocabulary.is_special(child.token_id),
            )
        )
        beam += status == "kept"
    return BeamStepped(step, tuple(nodes))
