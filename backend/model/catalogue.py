"""Known models and where their weights come from.

Three sources, told apart by the name and never mixed: the bundled model (`bundled.py`), a local folder or
GGUF file (`gguf_file.py`), the Hugging Face hub (`hub.py`). But for GGUF files the weights end up as
safetensors in one folder and are read from there, so the same refusals hold for all: no code from a
repository, no pickled weights, nothing that is not a complete causal language model.

Importing this module touches neither the network nor the disk.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from backend.errors import ModelUnavailable
from backend.model import bundled, gguf_file, hub
from backend.model.files import first_line, refuse_unsafe_files
from backend.model.packed import Packing, pack
from backend.model.progress import ConsoleProgress, Progress

Source = Literal["bundled", "folder", "hub"]


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue, as a menu shows it. `repo_id` is None for the bundled model."""

    name: str
    title: str
    description: str
    parameters: str
    download: str
    repo_id: str | None = None


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model in eval mode, ready to be called, with its tokenizer.

    `packing` says what became of its linear layers where they were packed.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: Source = "bundled"
    packing: Packing | None = None


CATALOGUE: Mapping[str, Entry] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            Entry(
                bundled.NAME,
                "SmolLM2 135M Instruct",
                "The default: small and quick on two cores; weights rounded to 4 bits, computed in full.",
                "135 M",
                "93 MB",
            ),
            Entry(
                "smollm2-360m",
                "SmolLM2 360M Instruct",
                "Same family, noticeably better answers.",
                "362 M",
                "0.7 GB",
                "HuggingFaceTB/SmolLM2-360M-Instruct",
            ),
            Entry(
                "smollm2-1.7b",
                "SmolLM2 1.7B Instruct",
                "Same family, fluent; wants a GPU or patience.",
                "1.7 B",
                "3.4 GB",
                "HuggingFaceTB/SmolLM2-1.7B-Instruct",
            ),
            Entry(
                "qwen2.5-0.5b",
                "Qwen2.5 0.5B Instruct",
                "Many languages, code and arithmetic for its size.",
                "494 M",
                "1.0 GB",
                "Qwen/Qwen2.5-0.5B-Instruct",
            ),
            Entry(
                "qwen3-0.6b",
                "Qwen3 0.6B",
                "Thinks aloud before it answers in chat.",
                "596 M",
                "1.5 GB",
                "Qwen/Qwen3-0.6B",
            ),
            Entry(
                "gpt2",
                "GPT-2 124M",
                "The 2019 classic: completes text, knows no chat.",
                "124 M",
                "0.5 GB",
                "openai-community/gpt2",
            ),
        )
    }
)


