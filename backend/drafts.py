"""The draft models of an engine: loaded on first use, each with a pool of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from backend.decoding.drafters.drafter import Drafter
from backend.decoding.drafters.model_draft import ModelDraft
from backend.decoding.drafters.prompt_lookup import PromptLookup
from backend.decoding.forward import Context
from backend.errors import RequestError
from backend.kv.block_manager import BlockManager
from backend.model import catalogue
from backend.model.catalogue import LoadedModel
from backend.model.layer_skip import default_skip, without_layers
from backend.model.runner import ModelRunner
from backend.request import Speculative
from backend.scheduler import Pool

# Drafts that need training; there is none to load yet.
_UNTRAINED = ("medusa", "eagle")


class Drafts:
    """Prepares drafters for requests.

    Args:
        target: the model whose tokens are drafted. pool: its pool, whose size the drafts' pools take.
        announce: makes a pool known to the loop under the name that forwards use.
    """

    def __init__(self, target: LoadedModel, pool: Pool, announce: Callable[[str, Pool], None]):
        self._target = target
        self._pool = pool
        self._announce = announce
        self._pools: dict[str, Pool] = {}
        self._lock = threading.Lock()

    def prepare(self, params: Speculative) -> Callable[[Context], Drafter]:
        """What makes the drafter of a run. May load a model, so it belongs in the caller's thread.

        Raises:
            RequestError: no such source, layers that do not exist, or another tokenizer.
            ModelUnavailable: the draft model cannot be had.
        """
        if params.draft == "prompt_lookup":
            return lambda context: PromptLookup()
        if params.draft in _UNTRAINED:
            raise RequestError(
                f"draft {params.draft!r} needs trained heads and none come with this version; "
                "use prompt_lookup, layer_skip or a model with the same tokenizer"
            )
        name, pool = self._model_pool(params)
        coupled = params.verify == "coupled"
        runner = pool.runner

        def make(context: Context) -> Drafter:
            limit = runner.context_length if context.root.is_long else runner.border or runner.context_length
            return ModelDraft(context, name, pool.blocks, coupled, limit)

        return make

    def _model_pool(self, params: Speculative) -> tuple[str, Pool]:
        skipped = params.skip_layers if params.draft == "layer_skip" else ()
        name = f"{params.draft} {','.join(map(str, skipped))}".strip()
        with self._lock:
            if name not in self._pools:
                is_skip = params.draft == "layer_skip"
                model = self._skipping(skipped) if is_skip else self._load(params.draft)
                self._pools[name] = self._new_pool(model, verify=not is_skip)
                self._announce(name, self._pools[name])
            return name, self._pools[name]

    def _skipping(self, skipped: tuple[int, ...]) -> Any:
        model = self._target.model
        layers = skipped or default_skip(model.config.get_text_config().num_hidden_layers)
        return without_layers(model, layers)

    def _load(self, name: str) -> Any:
        loaded = catalogue.load(name, device=self._target.model.device, dtype=self._target.model.dtype)
        own, other = self._target.tokenizer.get_vocab(), loaded.tokenizer.get_vocab()
        if own != other:
            different = sum(own.get(token) != token_id for token, token_id in other.items())
            raise RequestError(
                f"{name} cannot draft for {self._target.name}: another tokenizer ({len(other):,} tokens, "
                f"{different:,} of them different; {self._target.name} has {len(own):,})"
            )
        rows, needed = loaded.model.get_input_embeddings().num_embeddings, self._pool.runner.vocab_size
        rows = min(rows, loaded.model.config.get_text_config().vocab_size)
        if rows < needed:
            raise RequestError(
                f"{name} cannot draft for {self._target.name}: it has embeddings for {rows:,} tokens, "
                f"{self._target.name} has {needed:,}"
            )
        return loaded.model

    def _new_pool(self, model: Any, verify: bool) -> Pool:
        target = self._pool
        blocks = BlockManager(target.blocks.num_blocks, target.blocks.block_size)
        runner = ModelRunner(model, blocks.num_blocks, blocks.block_size, target.runner.vocab_size)
        if verify:
            runner.verify()
        return Pool(runner, blocks)
