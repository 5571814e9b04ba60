"""Named endpoints for programs (gradio_client, curl, MCP). Every value passes through Request's checks."""

# No postponed annotations here: gradio reads the return types from the live annotation.

import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from backend import BeamSearch, BestOf, Grammar, Speculative, Trace
from backend.events import SampleFinished, SampleSelected
from ui import knobs
from ui.api.endpoints import Endpoints, readable_errors, request
from ui.runs.speculation import rates, rounds, source


class Api(Endpoints):
    """Decoding and scoring."""

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
        top_n_sigma: float = 0.0,
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
            top_n_sigma: logits within this many standard deviations of the largest are kept; 0 is off.

        Returns:
            The generated text, and the trace as JSON.
        """
        logit_bias, stop = ({} if logit_bias is None else logit_bias), ([] if stop is None else stop)
        values = {name: value for name, value in locals().items() if name in knobs.DEFAULTS}
        with readable_errors():
            engine = self.loader.wait_for()
            trace = engine.generate(knobs.request(prompt, values, secrets.token_hex(16)))
        return trace.text, json.loads(trace.to_json())

    def score(self, text: str) -> tuple[float | None, dict[str, Any]]:
        """Score a text: log-probability and rank of every token under the model.

        Args:
            text: the text to score; at least two tokens.

        Returns:
            The perplexity, and the trace as JSON, whose TokenDecoded events carry
            model_logprob (nats) and rank of every token after the first.
        """
        with readable_errors():
            trace = self.loader.wait_for().score(text, cache_salt=secrets.token_hex(16))
        return trace.perplexity, json.loads(trace.to_json())

    def beam_search(
        self,
        prompt: str,
        num_beams: int = 4,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
        num_return_sequences: int = 1,
        num_beam_groups: int = 1,
        diversity_penalty: float = 0.0,
        stochastic: bool = False,
        settings: dict[str, Any] | None = None,
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Search for the likeliest continuations of a prompt and return them with the trace of every step.

        Args:
            prompt: the text to continue.
            num_beams: texts kept at every step.
            length_penalty: the summed log-probability is divided by length to this power.
            early_stopping: true, false or "never", as in transformers.
            num_return_sequences: texts returned, at most num_beams.
            num_beam_groups: groups of beams that are kept different by the diversity penalty.
            diversity_penalty: what a token costs for each time an earlier group chose it at that step.
            stochastic: draw num_beams different texts without replacement instead of searching.
            settings: further arguments of /generate: penalties, max_new_tokens, stop, chat; temperature,
                the cuts and seed only matter for stochastic beams.

        Returns:
            The texts, best first, each with text, cum_logprob, num_tokens, score and reason; and the trace
            as JSON of version 2, whose BeamStepped events hold the tree.
        """

        def strategy() -> BeamSearch:
            return BeamSearch(
                num_beams,
                length_penalty,
                early_stopping,  # type: ignore[arg-type]  # checked by BeamSearch
                num_return_sequences,
                num_beam_groups,
                diversity_penalty,
                stochastic,
            )

        return self._texts(prompt, settings, strategy)

    def best_of(
        self,
        prompt: str,
        n: int = 8,
        select: str = "mean",
        answer: str | None = None,
        settings: dict[str, Any] | None = None,
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Draw n samples of a prompt and select one of them.

        Args:
            prompt: the text to continue.
            n: number of samples.
            select: highest "sum" or "mean" of log-probabilities, majority "vote" on the answer, or "mbr".
            answer: regular expression with one group that finds the answer; null takes the last number.
            settings: further arguments of /generate: temperature, cuts, penalties, max_new_tokens, seed, ...

        Returns:
            The samples, each with text, cum_logprob, num_tokens, score, reason, answer and selected; and
            the trace as JSON.
        """
        return self._texts(prompt, settings, lambda: BestOf(n, select, answer))  # type: ignore[arg-type]

    def speculate(
        self,
        prompt: str,
        draft: str = "prompt_lookup",
        num_draft_tokens: int = 4,
        verify: str = "rejection",
        adaptive: bool = False,
        settings: dict[str, Any] | None = None,
    ) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Continue a prompt by speculative decoding: guess tokens, check them in one call of the model.

        Args:
            prompt: the text to continue.
            draft: where the guesses come from: "prompt_lookup", "layer_skip", "layer_skip_half", or a model
                of the catalogue with the same tokenizer.
            num_draft_tokens: tokens guessed before each call.
            verify: "rejection" keeps the distribution of plain sampling, "coupled" its very text.
            adaptive: guess fewer after an early rejection, more after full acceptance.
            settings: further arguments of /generate: temperature, cuts, penalties, max_new_tokens, seed, ...

        Returns:
            The text; counts (num_rounds, num_drafted, num_checked, num_accepted, num_tokens, acceptance,
            tokens_per_call, and predicted by the formula); and the trace as JSON, whose
            DraftVerified events hold every check.
        """
        with readable_errors():
            asked = request(prompt, settings)
            engine = self.loader.wait_for()
            strategy = Speculative(
                num_draft_tokens=num_draft_tokens,
                verify=verify,  # type: ignore[arg-type]  # checked by Speculative
                adaptive=adaptive,
                **source(draft, engine.num_layers),
            )
            trace = engine.generate(replace(asked, strategy=strategy))
        return trace.text, rates(rounds(trace.events)).named, json.loads(trace.to_json())

    def structure(
        self,
        prompt: str,
        json_schema: dict[str, Any] | str | None = None,
        regex: str | None = None,
        ebnf: str | None = None,
        structural_tag: dict[str, Any] | str | None = None,
        engine: str = "xgrammar",
        reason_first: int = 0,
        settings: dict[str, Any] | None = None,
    ) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Continue a prompt under a grammar; exactly one of the four kinds is given.

        Args:
            prompt: the text to continue.
            json_schema: a JSON Schema of draft 2020-12, or its text.
            regex: a regular expression for the whole text.
            ebnf: a grammar in the notation of llama.cpp (GBNF), beginning at the rule root.
            structural_tag: free text with structured parts, as xgrammar describes it.
            engine: what makes the masks, "xgrammar" or "llguidance".
            reason_first: up to this many tokens of free text before the structure; a blank line ends them.
            settings: further arguments of /generate: temperature, cuts, penalties, max_new_tokens, seed, ...

        Returns:
            The text; the verdict of an independent reader (status valid, incomplete or invalid, reason,
            free_text, structure, and notes on what the grammar was narrowed to); and the trace as JSON of
            version 2, whose TokenDecoded events hold what the grammar meant at each step.
        """
        with readable_errors():
            grammar = Grammar(
                json_schema=json_schema,  # type: ignore[arg-type]  # a mapping is written as JSON there
                regex=regex,
                ebnf=ebnf,
                structural_tag=structural_tag,  # type: ignore[arg-type]
                engine=engine,  # type: ignore[arg-type]  # checked by Grammar
                reason_first=reason_first,
            )
            asked = request(prompt, settings)
            loaded = self.loader.wait_for()
            notes = loaded.check_grammar(grammar).notes
            trace = loaded.generate(replace(asked, grammar=grammar))
        judged = trace.verdict
        names = ("status", "reason", "free_text", "structure")
        verdict: dict[str, Any] = {name: getattr(judged, name) for name in names} if judged else {}
        return trace.text, verdict | {"notes": list(notes)}, json.loads(trace.to_json())

    def _texts(
        self, prompt: str, settings: Any, strategy: Callable[[], BeamSearch | BestOf]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Run a request of several texts; `settings` are checked like those of /generate."""
        with readable_errors():
            asked = replace(request(prompt, settings), strategy=strategy(), num_candidates=0)
            trace = self.loader.wait_for().generate(asked)
        return _listed(trace), json.loads(trace.to_json())


def _listed(trace: Trace) -> list[dict[str, Any]]:
    """Each finished text of a trace in the order of its number, and what was selected."""
    ends = sorted((e for e in trace.events if isinstance(e, SampleFinished)), key=lambda e: e.sample)
    selected = next((e for e in trace.events if isinstance(e, SampleSelected)), None)
    rows: list[dict[str, Any]] = []
    for end in ends:
        row = {name: getattr(end, name) for name in ("text", "cum_logprob", "num_tokens", "score", "reason")}
        if selected is not None:
            row["score"] = selected.scores[end.sample]
            row["answer"] = selected.answers[end.sample]
            row["selected"] = end.sample == selected.sample
        rows.append(row)
    return rows
