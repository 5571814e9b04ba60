"""Settings of other engines, read into ours: a GenerationConfig or the JSON body of a request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from backend.errors import RequestError
from backend.interop.llama_cpp import NAMES
from backend.request import Request, SamplingParams
from backend.stages import DRAW, STAGES, Engine, completed

MAX_CHARACTERS = 200_000
_SAMPLING = {item.name for item in fields(SamplingParams)}


@dataclass(frozen=True)
class Imported:
    """What was understood.

    Attributes:
        source: "transformers", "llama.cpp" or "OpenAI-style".
        sampling: the knobs. values: max_new_tokens, stop, seed, chat, prompt, as far as given.
        notes: defaults that were filled in, and what could not be taken over.
    """

    source: str
    sampling: SamplingParams
    values: Mapping[str, Any]
    notes: tuple[str, ...]


def read(text: str) -> Imported:
    """Settings from JSON text; which engine's they are is told by their names.

    Raises:
        RequestError: not a JSON object, no known setting, or a value out of range.
    """
    document = _object(text)
    for source, marks, reader in _READERS:
        if any(mark in document for mark in marks):
            return _checked(source, *reader(dict(document)))
    raise RequestError(
        "no setting of transformers, llama.cpp or an OpenAI-style request was found; "
        f"the names are {', '.join(list(document)[:8])[:200] or 'none'}"
    )


def _object(text: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise RequestError(f"not strict JSON: it holds {constant}")

    if len(text) > MAX_CHARACTERS:
        raise RequestError(f"the text has {len(text):,} characters, at most {MAX_CHARACTERS:,} are read")
    try:
        document = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise RequestError("settings must be a JSON object of names and values")
    return document


Found = tuple[dict[str, Any], list[str]]


def _checked(source: str, found: dict[str, Any], notes: list[str]) -> Imported:
    sampling = SamplingParams(**{name: value for name, value in found.items() if name in _SAMPLING})
    values = {name: value for name, value in found.items() if name not in _SAMPLING}
    if isinstance(values.get("stop"), str):
        values["stop"] = [values["stop"]]
    chosen = {"prompt": "-", **values}
    if not isinstance(chosen["prompt"], str):
        chosen |= {"chat": False}
    Request(sampling=sampling, **chosen)  # every value within its limits
    return Imported(source, sampling, values, tuple(notes))


def _take(document: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Move known entries over under our names; null counts as absent."""
    found = {}
    for theirs, ours in names.items():
        value = document.pop(theirs, None)
        if value is not None:
            found[ours] = value
    return found


