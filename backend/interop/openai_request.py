"""Settings as the JSON body of an OpenAI-style server (/v1/completions, /v1/chat/completions)."""

from __future__ import annotations

import json
from typing import Any

from backend.interop.snippet import Snippet, common_notes, missing, numbers
from backend.request import BeamSearch, BestOf, Request, Sample
from backend.stages import STAGES

MAX_STOPS = 4
MAX_TEMPERATURE = 2.0


def export(request: Request, model: str) -> Snippet:
    """Only fields of the public API; what a compatible server adds (vLLM's top_k, ...) is named in a note."""
    params = request.sampling
    body: dict[str, Any] = {"model": model}
    if request.chat:
        body |= {"messages": [{"role": "user", "content": request.prompt}]}
    else:
        body |= {"prompt": request.prompt if isinstance(request.prompt, str) else list(request.prompt)}
    body |= {
        "max_completion_tokens" if request.chat else "max_tokens": request.max_new_tokens,
        **numbers(params, "openai"),
    }
    body["temperature"] = min(params.temperature, MAX_TEMPERATURE)
    if params.logit_bias:
        body["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias.items()}
    if request.stop:
        body["stop"] = list(request.stop[:MAX_STOPS])
    if request.seed is not None:
        body["seed"] = request.seed
    if isinstance(request.strategy, (Sample, BestOf)) and request.strategy.n > 1:
        body["n"] = request.strategy.n
    path = "/v1/chat/completions" if request.chat else "/v1/completions"
    code = json.dumps(body, indent=2, ensure_ascii=False)
    return Snippet(f"OpenAI-style, POST {path}", "json", code, tuple(_notes(request)))


def _notes(request: Request) -> list[str]:
    params = request.sampling
    notes = missing(params, "openai", "The OpenAI API")
    known = [stage for stage in params.switched_on if "openai" in STAGES[stage].elsewhere]
    extras = [
        stage for stage in params.switched_on if stage not in known and "vllm" in STAGES[stage].elsewhere
    ]
    if extras:
        notes.append(f"vLLM's server takes {', '.join(extras)} as extra fields of this body.")
    if params.temperature > MAX_TEMPERATURE:
        notes.append(f"temperature {params.temperature:g} is above the API's limit of {MAX_TEMPERATURE:g}.")
    if len(request.stop) > MAX_STOPS:
        notes.append(f"The API takes {MAX_STOPS} stop strings; {len(request.stop) - MAX_STOPS} are left out.")
    if isinstance(request.strategy, BeamSearch):
        notes.append("The API has no beam search; this samples instead.")
    if len(known) > 1:
        notes.append("Order: the API does not document in which order a server applies these.")
    if params.logit_bias:
        notes.append("Token ids of the bias are those of this model; another model has others.")
    return [*notes, *common_notes(request, "such a server")]
