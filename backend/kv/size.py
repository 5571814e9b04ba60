"""How much memory keys and values take."""

from __future__ import annotations


def kv_cache_bytes(
    num_layers: int,
    num_kv_heads: int,
    head_size: int,
    num_tokens: int,
    bytes_per_element: int,
    batch_size: int = 1,
) -> int:
    """Bytes of keys and values: 2 * layers * KV heads * head size * tokens * batch * bytes per element."""
    return 2 * num_layers * num_kv_heads * head_size * num_tokens * batch_size * bytes_per_element
