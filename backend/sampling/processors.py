"""One small class per transform of the logits, and the table that builds the switched-on ones.

Every stage is pure: `apply` takes logits [V] (float32) and the tokens so far, and returns new logits;
minus infinity is a cut token. A stage that `cuts` also tells its threshold, from the log-probabilities
before and after it, and by how much tokens missed it, from the logits it was given.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from backend.request import SamplingParams
from backend.sampling import ranking
from backend.sampling.softmax import entropy, log_softmax, softmax

# Probabilities come from float32 logits, so "exactly p" is only known up to this much.
ROUNDING = 1e-6


class History(NamedTuple):
    """The tokens so far; drafted tokens earlier in the same block count as output."""

    token_ids: Sequence[int]
    num_prompt_tokens: int

    @property
    def output_ids(self) -> Sequence[int]:
        return self.token_ids[self.num_prompt_tokens :]


class Stage(Protocol):
    """What the pipeline needs of a transform."""

    name: ClassVar[str]
    cuts: ClassVar[bool]

    @property
    def setting(self) -> str: ...

    def apply(self, logits: Tensor, history: History) -> Tensor: ...

    def threshold(self, before: Tensor, after: Tensor) -> float | None: ...

    def margins(self, logits: Tensor, token_ids: Tensor) -> list[float] | None: ...


class _Reshape:
    """A stage that moves probability but makes no token impossible."""

    cuts: ClassVar[bool] = False

    def threshold(self, before: Tensor, after: Tensor) -> float | None:
        return None

    def margins(self, logits: Tensor, token_ids: Tensor) -> list[float] | None:
        return None


def _ids(token_ids: Iterable[int], logits: Tensor) -> Tensor:
    return torch.tensor(list(token_ids), dtype=torch.long, device=logits.device)


def _keep(logits: Tensor, kept: Tensor) -> Tensor:
    out = torch.full_like(logits, -math.inf)
    out[kept] = logits[kept]
    return out


@dataclass(frozen=True)
class RepetitionPenalty(_Reshape):
    """Seen ids, prompt included, once each: positive logits divided, negative multiplied (CTRL)."""

    name: ClassVar[str] = "repetition_penalty"
    penalty: float

    @property
    def setting(self) -> str:
        return f"{self.penalty:.12g}"

    def apply(self, logits: Tensor, history: History) -> Tensor:
        ids = _ids(set(history.token_ids), logits)
        seen = logits[ids]
        return logits.index_copy(0, ids, torch.where(seen > 0, seen / self.penalty, seen * self.penalty))


@dataclass(frozen=True)
class FrequencyPenalty(_Reshape):
    """Subtracts the penalty once per earlier occurrence in the output (as vLLM and OpenAI)."""

    name: ClassVar[str] = "frequency_penalty"
    penalty: float

    @property
    def setting(self) -> str:
        return f"{self.penalty:.12g}"

    def apply(self, logits: Tensor, history: History) -> Tensor:
        counts = Counter(history.output_ids)
        ids = _ids(counts, logits)
        times = torch.tensor(list(counts.values()), dtype=logits.dtype, device=logits.device)
        return logits.index_add(0, ids, times, alpha=-self.penalty)


@dataclass(frozen=True)
class PresencePenalty(_Reshape):
    """Subtracts the penalty once if the token is anywhere in the output (as vLLM and OpenAI)."""

    name: ClassVar[str] = "presence_penalty"
    penalty: float

    @property
    def setting(self) -> str:
        return f"{self.penalty:.12g}"

    def apply(self, logits: Tensor, history: History) -> Tensor:
        ids = _ids(set(history.output_ids), logits)
        return logits.index_add(0, ids, torch.full_like(ids, -self.penalty, dtype=logits.dtype))


@dataclass(frozen=True)
class LogitBias(_Reshape):
    """Adds a fixed number to the logits of chosen ids."""

    name: ClassVar[str] = "logit_bias"
    bias: Mapping[int, float]

    @property
    def setting(self) -> str:
        return f"{len(self.bias)} token" + ("s" if len(self.bias) > 1 else "")

    def apply(self, logits: Tensor, history: History) -> Tensor:
        added = torch.tensor(list(self.bias.values()), dtype=logits.dtype, device=logits.device)
        return logits.index_add(0, _ids(self.bias, logits), added)


@dataclass(frozen=True)
class NoRepeatNgram:
    """Bans every token that would complete an n-gram already in prompt or output."""

    name: ClassVar[str] = "no_repeat_ngram_size"
    cuts: ClassVar[bool] = True
    size: int

    @property
    def setting(self) -> str:
        return str(self.size)

    def banned(self, token_ids: Sequence[int]) -> set[int]:
        if len(token_ids) + 1 < self.size:
            return set()
        tail = list(token_ids[len(token_ids) - self.size + 1 :])
        starts = range(len(token_ids) - self.size + 1)
        return {
            token_ids[start + self.size - 1]
            for start in starts
            if list(token_ids[start : start + self.size - 1]) == tail
        }

    def apply(self, logits: Tensor, history: History) -> Tensor:
        return logits.index_fill(0, _ids(self.banned(history.token_ids), logits), -math.inf)

    def threshold(self, before: Tensor, after: Tensor) -> float | None:
        return None

    def margins(self, logits: Tensor, token_ids: Tensor) -> list[float] | None:
        return None


@dataclass(frozen=True)
class Temperature(_Reshape):
    """Divides the logits: below 1 sharper, above 1 flatter, the order unchanged."""

    name: ClassVar[str] = "temperature"
    temperature: float

    @property
    def setting(self) -> str:
        return f"{self.temperature:.12g}"

    def apply(self, logits: Tensor, history: History) -> Tensor:
        return logits / self.temperature


@dataclass(frozen=True)
class Greedy:
    """Temperature 0, the limit of ever smaller temperatures: all probability on the best token."""

    name: ClassVar[str] = "temperature"
    cuts: ClassVar[bool] = True
    setting: str = "0"

    def apply(self, logits: Tensor, history: History) -> Tensor:
        return _keep(logits, torch.argmax(logits))

    def threshold(self, before: Tensor, after: Tensor) -> float | None:
        return None

    def margins(self, logits: Tensor, token_ids: Tensor) -> list[float] | None:
        return None


@dataclass(frozen=True)
class TopK:
    """Keeps the k best tokens; exactly k, the lower id winning a tie (Fan et al. 2018)."""

    name: ClassVar[str] = "top_k"
    cuts: ClassVar[bool] = True
    k: int

    @property
    def setting(self) -> str:
        return str(self.k)

    def apply(self, logits: Tensor, history: History) -> Tensor:
        return logits if self.k >= logits.numel() else _keep(logits, ranking.best(logits, self.k))

    def threshold(self, before: Tensor, after: Tensor) -> float | None:
        return float(self.k)

    def margins(self, logits: Tensor, token_ids: Tensor) -> list[float] | None:
        """Ranks beyond k."""
        return [float(ranking.rank(logits, token_id) - self.k) for token_id in token_ids.tolist()]


@dataclass(frozen=True)
class TopP:
    """Nucleus: keeps the smallest set of best tokens whose probability reaches p (Holtzman 2019)."""

    name: ClassVar[str] = "top_p"
    cuts: ClassVar[bool] = True
    p: float

    @property
    def setting(self) -> str:
        return f"{self.p:.12g}"

    def apply(self, logits: Tensor, history: History) -> Tensor:
        return _keep(logits, ranking.covering(logits, softmax(logits), self.p, ROUNDING))

    def threshold(self, before: Tensor, after: Tensor) -> float | None:
        """Probability of the nucleus: p, and what the token that crosses it brought beyond."""
        return _kept_mass(before, after)

    def margins(self, logits: Tensor, token_ids: Tensor) -> list[float] | None:
        """Probability that stood before the token, beyond p."""
        return [mass - self.p for mass in _mass_before(logits, softmax(logits), token_ids)]


@dataclass(frozen=True)
class TypicalP:
    """Keeps the tokens whose surprise is nearest the entropy, until their mass reaches p (Meister 2022)."""

    name: ClassVar[str] = "typical_p"
    cuts: ClassVar[bool] = True
    p: float

    @property
    def setting(self) -> str:
        return f"{self.p:.12g}"

    def _typicality(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(minus the distance of each token's surprise from the entropy, probabilities); [V] each."""
        logprobs = log_softmax(logits)
        return -(-logprobs - entropy(logprobs)).abs(), logprobs.exp()

    def apply(self, logits: Tensor, history: History) -> Tensor:
        return _keep(logits, ranking.covering(*self._typicality(logits), self.p, ROUNDING))

    def threshold(self, before: Tensor, after: Tensor) -> float | None:
        """Probability of the typical set."""
        return _kept_mass(before, after)

    def margins(self, logits: Tensor, token_ids: Tensor) -> list[float] | None:
        """Probability of the more typical tokens, beyond p."""
        return [mass - self.p for mass in _mass_before(*self._typicality(logits), token_ids)]


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


