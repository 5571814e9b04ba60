"""Beam trees and samples -> the plain data that the page's components draw. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from backend.events import Event
from ui.payloads.run import ENDINGS, number
from ui.plots import samples as sample_plots
from ui.runs.beam_tree import BeamTree, Node
from ui.runs.reselect import RecordedSample, recorded, scores, winner
from ui.session import View

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
        "special": node.special,
        "sum": node.cum_logprob,
        "length": node.length,
        "score": node.score,
        "status": node.status,
        "greedy": node.on_greedy and place == beams.greedy_end(),
        "returned": beams.ranks(place),
    }


def samples(events: Sequence[Event], num_samples: int, rule: str) -> dict[str, Any]:
    """What the samples component draws of a run so far, selected by `rule`."""
    found = recorded(events, num_samples)
    by_rule, chosen = scores(found, rule), winner(found, rule)
    missing = ""
    if by_rule is None and found.selected is not None:
        missing = "This run recorded no similarities: run again to select by MBR."
    answer = found.samples[chosen].answer if chosen is not None and rule == "vote" else None
    return {
        "rule": rule,
        "selected": chosen,
        "missing": missing,
        "samples": [
            _sample(index, sample, by_rule[index] if by_rule else None)
            for index, sample in enumerate(found.samples)
        ],
        "votes": sample_plots.histogram(found, answer),
        "matrix": sample_plots.heat_map(found, chosen if rule == "mbr" else None),
    }


def _sample(index: int, sample: RecordedSample, score: float | None) -> dict[str, Any]:
    return {
        "number": index,
        "tokens": [[token.label, number(math.exp(token.model_logprob), 3)] for token in sample.tokens],
        "sum": number(sample.cum_logprob, 6),
        "mean": number(sample.mean_logprob, 5),
        "score": None if score is None else number(score, 6),
        "ended": ENDINGS[sample.reason] if sample.reason else "",
        "answer": sample.answer,
    }


def samples_status(view: View) -> list[list[str]]:
    """The status line of the samples as [name, value] pairs."""
    if view.started is None:
        return []
    line = []
    if view.finished is not None:
        line.append(["tokens", f"{view.finished.num_output_tokens:,}"])
        line.append(["took", f"{view.finished.time:.1f} s"])
    if view.stopped:
        line.append(["ended", ENDINGS["cancelled"]])
    line += [["seed", str(view.started.seed)], ["model", view.started.model]]
    return line
