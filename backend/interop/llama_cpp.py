"""Settings for llama.cpp: the JSON body of its server, and a command line."""

from __future__ import annotations

import json
import shlex
from typing import Any

from backend.interop.snippet import Snippet, common_notes, missing, numbers
from backend.request import BeamSearch, BestOf, Request, Sample, SamplingParams
from backend.stages import STAGES

NAMES = {spec.name: spec.elsewhere["llama.cpp"] for spec in STAGES.values() if "llama.cpp" in spec.elsewhere}


def server(request: Request, model: str) -> Snippet:
    """The body of POST /completion, or of /v1/chat/completions with the chat template."""
    params = request.sampling
    prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
    body: dict[str, Any] = {"prompt": prompt}
    if request.chat:
        body = {"messages": [{"role": "user", "content": request.prompt}]}
    body |= {
        "n_predict": request.max_new_tokens,
        **numbers(params, "llama.cpp"),
        "repeat_last_n": -1,
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
    options_of = {theirs.name: theirs.option for theirs in NAMES.values()}
    options: dict[str, object] = {
        "-n": request.max_new_tokens,
        **{options_of[name]: value for name, value in numbers(params, "llama.cpp").items()},
        "--repeat-last-n": -1,
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
        name = NAMES[stage].sampler if stage in NAMES else ""
        if name and name not in chain:
            chain.append(name)
    return chain


def _notes(request: Request) -> list[str]:
    params = request.sampling
    notes = missing(params, "llama.cpp", "llama.cpp")
    used = [stage for stage in params.switched_on if stage in NAMES]
    penalties = [stage for stage in used if NAMES[stage].sampler == "penalties"]
    if "logit_bias" in used and penalties and used[0] != "logit_bias":
        notes.append("Order: llama.cpp adds the bias before all samplers; here it came after a penalty.")
    counted = [stage for stage in used if NAMES[stage].counts_prompt]
    if counted:
        notes.append(
            f"Scope: llama.cpp counts prompt and output for {' and '.join(counted)}; here only the output."
        )
    if isinstance(request.strategy, BeamSearch):
        notes.append("llama.cpp's server and command line have no beam search; this samples instead.")
    if isinstance(request.strategy, (Sample, BestOf)) and request.strategy.n > 1:
        notes.append(f"One sample; send it {request.strategy.n} times with other seeds for the others.")
    return [*notes, *common_notes(request, "llama.cpp")]
