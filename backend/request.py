"""What a caller asks for: frozen, validated descriptions of one run.

Nothing here knows a model. Limits that depend on one (vocabulary, context length) are checked by
the engine when the request is submitted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Annotated, Any, Literal

import regex
from pydantic import AfterValidator, BeforeValidator, GetPydanticSchema, ValidationInfo
from pydantic.dataclasses import dataclass

from backend.errors import RequestError
from backend.stages import ORDERS, STAGES, completed
from backend.validation import (
    CONFIG,
    RECORDED,
    Flag,
    TokenId,
    choice,
    number,
    refusing,
    shown,
    text,
    token_ids,
    whole,
)

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


def _is_unicode(text: str) -> bool:
    """Whether it can be written down: half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _written(value: Any, info: ValidationInfo) -> Any:
    """A schema given as a value, as JSON text."""
    if not isinstance(value, Mapping | bool):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{info.field_name} cannot be written as JSON: {error}") from None


def _limits(stage: str) -> GetPydanticSchema:
    """The values that a stage's setting may take."""
    spec = STAGES[stage]
    return (
        whole(int(spec.low), int(spec.high)) if spec.whole else number(spec.low, spec.high, spec.above_zero)
    )


def _checked_bias(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, Mapping):
        raise RequestError(f"logit_bias must map token ids to numbers, got {shown(value)}")
    if len(value) > MAX_LOGIT_BIASES:
        raise RequestError(f"logit_bias has {len(value)} entries, at most {MAX_LOGIT_BIASES} are allowed")
    if info.context == RECORDED:  # JSON has only text for names
        return {int(key) if str(key).isdecimal() else key: bias for key, bias in value.items()}
    return dict(value)


def _checked_order(value: Any, info: ValidationInfo) -> str | tuple[str, ...] | None:
    if value is None or (isinstance(value, str) and value in ORDERS):
        return value
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise RequestError(
            f"order must be one of {', '.join(ORDERS)} or a list of stages, got {shown(value)}"
        )
    order = completed(value) if info.context == RECORDED else tuple(value)
    if sorted(map(str, order)) != sorted(STAGES):
        raise RequestError(f"order must name each of {', '.join(STAGES)} once, got {shown(list(order))}")
    return order


@refusing
@dataclass(frozen=True, config=CONFIG)
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
        top_n_sigma: keep logits within this many standard deviations of the largest, 0 to 100 (Tang et al.
            2024). Neutral: 0.
        logit_bias: token id to an addend between -100 and 100.
        order: None (the default order), a name from ORDERS, or every stage name in your order.
    """

    temperature: Annotated[float, _limits("temperature")] = 1.0
    top_p: Annotated[float, _limits("top_p")] = 1.0
    min_p: Annotated[float, _limits("min_p")] = 0.0
    top_k: Annotated[int, _limits("top_k")] = 0
    repetition_penalty: Annotated[float, _limits("repetition_penalty")] = 1.0
    frequency_penalty: Annotated[float, _limits("frequency_penalty")] = 0.0
    presence_penalty: Annotated[float, _limits("presence_penalty")] = 0.0
    no_repeat_ngram_size: Annotated[int, _limits("no_repeat_ngram_size")] = 0
    logit_bias: Annotated[
        Mapping[TokenId, Annotated[float, _limits("logit_bias")]], BeforeValidator(_checked_bias)
    ] = field(default_factory=dict)
    order: Annotated[str | tuple[str, ...] | None, BeforeValidator(_checked_order)] = None
    typical_p: Annotated[float, _limits("typical_p")] = 1.0
    top_n_sigma: Annotated[float, _limits("top_n_sigma")] = 0.0

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


NEUTRAL = SamplingParams()  # every stage switched off


@refusing
@dataclass(frozen=True, config=CONFIG)
class Sample:
    """n independent samples that share the prompt's blocks."""

    n: Annotated[int, whole(1, MAX_SAMPLES)] = 1


@refusing
@dataclass(frozen=True, config=CONFIG)
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

    num_beams: Annotated[int, whole(1, MAX_BEAMS)] = 4
    length_penalty: Annotated[float, number(-10, 10)] = 1.0
    early_stopping: Annotated[
        bool | Literal["never"], choice(True, False, "never", said="true, false or 'never'")
    ] = False
    num_return_sequences: Annotated[int, whole(1, MAX_BEAMS)] = 1
    num_beam_groups: Annotated[int, whole(1, MAX_BEAMS)] = 1
    diversity_penalty: Annotated[float, number(0, 100)] = 0.0
    stochastic: Flag = False

    def __post_init__(self) -> None:
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


@refusing
@dataclass(frozen=True, config=CONFIG)
class Speculative:
    """Draft num_draft_tokens, check them in one forward of the target (Leviathan et al. 2023).

    Attributes:
        draft: "prompt_lookup", "layer_skip", or a model with the target's tokenizer.
        verify: "rejection" keeps the target's distribution, "coupled" the very text of plain sampling.
        skip_layers: for "layer_skip", the layers left out; empty takes about a sixth of them.
        adaptive: draft fewer after early rejections, more after full acceptance, up to num_draft_tokens.
    """

    draft: Annotated[str, text(1)] = "prompt_lookup"
    num_draft_tokens: Annotated[int, whole(1, MAX_DRAFT_TOKENS)] = 4
    verify: Annotated[Literal["rejection", "coupled"], choice("rejection", "coupled")] = "rejection"
    adaptive: Flag = False
    skip_layers: Annotated[tuple[TokenId, ...], AfterValidator(lambda ids: tuple(sorted(set(ids))))] = ()


