"""Settings for llama.cpp: the JSON body of its server, and a command line."""

from __future__ import annotations

import json
import shlex
from typing import Any

from backend.interop.snippet import Snippet, common_notes, in_use, missing
from backend.request import BeamSearch, BestOf, Request, Sample, SamplingParams

SAMPLERS = {
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typ_p",
    "temperature": "temperature",
}
PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")


def server(request: Request, model: str) -> Snippet:
    """The body of POST /completion, or of /v1/chat/completions with the chat template."""
    params = request.sampling
    prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
    body: dict[str, Any] = {"prompt": prompt}
    if request.chat:
        body = {"messages": [{"role": "user", "content": request.prompt}]}
    body |= {
        "n_predict": request.max_new_tokens,
        "temperature": params.temperature,
        # Named even where they are off: the server has other defaults (top_k 40, top_p 0.95, min_p 0.05).
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "typical_p": params.typical_p,
        "repeat_penalty": params.repetition_penalty,
        "repeat_last_n": -1,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
        "samplers": samplers(params),
    }
    if params.logit_bias:
        body["logit_bias"] = [[token_id, bias] for token_id, bias in params.logit_bias.items()]
    if request.stop:
        body["stop"] = list(request.stop)
    if request.seed is not None:
        body["seed"] = request.seed
    path = "/v1/chat/completions" if request.chat else "/completion"
    code = json.dumps(body, indent=2, ensure_ascii=False)
    return Snippet(f"llama.cpp server, POST {path}", "json", code, tuple(_notes(request)))


def command(request: Request, model: str) -> Snippet:
    """A llama-cli command for a POSIX shell; the model's file is left to the reader."""
    params = request.sampling
    words: list[str] = ["llama-cli", "-m", "model.gguf"]
    words += ["--single-turn"] if request.chat else ["--no-conversation"]
    words += ["-p", request.prompt if isinstance(request.prompt, str) else ""]
    options: dict[str, object] = {
        "-n": request.max_new_tokens,
        "--temp": params.temperature,
        "--top-k": params.top_k,
        "--top-p": params.top_p,
        "--min-p": params.min_p,
        "--typical": params.typical_p,
        "--repeat-penalty": params.repetition_penalty,
        "--repeat-last-n": -1,
        "--frequency-penalty": params.frequency_penalty,
        "--presence-penalty": params.presence_penalty,
        "--samplers": ";".join(samplers(params)),
    }
    if request.seed is not None:
        options["--seed"] = request.seed
    for name, value in options.items():
        words += [name, str(value)]
    for token_id, bias in params.logit_bias.items():
        words += ["--logit-bias", f"{token_id}{bias:+g}"]
    for text in request.stop:
        words += ["--reverse-prompt", text]
    notes = _notes(request)
    if not isinstance(request.prompt, str):
        notes.append("The prompt is token ids, which the command line cannot take: fill in its text.")
    if request.stop:
        notes.append("--reverse-prompt hands control back at the stop string, which stays in the text.")
    return Snippet("llama.cpp command line", "shell", shlex.join(words), tuple(notes))


def samplers(params: SamplingParams) -> list[str]:
    """llama.cpp's sampler chain in the order of our stages."""
    chain: list[str] = []
    for stage in params.stage_order:
        name = "penalties" if stage in PENALTIES else SAMPLERS.get(stage)
        if name is not None and name not in chain:
            chain.append(name)
    return chain


def _notes(request: Request) -> list[str]:
    params = request.sampling
    notes = missing(params, ("no_repeat_ngram_size",), "llama.cpp")
    used = in_use(params)
    if "logit_bias" in used and any(stage in used for stage in PENALTIES) and used[0] != "logit_bias":
        notes.append("Order: llama.cpp adds the bias before all samplers; here it came after a penalty.")
    counted = [stage for stage in ("frequency_penalty", "presence_penalty") if stage in used]
    if counted:
        notes.append(
            f"Scope: llama.cpp counts prompt and output for {' and '.join(counted)}; here only the output."
        )
    if isinstance(request.strategy, BeamSearch):
        notes.append("llama.cpp's server and command line have no beam search; this samples instead.")
    if isinstance(request.strategy, (Sample, BestOf)) and request.strategy.n > 1:
        notes.append(f"One sample; send it {request.strategy.n} times with other seeds for the others.")
    return [*notes, *common_notes(request, "llama.cpp")]
