"""Named endpoints for programs (gradio_client, curl, MCP). Every value passes through Request's checks."""

# No postponed annotations here: gradio reads the return types from the live annotation.

import json
import secrets
from typing import Any

import gradio as gr

from backend import Engine
from backend.errors import PlaygroundError
from ui import knobs
from ui.loading import Loader


class Api:
    """The endpoints over the engine that `loader` provides."""

    def __init__(self, loader: Loader):
        self.loader = loader

    def wire(self) -> None:
        gr.api(self.generate, api_name="generate", concurrency_limit=None)
        gr.api(self.score, api_name="score", concurrency_limit=None)

    def _engine(self) -> Engine:
        for _ in self.loader.wait():
            pass
        return self.loader.require()

    def generate(
        self,
        prompt: str,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        typical_p: float = 1.0,
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        no_repeat_ngram_size: int = 0,
        logit_bias: dict[str, float] | None = None,
        order: str | list[str] | None = None,
        max_new_tokens: int = 64,
        stop: list[str] | None = None,
        seed: int | None = None,
        chat: bool = False,
    ) -> tuple[str, dict[str, Any]]:
        """Continue a prompt and return the text and the trace of every step.

        Args:
            prompt: the text to continue.
            temperature: the logits are divided by it; 0 is greedy.
            top_k: number of best tokens kept; 0 is off.
            top_p: the smallest set of tokens that holds this probability is kept; 1 is off.
            min_p: tokens at least this fraction as likely as the best are kept; 0 is off.
            typical_p: tokens about as surprising as expected, up to this probability, are kept; 1 is off.
            repetition_penalty: scales down tokens seen in prompt or output; 1 is off.
            frequency_penalty: subtracted per earlier use in the output; 0 is off.
            presence_penalty: subtracted once if used in the output; 0 is off.
            no_repeat_ngram_size: no run of this many tokens occurs twice; 0 is off.
            logit_bias: token id (as text) to a number added to its logit, -100 to 100.
            order: order of the stages: transformers, vllm, llama.cpp or a list of all stage names.
            max_new_tokens: upper limit on generated tokens.
            stop: texts that end the output; they are not part of it.
            seed: a whole number for a repeatable draw; null draws one, which the trace shows.
            chat: apply the model's chat template to the prompt.

        Returns:
            The generated text, and the trace as JSON of version 1.
        """
        values = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "typical_p": typical_p,
            "repetition_penalty": repetition_penalty,
            "frequency_penalty": frequency_penalty,
            "presence_penalty": presence_penalty,
            "no_repeat_ngram_size": no_repeat_ngram_size,
            "logit_bias": {} if logit_bias is None else logit_bias,
            "order": order,
            "max_new_tokens": max_new_tokens,
            "stop": [] if stop is None else stop,
            "seed": seed,
            "chat": chat,
        }
        try:
            engine = self._engine()
            trace = engine.generate(knobs.request(prompt, values, secrets.token_hex(16)))
        except PlaygroundError as error:
            raise _readable(error) from None
        return trace.text, json.loads(trace.to_json())

    def score(self, text: str) -> tuple[float | None, dict[str, Any]]:
        """Score a text: log-probability and rank of every token under the model.

        Args:
            text: the text to score; at least two tokens.

        Returns:
            The perplexity, and the trace as JSON of version 1, whose TokenDecoded events carry
            model_logprob (nats) and rank of every token after the first.
        """
        try:
            trace = self._engine().score(text, cache_salt=secrets.token_hex(16))
        except PlaygroundError as error:
            raise _readable(error) from None
        return trace.perplexity, json.loads(trace.to_json())


def _readable(error: PlaygroundError) -> gr.Error:
    return gr.Error(str(error), print_exception=False)
