"""The named endpoints: decoding, the KV cache, and experiments of many runs."""
