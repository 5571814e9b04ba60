"""The targets that settings can be written for."""

from __future__ import annotations

from collections.abc import Callable

from backend.errors import RequestError
from backend.interop import llama_cpp, openai_request, transformers_code, vllm_code
from backend.interop.snippet import Snippet
from backend.model.bundled import NAME as BUNDLED
from backend.model.catalogue import CATALOGUE
from backend.request import Request

TARGETS: dict[str, Callable[[Request, str], Snippet]] = {
    "transformers": transformers_code.export,
    "vllm": vllm_code.export,
    "llama.cpp-server": llama_cpp.server,
    "llama.cpp-cli": llama_cpp.command,
    "openai": openai_request.export,
}


def export(request: Request, target: str, model: str) -> Snippet:
    """The request written for a target; `model` is the name the other engine knows the model by.

    Raises:
        RequestError: no such target.
    """
    if target not in TARGETS:
        raise RequestError(f"target must be one of {', '.join(TARGETS)}, got {target!r}")
    return TARGETS[target](request, model)


def known_as(model_name: str) -> str:
    """What other engines call a model of ours: its id on the Hugging Face hub, or the folder it is in."""
    if model_name == BUNDLED:
        return "HuggingFaceTB/SmolLM2-135M-Instruct"
    entry = CATALOGUE.get(model_name)
    return entry.repo_id if entry is not None and entry.repo_id else model_name