@dataclass(frozen=True)
class MinP:
    """Keeps tokens at least min_p times as likely as the likeliest (Nguyen et al. 2024)."""

    name: ClassVar[str] = "min_p"
    cuts: ClassVar[bool] = True
    min_p: float

    @property
    def setting(self) -> str:
        return f"{self.min_p:.12g}"

    def apply(self, logits: Tensor, history: History) -> Tensor:
        # In logits, since a ratio of probabilities is a difference of logits: nothing can underflow.
        border = logits.max() + math.log(self.min_p) - ROUNDING
        return logits.masked_fill(logits < border, -math.inf)

    def threshold(self, before: Tensor, after: Tensor) -> float | None:
        """Least probability kept."""
        return self.min_p * float(before.max().exp())

    def margins(self, logits: Tensor, token_ids: Tensor) -> list[float] | None:
        """Probability missing to the threshold."""
        probabilities = softmax(logits)
        border = self.min_p * float(probabilities.max())
        return [border - probability for probability in probabilities[token_ids].tolist()]


class Mask(Protocol):
    """What a grammar allows after some output; see grammar.constraint.Constraint."""

    @property
    def kind(self) -> str: ...

    def mask(self, output_ids: Sequence[int]) -> Tensor: ...


@dataclass(frozen=True)
class GrammarMask:
    """Keeps the tokens that a grammar allows."""

    name: ClassVar[str] = "grammar"
    cuts: ClassVar[bool] = True
    constraint: Mask

    @property
    def setting(self) -> str:
        return self.constraint.kind

    def apply(self, logits: Tensor, history: History) -> Tensor:
        return logits.masked_fill(~self.constraint.mask(history.output_ids).to(logits.device), -math.inf)

    def threshold(self, before: Tensor, after: Tensor) -> float | None:
        return None

    def margins(self, logits: Tensor, token_ids: Tensor) -> list[float] | None:
        return None


