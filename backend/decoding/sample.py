"""Plain sampling: n independent lines of text from one prompt."""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor

from backend.decoding.forward import Context, Forward, Strategy
from backend.decoding.lane import Lane
from backend.events import Event, FinishReason
from backend.sampling.pipeline import Place
from backend.sampling.processors import History


def ended(context: Context, reason: FinishReason) -> Strategy:
    """The run of a branch whose fixed output already ends the text."""
    yield from Lane(context, context.root, 0).finish(reason)


def sample(context: Context, n: int) -> Generator[Event | Forward, list[Tensor], list[Lane]]:
    """Draw n samples; the prompt is computed once and its blocks are shared until a sample writes.

    Returns the finished lanes, by sample number.
    """
    sequences = [context.root]
    try:
        (prompt_logits,) = yield Forward((context.root,))
        sequences.extend(context.blocks.fork(context.root) for _ in range(n - 1))
        lanes = everyone = [Lane(context, sequence, number) for number, sequence in enumerate(sequences)]
        logits = [prompt_logits] * n
        while lanes:
            histories = [History(lane.sequence.token_ids, lane.sequence.num_prompt_tokens) for lane in lanes]
            last = torch.stack([rows[-1] for rows in logits])
            for lane, position in zip(lanes, context.pipeline.positions(last, histories), strict=True):
                place = Place(context.seed, lane.sample, len(lane.sequence))
                yield from lane.accept(position.choose(place))
                if lane.finished:
                    context.blocks.free(lane.sequence)
            lanes = [lane for lane in lanes if not lane.finished]
            if lanes:
                logits = yield Forward(tuple(lane.sequence for lane in lanes))
        return everyone
    finally:
        for sequence in sequences:
            context.blocks.free(sequence)
