"""One small class per transform of the logits; what else there is to know of each stands in backend.stages.

Every stage is pure: `apply` takes logits (float32) and the tokens so far, and returns new logits; minus
infinity is a cut token. Those that look at no history take [..., V], the others [V].
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from backend.request import SamplingParams
from backend.sampling import ranking
from backend.sampling.softmax import entropy, log_softmax, softmax
from backend.stages import STAGES

# Probabilities come from float32 logits, so "exactly p" is only known up to this much.
ROUNDING = 1e-6


class History(NamedTuple):
    """The tokens so far; drafted tokens earlier in the same block count as output."""

    token_ids: Sequence[int]
    num_prompt_tokens: int

    @property
    def output_ids(self) -> Sequence[int]:
        """The tokens after the prompt."""
        return self.token_ids[self.num_prompt_tokens :]


@dataclass(frozen=True)
class Stage:
    """A switched-on transform; `value` is that of its SamplingParams field.

    `reads_history`: it looks at the tokens so far, and so takes one row at a time.
    """

    name: ClassVar[str]
    reads_history: ClassVar[bool] = False
    value: Any

    @property
    def setting(self) -> float | str:
        """The value as the record shows it: a number where it is one."""
        number: float | str = self.value
        return number

    @property
    def cuts(self) -> bool:
        """Whether it rules tokens out, as opposed to reshaping."""
        return STAGES[self.name].cuts

    def apply(self, logits: Tensor, history: History) -> Tensor:
        """The logits after the stage: [V], or [B, V] unless `reads_history`; what is cut becomes -inf."""
        raise NotImplementedError

    def threshold(self, before: Tensor, after: Tensor) -> float | None:
        """The cutoff, from the log-probabilities [V] before and after the stage; None if it has none."""
        return None

    def margins(self, logits: Tensor, token_ids: Tensor) -> list[float] | None:
        """By how much the cut `token_ids` [N] missed it, from the logits [V] the stage was given."""
        return None


def _ids(token_ids: Iterable[int], logits: Tensor) -> Tensor:
    return torch.tensor(list(token_ids), dtype=torch.long, device=logits.device)


def _keep(logits: Tensor, kept: Tensor) -> Tensor:
    out = torch.full_like(logits, -math.inf)
    out[kept] = logits[kept]
    return out


def _row_by_row(cut: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """`cut`, which takes [V], over every row of [..., V]."""
    if logits.dim() == 1:
        return cut(logits)
    rows = logits.reshape(-1, logits.shape[-1])
    return torch.stack([cut(row) for row in rows]).reshape(logits.shape)


class RepetitionPenalty(Stage):
    """Seen ids, prompt included, once each: positive logits divided, negative multiplied (CTRL)."""

    name: ClassVar[str] = "repetition_penalty"
    reads_history: ClassVar[bool] = True

    def apply(self, logits: Tensor, history: History) -> Tensor:
        ids = _ids(set(history.token_ids), logits)
        seen = logits[ids]
        return logits.index_copy(0, ids, torch.where(seen > 0, seen / self.value, seen * self.value))


class FrequencyPenalty(Stage):
    """Subtracts the penalty once per earlier occurrence in the output (as vLLM and OpenAI)."""

    name: ClassVar[str] = "frequency_penalty"
    reads_history: ClassVar[bool] = True

    def apply(self, logits: Tensor, history: History) -> Tensor:
        counts = Counter(history.output_ids)
        ids = _ids(counts, logits)
        times = torch.tensor(list(counts.values()), dtype=logits.dtype, device=logits.device)
        return logits.index_add(0, ids, times, alpha=-self.value)


class PresencePenalty(Stage):
    """Subtracts the penalty once if the token is anywhere in the output (as vLLM and OpenAI)."""

    name: ClassVar[str] = "presence_penalty"
    reads_history: ClassVar[bool] = True

    def apply(self, logits: Tensor, history: History) -> Tensor:
        ids = _ids(set(history.output_ids), logits)
        return logits.index_add(0, ids, torch.full_like(ids, -self.value, dtype=logits.dtype))


class LogitBias(Stage):
    """Adds a fixed number to the logits of chosen ids."""

    name: ClassVar[str] = "logit_bias"

    @property
    def setting(self) -> str:
        return f"{len(self.value)} token" + ("s" if len(self.value) > 1 else "")

    def apply(self, logits: Tensor, history: History) -> Tensor:
        added = torch.tensor(list(self.value.values()), dtype=logits.dtype, device=logits.device)
        return logits.index_add(-1, _ids(self.value, logits), added.expand(*logits.shape[:-1], -1))


class NoRepeatNgram(Stage):
    """Bans every token that would complete an n-gram already in prompt or output."""

    name: ClassVar[str] = "no_repeat_ngram_size"
    reads_history: ClassVar[bool] = True

    def banned(self, token_ids: Sequence[int]) -> set[int]:
        """Tokens that would repeat an n-gram if they came next."""
        if len(token_ids) + 1 < self.value:
            return set()
        tail = list(token_ids[len(token_ids) - self.value + 1 :])
        starts = range(len(token_ids) - self.value + 1)
        return {
            token_ids[start + self.value - 1]
            for start in starts
            if list(token_ids[start : start + self.value - 1]) == tail
        }

    def apply(self, logits: Tensor, history: History) -> Tensor:
        return logits.index_fill(0, _ids(self.banned(history.token_ids), logits), -math.inf)


class Temperature(Stage):
    """Divides the logits: below 1 sharper, above 1 flatter, the order unchanged."""

    name: ClassVar[str] = "temperature"

    def apply(self, logits: Tensor, history: History) -> Tensor:
        return logits / self.value


@dataclass(frozen=True)
class Greedy(Stage):
    """Temperature 0, the limit of ever smaller temperatures: all probability on the best token."""

    name: ClassVar[str] = "temperature"
    value: float = 0.0

    @property
    def cuts(self) -> bool:
        return True

    def apply(self, logits: Tensor, history: History) -> Tensor:
        best = torch.argmax(logits, -1, keepdim=True)
        return torch.full_like(logits, -math.inf).scatter_(-1, best, logits.gather(-1, best))


class TopK(Stage):
    """Keeps the k best tokens; exactly k, the lower id winning a tie (Fan et al. 2018)."""

    name: ClassVar[str] = "top_k"

    def apply(self, logits: Tensor, history: History) -> Tensor:
        if self.value >= logits.shape[-1]:
            return logits
        return _row_by_row(lambda row: _keep(row, ranking.best(row, self.value)), logits)

    def threshold(self, before: Tensor, after: Tensor) -> float | None:
        return float(self.value)

    def margins(self, logits: Tensor, token_ids: Tensor) -> list[float] | None:
        """Ranks beyond k."""
        return [float(ranking.rank(logits, token_id) - self.value) for token_id in token_ids.tolist()]


class TopP(Stage):
    """Nucleus: keeps the smallest set of best tokens whose probability reaches p (Holtzman 2019)."""

    name: ClassVar[str] = "top_p"

    def apply(self, logits: Tensor, history: History) -> Tensor:
        return _row_by_row(self._cut, logits)

    def _cut(self, logits: Tensor) -> Tensor:
        return _keep(logits, ranking.covering(logits, softmax(logits), self.value, ROUNDING))

    def threshold(self, before: Tensor, after: Tensor) -> float | None:
        """Probability of the nucleus: p, and what the token that crosses it brought beyond."""
        return _kept_mass(before, after)

    def margins(self, logits: Tensor, token_ids: Tensor) -> list[float] | None:
        """Probability that stood before the token, beyond p."""
        return [mass - self.value for mass in _mass_before(logits, softmax(logits), token_ids)]


class TypicalP(Stage):
    """Keeps the tokens whose surprise is nearest the entropy, until their mass reaches p (Meister 2022)."""

    name: ClassVar[str] = "typical_p"

    def _typicality(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(minus the distance of each token's surprise from the entropy, probabilities); [V] each."""
        logprobs = log_softmax(logits)
        return -(-logprobs - entropy(logprobs)).abs(), logprobs.exp()

    def apply(self, logits: Tensor, history: History) -> Tensor:
        return _row_by_row(self._cut, logits)

    def _cut(self, logits: Tensor) -> Tensor:
        return _keep(logits, ranking.covering(*self._typicality(logits), self.value, ROUNDING))

    def threshold(self, before: Tensor, after: Tensor) -> float | None:
        """Probability of the typical set."""
        return _kept_mass(before, after)

    def margins(self, logits: Tensor, token_ids: Tensor) -> list[float] | None:
        """Probability of the more typical tokens, beyond p."""
        return [mass - self.value for mass in _mass_before(*self._typicality(logits), token_ids)]