def load(
    name: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    packed: bool = False,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load a catalogue name, a local folder, a GGUF file or a Hugging Face id "org/name".

    Args:
        name: looked up in this order: `CATALOGUE`, an existing folder or GGUF file, the hub.
        dtype: of the weights in memory, applied while reading them.
        packed: linear layers keep their weights in 4 bits (`packed.py`); on the CPU, in float32, only.
        progress: None prints to stderr.

    Raises:
        ModelUnavailable: the model cannot be had or must not be used; says what was tried and what to do.
    """
    report = progress or ConsoleProgress()
    with _quiet_transformers():
        place, source = _locate(name, report)
        report(f"Loading {name}", 0.0)
        model, tokenizer = (_read_folder if place.is_dir() else _read_gguf)(name, place, dtype)
        try:
            model.to(device)  # type: ignore[arg-type]  # the decorator around it hides self
        except RuntimeError as error:
            raise ModelUnavailable(f"{name} does not fit on {device}: {first_line(error)}") from error
        report(f"Loading {name}", 1.0)
        stored = gguf_file.stored_groups(place, model) if packed and place.is_file() else None
        packing = pack(model, stored, report) if packed else None
    return LoadedModel(name, model, tokenizer, source, packing)


def _locate(name: str, report: Progress) -> tuple[Path, Source]:
    """The folder or GGUF file that holds the model, fetched first if it must be."""
    if name == bundled.NAME:
        return bundled.folder(_convert, report), "bundled"
    if name in CATALOGUE:
        return hub.folder(CATALOGUE[name].repo_id or name, report), "hub"
    path = os.path.expanduser(name)
    # Unlike Path.is_dir, false also for a name the system cannot hold.
    if os.path.isdir(path) or (path.endswith(".gguf") and os.path.isfile(path)):
        return Path(path), "folder"
    if hub.HUB_ID.fullmatch(name):
        return hub.folder(name, report), "hub"
    raise ModelUnavailable(_unknown_name(name))


def _unknown_name(name: str) -> str:
    return (
        f"No model {name[:200]!r}. Tried: the catalogue ({', '.join(CATALOGUE)}): not listed; "
        f"a folder or GGUF file {os.path.abspath(os.path.expanduser(name))!r}: there is none; "
        "the Hugging Face hub: not asked, an id there has the form org/name. "
        "Give a catalogue name, the path of a folder with a model or of a GGUF file, "
        "or an id such as Qwen/Qwen2.5-0.5B."
    )


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Switch off the bars and load reports of transformers; ours replace them."""
    bars = transformers.utils.logging.is_progress_bar_enabled()
    level = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        transformers.utils.logging.set_verbosity(level)
        if bars:
            transformers.utils.logging.enable_progress_bar()


def _read_folder(
    name: str, folder: Path, dtype: torch.dtype
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of a local folder. Refuses by name what is unsafe, not causal or incomplete."""
    files = {path.name for path in folder.iterdir() if path.is_file()}
    refuse_unsafe_files(name, str(folder), files)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        _refuse_non_causal(name, config)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except ModelUnavailable:
        raise
    except Exception as error:  # transformers raises nearly every type for a damaged or unknown model
        raise ModelUnavailable(
            f"{name} could not be read from {folder}: {type(error).__name__}: {first_line(error)}. "
            "If the folder is damaged, remove it and load the model again."
        ) from error
    model, info = loaded
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise ModelUnavailable(
            f"{name} lacks {len(missing)} of its weights in {folder} (first: {missing[0]}); "
            "they would be random. Use a complete checkpoint of a causal language model."
        )
    return model.eval().requires_grad_(False), tokenizer


def _read_gguf(name: str, path: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of a GGUF file."""
    try:
        model, tokenizer = gguf_file.read(path, dtype)
        _refuse_non_causal(name, model.config)
    except ModelUnavailable:
        raise
    except Exception as error:
        raise ModelUnavailable(
            f"{name} could not be read: {type(error).__name__}: {first_line(error)}. "
            "It must be a complete GGUF file of an architecture that transformers knows."
        ) from error
    return model.eval().requires_grad_(False), tokenizer


def _refuse_non_causal(name: str, config: PretrainedConfig) -> None:
    if config.is_encoder_decoder:
        raise ModelUnavailable(
            f"{name} is an encoder-decoder model ({config.model_type}), not a causal language model; "
            "only those are run here."
        )
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    # The mapping alone also takes encoders such as BERT; what the weights were saved as tells them apart.
    saved_as = config.architectures or []
    causal = not saved_as or any("CausalLM" in each or "LMHead" in each for each in saved_as)
    if model_class is None or not (causal or model_class.__name__ in saved_as):
        raise ModelUnavailable(
            f"{name} is {', '.join(saved_as) or config.model_type}, not a causal language model; "
            "only those are run here."
        )


def _convert(gguf: Path, folder: Path) -> None:
    """Write a GGUF file's tokenizer and model to `folder`, its dequantized weights as float32 safetensors."""
    quantized, tokenizer = gguf_file.read(gguf, torch.float32)
    # A model read from GGUF refuses to be saved, so its weights move to a fresh one.
    model = AutoModelForCausalLM.from_config(quantized.config, dtype=torch.float32)
    model.load_state_dict(quantized.state_dict())
    model.generation_config = quantized.generation_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
