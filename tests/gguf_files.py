"""GGUF files of tiny random Llama- and Qwen2-class models, their linear layers in a type of choice."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import pre_tokenizers

from tests import models

VOCAB_SIZE = models.VOCAB_SIZE + 1
SHAPES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "initializer_range": 0.12,
}
ARCHITECTURES = {"llama": models.llama, "qwen2": models.qwen2}


def write(path: Path, architecture: str, kind: str) -> None:
    """Write a model whose linears but the output layer are of the type `kind`, such as Q4_0.

    Q4_K, which the gguf package only reads, is filled with random blocks.
    """
    model = ARCHITECTURES[architecture](**SHAPES)
    config = model.config
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    file = gguf.GGUFWriter(path, architecture)
    file.add_name("tiny")
    file.add_context_length(config.max_position_embeddings)
    file.add_embedding_length(config.hidden_size)
    file.add_block_count(config.num_hidden_layers)
    file.add_feed_forward_length(config.intermediate_size)
    file.add_head_count(config.num_attention_heads)
    file.add_head_count_kv(config.num_key_value_heads)
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_rope_freq_base(config.rope_parameters["rope_theta"])
    file.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    file.add_vocab_size(VOCAB_SIZE)
    _add_tokenizer(file)
    for name, weight in model.state_dict().items():
        stem, _, suffix = name.rpartition(".")
        target = f"{names.get_name(stem)}.{suffix}"
        value = weight
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            value = weight.view(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
        array = value.numpy()
        if "_proj" not in name or suffix == "bias":
            file.add_tensor(target, array)
        else:
            blocks = _random_q4_k(*array.shape) if kind == "Q4_K" else gguf.quantize(array, _kind(kind))
            file.add_tensor(target, blocks, raw_dtype=_kind(kind))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _kind(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[name]


def _random_q4_k(rows: int, columns: int) -> np.ndarray:
    noise = torch.Generator().manual_seed(rows * columns)
    blocks = torch.randint(0, 256, (rows, columns // 256, 144), generator=noise).to(torch.uint8).numpy()
    # The mean of d s q, near 32 and 7.5, is about that of e m: weights of either sign, of some 0.1.
    blocks[..., :4] = np.array([5e-4, 5e-4 * 7.5], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def _add_tokenizer(file: gguf.GGUFWriter) -> None:
    """The byte-level tokenizer of `models` and one merged token, since the reader wants one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list([*alphabet, models.EOS, "ab"])
    file.add_token_types(
        [gguf.TokenType.NORMAL] * len(alphabet) + [gguf.TokenType.CONTROL, gguf.TokenType.NORMAL]
    )
    file.add_token_merges(["a b"])
    file.add_eos_token_id(models.EOS_ID)
