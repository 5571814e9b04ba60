"""What a decoding strategy may yield, and what it is given to work with.

A strategy is a generator. It yields events (for the viewer) and forwards (for the model); the value of
yielding a forward is its logits, one tensor [num_logits, vocab_size] per sequence. It never calls the model,
so it can be tested by sending it literal logits.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from backend.events import Event
from backend.kv.block_manager import BlockManager
from backend.request import Request
from backend.sampling.pipeline import Pipeline
from backend.sequence import Sequence
from backend.text import Vocabulary

TARGET = "target"


@dataclass(frozen=True)
class Forward:
    """These sequences need logits: all their tokens that are not in the cache yet are computed.

    Attributes:
        num_logits: logits are wanted for this many of the last positions of each sequence.
        model: TARGET, or the name of a draft model; each has a pool of its own.
    """

    sequences: tuple[Sequence, ...]
    num_logits: int = 1
    model: str = TARGET


@dataclass(frozen=True)
class Context:
    """All a strategy works with.

    Attributes:
        prompt_ids: the prompt, and the fixed output of a branch.
        root: the sequence of those, nothing computed yet.
        seed: the one used, also where the request has none.
        eos_ids: ids that end a text.
        context_length: tokens the model can hold.
    """

    request: Request
    prompt_ids: tuple[int, ...]
    root: Sequence
    seed: int
    pipeline: Pipeline
    vocabulary: Vocabulary
    blocks: BlockManager
    eos_ids: frozenset[int]
    context_length: int


Strategy = Generator[Event | Forward, list[Tensor], Any]
