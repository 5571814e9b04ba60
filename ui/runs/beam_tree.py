"""BeamStepped events -> one tree of texts.

Texts that begin alike share nodes, also across groups of beams and with the greedy text that is laid
over the search for comparison. A node's number is greater than its parent's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from backend.events import BeamNode, BeamStepped, SampleFinished

ROOT = -1
# What a node is called when several groups treat the same text differently: the later name wins.
RANK = {"greedy": 0, "pruned": 1, "kept": 2, "finished": 3}


@dataclass(slots=True)
class Node:
    """A text that was considered: its parent's text and one more token.

    Attributes:
        status: as in BeamNode, or "greedy": only the greedy text, laid over the search, passes here.
        on_greedy: whether the greedy text passes through it.
    """

    parent: int
    step: int
    group: int
    token_id: int
    label: str
    logprob: float
    cum_logprob: float
    score: float
    status: str
    on_greedy: bool = False
    special: bool = False

    @property
    def length(self) -> int:
        """Generated tokens, an end of text included."""
        return self.step + 1


@dataclass
class BeamTree:
    """The tree so far. `last_step` holds the newest step of each group."""

    nodes: list[Node] = field(default_factory=list)
    last_step: dict[int, int] = field(default_factory=dict)
    results: list[SampleFinished] = field(default_factory=list)
    _beams: dict[int, dict[int, int]] = field(default_factory=dict)
    _greedy_beam: dict[int, int] = field(default_factory=lambda: {0: ROOT})
    _child: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, event: BeamStepped) -> None:
        """Take in a step of the search."""
        before = self._beams.get(event.group, {0: ROOT})
        self._beams[event.group] = self._grow(event, before, on_greedy=False)
        self.last_step[event.group] = event.step

    def add_greedy(self, event: BeamStepped) -> None:
        """Take in a step of the greedy text, that is, the best candidate of a search with one beam."""
        step = BeamStepped(event.step, event.nodes[:1])
        self._greedy_beam = self._grow(step, self._greedy_beam, on_greedy=True)

    def add_result(self, event: SampleFinished) -> None:
        """Take in a returned text; they come best first."""
        self.results.append(event)

    def _grow(self, event: BeamStepped, before: dict[int, int], on_greedy: bool) -> dict[int, int]:
        after: dict[int, int] = {}
        for found in event.nodes:
            place = self._merge(found, before[found.parent], event, on_greedy)
            if found.status == "kept":
                after[found.beam] = place
        return after

    def _merge(self, found: BeamNode, parent: int, event: BeamStepped, on_greedy: bool) -> int:
        status = "greedy" if on_greedy else found.status
        place = self._child.get((parent, found.token_id))
        if place is None:
            place = self._child[parent, found.token_id] = len(self.nodes)
            self.nodes.append(
                Node(
                    parent,
                    event.step,
                    event.group,
                    found.token_id,
                    found.label,
                    found.logprob,
                    found.cum_logprob,
                    found.score,
                    status,
                    on_greedy,
                    found.special,
                )
            )
            return place
        node = self.nodes[place]
        node.on_greedy |= on_greedy
        if RANK[status] > RANK[node.status]:
            node.status, node.group = status, event.group
            node.logprob, node.cum_logprob, node.score = found.logprob, found.cum_logprob, found.score
        return place

    def path(self, place: int) -> list[int]:
        """Numbers of the nodes from the first token to `place`."""
        found = []
        while place != ROOT:
            found.append(place)
            place = self.nodes[place].parent
        return found[::-1]

    def running(self) -> list[int]:
        """The beams that had not ended after the newest step of their group."""
        return sorted({place for beams in self._beams.values() for place in beams.values()})

    def greedy_end(self) -> int | None:
        """The last node of the greedy text so far."""
        return max((place for place, node in enumerate(self.nodes) if node.on_greedy), default=None)

    def hypotheses(self) -> Iterator[int]:
        """Every text that ended, the beams that did not, and the greedy text."""
        places = [place for place, node in enumerate(self.nodes) if node.status == "finished"]
        places += self.running()
        greedy = self.greedy_end()
        if greedy is not None:
            places.append(greedy)
        yield from dict.fromkeys(places)

    def ranks(self, place: int) -> list[int]:
        """Which of the returned texts this node is: their sum and score are the very numbers of the node."""
        node = self.nodes[place]
        if node.status != "finished":
            return []
        return [
            result.sample
            for result in self.results
            if result.cum_logprob == node.cum_logprob and result.score == node.score
        ]
