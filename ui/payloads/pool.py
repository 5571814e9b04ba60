"""From the state of the KV cache tab to what its components draw: plain values; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from backend import contiguous, in_blocks
from backend.events import PoolChange
from backend.pool_view import PoolView
from ui.payloads.run import ENDINGS
from ui.runs.crowd import Member
from ui.runs.kv_state import KvState
from ui.runs.timeline import figures, stretches, throughput


class Shown(Protocol):
    """What is needed of a View."""

    number: int
    phase: str
    notice: str

    @property
    def running(self) -> bool: ...


FREE, REUSABLE, OTHERS, ELSEWHERE = -1, -2, -3, -4  # an owner below 0; from 0 on it is a place in the list
MAX_LOG, MAX_TEXT, MAX_PROMPT = 60, 1200, 160
# As elsewhere on the page; "cancelled" is the word on the button of a request.
STATES = ENDINGS | {"cancelled": "cancelled"}


def ranges(block_ids: Iterable[int]) -> str:
    """ "3, 5–8" """
    found: list[list[int]] = []
    for block_id in block_ids:
        if found and block_id == found[-1][1] + 1:
            found[-1][1] = block_id
        else:
            found.append([block_id, block_id])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in found)


def line(state: KvState, change: PoolChange) -> str:
    """One change in words."""
    blocks = ranges(change.block_ids)
    who = "" if change.sequence < 0 else state.name(change.run, change.sequence)
    return {
        "allocate": f"{who} takes {blocks}",
        "reuse": f"{who} finds {blocks} by content",
        "fork": f"{who} forks: shares {blocks}",
        "copy": f"{who} copies {' → '.join(map(str, change.block_ids))}, which it shared, to write",
        "truncate": f"{who} cuts {blocks or 'tokens'}",
        "free": f"{who} gives back {blocks}",
        "evict": f"{blocks} evicted for {who}: least recently used",
        "forget": f"{who} overwrites {blocks}",
        "preempt": f"{who} is preempted for an older request",
        "taken": f"others take {blocks}",
        "returned": f"others give back {blocks}",
        "write": f"{who} writes {len(change.token_ids)} tokens",
    }[change.operation]


def _head(view: Shown) -> dict[str, Any]:
    return {"number": view.number, "running": view.running}


def pool(view: Shown, state: KvState) -> dict[str, Any]:
    """The grid at the replay's place."""
    head, shown = _head(view), state.shown()
    if shown is None:
        return {**head, "num_blocks": 0}
    filled = shown.filled
    return {
        **head,
        "num_blocks": shown.num_blocks,
        "block_size": shown.block_size,
        "whole": view.number == 0,
        "owners": owners_of(state, shown),
        "filled": [filled.get(block_id, 0) for block_id in range(shown.num_blocks)],
        "refs": _refs(shown),
        "samples": _samples(state, shown),
        "names": [member.name for member in state.crowd.members],
        "counts": {
            "used": shown.used,
            "shared": sum(count > 1 for count in shown.ref_counts.values()),
            "reusable": len(shown.idle),
            "others": len(shown.taken),
            "free": shown.num_free_blocks,
        },
        "at": state.position,
        "total": len(state.changes),
        "live": state.at is None,
        "block": state.block,
        "mark": state.mark,
    }


def _refs(shown: PoolView) -> list[int]:
    return [shown.ref_counts.get(block_id, 0) for block_id in range(shown.num_blocks)]


def _samples(state: KvState, shown: PoolView) -> list[int]:
    """For each block which of its request's sequences is the first to hold it, from 0."""
    places = [0] * shown.num_blocks
    for sequence, table in reversed(shown.tables.items()):
        place = state.order.get(shown.runs[sequence], [sequence]).index(sequence)
        for block_id in table:
            places[block_id] = place
    return places


def blocks(view: Shown, state: KvState) -> dict[str, Any]:
    """Log, block tables, the selected block and the chosen request's tokens, at the replay's place."""
    head, shown = _head(view), state.shown()
    if shown is None:
        return {**head, "num_blocks": 0}
    return {
        **head,
        "num_blocks": shown.num_blocks,
        "block_size": shown.block_size,
        "refs": _refs(shown),
        "log": [
            [place, change.operation, line(state, change), round(change.time - state.crowd.began, 2)]
            for place, change in state.log(MAX_LOG)
        ],
        "tables": list(_tables(state, shown)),
        "block": _block(state, shown) if state.block is not None else None,
        "text": _text(state, shown),
    }


def owners_of(state: KvState, shown: PoolView) -> list[int]:
    """Who each block belongs to: a place in the list, or one of the names above."""
    owners = [FREE] * shown.num_blocks
    for block_id in shown.idle:
        owners[block_id] = REUSABLE
    for block_id in shown.taken:
        owners[block_id] = OTHERS
    for sequence, table in shown.tables.items():
        found = state.member_of(shown.runs[sequence])
        for block_id in table:
            if owners[block_id] < 0:  # a shared block has the colour of its first owner
                owners[block_id] = found[0] if found else ELSEWHERE
    return owners


def _tables(state: KvState, shown: PoolView) -> Iterator[list[Any]]:
    """[name, place in the list, block ids, tokens] of each living sequence."""
    for sequence, table in shown.tables.items():
        if table:
            run = shown.runs[sequence]
            found = state.member_of(run)
            place = found[0] if found else ELSEWHERE
            yield [state.name(run, sequence), place, table, shown.lengths[sequence]]


