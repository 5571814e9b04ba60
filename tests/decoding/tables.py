"""Toy language models given as a table: the next token depends on the last one, and maybe its place.

`drive` runs a strategy over a table without any model; `TableModel` is the same table for `generate`.
"""

from __future__ import annotations

from collections.abc import Sequence as Row
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from backend.decoding.forward import TARGET, Context, Forward, Strategy
from backend.events import Event
from backend.kv.block_manager import BlockManager
from backend.request import Request
from backend.sampling.pipeline import Pipeline
from backend.sequence import Sequence


class Letters:
    """A vocabulary of single letters."""

    def label(self, token_id: int) -> str:
        return chr(ord("a") + token_id)

    def is_special(self, token_id: int) -> bool:
        return False

    def token_bytes(self, token_id: int) -> bytes:
        return self.label(token_id).encode()


def context(request: Request, eos_ids: set[int], context_length: int = 10_000) -> Context:
    """What a strategy needs, over a pool of its own. The prompt of the request is token ids."""
    prompt_ids = tuple(int(token_id) for token_id in request.prompt)
    letters: Any = Letters()
    return Context(
        request=request,
        prompt_ids=prompt_ids,
        root=Sequence(list(prompt_ids), len(prompt_ids)),
        seed=request.seed or 0,
        pipeline=Pipeline(request.sampling, letters.label, request.num_candidates),
        vocabulary=letters,
        blocks=BlockManager(200, 4),
        eos_ids=frozenset(eos_ids),
        context_length=context_length,
    )


def drive(
    context: Context,
    strategy: Strategy,
    logprobs: Tensor,
    draft: tuple[Tensor, BlockManager] | None = None,
) -> list[Event]:
    """Run a strategy to its end over a table of log-probabilities; audits the blocks at every step.

    `draft` is the table and the pool of a draft model, if the strategy asks one.
    """
    pools = {TARGET: (logprobs, context.blocks), "draft": draft}
    events: list[Event] = []
    item = next(strategy)
    try:
        while True:
            if isinstance(item, Forward):
                asked = pools[item.model]
                assert asked is not None
                answer = [_answer(*asked, sequence, item.num_logits) for sequence in item.sequences]
                asked[1].check_integrity(item.sequences)
                item = strategy.send(answer)
            else:
                events.append(item)
                item = next(strategy)
    except StopIteration:
        context.blocks.check_integrity([])
        assert context.blocks.num_free_blocks == context.blocks.num_blocks
        return events


def _answer(logprobs: Tensor, blocks: BlockManager, sequence: Sequence, num_logits: int) -> Tensor:
    blocks.reserve(sequence, len(sequence))
    blocks.commit(sequence, len(sequence))
    return after(logprobs, torch.tensor(sequence.token_ids))[-num_logits:]


def after(logprobs: Tensor, token_ids: Tensor) -> Tensor:
    """Log-probabilities after each token, by a table [V, V], or [places, V, V] that differs by place."""
    if logprobs.dim() == 2:
        return logprobs[token_ids]
    return logprobs[torch.arange(token_ids.shape[-1]), token_ids]


class TableConfig(PretrainedConfig):
    model_type = "table"

    def __init__(self, vocab_size: int = 2, **kwargs: Any):
        self.vocab_size = vocab_size
        self.num_hidden_layers = 0
        super().__init__(**kwargs)


class TableModel(PreTrainedModel, GenerationMixin):
    """transformers' view of a table of log-probabilities; -1e4 stands for minus infinity."""

    config_class = TableConfig
    main_input_name = "input_ids"

    def __init__(self, logprobs: Tensor):
        super().__init__(TableConfig(logprobs.shape[-1]))
        self.table = torch.nn.Parameter(logprobs, requires_grad=False)
        self.post_init()
        self.table.data = logprobs.clone()

    def _init_weights(self, module: Any) -> None: ...

    def forward(self, input_ids: Tensor, **kwargs: Any) -> CausalLMOutput:
        return CausalLMOutput(logits=after(self.table, input_ids))


def table(rows: Row[Row[float]]) -> Tensor:
    """Log-probabilities from rows of probabilities."""
    return torch.tensor(rows, dtype=torch.float32).log().clamp(min=-1e4)


def random_table(size: int, seed: int, places: int = 20) -> Tensor:
    """[places, size, size]: it differs by place, so that no two texts have the same sum."""
    generator = torch.Generator().manual_seed(seed)
    return torch.log_softmax(torch.randn(places, size, size, generator=generator) * 1.5, -1)
