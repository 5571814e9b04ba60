"""What the reader asks of the size formula; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from backend import RequestError
from ui.runs.model_shape import ModelShape, from_config

BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
MAX_TOKENS, MAX_BATCH = 10_000_000, 100_000


@dataclass(frozen=True)
class SizeState:
    """What the reader chose; the page counts the choices in `asked`.

    `pasted` is the shape of a config of theirs, `notice` why a choice was refused.
    """

    shape: str = "smollm2-135m"
    precision: str = "float32"
    num_tokens: int = 4096
    batch_size: int = 1
    pasted: ModelShape | None = None
    notice: str = ""
    asked: int = 0


def turned(state: SizeState, shapes: Mapping[str, ModelShape], data: Any) -> SizeState:
    """The state after the reader's choice; what makes no sense is named in `notice` and changes nothing."""
    sent = data if isinstance(data, dict) else {}
    if type(sent.get("asked")) is int:
        if sent["asked"] < state.asked:  # a later choice has been served first
            return state
        state = replace(state, asked=sent["asked"])
    try:
        if isinstance(sent.get("config"), str):
            return replace(state, pasted=from_config(sent["config"]), shape="pasted", notice="")
        shape, precision = sent.get("shape", state.shape), sent.get("precision", state.precision)
        known = [*shapes, *(["pasted"] if state.pasted is not None else [])]
        if shape not in known:
            raise RequestError(f"there is no model shape {str(shape)[:40]!r}")
        if precision not in list(BYTES):
            raise RequestError(f"precision must be one of {', '.join(BYTES)}, got {str(precision)[:40]!r}")
        return replace(
            state,
            shape=shape,
            precision=precision,
            num_tokens=_whole("tokens", sent.get("num_tokens", state.num_tokens), MAX_TOKENS),
            batch_size=_whole("batch", sent.get("batch_size", state.batch_size), MAX_BATCH),
            notice="",
        )
    except RequestError as error:
        return replace(state, notice=str(error))


def _whole(name: str, value: Any, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise RequestError(f"{name} must be a whole number from 1 to {most:,}, got {str(value)[:40]}")
    return value