def _checked_answer(pattern: Any) -> str | None:
    if pattern is None:
        return None
    if not isinstance(pattern, str) or len(pattern) > MAX_STOP_CHARACTERS:
        raise RequestError(f"answer must be a regular expression of at most {MAX_STOP_CHARACTERS} characters")
    try:
        groups = regex.compile(pattern).groups
    except regex.error as error:
        raise RequestError(f"answer {shown(pattern)} is not a regular expression: {error}") from None
    if groups != 1:
        raise RequestError(f"answer {shown(pattern)} must have one group, it has {groups}")
    return pattern


@refusing
@dataclass(frozen=True, config=CONFIG)
class BestOf:
    """n samples in one batch, one of them selected.

    Attributes:
        select: highest "sum" or "mean" of model log-probabilities; majority "vote" on the answer; or "mbr",
            the highest mean similarity to the others (minimum Bayes risk, by chrF).
        answer: regular expression with one group that finds the answer; None takes the last number.
    """

    n: Annotated[int, whole(1, MAX_SAMPLES)] = 8
    select: Annotated[Literal["sum", "mean", "vote", "mbr"], choice("sum", "mean", "vote", "mbr")] = "mean"
    answer: Annotated[str | None, BeforeValidator(_checked_answer)] = None


@refusing
@dataclass(frozen=True, config=CONFIG)
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

    json_schema: Annotated[str | None, text(), BeforeValidator(_written)] = None
    regex: Annotated[str | None, text()] = None
    ebnf: Annotated[str | None, text()] = None
    structural_tag: Annotated[str | None, text(), BeforeValidator(_written)] = None
    engine: Annotated[Literal["xgrammar", "llguidance"], choice("xgrammar", "llguidance")] = "xgrammar"
    reason_first: Annotated[int, whole(0, MAX_NEW_TOKENS)] = 0
    jump_forward: Flag = True

    def __post_init__(self) -> None:
        names = ("json_schema", "regex", "ebnf", "structural_tag")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise RequestError(
                f"a grammar takes exactly one of {', '.join(names)}, got {', '.join(given) or 'none'}"
            )


Strategy = Sample | BeamSearch | Speculative | BestOf


def _made(value: Any, info: ValidationInfo) -> Any:
    """Parts of a request are made by their own constructors; plain mappings come in recorded runs only."""
    if value is None or isinstance(value, SamplingParams | Grammar | Strategy) or info.context == RECORDED:
        return value
    raise RequestError(f"{info.field_name} has the wrong type: {shown(value)}")


def _checked_prompt(value: Any) -> str | tuple[int, ...]:
    if not isinstance(value, str):
        ids = token_ids("prompt", value)
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
        raise RequestError(f"stop must be a list of strings, got {shown(value)}")
    strings = tuple(strings)
    for string in strings:
        if not isinstance(string, str) or not _is_unicode(string):
            raise RequestError(f"stop holds {shown(string)}; stop strings are text")
        if len(string) > MAX_STOP_CHARACTERS:
            raise RequestError(
                f"a stop string has {len(string)} characters, at most {MAX_STOP_CHARACTERS} are allowed"
            )
    # An empty stop string matches everywhere, so it can only be a slip: it is left out.
    unique = tuple(dict.fromkeys(string for string in strings if string))
    if len(unique) > MAX_STOP_STRINGS:
        raise RequestError(f"{len(unique)} stop strings given, at most {MAX_STOP_STRINGS} are allowed")
    return unique


@refusing
@dataclass(frozen=True, config=CONFIG)
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

    prompt: Annotated[str | tuple[int, ...], BeforeValidator(_checked_prompt)]
    chat: Flag = False
    sampling: Annotated[SamplingParams, BeforeValidator(_made)] = NEUTRAL
    strategy: Annotated[Strategy, BeforeValidator(_made)] = Sample()
    grammar: Annotated[Grammar | None, BeforeValidator(_made)] = None
    max_new_tokens: Annotated[int, whole(1, MAX_NEW_TOKENS)] = 64
    stop: Annotated[tuple[str, ...], BeforeValidator(_checked_stop)] = ()
    seed: Annotated[int, whole(0, MAX_SEED)] | None = 0
    use_cache: Flag = True
    cache_salt: str = ""
    output_prefix: tuple[TokenId, ...] = ()
    num_candidates: Annotated[int, whole(0, MAX_CANDIDATES)] = 30

    def __post_init__(self) -> None:
        if self.chat and not isinstance(self.prompt, str):
            raise RequestError("chat needs a text prompt, got token ids")
        if len(self.output_prefix) >= self.max_new_tokens:
            raise RequestError(
                f"output_prefix already has {len(self.output_prefix)} tokens, "
                f"max_new_tokens is {self.max_new_tokens}"
            )
        if len(self.cache_salt) > 256:  # never shown or written
            raise RequestError("cache_salt must be a string of at most 256 characters")
