"""Named endpoints for the KV cache: many requests at once in a pool of blocks, and the size formula."""

# No postponed annotations here: gradio reads the return types from the live annotation.

import time
from dataclasses import replace
from typing import Any

import gradio as gr

from backend import Request
from backend.errors import RequestError
from ui.api.endpoints import Endpoints, readable_errors, request
from ui.payloads import pool as pool_payloads
from ui.payloads import size as size_payloads
from ui.presets.model_shapes import load_model_shapes
from ui.presets.request_sets import POOLS, WHOLE
from ui.runs.crowd import MAX_MEMBERS, Ask
from ui.runs.kv_state import KvState
from ui.runs.size import SizeState, turned
from ui.session import View


class CacheApi(Endpoints):
    """The KV cache."""

    def run_together(
        self,
        prompts: list[str],
        pool: str = WHOLE,
        stagger: float = 0.0,
        buffer: int = 2048,
        settings: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Run several prompts in one batch and tell what their blocks held, beside contiguous buffers.

        Args:
            prompts: the texts to continue, at most 32.
            pool: "whole", or the size of a smaller pool: "48", "64", "128" or "512" blocks.
            stagger: seconds from the start of one request to the start of the next.
            buffer: tokens that a cache without blocks would reserve for each request.
            settings: further arguments of /generate that all requests share.

        Returns:
            requests: text, state ("length", "eos" and so on, or "refused"), error, seconds to the first token
            and per token, blocks of the prompt found and computed, of each; tokens_per_second of all;
            memory: bytes reserved and share wasted in blocks and in buffers.
        """
        state = KvState(buffer=buffer)
        with readable_errors():
            if not 1 <= len(prompts) <= MAX_MEMBERS:
                raise RequestError(f"prompts must be 1 to {MAX_MEMBERS} texts, got {len(prompts)}")
            if pool not in POOLS:
                raise RequestError(f"pool must be one of {', '.join(POOLS)}, got {pool[:40]!r}")
            if buffer < 1 or not 0 <= stagger <= 60:
                raise RequestError(
                    f"buffer must be at least 1 and stagger 0 to 60, got {buffer}, {stagger:g}"
                )
            engine = self.loader.wait_for()
            chosen = engine if pool == WHOLE else engine.with_pool(int(pool))
            asked = request("-", settings)

            def make(ask: Ask) -> Request:
                return replace(asked, prompt=ask.prompt, num_candidates=0)

            state.crowd.fill([Ask(prompt, asked.max_new_tokens) for prompt in prompts])
            state.begin_watch(chosen, asked.cache_salt)
            state.crowd.begin(chosen, make, stagger)
            with state.crowd as crowd:
                for _ in crowd:
                    pass
            state.refresh()
        now = time.perf_counter() - state.crowd.began
        listed = pool_payloads.requests(View(), state, chosen.block_size, now)
        return {
            "requests": [
                {"text": member.text, "state": member.state}
                | {key: row[key] for key in ("error", "ttft", "per_token", "hits", "misses")}
                for member, row in zip(state.crowd.members, listed["rows"], strict=True)
            ],
            "tokens_per_second": listed["throughput"],
            "memory": pool_payloads.memory(state),
        }

    def cache_size(
        self,
        model: str = "llama-3-70b",
        num_tokens: int = 4096,
        batch_size: int = 1,
        precision: str = "bfloat16",
        config: str = "",
    ) -> dict[str, Any]:
        """Bytes that the keys and values of a model take.

        Args:
            model: a shape of presets/model_shapes, for example llama-3-8b; ignored where a config is given.
            num_tokens: tokens of each sequence.
            batch_size: sequences at once.
            precision: float32, bfloat16 or int8.
            config: the text of a Hugging Face config.json.

        Returns:
            total and per_token in bytes, the numbers of the shape, and grouping: how many times larger the
            cache would be if no heads shared keys and values.
        """
        shapes = load_model_shapes()
        asked: dict[str, Any] = {"num_tokens": num_tokens, "batch_size": batch_size, "precision": precision}
        state = turned(SizeState(), shapes, {"config": config} if config else {"shape": model})
        if not state.notice:
            state = turned(state, shapes, asked)
        if state.notice:
            raise gr.Error(state.notice, print_exception=False)
        found = size_payloads.payload(state, shapes)
        return {key: found[key] for key in ("title", "total", "per_token", "numbers", "grouping", "note")}
