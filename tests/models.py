"""Tiny random models with a byte-level tokenizer, and engines built from them."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from backend.engine import Engine
from backend.model.catalogue import LoadedModel

EOS = "<eos>"
VOCAB_SIZE = 257  # one token per byte, and the end of text
EOS_ID = 256
CONTEXT = 512
SLIDING_WINDOW = 13


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Token id = place of the byte in the byte-level alphabet; EOS comes last."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS)


def _common(**changes: Any) -> dict[str, Any]:
    # A wide initialisation: logits of several units, so that greedy choices are no ties.
    common = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.3,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": EOS_ID,
        "pad_token_id": None,
    }
    return common | changes


def llama(**changes: Any) -> PreTrainedModel:
    return _seeded(LlamaForCausalLM, LlamaConfig(**_common(**changes)))


def qwen2(**changes: Any) -> PreTrainedModel:
    return _seeded(Qwen2ForCausalLM, Qwen2Config(**_common(**changes)))


def qwen3(**changes: Any) -> PreTrainedModel:
    return _seeded(Qwen3ForCausalLM, Qwen3Config(**_common(head_dim=8, **changes)))


def mistral(**changes: Any) -> PreTrainedModel:
    changes = {"sliding_window": SLIDING_WINDOW} | changes
    return _seeded(MistralForCausalLM, MistralConfig(**_common(**changes)))


def gpt2(**changes: Any) -> PreTrainedModel:
    config: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "n_positions": CONTEXT,
        "n_embd": 48,
        "n_layer": 2,
        "n_head": 4,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": EOS_ID,
    }
    return _seeded(GPT2LMHeadModel, GPT2Config(**(config | changes)))


MODELS = {"llama": llama, "gpt2": gpt2, "qwen2": qwen2, "qwen3": qwen3, "mistral": mistral}


def _seeded(model_class: Any, config: Any) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model: PreTrainedModel = model_class(config).eval()
    with torch.no_grad():  # the end of text has logit 0: drawn now and then, never the best
        model.get_output_embeddings().weight[EOS_ID] = 0
    return model.requires_grad_(False)


def engine(
    model: PreTrainedModel | None = None,
    *,
    block_size: int = 4,
    num_blocks: int = 256,
    inline: bool = False,
    name: str = "tiny",
) -> Engine:
    """An engine over a tiny model (a Llama unless given)."""
    loaded = LoadedModel(name, llama() if model is None else model, byte_tokenizer())
    return Engine(loaded, block_size=block_size, num_blocks=num_blocks, inline=inline)