# stage name -> the switched-on stage, or None where the value is neutral
_BUILDERS: dict[str, Callable[[SamplingParams], Stage | None]] = {
    "repetition_penalty": lambda s: (
        RepetitionPenalty(s.repetition_penalty) if s.repetition_penalty != 1 else None
    ),
    "frequency_penalty": lambda s: FrequencyPenalty(s.frequency_penalty) if s.frequency_penalty else None,
    "presence_penalty": lambda s: PresencePenalty(s.presence_penalty) if s.presence_penalty else None,
    "no_repeat_ngram_size": lambda s: (
        NoRepeatNgram(s.no_repeat_ngram_size) if s.no_repeat_ngram_size else None
    ),
    "logit_bias": lambda s: LogitBias(s.logit_bias) if s.logit_bias else None,
    "temperature": lambda s: (
        Greedy() if s.temperature == 0 else Temperature(s.temperature) if s.temperature != 1 else None
    ),
    "top_k": lambda s: TopK(s.top_k) if s.top_k else None,
    "top_p": lambda s: TopP(s.top_p) if s.top_p < 1 else None,
    "min_p": lambda s: MinP(s.min_p) if s.min_p > 0 else None,
    "typical_p": lambda s: TypicalP(s.typical_p) if s.typical_p < 1 else None,
}


# The grammar comes before the first of these, so that they choose among allowed tokens only.
_AFTER_GRAMMAR = ("temperature", "top_k", "top_p", "min_p", "typical_p")


def build(params: SamplingParams, constraint: Mask | None = None) -> tuple[Stage, ...]:
    """The switched-on stages, in order."""
    stages: list[Stage] = []
    grammar = [] if constraint is None else [GrammarMask(constraint)]
    for name in params.stage_order:
        if name in _AFTER_GRAMMAR and grammar:
            stages.append(grammar.pop())
        stage = _BUILDERS[name](params)
        if stage is not None:
            stages.append(stage)
    return tuple(stages)
