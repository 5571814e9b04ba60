"""Settings as a Python program for transformers (generate, 5.24)."""

from __future__ import annotations

from typing import Any

from backend.interop.snippet import Snippet, common_notes, missing, numbers, order_note
from backend.request import BeamSearch, BestOf, Request, Sample
from backend.stages import ORDERS

_PROGRAM = """\
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

tokenizer = AutoTokenizer.from_pretrained({model!r})
model = AutoModelForCausalLM.from_pretrained({model!r})
# The model's own settings would fill in whatever is left out below; only its token ids stay.
own = model.generation_config
model.generation_config = GenerationConfig(
    bos_token_id=own.bos_token_id, eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id
)
{inputs}
config = GenerationConfig(
{config}
)
{seed}output = model.generate(**inputs, generation_config=config{stop})
for ids in output:
    print(tokenizer.decode(ids[inputs["input_ids"].shape[1] :], skip_special_tokens=True))
"""


def export(request: Request, model: str) -> Snippet:
    """A program that runs as it stands where transformers is installed."""
    params = request.sampling
    values: dict[str, Any] = {"max_new_tokens": request.max_new_tokens, **_strategy(request)}
    values |= numbers(params, "transformers", draw=values["do_sample"])
    if params.logit_bias:
        values["sequence_bias"] = [[[token_id], bias] for token_id, bias in params.logit_bias.items()]
    if request.stop:
        values["stop_strings"] = list(request.stop)
    code = _PROGRAM.format(
        model=model,
        inputs=_inputs(request),
        config="\n".join(f"    {name}={value!r}," for name, value in values.items()),
        seed=f"torch.manual_seed({request.seed})\n"
        if values["do_sample"] and request.seed is not None
        else "",
        stop=", tokenizer=tokenizer" if request.stop else "",
    )
    return Snippet("transformers", "python", code, tuple(_notes(request)))


def _strategy(request: Request) -> dict[str, Any]:
    strategy = request.strategy
    values: dict[str, Any] = {"do_sample": request.sampling.temperature > 0}
    if isinstance(strategy, BeamSearch):
        values = {
            "do_sample": False,
            "num_beams": strategy.num_beams,
            "length_penalty": strategy.length_penalty,
            "early_stopping": strategy.early_stopping,
            "num_return_sequences": strategy.num_return_sequences,
        }
    elif isinstance(strategy, (Sample, BestOf)) and strategy.n > 1:
        values["num_return_sequences"] = strategy.n
    return values


def _inputs(request: Request) -> str:
    if not isinstance(request.prompt, str):
        return (
            f"ids = torch.tensor([{list(request.prompt)}])\n"
            'inputs = {"input_ids": ids, "attention_mask": ids.new_ones(ids.shape)}'
        )
    if request.chat:
        return (
            "inputs = tokenizer.apply_chat_template(\n"
            f'    [{{"role": "user", "content": {request.prompt!r}}}],\n'
            '    add_generation_prompt=True, return_dict=True, return_tensors="pt",\n'
            ")"
        )
    return f'inputs = tokenizer({request.prompt!r}, return_tensors="pt")'


def _notes(request: Request) -> list[str]:
    strategy, params = request.strategy, request.sampling
    notes = missing(params, "transformers", "transformers")
    notes += order_note(params, ORDERS["transformers"], "transformers")
    if request.stop:
        notes.append("transformers keeps the stop string in the text; here it is never shown.")
    if isinstance(strategy, BestOf):
        notes.append(
            f"All {strategy.n} samples are printed; selecting one by {strategy.select!r} is left to you."
        )
    if isinstance(strategy, BeamSearch) and (strategy.num_beam_groups > 1 or strategy.stochastic):
        notes.append("transformers 5 has no beam groups and no stochastic beams; this is plain beam search.")
    return [*notes, *common_notes(request, "transformers")]
