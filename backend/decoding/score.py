"""Teacher forcing: the probability of every token of a given text."""

from __future__ import annotations

from backend.decoding.forward import Context, Forward, Strategy
from backend.decoding.lane import Lane
from backend.sampling.processors import History
from backend.sequence import Sequence

# Logits of a whole long text would take gigabytes; a part at a time does not.
PART = 64


def score(context: Context, token_ids: tuple[int, ...]) -> Strategy:
    """Describe each of `token_ids` after the root's first token as it was predicted.

    The root runs ahead in parts, since the tokens are known; the lane follows one by one for the record.
    """
    reader, known = context.root, (*context.root.token_ids, *token_ids)
    lane = Lane(context, Sequence(list(reader.token_ids), reader.num_prompt_tokens), 0)
    try:
        reader.token_ids.clear()
        for start in range(0, len(token_ids), PART):
            part = known[start : min(start + PART, len(token_ids))]
            reader.token_ids.extend(part)
            (logits,) = yield Forward((reader,), num_logits=len(part))
            num_prompt = lane.sequence.num_prompt_tokens
            histories = [History(known[: start + place], num_prompt) for place in range(1, len(part) + 1)]
            positions = context.pipeline.positions(logits, histories)
            for position, token_id in zip(positions, known[start + 1 :], strict=False):
                yield from lane.record(position.force(token_id), forced=True)
        yield from lane.finish("length")
    finally:
        context.blocks.free(reader)
