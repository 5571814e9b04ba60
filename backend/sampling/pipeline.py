"""Runs the stages in order, draws a token, and records what each stage did."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from backend.errors import PlaygroundError
from backend.events import Candidates, GrammarStep, StageOutcome, StageSetting
from backend.request import MAX_CANDIDATES, SamplingParams
from backend.sampling import noise, processors, ranking
from backend.sampling.processors import History
from backend.sampling.softmax import entropy, log_softmax

# Differences of log-probabilities up to this are float32 rounding, not something a stage did.
ROUNDING = 1e-5


@dataclass(frozen=True)
class Place:
    """Where a draw happens; with the token id it fixes the noise."""

    seed: int
    sample: int
    position: int


@dataclass(frozen=True)
class Choice:
    """One drawn (or given) token and how it came about; fields as in events.TokenDecoded."""

    token_id: int
    model_logprob: float
    logprob: float
    rank: int
    entropy: float
    luck: float
    uncut_winner: int | None
    stages: tuple[StageOutcome, ...]
    candidates: Candidates | None
    grammar: GrammarStep | None = None


class Grammar(processors.Mask, Protocol):
    """A constraint that can also tell what it meant at a step; see grammar.constraint.Constraint."""

    def describe(
        self, output_ids: Sequence[int], model: Tensor, token_id: int, label: Callable[[int], str]
    ) -> GrammarStep: ...


@dataclass(frozen=True)
class _Run:
    """Logits of one pass through the pipeline; before[i] is what stage i was given."""

    before: list[Tensor]
    final: Tensor
    uncut: Tensor
    _known: dict[int, Tensor] = field(default_factory=dict)

    def logprobs(self, logits: Tensor) -> Tensor:
        """log_softmax, computed once; of a tensor above, or one that outlives the run: its id is the key."""
        if id(logits) not in self._known:
            self._known[id(logits)] = log_softmax(logits)
        return self._known[id(logits)]


class Pipeline:
    """The stages of one request.

    Stateless between calls: what a stage knows of earlier tokens comes in with the history, so a
    sequence can be forked or rolled back without telling the pipeline.
    """

    def __init__(
        self,
        params: SamplingParams,
        label: Callable[[int], str],
        num_candidates: int = 30,
        grammar: Grammar | None = None,
        is_special: Callable[[int], bool] = lambda token_id: False,
    ):
        self.stages = processors.build(params, grammar)
        self._grammar = grammar
        self._greedy = params.temperature == 0
        self._label = label
        self._is_special = is_special
        self._num_candidates = num_candidates

    @property
    def settings(self) -> tuple[StageSetting, ...]:
        return tuple(StageSetting(stage.name, stage.setting) for stage in self.stages)

    def process(self, logits: Tensor, history: History) -> Tensor:
        """Log-probabilities after all stages; [V] in, [V] out.

        Raises:
            PlaygroundError: a stage left no token.
        """
        return log_softmax(self._run(logits.float(), history).final)

    def scores(self, logprobs: Tensor, history: History) -> Tensor:
        """What the stages make of the model's log-probabilities, not renormalised; [V] in, [V] out.

        Raises:
            PlaygroundError: a stage left no token.
        """
        return self._run(logprobs, history).final

    def model_candidates(self, model: Tensor) -> Candidates | None:
        """The best tokens of the model alone, given its log-probabilities [V]; None without a trace."""
        if self._num_candidates == 0:
            return None
        ids = ranking.best(model, self._num_candidates)
        return Candidates(
            token_ids=tuple(ids.tolist()),
            labels=tuple(self._label(token_id) for token_id in ids.tolist()),
            model_logprobs=tuple(model[ids].tolist()),
            after=(),
            cut_by=(-1,) * len(ids),
            margins=(None,) * len(ids),
            luck=(0.0,) * len(ids),
            ranks=tuple(range(1, len(ids) + 1)),
            special=tuple(map(self._is_special, ids.tolist())),
        )

    def choose(self, logits: Tensor, history: History, place: Place) -> Choice:
        """Draw the next token from logits [V]: argmax of log-probability plus noise.

        Raises:
            PlaygroundError: a stage left no token.
        """
        logits = logits.float()
        run = self._run(logits, history)
        luck = self._luck(place, logits)
        token_id = int(torch.argmax(run.logprobs(run.final) + luck))
        # Nothing was cut: the two are one and the same.
        uncut = token_id if run.uncut is run.final else int(torch.argmax(run.logprobs(run.uncut) + luck))
        return self._describe(token_id, logits, run, luck, uncut, history)

    def force(self, logits: Tensor, history: History, token_id: int) -> Choice:
        """Describe a token that was given, not drawn."""
        logits = logits.float()
        run = self._run(logits, history)
        return self._describe(token_id, logits, run, torch.zeros_like(logits), None, history)

    def grammar_step(self, model: Tensor, history: History, token_id: int) -> GrammarStep | None:
        """What the grammar meant where `token_id` was chosen, given the model's log-probabilities [V].

        None without a grammar or without a trace.
        """
        if self._grammar is None or self._num_candidates == 0:
            return None
        return self._grammar.describe(history.output_ids, model, token_id, self._label)

    def _luck(self, place: Place, logits: Tensor) -> Tensor:
        if self._greedy:
            return torch.zeros_like(logits)
        return noise.gumbel(place.seed, place.sample, place.position, logits.numel()).to(logits.device)

    def _run(self, logits: Tensor, history: History) -> _Run:
        if not bool(torch.isfinite(logits.max())):  # also catches NaN, which max passes on
            raise PlaygroundError("the model gave logits that are no distribution (NaN or infinite)")
        before = []
        final = uncut = logits
        for stage in self.stages:
            before.append(final)
            if stage.cuts:
                final = stage.apply(final, history)
            elif final is uncut:
                final = uncut = stage.apply(uncut, history)
            else:
                final, uncut = stage.apply(final, history), stage.apply(uncut, history)
            if not bool(torch.isfinite(final.max())):
                raise PlaygroundError(f"{stage.name} = {stage.setting} left no token to choose from")
        return _Run(before, final, uncut)

    def _describe(
        self,
        token_id: int,
        logits: Tensor,
        run: _Run,
        luck: Tensor,
        uncut_winner: int | None,
        history: History,
    ) -> Choice:
        model = run.logprobs(logits)
        traced = self._num_candidates > 0
        named = [token_id] if uncut_winner is None else [token_id, uncut_winner]
        results = (*run.before[1:], run.final) if traced and self.stages else ()
        after = [run.logprobs(result) for result in results]
        return Choice(
            token_id=token_id,
            model_logprob=float(model[token_id]),
            logprob=float(run.logprobs(run.final)[token_id]),
            rank=ranking.rank(logits, token_id),
            entropy=float(entropy(model)),
            luck=float(luck[token_id]),
            uncut_winner=uncut_winner,
            stages=self._outcomes(model, after) if traced else (),
            candidates=self._candidates(logits, model, run, after, luck, named) if traced else None,
            grammar=self.grammar_step(model, history, token_id),
        )

    def _outcomes(self, model: Tensor, after: list[Tensor]) -> tuple[StageOutcome, ...]:
        outcomes = []
        before, num_before = model, int(torch.count_nonzero(model > -math.inf))
        for stage, result in zip(self.stages, after, strict=False):
            kept = int(torch.count_nonzero(result > -math.inf)) if stage.cuts else num_before
            cut = before.masked_fill(result > -math.inf, -math.inf) if kept < num_before else None
            outcomes.append(
                StageOutcome(
                    stage=stage.name,
                    setting=stage.setting,
                    num_kept=kept,
                    cut_mass=0.0 if cut is None else float(cut.exp().sum(dtype=torch.float64)),
                    changed=kept < num_before or not torch.allclose(before, result, rtol=0, atol=ROUNDING),
                    threshold=stage.threshold(before, result),
                )
            )
            before, num_before = result, kept
        return tuple(outcomes)

    def _candidates(
        self, logits: Tensor, model: Tensor, run: _Run, after: list[Tensor], luck: Tensor, named: list[int]
    ) -> Candidates:
        """The table: the model's best, every kept token up to a limit, and the `named` ones."""
        kept = (run.final > -math.inf).nonzero().squeeze(-1)
        if kept.numel() > MAX_CANDIDATES:
            kept = ranking.best(run.final, MAX_CANDIDATES)
        extra = torch.tensor(named, device=model.device)
        ids = torch.unique(torch.cat([ranking.best(logits, self._num_candidates), kept, extra]))
        ids = ids[torch.sort(logits[ids], descending=True, stable=True).indices]
        rows = [model[ids].tolist(), *(row[ids].tolist() for row in after)]
        cut_by = [_first_cut(column) for column in zip(*rows, strict=True)]
        token_ids = ids.tolist()
        return Candidates(
            token_ids=tuple(token_ids),
            labels=tuple(self._label(candidate) for candidate in token_ids),
            model_logprobs=tuple(rows[0]),
            after=tuple(tuple(row) for row in rows[1:]),
            cut_by=tuple(cut_by),
            margins=self._margins(run, ids, cut_by),
            luck=tuple(luck[ids].tolist()),
            ranks=tuple(ranking.ranks(logits, ids)),
            special=tuple(map(self._is_special, token_ids)),
        )

    def _margins(self, run: _Run, ids: Tensor, cut_by: list[int]) -> tuple[float | None, ...]:
        margins: list[float | None] = [None] * len(cut_by)
        for index, stage in enumerate(self.stages):
            places = [place for place, cut in enumerate(cut_by) if cut == index]
            missed = stage.margins(run.before[index], ids[places]) if places else None
            for place, margin in zip(places, missed or (), strict=False):
                margins[place] = margin
        return tuple(margins)


def _first_cut(column: tuple[float, ...]) -> int:
    """Index of the stage that made a token impossible; -1 if none did, or if the model had already.

    `column` is its log-probability before all stages and after each.
    """
    if column[0] == -math.inf:
        return -1
    return next((index for index, value in enumerate(column[1:]) if value == -math.inf), -1)