def _kept_mass(before: Tensor, after: Tensor) -> float:
    """Probability, as it stood before a stage, of the tokens it kept."""
    return float(before.masked_fill(after == -math.inf, -math.inf).exp().sum(dtype=torch.float64))


def _mass_before(values: Tensor, weights: Tensor, token_ids: Tensor) -> list[float]:
    """Weight of all tokens ranked before each of `token_ids`."""
    near = (values >= values[token_ids].min()).nonzero().squeeze(-1)
    near = near[torch.sort(values[near], descending=True, stable=True).indices]
    ordered = weights[near].double()
    place = torch.empty(values.numel(), dtype=torch.long, device=values.device)
    place[near] = torch.arange(near.numel(), device=values.device)
    masses: list[float] = (ordered.cumsum(-1) - ordered)[place[token_ids]].tolist()
    return masses


class MinP(Stage):
    """Keeps tokens at least min_p times as likely as the likeliest (Nguyen et al. 2024)."""

    name: ClassVar[str] = "min_p"

    def apply(self, logits: Tensor, history: History) -> Tensor:
        # In logits, since a ratio of probabilities is a difference of logits: nothing can underflow.
        border = logits.amax(-1, keepdim=True) + math.log(self.value) - ROUNDING
        return logits.masked_fill(logits < border, -math.inf)

    def threshold(self, before: Tensor, after: Tensor) -> float | None:
        """Least probability kept."""
        return self.value * float(before.max().exp())

    def margins(self, logits: Tensor, token_ids: Tensor) -> list[float] | None:
        """Probability missing to the threshold."""
        probabilities = softmax(logits)
        border = self.value * float(probabilities.max())
        return [border - probability for probability in probabilities[token_ids].tolist()]


