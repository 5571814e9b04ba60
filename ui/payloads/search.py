"""Beam trees and samples -> the plain data that the page's components draw. Pure functions."""

from __future__ import annotations

from typing import Any

from backend import BeamSearch, BestOf
from ui.numbers import number, probability
from ui.payloads.run import ENDINGS, head
from ui.plots import samples as sample_plots
from ui.runs.beam_tree import BeamTree, Node
from ui.runs.reselect import RecordedSample, num_tied, recorded, scores, winner
from ui.session import View
from ui.titles import title, written

MAX_NODES_SHOWN = 4_000


def growing(view: View, beams: BeamTree) -> dict[str, Any]:
    """What the tree component draws of a search so far."""
    best = next((place for place in beams.hypotheses() if 0 in beams.ranks(place)), None)
    return {
        **head(view),
        "prompt": prompt_tail(view.prompt),
        "best": best if beams.results else None,
        "status": tree_status(view, beams),
        **tree(beams),
    }


def found(view: View, beams: BeamTree) -> dict[str, Any]:
    """What the table of texts draws."""
    search = view.strategy(BeamSearch) or BeamSearch()
    return {
        "number": view.number,
        "running": view.running,
        "length_penalty": search.length_penalty,
        "stochastic": search.stochastic,
        "entries": hypotheses(beams),
    }


def prompt_tail(prompt: str, limit: int = 28) -> str:
    """The end of the prompt, on one line."""
    line = " ".join(prompt.split())
    return line if len(line) <= limit else "…" + line[-limit:]


def tree_status(view: View, beams: BeamTree) -> list[list[str]]:
    """The status line of a search as [name, value] pairs."""
    if view.started is None:
        return []
    line = [
        ["steps", str(max(beams.last_step.values(), default=-1) + 1)],
        ["texts considered", f"{len(beams.nodes):,}"],
    ]
    if view.stopped:
        line.append(["ended", ENDINGS["cancelled"]])
    elif view.finished is not None:
        line.append(["returned", str(len(beams.results))])
        line.append(["took", f"{view.finished.time:.1f} s"])
    for stage in view.started.stages:
        line.append([title(stage.stage), written(stage.setting)])
    line.append(["model", view.started.model])
    return line


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


def samples(view: View, rule: str) -> dict[str, Any]:
    """What the samples component draws of a run so far, selected by `rule`."""
    strategy = view.strategy(BestOf)
    run = recorded(view.events, strategy.n if strategy else 0)
    by_rule, chosen = scores(run, rule), winner(run, rule)
    missing = ""
    if by_rule is None and run.selected is not None:
        missing = "This run recorded no similarities: run again to select by MBR."
    answer = run.samples[chosen].answer if chosen is not None and rule == "vote" else None
    return {
        **head(view),
        "status": samples_status(view),
        "rule": rule,
        "selected": chosen,
        "tied": num_tied(run, rule),
        "missing": missing,
        "samples": [
            _sample(index, sample, by_rule[index] if by_rule else None)
            for index, sample in enumerate(run.samples)
        ],
        "votes": sample_plots.histogram(run, answer),
        "matrix": sample_plots.heat_map(run, chosen if rule == "mbr" else None),
    }


def _sample(index: int, sample: RecordedSample, score: float | None) -> dict[str, Any]:
    return {
        "number": index,
        "tokens": [[token.label, number(probability(token.model_logprob), 3)] for token in sample.tokens],
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
