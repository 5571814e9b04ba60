"""Settings of other engines, read into ours: a GenerationConfig or the JSON body of a request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from backend.errors import RequestError
from backend.interop.llama_cpp import PENALTIES, SAMPLERS
from backend.request import STAGES, Request, SamplingParams

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


def _left(document: dict[str, Any], harmless: tuple[str, ...] = ()) -> list[str]:
    left = [str(name)[:40] for name in document if name not in harmless and document[name] is not None]
    return [f"Not taken over: {', '.join(left[:20])}."] if left else []


_SAME = {
    name: name for name in ("temperature", "top_k", "top_p", "min_p", "typical_p", "no_repeat_ngram_size")
}


def _transformers(document: dict[str, Any]) -> Found:
    """A GenerationConfig; greedy unless do_sample, and top_k is 50 where it is not set (5.24)."""
    sampled = document.pop("do_sample", None)
    found = _take(
        document,
        {
            **_SAME,
            "repetition_penalty": "repetition_penalty",
            "max_new_tokens": "max_new_tokens",
            "stop_strings": "stop",
        },
    )
    notes: list[str] = []
    found["logit_bias"] = _sequence_bias(document.pop("sequence_bias", None), notes)
    if not sampled:
        for cut in ("temperature", "top_k", "top_p", "min_p", "typical_p"):
            found.pop(cut, None)
        found["temperature"] = 0
        notes.append("do_sample is not true, so transformers decodes greedily: temperature 0, no cuts.")
    elif "top_k" not in found:
        found["top_k"] = 50
        notes.append("top_k is not set; transformers then takes 50.")
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
    defaults = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
    found = _take(
        document,
        {
            **_SAME,
            "repeat_penalty": "repetition_penalty",
            "frequency_penalty": "frequency_penalty",
            "presence_penalty": "presence_penalty",
            "n_predict": "max_new_tokens",
            "stop": "stop",
            "seed": "seed",
            "prompt": "prompt",
        },
    )
    notes: list[str] = []
    absent = [name for name in defaults if name not in found]
    if absent:
        notes.append(
            "Not set, so llama.cpp's default: "
            + ", ".join(f"{name} {defaults[name]}" for name in absent)
            + "."
        )
    if found.get("max_new_tokens") == -1:
        del found["max_new_tokens"]
    if found.get("seed") == -1:
        del found["seed"]
    found["logit_bias"] = _pairs(document.pop("logit_bias", None))
    found["order"] = _samplers(document.pop("samplers", None), notes)
    last = document.pop("repeat_last_n", None)
    if last != -1 and found.get("repetition_penalty", 1) != 1:
        notes.append(f"Scope: repeat_last_n is {64 if last is None else last}; here the whole text counts.")
    if any(found.get(name) for name in PENALTIES[1:]):
        notes.append("Scope: llama.cpp counts the prompt for frequency and presence; here only the output.")
    found |= _messages(document)
    return {**defaults, **found}, notes + _left(document, ("stream", "cache_prompt", "model"))


def _samplers(value: Any, notes: list[str]) -> str | tuple[str, ...]:
    """The stage order of a sampler chain: bias first, n-gram ban after the penalties, absent ones last."""
    if not isinstance(value, list):
        return "llama.cpp"
    ours = {theirs: (stage,) for stage, theirs in SAMPLERS.items()} | {"penalties": PENALTIES}
    order: list[str] = ["logit_bias"]
    for name in value:
        stages = ours.get(name) if isinstance(name, str) else None
        if stages is None:
            notes.append(f"The sampler {str(name)[:40]!r} is not known here and was left out.")
        else:
            order += [stage for stage in stages if stage not in order]
    order += [stage for stage in STAGES if stage not in order]
    return tuple(order)


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
    """A completions or chat body; vLLM's extra fields are understood too."""
    found = _take(
        document,
        {
            **_SAME,
            "repetition_penalty": "repetition_penalty",
            "frequency_penalty": "frequency_penalty",
            "presence_penalty": "presence_penalty",
            "max_tokens": "max_new_tokens",
            "max_completion_tokens": "max_new_tokens",
            "stop": "stop",
            "seed": "seed",
            "prompt": "prompt",
        },
    )
    if found.get("top_k") == -1:
        found["top_k"] = 0
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
