"""Models in one GGUF file: read to float32 by transformers, and their 4-bit groups as the file holds them."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import pre_tokenizers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from backend.errors import ModelUnavailable
from backend.model.packed import GROUP, Groups, Stored

# Of llama.cpp's architectures, those in whose files each head's rows of q and k stand pair by pair.
_PAIRED_ROWS = {"llama"}
_AGREES = 1e-5  # of a weight's size: float32 rounding


def read(path: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of a GGUF file, its weights widened to `dtype`.

    Raises:
        ModelUnavailable: weights are missing.
        Exception: whatever transformers raises for a damaged file or an unknown architecture.
    """
    place, file = str(path.parent), path.name
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=file)
    if _field(gguf.GGUFReader(path), "tokenizer.ggml.pre") == "smollm":
        # transformers ignores it: digits are split off before the GPT-2 pattern.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    with contextlib.redirect_stderr(io.StringIO()):  # the bar of the GGUF reader has no switch
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place, gguf_file=file, dtype=dtype, output_loading_info=True
        )
    model, info = loaded
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise ModelUnavailable(f"{path} lacks {len(missing)} of its weights (first: {missing[0]})")
    if hasattr(model.config, "quantization_config"):  # what is in memory is no longer quantized
        del model.config.quantization_config
    return model, tokenizer


def stored_groups(path: Path, model: PreTrainedModel) -> Stored:
    """The groups of each linear layer as the file holds them, for `packed.pack`; None for other types.

    The function raises ModelUnavailable where they are not the weight that the model was given.
    """
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    architecture = str(_field(reader, "general.architecture"))
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    config = model.config.get_text_config()
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}

    def stored(name: str, linear: nn.Linear) -> Groups | None:
        found = names.get_name(name)
        tensor = tensors.get(f"{found}.weight")
        if found is None or tensor is None or tensor.tensor_type not in _DECODERS:
            return None
        groups = _DECODERS[tensor.tensor_type](np.ascontiguousarray(tensor.data))
        count = heads.get(found.rpartition(".")[2])
        if architecture in _PAIRED_ROWS and count:
            rows = torch.arange(len(groups.values))
            groups = groups.reordered(rows.view(count, -1, 2).transpose(1, 2).flatten())
        weight = linear.weight.detach()
        if not (groups.dequantized() - weight).norm() <= _AGREES * weight.norm():
            raise ModelUnavailable(f"{path}: the 4-bit groups of {found} are not the weight of {name}")
        return groups

    return stored


def _field(reader: Any, name: str) -> Any:
    field = reader.get_field(name)
    return None if field is None else field.contents()


def _nibbles(data: NDArray[np.uint8], run: int) -> Tensor:
    """Values 0 to 15 of bytes that hold `run` low halves, then the high ones; [rows, 2 * bytes]."""
    runs = data.reshape(len(data), -1, 1, run)
    return torch.from_numpy(np.concatenate([runs & 15, runs >> 4], 2).reshape(len(data), -1))


def _float16(data: NDArray[np.uint8]) -> Tensor:
    """Two bytes each; [rows, blocks] of float32, from [rows, blocks, 2]."""
    return torch.from_numpy(np.ascontiguousarray(data).view(np.float16)[..., 0].astype(np.float32))


def _q4_0(data: NDArray[np.uint8]) -> Groups:
    """w = d (q - 8)."""
    blocks = data.reshape(len(data), -1, 2 + GROUP // 2)
    scale = _float16(blocks[..., :2])
    return Groups(_nibbles(blocks[..., 2:], GROUP // 2), scale, torch.zeros_like(scale))


def _q4_1(data: NDArray[np.uint8]) -> Groups:
    """w = d q + m."""
    blocks = data.reshape(len(data), -1, 4 + GROUP // 2)
    scale, least = _float16(blocks[..., :2]), _float16(blocks[..., 2:4])
    return Groups(_nibbles(blocks[..., 4:], GROUP // 2), scale, least + 8 * scale)


def _q4_k(data: NDArray[np.uint8]) -> Groups:
    """w = d s q - e m in blocks of 256, with s and m of six bits for each of their 8 groups."""
    blocks = data.reshape(len(data), -1, 144)
    d, e = _float16(blocks[..., :2]), _float16(blocks[..., 2:4])
    # 12 bytes hold 8 s and 8 m: of the first four all six bits, of the others four and, on top of those, two.
    low, least, rest = (blocks[..., start : start + 4] for start in (4, 8, 12))
    s = np.concatenate([low & 63, (rest & 15) | (low >> 6 << 4)], -1)
    m = np.concatenate([least & 63, (rest >> 4) | (least >> 6 << 4)], -1)
    scale = d[..., None] * torch.from_numpy(s)  # [rows, blocks, 8]
    zero = 8 * scale - e[..., None] * torch.from_numpy(m)
    return Groups(_nibbles(blocks[..., 16:], GROUP), scale.flatten(1), zero.flatten(1))


_DECODERS: dict[gguf.GGMLQuantizationType, Callable[[NDArray[np.uint8]], Groups]] = {
    gguf.GGMLQuantizationType.Q4_0: _q4_0,
    gguf.GGMLQuantizationType.Q4_1: _q4_1,
    gguf.GGMLQuantizationType.Q4_K: _q4_k,
}
