"""Beam trees and samples -> the plain data that the page's components draw. Pure functions."""

from __future__ import annotations

from typing import Any

from ui.beam_tree import BeamTree, Node
from ui.payloads import number
from ui.session import is_special

MAX_NODES_SHOWN = 4_000


def tree(beams: BeamTree) -> dict[str, Any]:
    """What the tree component draws.

    `nodes` are rows [number, parent, step, label, log p, sum, score, status, greedy, group, token id]; above
    MAX_NODES_SHOWN only those that were kept are given, and above that only those that led anywhere.
    """
    places = list(range(len(beams.nodes)))
    omitted = ""
    if len(places) > MAX_NODES_SHOWN:
        places = [place for place in places if beams.nodes[place].status != "pruned"]
        omitted = "candidates that were never kept"
    if len(places) > MAX_NODES_SHOWN:
        leading = {place for end in beams.hypotheses() for place in beams.path(end)}
        places = sorted(leading)[:MAX_NODES_SHOWN]
        omitted = "branches that led nowhere"
    return {
        "nodes": [_row(place, beams.nodes[place]) for place in places],
        "last": [[group, step] for group, step in sorted(beams.last_step.items())],
        "omitted": omitted,
    }


def _row(place: int, node: Node) -> list[Any]:
    return [
        place,
        node.parent,
        node.step,
        node.label,
        number(node.logprob, 5),
        number(node.cum_logprob, 6),
        number(node.score, 6),
        node.status,
        node.on_greedy,
        node.group,
        node.token_id,
    ]


def hypotheses(beams: BeamTree) -> list[dict[str, Any]]:
    """One entry per text that ended or was still running, to be ranked by the page.

    The sum and the length are exact: the page divides them for any length penalty.
    """
    return [_entry(beams, place) for place in beams.hypotheses()]


def _entry(beams: BeamTree, place: int) -> dict[str, Any]:
    node = beams.nodes[place]
    labels = [beams.nodes[each].label for each in beams.path(place)]
    return {
        "node": place,
        "labels": labels,
        "special": is_special(node.label),
        "sum": node.cum_logprob,
        "length": node.length,
        "score": node.score,
        "status": node.status,
        "greedy": node.on_greedy and place == beams.greedy_end(),
        "returned": beams.ranks(place),
    }
