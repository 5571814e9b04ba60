"""The size formula on published shapes and on pasted configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen3Config

from backend import RequestError
from ui.presets.files import PresetError
from ui.presets.model_shapes import FOLDER, load_model_shapes
from ui.runs.model_shape import from_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("num_tokens", "batch_size", "shown"),
    [
        (4_096, 1, "1.3"),
        (4_096, 32, "42"),
        (32_768, 1, "10.7"),
        (32_768, 32, "343"),
        (131_072, 1, "42.9"),
    ],
)
def test_the_table_of_llama_3_70b_in_sixteen_bits(num_tokens: int, batch_size: int, shown: str) -> None:
    """1.3, 42, 10.7, 343 and 42.9 GB; cut to the digits given, 42.95 reads 42.9."""
    gigabytes = load_model_shapes()["llama-3-70b"].cache_bytes(num_tokens, batch_size, 2) / 1e9
    digits = len(shown.partition(".")[2])
    assert int(gigabytes * 10**digits) / 10**digits == float(shown)


@pytest.mark.parametrize(
    ("name", "per_token", "grouping"),
    [
        ("smollm2-135m", 2 * 30 * 3 * 64 * 2, 3),
        ("llama-3-8b", 131_072, 4),
        ("llama-2-7b", 524_288, 1),
        ("qwen2-5-7b", 57_344, 7),
        ("mistral-7b", 131_072, 4),
        ("falcon-7b", 8_192, 71),
        ("gpt-2", 36_864, 1),
    ],
)
def test_bytes_of_one_token_and_what_grouping_saves(name: str, per_token: int, grouping: int) -> None:
    shape = load_model_shapes()[name]
    assert shape.cache_bytes(1, 1, 2) == per_token
    assert shape.saved_by_grouping == grouping
    assert shape.cache_bytes(10, 4, 4) == per_token * 10 * 4 * 2


def test_every_file_of_the_folder_loads() -> None:
    assert len(load_model_shapes()) == len(list(FOLDER.glob("*.yaml"))) >= 12


@pytest.mark.parametrize("config_class", [LlamaConfig, MistralConfig, Qwen3Config, GPT2Config])
def test_a_config_written_by_transformers_reads_as_transformers_reads_it(config_class: Any) -> None:
    config = config_class()
    shape = from_config(config.to_json_string(use_diff=False))
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    found = (shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.head_size, shape.context_length)
    assert found == (
        config.num_hidden_layers,
        config.num_attention_heads,
        kv_heads,
        head_size,
        config.max_position_embeddings,
    )


def test_other_spellings() -> None:
    falcon = {"n_layer": 32, "n_head": 71, "multi_query": True, "hidden_size": 4544, "n_ctx": 2048}
    shape = from_config(json.dumps(falcon))
    assert (shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.head_size) == (32, 71, 1, 64)
    nested = from_config(json.dumps({"architectures": ["Seer"], "text_config": LLAMA | {"head_dim": 99}}))
    assert (nested.num_layers, nested.head_size) == (80, 99)
    layers = from_config(json.dumps(LLAMA | {"layer_types": ["sliding_attention", "full_attention"]}))
    assert "sliding_attention" in layers.note


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[1]", "JSON object, got list"),
        ("[" * 100_000, "not JSON"),
        ("{}", "num_attention_heads"),
        (json.dumps(LLAMA | {"num_hidden_layers": None}), "none of num_hidden_layers"),
        (json.dumps(LLAMA | {"num_hidden_layers": 0}), "num_hidden_layers must be a whole number from 1"),
        (json.dumps(LLAMA | {"num_attention_heads": True}), "num_attention_heads must be"),
        (json.dumps(LLAMA | {"num_key_value_heads": "8"}), "num_key_value_heads must be"),
        (json.dumps(LLAMA | {"num_key_value_heads": 10**12}), "num_key_value_heads must be"),
        (json.dumps(LLAMA | {"num_key_value_heads": 7}), "64 heads cannot share 7"),
        (json.dumps(LLAMA | {"hidden_size": 8191}), "no multiple of 64"),
        (json.dumps(LLAMA | {"kv_lora_rank": 512}), "kv_lora_rank"),
        (" " * 100_001, "100,001 characters"),
    ],
)
def test_a_config_that_cannot_be_used_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        from_config(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("num_layers: 2.5", "num_layers must be a whole number"),
        ("num_kv_heads: 5", "64 heads cannot share 5"),
        ("colour: red", "unknown key 'colour'"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, change: str, message: str) -> None:
    text = (FOLDER / "llama-3-70b.yaml").read_text(encoding="utf-8")
    key = change.split(":")[0]
    kept = [line for line in text.splitlines() if not line.startswith(key)]
    (tmp_path / "shape.yaml").write_text("\n".join([*kept, change]), encoding="utf-8")
    with pytest.raises(PresetError, match=message):
        load_model_shapes(tmp_path)