class TopNSigma(Stage):
    """Keeps logits within n standard deviations of the largest (Tang et al. 2024), both over tokens not cut.

    The border moves with the logits, so temperature does not change what is kept.
    """

    name: ClassVar[str] = "top_n_sigma"

    def _border(self, logits: Tensor) -> Tensor:
        """Least logit kept; [..., 1]."""
        possible = logits > -math.inf
        count = possible.sum(-1, keepdim=True)
        values = logits.double().masked_fill(~possible, 0)
        mean = values.sum(-1, keepdim=True) / count
        variance = (values - mean).square().masked_fill(~possible, 0).sum(-1, keepdim=True) / count
        return logits.amax(-1, keepdim=True) - self.value * variance.sqrt()

    def apply(self, logits: Tensor, history: History) -> Tensor:
        return logits.masked_fill(logits < self._border(logits) - ROUNDING, -math.inf)

    def threshold(self, before: Tensor, after: Tensor) -> float | None:
        """Least probability kept."""
        return float(self._border(before).exp())

    def margins(self, logits: Tensor, token_ids: Tensor) -> list[float] | None:
        """Probability missing to the threshold."""
        logprobs = log_softmax(logits)
        border = float(self._border(logprobs).exp())
        return [border - probability for probability in logprobs[token_ids].exp().tolist()]


class Mask(Protocol):
    """What a grammar allows after some output; see grammar.constraint.Constraint."""

    @property
    def kind(self) -> str:
        """What the grammar is written as, a source of request.Grammar."""

    def mask(self, output_ids: Sequence[int]) -> Tensor:
        """Which tokens may follow the output; bool [V] on the CPU."""


class GrammarMask(Stage):
    """Keeps the tokens that a grammar, a Mask, allows."""

    name: ClassVar[str] = "grammar"
    reads_history: ClassVar[bool] = True

    @property
    def setting(self) -> str:
        return str(self.value.kind)

    @property
    def cuts(self) -> bool:
        return True

    def apply(self, logits: Tensor, history: History) -> Tensor:
        return logits.masked_fill(~self.value.mask(history.output_ids).to(logits.device), -math.inf)


_TRANSFORMS: dict[str, type[Stage]] = {
    transform.name: transform
    for transform in (
        RepetitionPenalty,
        FrequencyPenalty,
        PresencePenalty,
        NoRepeatNgram,
        LogitBias,
        Temperature,
        TopK,
        TopP,
        MinP,
        TypicalP,
        TopNSigma,
    )
}


def build(params: SamplingParams, constraint: Mask | None = None) -> tuple[Stage, ...]:
    """The switched-on stages, in order; the grammar before those that shape the draw alone."""
    stages: list[Stage] = []
    grammar = [] if constraint is None else [GrammarMask(constraint)]
    for name in params.stage_order:
        if STAGES[name].shapes_draw and grammar:
            stages.append(grammar.pop())
        if name in params.switched_on:
            value = getattr(params, name)
            stages.append(Greedy() if (name, value) == ("temperature", 0) else _TRANSFORMS[name](value))
    return tuple(stages)
