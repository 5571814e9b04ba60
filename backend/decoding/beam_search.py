"""Beam search: the num_beams best partial texts are kept at every step, in the terms of transformers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from backend.decoding.forward import Context, Forward, Strategy
from backend.decoding.lane import Lane
from backend.decoding.selection import length_normalised
from backend.errors import NoTokenLeft
from backend.events import BeamNode, BeamStepped, Event, FinishReason
from backend.request import BeamSearch
from backend.sampling import ranking
from backend.sampling.pipeline import Choice
from backend.sampling.processors import History
from backend.sampling.softmax import entropy, log_softmax
from backend.sequence import Sequence


@dataclass(frozen=True)
class Hypothesis:
    """A text that has ended: what was chosen at each step, and its score.

    `text`: under a grammar, its bytes: two ways to cut one text into tokens are then one result.
    """

    choices: tuple[Choice, ...]
    reason: FinishReason
    cum_logprob: float
    score: float
    text: bytes | None = None


@dataclass
class Beam:
    """A text that is still growing. `cum_logprob` is the sum of its processed log-probabilities."""

    sequence: Sequence
    choices: tuple[Choice, ...] = ()
    cum_logprob: float = 0.0


@dataclass(frozen=True)
class Continuation:
    """One candidate of a step: beam `parent` followed by `token_id`."""

    parent: int
    token_id: int
    logprob: float
    cum_logprob: float
    reason: FinishReason | None


class Pool:
    """The best finished hypotheses, at most num_beams of them."""

    def __init__(self, params: BeamSearch, max_length: int):
        self._params = params
        self._max_length = max_length
        self._improvable = True
        self.hypotheses: list[Hypothesis] = []

    @property
    def full(self) -> bool:
        """Whether it holds as many hypotheses as there are beams."""
        return len(self.hypotheses) >= self._params.num_beams

    @property
    def closed(self) -> bool:
        """Whether nothing may enter any more, so that the search is over."""
        return not self._improvable or (self.full and self._params.early_stopping is True)

    def add(self, hypotheses: list[Hypothesis]) -> None:
        """Take in what finished at one step; all at once, since a full pool closes only between steps."""
        if not self.closed:
            ranked = sorted([*self.hypotheses, *hypotheses], key=lambda found: -found.score)
            best: dict[bytes | int, Hypothesis] = {}
            for found in ranked:
                best.setdefault(id(found) if found.text is None else found.text, found)
            self.hypotheses = list(best.values())[: self._params.num_beams]

    def check(self, best_running: float, length: int) -> None:
        """Close for good once the best running beam, `length` tokens long, cannot improve a full pool.

        Its best possible score assumes that it ends now, or with early_stopping "never" and a positive
        length penalty, at the greatest length.
        """
        if not self.full:
            return
        late = self._params.early_stopping == "never" and self._params.length_penalty > 0
        reach = self._max_length if late else length
        possible = length_normalised(best_running, reach, self._params.length_penalty)
        self._improvable = self._improvable and possible > min(found.score for found in self.hypotheses)


def beam_search(context: Context, params: BeamSearch) -> Strategy:
    """Search for the texts of the highest score.

    Stages act on the model's log-probabilities and are not renormalised, and only the penalties, bans and
    biases take part, as in transformers without do_sample. One beam is greedy search: its first end is final.
    Groups search side by side; the diversity penalty counts in the choice of a step, not in the scores.
    """
    size = params.num_beams // params.num_beam_groups
    early = True if size == 1 else params.early_stopping
    own = replace(params, num_beams=size, num_return_sequences=1, num_beam_groups=1, early_stopping=early)
    groups: list[_Group] = []
    try:
        groups.append(_Group(context, own, context.root, 0, params.num_beams == 1))
        (first,) = yield Forward((context.root,))
        for number in range(1, params.num_beam_groups):
            groups.append(_Group(context, own, context.blocks.fork(context.root), number, False))
        logits = [first] * len(groups)
        while running := [group for group in groups if group.beams]:
            rows = iter(logits)
            chosen: Counter[int] = Counter()
            for group in running:
                own_rows = [next(rows)[-1] for _ in group.beams]
                event = group.step(own_rows, chosen, params.diversity_penalty)
                chosen.update(node.token_id for node in event.nodes if node.status != "pruned")
                yield event
            if sequences := [beam.sequence for group in groups for beam in group.beams]:
                logits = yield Forward(tuple(sequences))
        found = sorted((each for group in groups for each in group.pool.hypotheses), key=lambda h: -h.score)
        dead_ends = [group.dead_end for group in groups if group.dead_end is not None]
        if not found and dead_ends:
            raise dead_ends[0]
        yield from write_results(context, found[: params.num_return_sequences])
    finally:
        for group in groups:
            group.release(group.beams)


def end_reason(context: Context, sequence: Sequence, token_id: int) -> FinishReason | None:
    """Why the text ends if `token_id` follows, or None if it goes on."""
    if (ends := context.end_after(sequence, token_id)) is not None:
        return ends
    if sequence.num_output_tokens + 1 >= context.request.max_new_tokens:
        return "length"
    if len(sequence) + 1 >= context.context_length:
        return "context_full"
    return None


def write_results(context: Context, found: list[Hypothesis]) -> Iterator[Event]:
    """The returned texts as samples, best first; fewer than asked for where fewer were found."""
    for sample, hypothesis in enumerate(found):
        written = Sequence(list(context.prompt_ids), context.root.num_prompt_tokens)
        lane = Lane(context, written, sample)
        for choice in hypothesis.choices:
            yield from lane.record(choice)
        yield from lane.finish(hypothesis.reason, hypothesis.cum_logprob, hypothesis.score)


class _Group:
    """Beams that compete with each other; empty once their search is over."""

    def __init__(self, context: Context, params: BeamSearch, root: Sequence, number: int, is_greedy: bool):
        self.context = context
        self.params = params
        self.beams = [Beam(root)]
        room = context.context_length - root.num_prompt_tokens
        self._max_length = min(context.request.max_new_tokens, room)
        self.pool = Pool(params, self._max_length)
        self._number = number
        self._is_greedy = is_greedy
        self.dead_end: NoTokenLeft | None = None  # why a line was dropped
        self._step = 0

    def step(self, logits: list[Tensor], chosen: Counter[int], diversity_penalty: float) -> BeamStepped:
        """Extend all beams by one token, given the logits [V] after each.

        `chosen` counts the tokens that earlier groups chose at this step.
        """
        model = [log_softmax(row.float()) for row in logits]
        found = self._continuations(logits, model, chosen, diversity_penalty)
        ended = [item for item in found[: self.params.num_beams] if item.reason]
        kept = [item for item in found if not item.reason][: self.params.num_beams]
        choices = self._choices([*ended, *kept], model)
        event = self._describe(found, ended, kept)
        self.pool.add([self._hypothesis(item, choices[item]) for item in ended])
        self._grow(kept, choices)
        self._step += 1
        if self.beams:
            best_running = max(beam.cum_logprob for beam in self.beams)
            self.pool.check(best_running, self.beams[0].sequence.num_output_tokens)
        if self.pool.closed:
            self.release(self.beams)
            self.beams = []
        return event

    def release(self, beams: list[Beam]) -> None:
        for beam in beams:
            self.context.blocks.free(beam.sequence)

    def _continuations(
        self, logits: list[Tensor], model: list[Tensor], chosen: Counter[int], diversity_penalty: float
    ) -> list[Continuation]:
        """The best candidates over all beams: enough that num_beams go on even if all others end."""
        scores = torch.stack(
            [self._scores(*each) for each in zip(self.beams, logits, model, strict=True)],
        )
        ranked = scores
        if chosen and diversity_penalty:
            ids = torch.tensor(list(chosen), device=scores.device)
            times = torch.tensor(list(chosen.values()), dtype=scores.dtype, device=scores.device)
            ranked = scores.index_add(1, ids, times.expand(len(scores), -1), alpha=-diversity_penalty)
        wanted = max(2, 1 + len(self.context.eos_ids)) * self.params.num_beams
        places = ranking.best(ranked.flatten(), wanted)
        vocab_size = scores.shape[1]
        totals = scores.flatten()[places].tolist()
        return [
            self._continuation(place // vocab_size, place % vocab_size, total)
            for place, total in zip(places.tolist(), totals, strict=True)
            if total > -math.inf
        ]

    def _scores(self, beam: Beam, logits: Tensor, model: Tensor) -> Tensor:
        """Sums after each token [V]: minus infinity throughout where the line cannot go on.

        One beam is greedy search: stages act on the logits, as they do there, and not on log-probabilities.
        """
        pipeline, history = self.context.pipeline, self._history(beam)
        try:
            after = pipeline.process(logits, history) if self._is_greedy else pipeline.scores(model, history)
        except NoTokenLeft as error:
            self.dead_end = error
            return torch.full_like(model, -math.inf)
        return after + beam.cum_logprob

    def _continuation(self, parent: int, token_id: int, cum_logprob: float) -> Continuation:
        beam = self.beams[parent]
        return Continuation(
            parent, token_id, cum_logprob - beam.cum_logprob, cum_logprob, self._reason(beam, token_id)
        )

    def _reason(self, beam: Beam, token_id: int) -> FinishReason | None:
        return end_reason(self.context, beam.sequence, token_id)

    def _history(self, beam: Beam) -> History:
        return History(beam.sequence.token_ids, beam.sequence.num_prompt_tokens)

    def _choices(self, items: list[Continuation], model: list[Tensor]) -> dict[Continuation, Choice]:
        parents = {item.parent for item in items}
        entropies = {parent: float(entropy(model[parent])) for parent in parents}
        candidates = {parent: self.context.pipeline.model_candidates(model[parent]) for parent in parents}
        return {
            item: Choice(
                token_id=item.token_id,
                model_logprob=float(model[item.parent][item.token_id]),
                logprob=item.logprob,
                rank=ranking.rank(model[item.parent], item.token_id),
                entropy=entropies[item.parent],
                luck=0.0,
                uncut_winner=None,
                stages=(),
                candidates=candidates[item.parent],
                grammar=self.context.pipeline.grammar_step(
                    model[item.parent], self._history(self.beams[item.parent]), item.token_id
                ),
            )
            for item in items
        }

    def _hypothesis(self, item: Continuation, choice: Choice) -> Hypothesis:
        assert item.reason is not None
        beam = self.beams[item.parent]
        score = length_normalised(
            item.cum_logprob, beam.sequence.num_output_tokens + 1, self.params.length_penalty
        )
        text = None
        if self.context.constraint is not None:
            read = self.context.vocabulary.token_bytes
            text = b"".join(read(each.token_id) for each in (*beam.choices, choice))
        return Hypothesis((*beam.choices, choice), item.reason, item.cum_logprob, score, text)

    def _grow(self, kept: list[Continuation], choices: dict[Continuation, Choice]) -> None:
        """Each kept continuation becomes a beam; the first child of a parent takes over its sequence."""
        parents, taken = self.beams, set()
        beams = []
        for item in kept:
            parent = parents[item.parent]
            sequence = parent.sequence
            if item.parent in taken:
                sequence = self.context.blocks.fork(parents[item.parent].sequence)
            taken.add(item.parent)
            beams.append(Beam(sequence, (*parent.choices, choices[item]), item.cum_logprob))
        for beam in beams:
            beam.sequence.append(beam.choices[-1].token_id)
        self.release([beam for index, beam in enumerate(parents) if index not in taken])
        self.beams = beams

    def _describe(
        self, found: list[Continuation], ended: list[Continuation], kept: list[Continuation]
    ) -> BeamStepped:
        length = self.beams[0].sequence.num_output_tokens + 1
        beam_of = {item: number for number, item in enumerate(kept)}
        return BeamStepped(
            step=self._step,
            group=self._number,
            nodes=tuple(
                BeamNode(
                    parent=item.parent,
                    token_id=item.token_id,
                    label=self.context.vocabulary.label(item.token_id),
                    logprob=item.logprob,
                    cum_logprob=item.cum_logprob,
                    score=length_normalised(item.cum_logprob, length, self.params.length_penalty),
                    status="kept" if item in beam_of else "finished" if item in ended else "pruned",
                    beam=beam_of.get(item, -1),
                    special=self.context.vocabulary.is_special(item.token_id),
                )
                for item in found
            ),
        )
