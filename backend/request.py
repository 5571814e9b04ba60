"""What a caller asks for: frozen, validated descriptions of one run.

Nothing here knows a model. Limits that depend on one (vocabulary, context length) are checked by
the engine when the request is submitted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import regex

from backend.errors import RequestError
from backend.stages import ORDERS, STAGES, StageSpec

MAX_PROMPT_CHARACTERS = 200_000
MAX_NEW_TOKENS = 16_384
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 200
MAX_LOGIT_BIASES = 1_024
MAX_SAMPLES = 64
MAX_BEAMS = 64
MAX_DRAFT_TOKENS = 32
MAX_CANDIDATES = 200
MAX_SEED = 2**63 - 1


def _shown(value: Any) -> str:
    """A value as an error message shows it: short, whatever it is."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float))


def _number(name: str, value: Any, low: float, high: float) -> float:
    if not _is_number(value) or not low <= value <= high:
        raise RequestError(f"{name} must be a number between {low:g} and {high:g}, got {_shown(value)}")
    return float(value)


def _integer(name: str, value: Any, low: int, high: int) -> int:
    if not _is_number(value) or not low <= value <= high or value != int(value):
        raise RequestError(f"{name} must be a whole number from {low} to {high}, got {_shown(value)}")
    return int(value)


def _is_unicode(text: str) -> bool:
    """Whether it can be written down: half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _written(name: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{name} cannot be written as JSON: {error}") from None


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false, got {_shown(value)}")
    return value


def _choice(name: str, value: Any, options: Iterable[str]) -> str:
    options = tuple(options)
    if value not in options:
        raise RequestError(f"{name} must be one of {', '.join(options)}, got {_shown(value)}")
    return str(value)


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise RequestError(f"{name} must be a list of token ids, got {_shown(value)}")
    ids = tuple(value)
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise RequestError(f"{name} holds {_shown(token_id)}; token ids are whole numbers from 0 up")
    return ids


@dataclass(frozen=True)
class SamplingParams:
    """The knobs of one draw. A neutral value switches its stage off: it is then not in the pipeline.

    Attributes:
        temperature: logits are divided by it; 0 is greedy, else 1e-6 to 100. Neutral: 1.
        top_p: nucleus; smallest set whose probability reaches it, 0 to 1 (Holtzman et al. 2019).
        top_k: number of best tokens kept. Neutral: 0.
        min_p: keep p >= min_p * max p, 0 to 1 (Nguyen et al. 2024). Neutral: 0.
        typical_p: locally typical set of this mass, 0 to 1 (Meister et al. 2022). Neutral: 1.
        repetition_penalty: CTRL penalty on ids in prompt and output, 0.01 to 10. Neutral: 1.
        frequency_penalty: subtracted per earlier occurrence in the output, -2 to 2. Neutral: 0.
        presence_penalty: subtracted once if in the output, -2 to 2. Neutral: 0.
        no_repeat_ngram_size: n-grams of this size never occur twice. Neutral: 0.
        logit_bias: token id to an addend between -100 and 100.
        order: None (the default order), a name from ORDERS, or every stage name in your order.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    order: str | tuple[str, ...] | None = None
    typical_p: float = 1.0

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            **{spec.name: _stage_value(spec, getattr(self, spec.name)) for spec in STAGES.values()},
            "order": _checked_order(self.order),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def stage_order(self) -> tuple[str, ...]:
        """All stage names in the order they apply, switched on or not."""
        if isinstance(self.order, tuple):
            return self.order
        return ORDERS[self.order or "default"]

    @property
    def switched_on(self) -> tuple[str, ...]:
        """The stages whose value is not neutral, in the order they apply."""
        return tuple(stage for stage in self.stage_order if self.is_on(stage))

    def is_on(self, stage: str) -> bool:
        """Whether the stage's value differs from its neutral one."""
        return bool(getattr(self, stage) != getattr(NEUTRAL, stage))

    def without(self, stages: Iterable[str]) -> SamplingParams:
        """The settings with these stages, or "order", switched off."""
        return replace(self, **{stage: getattr(NEUTRAL, stage) for stage in stages})


