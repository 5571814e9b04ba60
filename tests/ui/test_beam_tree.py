"""The tree that the page draws, from literal steps and from real searches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backend import BeamSearch, Request
from backend.events import BeamNode, BeamStepped, SampleFinished
from tests import models
from ui.payloads import search as search_payloads
from ui.runs.beam_tree import ROOT, BeamTree


def node(parent: int, token: int, cum: float, status: Any = "kept", beam: int = 0, **more: Any) -> BeamNode:
    values = {"logprob": -0.5, "score": cum} | more
    return BeamNode(
        parent=parent,
        token_id=token,
        label=f" t{token}",
        cum_logprob=cum,
        status=status,
        beam=beam if status == "kept" else -1,
        **values,
    )


def two_steps() -> BeamTree:
    tree = BeamTree()
    tree.add(BeamStepped(0, (node(0, 1, -0.5), node(0, 2, -0.7, beam=1), node(0, 3, -2.0, "pruned"))))
    # Beam 1 goes on twice, beam 0 ends.
    tree.add(
        BeamStepped(
            1,
            (
                node(1, 4, -0.9, beam=0),
                node(0, 9, -1.0, "finished"),
                node(1, 5, -1.1, beam=1),
                node(0, 6, -3.0, "pruned"),
            ),
        )
    )
    return tree


def test_parents_are_nodes_and_not_beams() -> None:
    tree = two_steps()
    assert [each.parent for each in tree.nodes] == [ROOT, ROOT, ROOT, 1, 0, 1, 0]
    assert tree.path(5) == [1, 5]
    assert tree.running() == [3, 5]
    assert [each.length for each in tree.nodes] == [1, 1, 1, 2, 2, 2, 2]


def test_a_text_found_by_two_groups_is_one_node_with_the_better_status() -> None:
    tree = BeamTree()
    tree.add(BeamStepped(0, (node(0, 1, -0.5), node(0, 2, -0.7, "pruned")), group=0))
    tree.add(BeamStepped(0, (node(0, 2, -0.7), node(0, 1, -0.5, "pruned")), group=1))
    assert [each.status for each in tree.nodes] == ["kept", "kept"]
    assert [each.group for each in tree.nodes] == [0, 1]
    tree.add(BeamStepped(1, (node(0, 5, -1.0),), group=1))
    assert tree.path(2) == [1, 2]
    assert tree.last_step == {0: 0, 1: 1}


def test_the_greedy_text_shares_nodes_and_leaves_the_search_where_it_is_pruned() -> None:
    tree = two_steps()
    tree.add_greedy(BeamStepped(0, (node(0, 1, -0.5), node(0, 2, -0.7, "pruned"))))
    tree.add_greedy(BeamStepped(1, (node(0, 6, -3.0), node(0, 9, -1.0, "pruned"))))
    tree.add_greedy(BeamStepped(2, (node(0, 7, -3.5, "finished"),)))
    assert [place for place, each in enumerate(tree.nodes) if each.on_greedy] == [0, 6, 7]
    assert [tree.nodes[place].status for place in (0, 6, 7)] == ["kept", "pruned", "greedy"]
    assert tree.greedy_end() == 7


def test_the_greedy_text_ends_where_the_end_is_the_likeliest_token() -> None:
    tree = BeamTree()
    # A search with one beam also keeps the runner-up, in case the end were not final.
    tree.add_greedy(BeamStepped(0, (node(0, 9, -0.3, "finished"), node(0, 6, -2.0))))
    assert [(each.token_id, each.on_greedy) for each in tree.nodes] == [(9, True)]
    assert tree.greedy_end() == 0


def test_greedy_before_the_search_makes_the_same_tree() -> None:
    tree = BeamTree()
    tree.add_greedy(BeamStepped(0, (node(0, 1, -0.5),)))
    tree.add(BeamStepped(0, (node(0, 1, -0.6, score=-0.6), node(0, 2, -0.7, beam=1))))
    assert len(tree.nodes) == 2
    assert (tree.nodes[0].status, tree.nodes[0].cum_logprob, tree.nodes[0].on_greedy) == ("kept", -0.6, True)


def test_hypotheses_are_what_ended_what_runs_and_the_greedy_text() -> None:
    tree = two_steps()
    tree.add_greedy(BeamStepped(0, (node(0, 3, -2.0, "finished"),)))
    tree.add_result(SampleFinished(0, "eos", " t1", 2, -1.0, -1.0))
    entries = search_payloads.hypotheses(tree)
    assert [(e["node"], e["sum"], e["length"], e["returned"], e["greedy"]) for e in entries] == [
        (4, -1.0, 2, [0], False),
        (3, -0.9, 2, [], False),
        (5, -1.1, 2, [], False),
        (2, -2.0, 1, [], True),
    ]
    assert entries[0]["labels"] == [" t1", " t9"]


def test_a_huge_tree_is_drawn_without_what_led_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = two_steps()
    monkeypatch.setattr(search_payloads, "MAX_NODES_SHOWN", 5)
    payload = search_payloads.tree(tree)
    assert [row[0] for row in payload["nodes"]] == [0, 1, 3, 4, 5]
    assert payload["omitted"] == "candidates that were never kept"
    monkeypatch.setattr(search_payloads, "MAX_NODES_SHOWN", 4)
    assert search_payloads.tree(tree)["omitted"] == "branches that led nowhere"
    assert len(search_payloads.tree(tree)["nodes"]) == 4


@pytest.mark.parametrize(
    "changes", [{}, {"num_beam_groups": 2, "diversity_penalty": 1.0}, {"stochastic": True}]
)
def test_every_returned_text_is_a_path_of_the_tree(changes: dict[str, Any]) -> None:
    engine = models.engine(inline=True)
    request = Request(
        (5, 6, 7),
        strategy=BeamSearch(4, num_return_sequences=4, **changes),
        max_new_tokens=12,
        num_candidates=0,
    )
    trace = engine.generate(request)
    tree = BeamTree()
    for event in trace.events:
        if isinstance(event, BeamStepped):
            tree.add(event)
        elif isinstance(event, SampleFinished):
            tree.add_result(event)
    for result in tree.results:
        (place,) = {place for place in tree.hypotheses() if result.sample in tree.ranks(place)}
        ids = [tree.nodes[each].token_id for each in tree.path(place)]
        assert ids == [step.token_id for step in trace.steps(result.sample)]
    payload = search_payloads.tree(tree)
    json.dumps(payload, allow_nan=False)
    assert all(row[1] < row[0] for row in payload["nodes"])


def test_dividing_sum_by_length_gives_the_score_of_the_run() -> None:
    engine = models.engine(inline=True)
    strategy = BeamSearch(4, length_penalty=1.7, num_return_sequences=4)
    trace = engine.generate(Request((5, 6, 7), strategy=strategy, max_new_tokens=12, num_candidates=0))
    tree = BeamTree()
    for event in trace.events:
        if isinstance(event, BeamStepped):
            tree.add(event)
    for entry in search_payloads.hypotheses(tree):
        assert entry["sum"] / entry["length"] ** 1.7 == pytest.approx(entry["score"])