def _block(state: KvState, shown: PoolView) -> dict[str, Any] | None:
    """What the selected block holds, whose it is and how that came about."""
    block_id = state.block
    if block_id is None or not 0 <= block_id < shown.num_blocks or state.engine is None:
        return None
    size = shown.block_size
    owners = []
    for sequence, index in shown.owners(block_id):
        name = state.name(shown.runs[sequence], sequence)
        last = min((index + 1) * size, shown.lengths[sequence]) - 1
        owners.append([name, index, index * size, last])
    if block_id in shown.taken:
        what = "in use by others"
    elif owners:
        what = f"in use, {shown.filled[block_id]} of {size} slots filled"
    elif block_id in shown.idle:
        place = list(shown.idle).index(block_id) + 1
        what = f"free, but can be found by content; evicted as number {place} of {len(shown.idle)}"
    else:
        what = "free"
    tokens = shown.contents.get(block_id, [])
    if owners:
        tokens = tokens[: shown.filled[block_id]]
    history = [
        [place + 1, line(state, change)]
        for place, change in enumerate(state.changes[: state.position])
        if block_id in change.block_ids and change.operation != "write"
    ]
    return {
        "id": block_id,
        "what": what,
        "refs": shown.ref_counts.get(block_id, 0),
        "owners": owners,
        "tokens": [state.engine.label(token_id) for token_id in tokens],
        "findable": block_id in shown.findable,
        "history": history[-6:],
    }


def _text(state: KvState, shown: PoolView) -> dict[str, Any] | None:
    """The chosen request's tokens, each with the block that holds it; -1 where none does."""
    member = state.chosen
    started = member.started if member else None
    if member is None or started is None or member.run is None:
        return None
    sequences = state.order.get(member.run, [])
    labels = list(started.prompt_labels)
    ids = list(started.prompt_token_ids)
    num_prompt = len(ids)
    if member.request is not None and state.engine is not None:
        ids += member.request.output_prefix
        labels += [state.engine.label(token_id) for token_id in member.request.output_prefix]
    for token in member.tokens:
        ids.append(token.token_id)
        labels.append(token.label)
    first = max(0, len(ids) - MAX_TEXT)
    blocks = []
    for position in range(first, len(ids)):
        found = shown.block_of(sequences[0], ids, position) if sequences else None
        blocks.append(-1 if found is None else found)
    return {
        "name": member.name,
        "first": first,
        "num_prompt": num_prompt,
        "labels": labels[first:],
        "blocks": blocks,
    }


def requests(view: Shown, state: KvState, block_size: int, now: float) -> dict[str, Any]:
    """The list: each request's state, figures and timeline; `now` in seconds since the run began."""
    rows = [_row(state, member, block_size, now) for member in state.crowd.members]
    ends = [row["stretches"][-1][2] for row in rows if row["stretches"]]
    total = throughput([(member.offset, member.events) for member in state.crowd.members])
    return {
        "number": view.number,
        "running": view.running,
        "phase": view.phase,
        "notice": view.notice,
        "rows": rows,
        "span": max(ends, default=0.0),
        "throughput": total,
        "num_tokens": sum(member.num_tokens for member in state.crowd.members),
        "chosen": state.chosen.name if state.chosen else "",
    }


def _row(state: KvState, member: Member, block_size: int, now: float) -> dict[str, Any]:
    lived = stretches(member.events, max(0.0, now - member.offset)) if member.events else []
    found = figures(member.events, block_size)
    started = member.started
    prompt = member.ask.prompt
    return {
        "name": member.name,
        "forked_from": member.forked_from,
        "prompt": prompt if len(prompt) <= MAX_PROMPT else f"{prompt[:MAX_PROMPT]}…",
        "num_prompt": len(started.prompt_token_ids) if started else None,
        "limit": member.ask.max_new_tokens,
        "n": member.ask.n,
        "state": STATES.get(member.state, member.state),
        "error": member.error,
        "num_tokens": member.num_tokens,
        "tail": member.text[-160:],
        "ttft": found.time_to_first_token,
        "per_token": found.per_token,
        "hits": found.hit_blocks,
        "misses": found.miss_blocks,
        "live": member.is_live,
        "done": member.finished is not None,
        "stretches": [
            [stretch.kind, member.offset + stretch.start, member.offset + stretch.end] for stretch in lived
        ],
    }


def memory(state: KvState) -> dict[str, Any]:
    """The same run in blocks and in one buffer for each sequence: reserved, wasted, how many would fit."""
    shown, engine = state.live, state.engine
    if shown is None or engine is None:
        return {"known": False}
    usage, per_token, buffer = shown.usage, engine.kv_bytes_per_token, state.buffer
    pool_tokens = shown.num_blocks * shown.block_size
    lengths = list(shown.longest.values())
    longest = in_blocks(lengths, shown.block_size)
    too_long = max(lengths, default=0) > buffer
    holders = sum(bool(table) for table in shown.tables.values())
    steps = usage.num_steps
    return {
        "known": steps > 0,
        "buffer": buffer,
        "too_long": too_long,
        "block_size": shown.block_size,
        "bytes_per_token": per_token,
        "pool_bytes": pool_tokens * per_token,
        "blocks": {
            "now": shown.used * shown.block_size * per_token,
            "mean": usage.allocated / steps * per_token if steps else 0,
            "waste": usage.waste,
            "longest": longest.waste,
            "fit": pool_tokens * len(lengths) // longest.reserved if lengths else None,
        },
        "contiguous": {
            "now": holders * buffer * per_token,
            "mean": usage.sequences * buffer / steps * per_token if steps else 0,
            "waste": usage.contiguous_waste(buffer),
            "longest": None if too_long else contiguous(lengths, buffer).waste,
            "fit": pool_tokens // buffer,
        },
    }
