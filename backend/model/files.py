"""Which files of a model are read, and which never."""

from __future__ import annotations

import re
from collections.abc import Collection

from backend.errors import ModelUnavailable

# The names transformers gives safetensors weights: whole, or in numbered shards.
_WEIGHT_FILE = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
_TEXT_FILE = re.compile(r"[^/]+\.(json|txt|model|jinja)")
_PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def is_wanted(file: str) -> bool:
    """Whether a repository's file is needed: top-level weights, configuration or tokenizer; never code."""
    return bool(_WEIGHT_FILE.fullmatch(file) or _TEXT_FILE.fullmatch(file))


def refuse_unsafe_files(name: str, place: str, files: Collection[str]) -> None:
    """Refuse a model without safetensors weights, or with an adapter.

    `files` are the names at the top level of `place`.

    Raises:
        ModelUnavailable: names the model, the place and what was found instead.
    """
    if any(file.startswith("adapter_") for file in files):
        raise ModelUnavailable(
            f"{name} holds an adapter (adapter_config.json or its weights) in {place}. Adapters are not "
            "read, so its text would be that of the base. Merge it with peft's merge_and_unload() first."
        )
    if "config.json" not in files:
        raise ModelUnavailable(f"{name} has no config.json in {place}, so it is no transformers model.")
    if any(_WEIGHT_FILE.fullmatch(file) for file in files):
        return
    pickled = sorted(file for file in files if file.endswith(_PICKLED_SUFFIXES))
    if pickled:
        raise ModelUnavailable(
            f"{name} has only pickled weights ({', '.join(pickled[:3])}) in {place}; reading them can run "
            "any code, so they are refused. Use a safetensors version, or convert it where you trust it with "
            "model.save_pretrained(folder)."
        )
    raise ModelUnavailable(f"{name} has no model.safetensors in {place}.")


def first_line(error: BaseException) -> str:
    """What a library's error says, short enough for a message of ours."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