def _defaults(engine: Engine, found: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine takes for the settings that are not given."""
    known = ((spec.name, spec.elsewhere.get(engine)) for spec in STAGES.values() if spec.name not in found)
    return {name: theirs.default for name, theirs in known if theirs and theirs.default is not None}


def _left(document: dict[str, Any], harmless: tuple[str, ...] = ()) -> list[str]:
    left = [str(name)[:40] for name in document if name not in harmless and document[name] is not None]
    return [f"Not taken over: {', '.join(left[:20])}."] if left else []


def _settings(document: dict[str, Any], *engines: Engine, **others: str) -> dict[str, Any]:
    """The engines' number settings and `others` (their name = ours), moved over from the document."""
    found = _take(document, others)
    for spec in STAGES.values():
        for theirs in (spec.elsewhere[engine] for engine in engines if engine in spec.elsewhere):
            value = None if spec.neutral is None else document.pop(theirs.name, None)
            if value is not None:
                found[spec.name] = spec.neutral if theirs.off is not None and value == theirs.off else value
    return found


def _transformers(document: dict[str, Any]) -> Found:
    """A GenerationConfig; greedy unless do_sample, and top_k is 50 where it is not set (5.24)."""
    sampled = document.pop("do_sample", None)
    found = _settings(document, "transformers", max_new_tokens="max_new_tokens", stop_strings="stop")
    notes: list[str] = []
    found["logit_bias"] = _sequence_bias(document.pop("sequence_bias", None), notes)
    if not sampled:
        found = {name: value for name, value in found.items() if name not in DRAW} | {"temperature": 0}
        notes.append("do_sample is not true, so transformers decodes greedily: temperature 0, no cuts.")
    for name, value in _defaults("transformers", found).items() if sampled else ():
        found[name] = value
        notes.append(f"{name} is not set; transformers then takes {value}.")
    harmless = (
        "transformers_version",
        "_from_model_config",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "use_cache",
    )
    return {**found, "order": "transformers"}, notes + _left(document, harmless)


def _sequence_bias(value: Any, notes: list[str]) -> dict[int, Any]:
    pairs = value if isinstance(value, list) else []
    bias = {}
    for pair in pairs:
        match pair:
            case [[int(token_id)], addend]:
                bias[token_id] = addend
                continue
        notes.append("A bias on a sequence of several tokens was left out.")
    return bias


def _llama_cpp(document: dict[str, Any]) -> Found:
    """A /completion body; what it leaves out has the server's default."""
    found = _settings(
        document, "llama.cpp", n_predict="max_new_tokens", stop="stop", seed="seed", prompt="prompt"
    )
    notes: list[str] = []
    defaults = _defaults("llama.cpp", found)
    if defaults:
        absent = ", ".join(f"{name} {value}" for name, value in defaults.items())
        notes.append(f"Not set, so llama.cpp's default: {absent}.")
    if found.get("max_new_tokens") == -1:
        del found["max_new_tokens"]
    if found.get("seed") == -1:
        del found["seed"]
    found["logit_bias"] = _pairs(document.pop("logit_bias", None))
    found["order"] = _samplers(document.pop("samplers", None), notes)
    last = document.pop("repeat_last_n", None)
    if last != -1 and found.get("repetition_penalty", 1) != 1:
        notes.append(f"Scope: repeat_last_n is {64 if last is None else last}; here the whole text counts.")
    counted = [stage for stage, theirs in NAMES.items() if theirs.counts_prompt and found.get(stage)]
    if counted:
        notes.append(f"Scope: llama.cpp counts the prompt for {' and '.join(counted)}; here only the output.")
    found |= _messages(document)
    return {**defaults, **found}, notes + _left(document, ("stream", "cache_prompt", "model"))


def _samplers(value: Any, notes: list[str]) -> str | tuple[str, ...]:
    """The stage order of a sampler chain: bias first, n-gram ban after the penalties, absent ones last."""
    if not isinstance(value, list):
        return "llama.cpp"
    order: list[str] = ["logit_bias"]
    for name in value:
        stages = [stage for stage, theirs in NAMES.items() if name and theirs.sampler == name]
        if not stages:
            notes.append(f"The sampler {str(name)[:40]!r} is not known here and was left out.")
        order += [stage for stage in stages if stage not in order]
    return completed(order)


def _pairs(value: Any) -> dict[int, Any]:
    if isinstance(value, list):
        return {
            pair[0]: pair[1]
            for pair in value
            if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], int)
        }
    return _keyed(value)


def _keyed(value: Any) -> dict[int, Any]:
    if not isinstance(value, dict):
        return {}
    try:
        return {int(key): bias for key, bias in value.items()}
    except ValueError:
        raise RequestError("logit_bias must have token ids as names") from None


def _openai(document: dict[str, Any]) -> Found:
    """A completions or chat body; extra fields of servers over vLLM or transformers are understood too."""
    found = _settings(
        document,
        "openai",
        "vllm",
        "transformers",
        max_tokens="max_new_tokens",
        max_completion_tokens="max_new_tokens",
        stop="stop",
        seed="seed",
        prompt="prompt",
    )
    found["logit_bias"] = _keyed(document.pop("logit_bias", None))
    found |= _messages(document)
    return found, _left(document, ("model", "stream", "n"))


def _messages(document: dict[str, Any]) -> dict[str, Any]:
    """The prompt of a chat body: its last message; the template is applied here."""
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        return {}
    content = messages[-1].get("content")
    if not isinstance(content, str) or not content:
        return {}
    if len(messages) == 1:
        document.pop("messages")
    return {"prompt": content, "chat": True}


_READERS: tuple[tuple[str, tuple[str, ...], Callable[[dict[str, Any]], Found]], ...] = (
    ("llama.cpp", ("n_predict", "repeat_penalty", "repeat_last_n", "samplers"), _llama_cpp),
    (
        "transformers",
        (
            "do_sample",
            "max_new_tokens",
            "transformers_version",
            "num_beams",
            "no_repeat_ngram_size",
            "sequence_bias",
        ),
        _transformers,
    ),
    (
        "OpenAI-style",
        (
            "messages",
            "max_tokens",
            "max_completion_tokens",
            "temperature",
            "top_p",
            "frequency_penalty",
            "presence_penalty",
        ),
        _openai,
    ),
)
