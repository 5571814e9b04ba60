"""Named endpoints for experiments: compare, sweep, measure, and settings from and to other engines."""

# No postponed annotations here: gradio reads the return types from the live annotation.

import dataclasses
import secrets
from contextlib import ExitStack
from typing import Any

from backend import Trace
from backend.errors import PlaygroundError, RequestError
from backend.interop.export import export, known_as
from backend.interop.foreign import read
from backend.metrics import TextMetrics, describe, self_bleu
from backend.sweep import Axis, Sweep, requests
from ui import knobs
from ui.api.endpoints import Endpoints, known, readable_errors, request
from ui.payloads.compare import sentence
from ui.runs.lanes import NAMES, Lane, Lanes
from ui.runs.lanes import requests as lane_requests
from ui.runs.sweep_table import MAX_TOKENS as SWEEP_TOKENS
from ui.runs.sweep_table import row


class ExperimentsApi(Endpoints):
    """Experiments of many runs, and settings of other engines."""

    def compare(
        self, prompt: str, lanes: list[dict[str, Any]], settings: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run two to eight settings in one batch under one seed and say what made their texts part.

        Args:
            prompt: the text to continue.
            lanes: one entry per lane with the knobs it sets (temperature, top_k, top_p, min_p, typical_p,
                penalties, no_repeat_ngram_size, and num_beams for beam search); those left out are neutral.
            settings: what all lanes share, as in /generate: order, logit_bias, max_new_tokens, stop, seed,
                chat.

        Returns:
            seed, and lanes: each with text, metrics, and difference, which is null or tells the index of the
            first token that differs from the first lane's, its kind, the stages that caused it, and a
            sentence.
        """
        with readable_errors():
            engine = self.loader.wait_for()
            made = lane_requests(prompt, known(settings), lanes, secrets.token_hex(16))
            compared = Lanes([Lane(request) for request in made])
            with ExitStack() as stack:
                streams = [stack.enter_context(engine.stream(request)) for request in made]
                for lane, stream in zip(compared.lanes, streams, strict=True):
                    for event in stream:
                        lane.add(event)
            compared.compare(engine)
        traces = [lane.trace for lane in compared.lanes]
        return {
            "seed": made[0].seed,
            "lanes": [_lane(compared, place, trace) for place, trace in enumerate(traces) if trace],
        }

    def sweep(
        self,
        prompt: str,
        knob: str = "temperature",
        low: float = 0.2,
        high: float = 1.4,
        count: int = 4,
        seeds: int = 4,
        settings: dict[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Move one knob over a range, several seeds each, in batches, and measure every text.

        Args:
            prompt: the text to continue.
            knob: the setting that is moved, for example temperature, top_k, top_p, min_p, repetition_penalty.
            low: its first value.
            high: its last value.
            count: how many values, evenly spaced.
            seeds: runs per value; every value gets the same seeds, from settings.seed upwards.
            settings: further arguments of /generate that stay as they are.

        Returns:
            One entry per run: value, seed, text, reason and its measures (perplexity, loop, repeated_4grams,
            distinct_1 to 3, entropy in bits, survivors, acted, num_tokens).
        """
        with readable_errors():
            base = knobs.seeded(request(prompt, settings))
            if base.max_new_tokens > SWEEP_TOKENS:
                raise RequestError(f"a sweep takes at most {SWEEP_TOKENS} new tokens a run")
            axes = [Axis.spaced(knob, low, high, count)]
            made = requests(base, axes, seeds)
            with Sweep(self.loader.wait_for(), made) as runs:
                outcomes = sorted(runs, key=lambda outcome: outcome.index)
            failed = next((outcome.error for outcome in outcomes if outcome.error), "")
            if failed:
                raise PlaygroundError(failed)
        rows = [row(axes, made[outcome.index], outcome) for outcome in outcomes]
        names = ("seed", "text", "reason")
        return [
            {"value": item.at[0], **{name: getattr(item, name) for name in names}, **item.measures}
            for item in rows
        ]

    def measure(self, texts: list[str]) -> dict[str, Any]:
        """Measure given texts: how likely the model finds them, how much they repeat, how alike they are.

        Args:
            texts: the texts, each of at least two tokens; at most 64.

        Returns:
            self_bleu (null for one text), and texts: each with num_tokens, perplexity, mean_entropy (nats),
            phrase (repeated at the end, or null), repeated_4grams, distinct_1, distinct_2 and distinct_3.
        """
        with readable_errors():
            if not isinstance(texts, list) or not 1 <= len(texts) <= 64 or not all(map(_is_text, texts)):
                raise RequestError("texts must be a list of 1 to 64 texts")
            engine, salt = self.loader.wait_for(), secrets.token_hex(16)
            found = [describe(engine.score(text, cache_salt=salt).steps()) for text in texts]
        return {"self_bleu": self_bleu(texts), "texts": [_plain(item) for item in found]}

    def export_code(
        self, prompt: str, target: str = "transformers", settings: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Write settings as code for another engine, with notes where it acts otherwise.

        Args:
            prompt: the text to continue.
            target: transformers, vllm, llama.cpp-server, llama.cpp-cli or openai.
            settings: arguments of /generate: temperature, cuts, penalties, max_new_tokens, stop, seed, chat.

        Returns:
            title, language, code and notes.
        """
        with readable_errors():
            asked = request(prompt, settings)
            return dataclasses.asdict(export(asked, target, known_as(self.loader.wait_for().model_name)))

    def read_settings(self, text: str) -> dict[str, Any]:
        """Read another engine's settings: a GenerationConfig, or a body for llama.cpp, vLLM or OpenAI.

        Args:
            text: the JSON text.

        Returns:
            source, settings as /generate takes them, prompt (null without one), and notes on defaults
            filled in and on what could not be taken over.
        """
        with readable_errors():
            if not isinstance(text, str):
                raise RequestError("text must be JSON text")
            found = read(text)
        own = dict(found.values)
        prompt = own.pop("prompt", None)
        settings = knobs.settings_of(found.sampling) | own
        return {"source": found.source, "settings": settings, "prompt": prompt, "notes": list(found.notes)}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _lane(compared: Lanes, place: int, trace: Trace) -> dict[str, Any]:
    found = compared.differences[place]
    difference = None
    if found is not None:
        first, own = compared.lanes[0].request, compared.lanes[place].request
        pieces = sentence(found, NAMES[place], first, own)
        difference = {
            "index": found.index,
            "labels": list(found.labels),
            "kind": found.kind,
            "causes": list(found.causes),
            "sentence": "".join(piece.get("text") or repr(piece["token"]) for piece in pieces),
        }
    return {"text": trace.text, "metrics": _plain(describe(trace.steps())), "difference": difference}


def _plain(found: TextMetrics) -> dict[str, Any]:
    """As JSON can hold it: an infinite perplexity is the text "Infinity"."""
    values = dataclasses.asdict(found)
    if found.perplexity == float("inf"):
        values["perplexity"] = "Infinity"
    return values
