"""Endpoints may be called over bare HTTP with fewer values than they take: the last ones have defaults.

Without this a new parameter at the end would break every caller that sends a list of values.
"""

from __future__ import annotations

import inspect
from typing import Any

import gradio as gr
from gradio.components.api_component import Api


def fill_left_out(blocks: gr.Blocks) -> None:
    """Let endpoints of the page take the defaults of parameters at the end that a call left out."""
    check = blocks.validate_inputs

    def filled(block_fn: Any, inputs: list[Any]) -> None:
        if len(inputs) < len(block_fn.inputs) and all(isinstance(part, Api) for part in block_fn.inputs):
            parameters = list(inspect.signature(block_fn.fn).parameters.values())[len(inputs) :]
            if not any(parameter.default is parameter.empty for parameter in parameters):
                inputs.extend(parameter.default for parameter in parameters)
        check(block_fn, inputs)

    blocks.validate_inputs = filled  # type: ignore[method-assign]
