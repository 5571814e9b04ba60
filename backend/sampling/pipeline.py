"""Runs the stages in order, draws a token, and records what each stage did."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from backend.errors import NoTokenLeft, PlaygroundError
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
    ) -> GrammarStep:
        """What it meant for the token drawn after this output; `model` holds log-probabilities [V]."""


@dataclass(frozen=True)
class Position:
    """What the stages made of the logits at one position; what is asked twice is computed once.

    log_softmax is taken of a row when it is asked for: a draft may be rejected before its row is needed, and
    on a CPU temporaries of a whole batch cost more than the calls they save.

    Attributes:
        logits: of the model; [V]. before: what each stage was given; [num_stages][V].
        final: after all stages; [V]. uncut: after those that cut nothing; [V].
    """

    pipeline: Pipeline
    history: History
    logits: Tensor
    before: list[Tensor]
    final: Tensor
    uncut: Tensor
    _known: dict[int, Tensor] = field(default_factory=dict)

    @property
    def logprobs(self) -> Tensor:
        """Log-probabilities after all stages; [V]."""
        return self.logprobs_of(self.final)

    def logprobs_of(self, logits: Tensor) -> Tensor:
        """log_softmax of one of the tensors above; their ids are the keys."""
        if id(logits) not in self._known:
            self._known[id(logits)] = log_softmax(logits)
        return self._known[id(logits)]

    def choose(self, place: Place) -> Choice:
        """Draw the next token: argmax of log-probability plus noise."""
        return self.pipeline.draw(self, place)

    def force(self, token_id: int) -> Choice:
        """Describe a token that was given, not drawn."""
        return self.pipeline.describe(self, token_id, torch.zeros_like(self.logits), None)


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
        """The stages that are switched on, in their order."""
        return tuple(StageSetting(stage.name, stage.setting) for stage in self.stages)

    def process(self, logits: Tensor, history: History) -> Tensor:
        """Log-probabilities after all stages; [V] in, [V] out.

        Raises:
            PlaygroundError: a stage left no token.
        """
        return self.position(logits, history).logprobs

    def scores(self, logprobs: Tensor, history: History) -> Tensor:
        """What the stages make of the model's log-probabilities, not renormalised; [V] in, [V] out.

        Raises:
            PlaygroundError: a stage left no token.
        """
        return self.position(logprobs, history).final

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
        return self.position(logits, history).choose(place)

    def force(self, logits: Tensor, history: History, token_id: int) -> Choice:
        """Describe a token that was given, not drawn.

        Raises:
            PlaygroundError: a stage left no token.
        """
        return self.position(logits, history).force(token_id)

    def position(self, logits: Tensor, history: History) -> Position:
        """Run the stages over logits [V].

        Raises:
            PlaygroundError: a stage left no token.
        """
        (found,) = self._run(logits[None].float(), [history])
        return found

    def positions(self, logits: Tensor, histories: Sequence[History]) -> Iterator[Position]:
        """Run the stages over logits [B, V]; bit for bit what `position` gives for each row.

        All rows go through in one batch, unless a stage looks at the tokens so far: then each is run when it
        is asked for, since what follows a wrong draft may leave no token.

        Raises:
            PlaygroundError: at a row for which a stage left no token.
        """
        found: list[Position] = []
        if len(histories) > 1 and not any(stage.reads_history for stage in self.stages):
            with contextlib.suppress(PlaygroundError):  # a row is bad; those before it are not
                found = self._run(logits.float(), histories)
        yield from found
        if found:
            return
        for row, history in zip(logits, histories, strict=True):
            yield self.position(row, history)

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

    def _no_token_left(
        self, stage: processors.Stage, histories: Sequence[History], states: list[Tensor]
    ) -> NoTokenLeft:
        """Why, given the logits [B, V] before the first stage and after each up to `stage`."""
        row = int((~torch.isfinite(states[-1]).any(dim=-1)).nonzero()[0])
        rows = [state[row : row + 1] for state in states]
        allowed = torch.isfinite(_apply(stage, rows[0], histories[row : row + 1]))
        steps = zip(self.stages, rows, rows[1:-1], strict=False)
        took = [
            f"{earlier.name} = {earlier.setting}"
            for earlier, before, after in steps
            if bool((allowed & torch.isfinite(before) & ~torch.isfinite(after)).any())
        ]
        why = f": {', '.join(took)} had taken what it allows" if took else ""
        return NoTokenLeft(f"{stage.name} = {stage.setting} left no token to choose from{why}")

    def _run(self, logits: Tensor, histories: Sequence[History]) -> list[Position]:
        if not _all_finite(logits):  # also catches NaN, which a maximum passes on
            raise PlaygroundError("the model gave logits that are no distribution (NaN or infinite)")
        before = []
        final = uncut = logits
        for stage in self.stages:
            before.append(final)
            if stage.cuts:
                final = _apply(stage, final, histories)
            elif final is uncut:
                final = uncut = _apply(stage, uncut, histories)
            else:
                final, uncut = _apply(stage, final, histories), _apply(stage, uncut, histories)
            if not _all_finite(final):
                raise self._no_token_left(stage, histories, [*before, final])
        rows = {id(batch): batch.unbind() for batch in (logits, *before, final, uncut)}
        return [
            Position(
                pipeline=self,
                history=history,
                logits=rows[id(logits)][row],
                before=[rows[id(batch)][row] for batch in before],
                final=rows[id(final)][row],
                uncut=rows[id(uncut)][row],
            )
            for row, history in enumerate(histories)
        ]

    def draw(self, position: Position, place: Place) -> Choice:
        """See Position.choose."""
        luck = self._luck(place, position.logits)
        token_id = int(torch.argmax(position.logprobs + luck))
        uncut = token_id
        if position.uncut is not position.final:  # else nothing was cut, and the two are one and the same
            uncut = int(torch.argmax(position.logprobs_of(position.uncut) + luck))
        return self.describe(position, token_id, luck, uncut)

    def describe(self, position: Position, token_id: int, luck: Tensor, uncut_winner: int | None) -> Choice:
        """A choice as it is recorded; `luck` is the noise of all tokens, [V]."""
        model = position.logprobs_of(position.logits)
        traced = self._num_candidates > 0
        named = [token_id] if uncut_winner is None else [token_id, uncut_winner]
        results = (*position.before[1:], position.final) if traced and self.stages else ()
        after = [position.logprobs_of(result) for result in results]
        return Choice(
            token_id=token_id,
            model_logprob=float(model[token_id]),
            logprob=float(position.logprobs[token_id]),
            rank=ranking.rank(position.logits, token_id),
            entropy=float(entropy(model)),
            luck=float(luck[token_id]),
            uncut_winner=uncut_winner,
            stages=self._outcomes(model, after) if traced else (),
            candidates=self._candidates(position, model, after, luck, named) if traced else None,
            grammar=self.grammar_step(model, position.history, token_id),
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
        self, position: Position, model: Tensor, after: list[Tensor], luck: Tensor, named: list[int]
    ) -> Candidates:
        """The table: the model's best, every kept token up to a limit, and the `named` ones."""
        logits, final = position.logits, position.final
        kept = (final > -math.inf).nonzero().squeeze(-1)
        if kept.numel() > MAX_CANDIDATES:
            kept = ranking.best(final, MAX_CANDIDATES)
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
            margins=self._margins(position.before, ids, cut_by),
            luck=tuple(luck[ids].tolist()),
            ranks=tuple(ranking.ranks(logits, ids)),
            special=tuple(map(self._is_special, token_ids)),
        )

    def _margins(self, before: list[Tensor], ids: Tensor, cut_by: list[int]) -> tuple[float | None, ...]:
        margins: list[float | None] = [None] * len(cut_by)
        for index, stage in enumerate(self.stages):
            places = [place for place, cut in enumerate(cut_by) if cut == index]
            missed = stage.margins(before[index], ids[places]) if places else None
            for place, margin in zip(places, missed or (), strict=False):
                margins[place] = margin
        return tuple(margins)


def _all_finite(logits: Tensor) -> bool:
    """Whether each row of [B, V] still has a token to choose, and no NaN."""
    return bool(torch.isfinite(logits.amax(-1)).all())


def _apply(stage: processors.Stage, logits: Tensor, histories: Sequence[History]) -> Tensor:
    """A stage over [B, V], each row with its own history."""
    if not stage.reads_history:
        return stage.apply(logits, histories[0])
    return torch.stack([stage.apply(*pair) for pair in zip(logits, histories, strict=True)])


def _first_cut(column: tuple[float, ...]) -> int:
    """Index of the stage that made a token impossible; -1 if none did, or if the model had already.

    `column` is its log-probability before all stages and after each.
    """
    if column[0] == -math.inf:
        return -1
    return next((index for index, value in enumerate(column[1:]) if value == -math.inf), -1)
