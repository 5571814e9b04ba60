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
        source: "transformers", "llama.cpp", "SillyTavern" or "OpenAI-style".
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
        "no setting of transformers, llama.cpp, SillyTavern or an OpenAI-style request was found; "
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
    """A /completion body; what it leaves out has the server's default, and a sampler not listed is off."""
    found = _settings(
        document, "llama.cpp", n_predict="max_new_tokens", stop="stop", seed="seed", prompt="prompt"
    )
    _drop_unlimited(found)
    notes: list[str] = []
    order, off = _samplers(document.pop("samplers", None), notes)
    defaults = {name: value for name, value in _defaults("llama.cpp", found).items() if name not in off}
    if defaults:
        absent = ", ".join(f"{name} {value}" for name, value in defaults.items())
        notes.append(f"Not set, so llama.cpp's default: {absent}.")
    given = [name for name in off if name in found]
    if given:
        notes.append(f"Off, since samplers does not list them: {', '.join(given)}.")
    found = {name: value for name, value in found.items() if name not in off}
    found["logit_bias"] = _bias(document.pop("logit_bias", None), notes)
    found["order"] = order
    last = document.pop("repeat_last_n", None)
    if last != -1 and found.get("repetition_penalty", 1) != 1:
        notes.append(f"Scope: repeat_last_n is {64 if last is None else last}; here the whole text counts.")
    counted = [stage for stage, theirs in NAMES.items() if theirs.counts_prompt and found.get(stage)]
    if counted:
        notes.append(f"Scope: llama.cpp counts the prompt for {' and '.join(counted)}; here only the output.")
    found |= _messages(document, notes)
    return {**defaults, **found}, notes + _left(document, ("stream", "cache_prompt", "model"))


# Other names that llama.cpp takes for its samplers, and the letters of the short form.
_ALIASES = {
    "top-k": "top_k",
    "top-p": "top_p",
    "nucleus": "top_p",
    "min-p": "min_p",
    "typical": "typ_p",
    "typical-p": "typ_p",
    "typical_p": "typ_p",
    "typ-p": "typ_p",
    "typ": "typ_p",
    "temp": "temperature",
    "top-n-sigma": "top_n_sigma",
}
_LETTERS = {
    "d": "dry",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "s": "top_n_sigma",
    "m": "min_p",
    "t": "temperature",
    "x": "xtc",
    "i": "infill",
    "e": "penalties",
}


def _samplers(value: Any, notes: list[str]) -> tuple[str | tuple[str, ...], set[str]]:
    """The stage order of a sampler chain, bias first, and the stages that it leaves out."""
    if isinstance(value, str):
        names: list[Any] = [_LETTERS.get(letter, letter) for letter in value]
    elif isinstance(value, list):
        names = [_ALIASES.get(name, name) if isinstance(name, str) else name for name in value]
    else:
        if value is not None:
            notes.append("samplers is neither a list nor a string and was left out.")
        return "llama.cpp", set()
    order: list[str] = ["logit_bias"]
    for name in names:
        stages = [stage for stage, theirs in NAMES.items() if name and theirs.sampler == name]
        if not stages:
            notes.append(f"The sampler {str(name)[:40]!r} is not known here and was left out.")
        order += [stage for stage in stages if stage not in order]
    off = {stage for stage, theirs in NAMES.items() if theirs.sampler and stage not in order}
    return completed(order), off


def _drop_unlimited(found: dict[str, Any]) -> None:
    """Negative numbers that stand for "no limit", "any seed" and "off" elsewhere."""
    for name, values in (("max_new_tokens", (-1, -2)), ("seed", (-1,))):
        if found.get(name) in values:
            del found[name]
    if isinstance(top_k := found.get("top_k"), int) and top_k < 0:
        found["top_k"] = 0


def _bias(value: Any, notes: list[str]) -> dict[int, Any]:
    """llama.cpp's biases: pairs or an object; false bans a token. A bias on a text is left out by name."""
    pairs = list(value.items()) if isinstance(value, dict) else value if isinstance(value, list) else []
    bias: dict[int, Any] = {}
    for pair in pairs:
        match pair:
            case [int(token_id), addend] if not isinstance(token_id, bool):
                bias[token_id] = -100 if addend is False else addend
            case (str(text), addend) if text.isdecimal():
                bias[int(text)] = -100 if addend is False else addend
            case [str(text), _]:
                notes.append(f"The bias on the text {text[:40]!r} was left out: it must be on a token id.")
            case _:
                notes.append(f"The bias {str(pair)[:40]} was left out: no pair of token and number.")
    return bias


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
    _drop_unlimited(found)
    notes: list[str] = []
    found["logit_bias"] = _keyed(document.pop("logit_bias", None))
    found |= _messages(document, notes)
    return found, notes + _left(document, ("model", "stream", *_single(document)))


def _single(document: dict[str, Any]) -> tuple[str, ...]:
    """Names of counts that ask for one text, which is what a run writes."""
    return tuple(name for name in ("n", "best_of", "num_return_sequences") if document.get(name) == 1)


def _preset(document: dict[str, Any]) -> Found:
    """A preset of SillyTavern or text-generation-webui; what it leaves out is off."""
    sampled = document.pop("do_sample", None) is not False
    found = _settings(
        document,
        "transformers",
        "vllm",
        temp="temperature",
        rep_pen="repetition_penalty",
        freq_pen="frequency_penalty",
        presence_pen="presence_penalty",
        typical="typical_p",
        genamt="max_new_tokens",
        max_new_tokens="max_new_tokens",
        seed="seed",
        stopping_strings="stop",
    )
    _drop_unlimited(found)
    notes: list[str] = []
    if not sampled:
        found = {name: value for name, value in found.items() if name not in DRAW} | {"temperature": 0}
        notes.append("do_sample is false: temperature 0, no cuts.")
    order = "llama.cpp" if document.pop("temperature_last", False) else "transformers"
    return {**found, "order": order}, notes + _left(document, _single(document))


def _messages(document: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """The prompt of a chat body: its last message, if the user wrote it; the template is applied here."""
    messages = document.pop("messages", None)
    if messages is None:
        return {}
    last = messages[-1] if isinstance(messages, list) and messages else None
    role, content = (last.get("role", "user"), last.get("content")) if isinstance(last, dict) else ("", "")
    if isinstance(content, list):  # parts of several kinds
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        content = "".join(filter(None, texts)) if all(isinstance(text, str) for text in texts) else None
    if not isinstance(content, str) or not content:
        notes.append("Not taken over: messages, the last one has no text.")
        return {}
    if role != "user":
        notes.append(
            f"Not taken over: messages, the last one is by {str(role)[:40]!r}; a chat is one user message."
        )
        return {}
    if others := [str(each.get("role", "?"))[:20] for each in messages[:-1] if isinstance(each, dict)]:
        notes.append(
            f"Not taken over: messages, the {len(others)} before the last ({', '.join(others[:8])}); a chat "
            "is one user message."
        )
    return {"prompt": content, "chat": True}


_READERS: tuple[tuple[str, tuple[str, ...], Callable[[dict[str, Any]], Found]], ...] = (
    ("SillyTavern", ("temp", "rep_pen", "freq_pen", "presence_pen", "genamt", "temperature_last"), _preset),
    ("llama.cpp", ("n_predict", "repeat_penalty", "repeat_last_n", "samplers"), _llama_cpp),
    ("OpenAI-style", ("messages", "max_tokens", "max_completion_tokens"), _openai),
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
        ("temperature", "top_p", "frequency_penalty", "presence_penalty"),
        _openai,
    ),
)
