"""Settings as a Python program for vLLM (offline LLM class)."""

from __future__ import annotations

from typing import Any

from backend.interop.snippet import Snippet, common_notes, missing, numbers, order_note
from backend.request import BeamSearch, BestOf, Request, Sample
from backend.stages import ORDERS

_SAMPLING = """\
from vllm import LLM, SamplingParams

llm = LLM(model={model!r})
params = SamplingParams(
{params}
)
{call}
for completion in outputs[0].outputs:
    print(completion.text)
"""

_BEAMS = """\
from vllm import LLM
from vllm.sampling_params import BeamSearchParams

llm = LLM(model={model!r})
params = BeamSearchParams(
{params}
)
outputs = llm.beam_search([{prompt}], params)
for sequence in outputs[0].sequences:
    print(sequence.text)
"""


def export(request: Request, model: str) -> Snippet:
    """A program; vLLM is not installed here, so it is checked by parsing only."""
    strategy = request.strategy
    prompt = _prompt(request)
    if isinstance(strategy, BeamSearch):
        values: dict[str, Any] = {
            "beam_width": strategy.num_beams,
            "max_tokens": request.max_new_tokens,
            "length_penalty": strategy.length_penalty,
        }
        code = _BEAMS.format(model=model, params=_arguments(values), prompt=prompt)
        return Snippet("vLLM", "python", code, tuple(_beam_notes(request)))
    values = sampling(request)
    if isinstance(strategy, (Sample, BestOf)) and strategy.n > 1:
        values["n"] = strategy.n
    call = f"outputs = llm.generate([{prompt}], params)"
    if request.chat:
        call = f'outputs = llm.chat([{{"role": "user", "content": {request.prompt!r}}}], params)'
    code = _SAMPLING.format(model=model, params=_arguments(values), call=call)
    return Snippet("vLLM", "python", code, tuple(_notes(request)))


def sampling(request: Request) -> dict[str, Any]:
    """The arguments of vllm.SamplingParams."""
    params = request.sampling
    values: dict[str, Any] = {**numbers(params, "vllm"), "max_tokens": request.max_new_tokens}
    if params.logit_bias:
        values["logit_bias"] = dict(params.logit_bias)
    if request.stop:
        values["stop"] = list(request.stop)
    if request.seed is not None and params.temperature > 0:
        values["seed"] = request.seed
    return values


def _prompt(request: Request) -> str:
    if isinstance(request.prompt, str):
        return repr(request.prompt)
    return repr({"prompt_token_ids": list(request.prompt)})


def _arguments(values: dict[str, Any]) -> str:
    return "\n".join(f"    {name}={value!r}," for name, value in values.items())


def _notes(request: Request) -> list[str]:
    params = request.sampling
    notes = missing(params, "vllm", "vLLM") + order_note(params, ORDERS["vllm"], "vLLM")
    if isinstance(request.strategy, BestOf):
        notes.append("All samples are printed; selecting one is left to you.")
    return [*notes, *common_notes(request, "vLLM")]


def _beam_notes(request: Request) -> list[str]:
    notes = (
        ["vLLM's beam search takes no penalties, no bias and no stop strings."]
        if request.sampling.switched_on
        else []
    )
    return [*notes, *common_notes(request, "vLLM")]