def _stage_value(spec: StageSpec, value: Any) -> Any:
    if spec.neutral is None:
        return _checked_bias(value)
    if spec.whole:
        return _integer(spec.name, value, int(spec.low), int(spec.high))
    number = _number(spec.name, value, spec.low, spec.high)
    if 0 < number < spec.above_zero:
        raise RequestError(
            f"{spec.name} must be 0 or between {spec.above_zero:g} and {spec.high:g}, got {_shown(value)}"
        )
    return number


def _checked_bias(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise RequestError(f"logit_bias must map token ids to numbers, got {_shown(value)}")
    if len(value) > MAX_LOGIT_BIASES:
        raise RequestError(f"logit_bias has {len(value)} entries, at most {MAX_LOGIT_BIASES} are allowed")
    _token_ids("logit_bias", value)
    return {token_id: _number(f"logit_bias[{token_id}]", bias, -100, 100) for token_id, bias in value.items()}


def _checked_order(value: Any) -> str | tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _choice("order", value, ORDERS)
    if not isinstance(value, Iterable):
        raise RequestError(
            f"order must be one of {', '.join(ORDERS)} or a list of stages, got {_shown(value)}"
        )
    order = tuple(value)
    if sorted(map(str, order)) != sorted(STAGES):
        raise RequestError(f"order must name each of {', '.join(STAGES)} once, got {_shown(list(order))}")
    return order


NEUTRAL = SamplingParams()  # every stage switched off


@dataclass(frozen=True)
class Sample:
    """n independent samples that share the prompt's blocks."""

    n: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", _integer("n", self.n, 1, MAX_SAMPLES))


@dataclass(frozen=True)
class BeamSearch:
    """Beam search in the terms of transformers.

    Attributes:
        length_penalty: scores are divided by length ** length_penalty, -10 to 10.
        early_stopping: True ends once num_beams texts have ended; False also once no running beam can
            do better if it ended now; "never" only once none can at any length.
        num_beam_groups, diversity_penalty: groups of beams searched one after the other at each step; a
            token costs the penalty for each time an earlier group chose it (Vijayakumar et al. 2018).
        stochastic: draw num_beams different texts, a sample without replacement, instead of searching
            (Kool et al. 2019). All sampling stages then take part.
    """

    num_beams: int = 4
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    num_return_sequences: int = 1
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    stochastic: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            raise RequestError(
                f"early_stopping must be true, false or 'never', got {_shown(self.early_stopping)}"
            )
        checked: dict[str, Any] = {
            "num_beams": _integer("num_beams", self.num_beams, 1, MAX_BEAMS),
            "length_penalty": _number("length_penalty", self.length_penalty, -10, 10),
            "num_return_sequences": _integer("num_return_sequences", self.num_return_sequences, 1, MAX_BEAMS),
            "num_beam_groups": _integer("num_beam_groups", self.num_beam_groups, 1, MAX_BEAMS),
            "diversity_penalty": _number("diversity_penalty", self.diversity_penalty, 0, 100),
            "stochastic": _boolean("stochastic", self.stochastic),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.num_return_sequences > self.num_beams:
            raise RequestError(
                f"num_return_sequences is {self.num_return_sequences}, there are only {self.num_beams} beams"
            )
        if self.num_beams % self.num_beam_groups:
            raise RequestError(
                f"{self.num_beams} beams cannot be split into {self.num_beam_groups} equal groups"
            )
        if self.stochastic and self.num_beam_groups > 1:
            raise RequestError("stochastic beams are already different: they take no beam groups")


@dataclass(frozen=True)
class Speculative:
    """Draft num_draft_tokens, check them in one forward of the target (Leviathan et al. 2023).

    Attributes:
        draft: "prompt_lookup", "layer_skip", or a model with the target's tokenizer.
        verify: "rejection" keeps the target's distribution, "coupled" the very text of plain sampling.
        skip_layers: for "layer_skip", the layers left out; empty takes about a sixth of them.
        adaptive: draft fewer after early rejections, more after full acceptance, up to num_draft_tokens.
    """

    draft: str = "prompt_lookup"
    num_draft_tokens: int = 4
    verify: Literal["rejection", "coupled"] = "rejection"
    adaptive: bool = False
    skip_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _boolean("adaptive", self.adaptive)
        object.__setattr__(
            self, "skip_layers", tuple(sorted(set(_token_ids("skip_layers", self.skip_layers))))
        )
        count = _integer("num_draft_tokens", self.num_draft_tokens, 1, MAX_DRAFT_TOKENS)
        object.__setattr__(self, "num_draft_tokens", count)
        _choice("verify", self.verify, ("rejection", "coupled"))
        if not isinstance(self.draft, str) or not self.draft:
            raise RequestError(f"draft must name a draft source or a model, got {_shown(self.draft)}")


@dataclass(frozen=True)
class BestOf:
    """n samples in one batch, one of them selected.

    Attributes:
        select: highest "sum" or "mean" of model log-probabilities; majority "vote" on the answer; or "mbr",
            the highest mean similarity to the others (minimum Bayes risk, by chrF).
        answer: regular expression with one group that finds the answer; None takes the last number.
    """

    n: int = 8
    select: Literal["sum", "mean", "vote", "mbr"] = "mean"
    answer: str | None = None

    def __post_init__(self) -> None:
        _check_answer_pattern(self.answer)
        object.__setattr__(self, "n", _integer("n", self.n, 1, MAX_SAMPLES))
        _choice("select", self.select, ("sum", "mean", "vote", "mbr"))


def _check_answer_pattern(pattern: Any) -> None:
    if pattern is None:
        return
    if not isinstance(pattern, str) or len(pattern) > MAX_STOP_CHARACTERS:
        raise RequestError(f"answer must be a regular expression of at most {MAX_STOP_CHARACTERS} characters")
    try:
        groups = regex.compile(pattern).groups
    except regex.error as error:
        raise RequestError(f"answer {_shown(pattern)} is not a regular expression: {error}") from None
    if groups != 1:
        raise RequestError(f"answer {_shown(pattern)} must have one group, it has {groups}")


@dataclass(frozen=True)
class Grammar:
    """A constraint on the output; exactly one source is given.

    Attributes:
        json_schema, structural_tag: JSON text, or the value itself, which is then written as JSON.
        regex: matches the whole text. ebnf: in the notation of llama.cpp (GBNF), beginning at the rule root.
        engine: what makes the masks.
        reason_first: up to this many tokens of free text come before; a blank line ends them earlier.
        jump_forward: text that the grammar forces is guessed and checked in one forward; it changes nothing
            but the time.
    """

    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    engine: Literal["xgrammar", "llguidance"] = "xgrammar"
    reason_first: int = 0
    jump_forward: bool = True

    def __post_init__(self) -> None:
        names = ("json_schema", "regex", "ebnf", "structural_tag")
        for name in ("json_schema", "structural_tag"):
            if isinstance(value := getattr(self, name), (Mapping, bool)):
                object.__setattr__(self, name, _written(name, value))
        for name in names:
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and _is_unicode(value)):
                raise RequestError(f"{name} must be text, got {_shown(value)}")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise RequestError(
                f"a grammar takes exactly one of {', '.join(names)}, got {', '.join(given) or 'none'}"
            )
        _choice("engine", self.engine, ("xgrammar", "llguidance"))
        _boolean("jump_forward", self.jump_forward)
        object.__setattr__(
            self, "reason_first", _integer("reason_first", self.reason_first, 0, MAX_NEW_TOKENS)
        )


Strategy = Sample | BeamSearch | Speculative | BestOf


@dataclass(frozen=True)
class Request:
    """One run, fully described.

    Attributes:
        prompt: text, or token ids.
        chat: apply the model's chat template to the prompt (text only).
        max_new_tokens: upper limit on generated tokens, output_prefix included.
        stop: strings that end the run; they match text, not token ids, and are never shown.
        seed: None draws one, which the trace then shows.
        use_cache: False recomputes every key and value at each step, for comparison.
        cache_salt: cached prompt blocks are reused only among requests of equal salt.
        output_prefix: generated tokens already fixed (a branch): they count as output, not prompt.
        num_candidates: candidates recorded per step beside the kept ones; 0 records no stages.
    """

    prompt: str | tuple[int, ...]
    chat: bool = False
    sampling: SamplingParams = SamplingParams()
    strategy: Strategy = Sample()
    grammar: Grammar | None = None
    max_new_tokens: int = 64
    stop: tuple[str, ...] = ()
    seed: int | None = 0
    use_cache: bool = True
    cache_salt: str = ""
    output_prefix: tuple[int, ...] = ()
    num_candidates: int = 30

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "prompt": _checked_prompt(self.prompt),
            "chat": _boolean("chat", self.chat),
            "max_new_tokens": _integer("max_new_tokens", self.max_new_tokens, 1, MAX_NEW_TOKENS),
            "stop": _checked_stop(self.stop),
            "seed": None if self.seed is None else _integer("seed", self.seed, 0, MAX_SEED),
            "use_cache": _boolean("use_cache", self.use_cache),
            "output_prefix": _token_ids("output_prefix", self.output_prefix),
            "num_candidates": _integer("num_candidates", self.num_candidates, 0, MAX_CANDIDATES),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.chat and not isinstance(self.prompt, str):
            raise RequestError("chat needs a text prompt, got token ids")
        if len(self.output_prefix) >= self.max_new_tokens:
            raise RequestError(
                f"output_prefix already has {len(self.output_prefix)} tokens, "
                f"max_new_tokens is {self.max_new_tokens}"
            )
        if not isinstance(self.cache_salt, str) or len(self.cache_salt) > 256:  # never shown or written
            raise RequestError("cache_salt must be a string of at most 256 characters")
        for name, kinds in (("sampling", SamplingParams), ("strategy", Strategy)):
            if not isinstance(getattr(self, name), kinds):
                raise RequestError(f"{name} has the wrong type: {_shown(getattr(self, name))}")
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise RequestError(f"grammar has the wrong type: {_shown(self.grammar)}")


def _checked_prompt(value: Any) -> str | tuple[int, ...]:
    if not isinstance(value, str):
        ids = _token_ids("prompt", value)
        if not ids:
            raise RequestError("prompt is empty: give at least one token")
        return ids
    if not value:
        raise RequestError("prompt is empty: give at least one character")
    if not _is_unicode(value):
        raise RequestError("prompt holds half of a surrogate pair, which is no character")
    if len(value) > MAX_PROMPT_CHARACTERS:
        raise RequestError(
            f"prompt has {len(value):,} characters, at most {MAX_PROMPT_CHARACTERS:,} are allowed"
        )
    return value


def _checked_stop(value: Any) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Iterable):
        raise RequestError(f"stop must be a list of strings, got {_shown(value)}")
    strings = tuple(strings)
    for string in strings:
        if not isinstance(string, str) or not _is_unicode(string):
            raise RequestError(f"stop holds {_shown(string)}; stop strings are text")
        if len(string) > MAX_STOP_CHARACTERS:
            raise RequestError(
                f"a stop string has {len(string)} characters, at most {MAX_STOP_CHARACTERS} are allowed"
            )
    # An empty stop string matches everywhere, so it can only be a slip: it is left out.
    unique = tuple(dict.fromkeys(string for string in strings if string))
    if len(unique) > MAX_STOP_STRINGS:
        raise RequestError(f"{len(unique)} stop strings given, at most {MAX_STOP_STRINGS} are allowed")
    return unique
