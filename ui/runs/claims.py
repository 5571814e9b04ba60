"""What lessons claim of their runs, as data that can be checked: named predicates over what a tab holds.

A claim is a name and its arguments, as a lesson's file gives them. Checking it against a run gives whether it
holds, and what was measured, in a sentence. Tokens are numbered from 0, as everywhere on the page.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from backend.errors import RequestError
from backend.events import Finished, Judged, Preempted, Prefilled, TokenDecoded
from backend.metrics import describe, repeated_ngrams
from backend.pool_view import fold
from ui.runs.beam_tree import BeamTree, Node
from ui.runs.kv_state import KvState
from ui.runs.lanes import NAMES, Lanes
from ui.runs.reselect import Recorded, votes, winner
from ui.runs.speculation import Speculation, rates, rounds
from ui.runs.structure import Constrained

LONGEST = 70  # characters of a text that a sentence quotes


class Finding(NamedTuple):
    """Whether a claim holds of a run, and what was measured there."""

    holds: bool
    text: str


@dataclass(frozen=True)
class Claim:
    """A predicate of `tab` by name, with its arguments.

    Raises:
        RequestError: there is none of that name, or it takes other arguments.
    """

    tab: str
    name: str
    arguments: Mapping[str, Any]

    def __post_init__(self) -> None:
        known = CLAIMS.get(self.tab, {})
        if self.name not in known:
            raise RequestError(f"of {self.tab} one can claim {', '.join(known)}, not {self.name!r}")
        try:
            inspect.signature(known[self.name]).bind(None, **self.arguments)
        except TypeError as error:
            raise RequestError(f"{self.name}: {error}") from error

    def check(self, run: Any) -> Finding:
        """Hold it against a run that has ended, as the tab keeps it."""
        return CLAIMS[self.tab][self.name](run, **self.arguments)


CLAIMS: dict[str, dict[str, Callable[..., Finding]]] = {}


def _of(tab: str) -> Callable[[Callable[..., Finding]], Callable[..., Finding]]:
    def add(claim: Callable[..., Finding]) -> Callable[..., Finding]:
        CLAIMS.setdefault(tab, {})[claim.__name__.strip("_")] = claim
        return claim

    return add


def _falls(values: Sequence[float | None], times: float = 1) -> bool:
    """Whether each value is smaller than the one before, by that factor."""
    return all(one is not None and two is not None and one > two * times for one, two in pairwise(values))


def _joined(names: Iterable[str], values: Iterable[str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True)) + "."


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.3g} %" if share >= 1e-4 or not share else "under 0.01 %"


def _quoted(text: str) -> str:
    line = " ".join(text.split())
    return f"“{line}”" if len(line) <= LONGEST else f"“{line[:LONGEST].rstrip()} …”"


def _around(text: str, part: str) -> str:
    """The text quoted so that the part is seen."""
    text = " ".join(text.split())
    start = max(0, text.find(part) + len(part) + 4 - LONGEST)
    return _quoted(f"… {text[start + 2 :]}" if start else text)


def _token(label: str) -> str:
    """A token's label quoted, with white space as one writes it."""
    return f"“{label.strip() or repr(label)[1:-1]}”"


def _within(value: float | None, at_least: float, at_most: float) -> bool:
    return value is not None and at_least <= value <= at_most


def _text(steps: Iterable[TokenDecoded]) -> str:
    return "".join(step.text for step in steps)


# Compare


def _steps(run: Lanes, name: str) -> list[TokenDecoded]:
    return run.lanes[NAMES.index(name)].tokens


@_of("compare")
def perplexity(run: Lanes, falls: Sequence[str], times: float = 1) -> Finding:
    """The perplexity falls from lane to lane, each time by that factor."""
    found = [describe(_steps(run, name)).perplexity for name in falls]
    return Finding(_falls(found, times), f"Perplexity: {_joined(falls, map(_number, found))}")


@_of("compare")
def human(run: Lanes, above: Sequence[str]) -> Finding:
    """The text that a person wrote is less likely than each of these lanes."""
    own = describe(run.human).perplexity if run.human else None
    found = [describe(_steps(run, name)).perplexity for name in above]
    holds = all(_falls([own, each]) for each in found)
    return Finding(
        holds, f"Perplexity of the human text: {_number(own)}; {_joined(above, map(_number, found))}"
    )


@_of("compare")
def repeats(run: Lanes, falls: Sequence[str]) -> Finding:
    """The share of groups of four tokens that came before falls from lane to lane."""
    found = [repeated_ngrams([step.token_id for step in _steps(run, name)]) for name in falls]
    return Finding(_falls(found), f"Four tokens that came before: {_joined(falls, map(_percent, found))}")


@_of("compare")
def says(run: Lanes, lanes: Sequence[str], text: str) -> Finding:
    """Each of these lanes has the text."""
    found = [_text(_steps(run, name)) for name in lanes]
    quotes = _joined(lanes, (_around(each, text) for each in found))
    return Finding(all(text in each for each in found), quotes)


@_of("compare")
def lacks(run: Lanes, text: str) -> Finding:
    """No lane has the text."""
    has = [name for name, lane in zip(NAMES, run.lanes, strict=False) if text in _text(lane.tokens)]
    return Finding(not has, f"{' and '.join(has) or 'No lane'} has {_quoted(text)}.")


@_of("compare")
def same(run: Lanes, lanes: Sequence[str], tokens: int | None = None) -> Finding:
    """These lanes draw the same tokens: all, or so many of the first."""
    found = [[step.token_id for step in _steps(run, name)][:tokens] for name in lanes]
    holds, count = all(each == found[0] for each in found), len(found[0])
    return Finding(holds, f"{' and '.join(lanes)}: {'the same' if holds else 'not the same'} {count} tokens.")


@_of("compare")
def parts(run: Lanes, lane: str, by: Sequence[str], token: int) -> Finding:
    """The lane leaves lane A at that token, and these stages are found to be the cause."""
    place = NAMES.index(lane)
    found = run.differences[place] if place < len(run.differences) else None
    if found is None:
        return Finding(False, f"{lane} does not leave A.")
    causes = " and ".join(found.causes).replace("_", "-") or found.kind
    one, two = map(_token, found.labels)
    text = f"{lane} leaves A at token {found.index}: {two} for {one}, by {causes}."
    return Finding((found.index, list(found.causes)) == (token, list(by)), text)


@_of("compare")
def possible(run: Lanes, token: int, falls: Sequence[str]) -> Finding:
    """Fewer candidates are possible at that token from lane to lane."""
    found = []
    for name in falls:
        step = _steps(run, name)[token]
        found.append(min((stage.num_kept for stage in step.stages), default=None))
    text = f"Possible at token {token}: "
    return Finding(
        _falls(found), text + _joined(falls, (f"{n:,}" if n is not None else "all" for n in found))
    )


@_of("compare")
def rank(run: Lanes, lane: str, token: int, at_least: int) -> Finding:
    """The lane draws a token that the model ranks no better than that."""
    step = _steps(run, lane)[token]
    return Finding(
        step.rank >= at_least,
        f"Token {token} of {lane}, {_token(step.label)}, is the model's choice number {step.rank:,}.",
    )


# Beams


def _line(run: BeamTree, place: int) -> str:
    return "".join(run.nodes[each].label for each in run.path(place) if not run.nodes[each].special)


def _best(run: BeamTree) -> int:
    """The text returned first."""
    return next(place for place in run.hypotheses() if 0 in run.ranks(place))


def _greedy(run: BeamTree) -> int:
    place = run.greedy_end()
    assert place is not None, "a search runs beside its greedy text"
    return place


@_of("beams")
def best(run: BeamTree, has: str) -> Finding:
    """The text returned first has this."""
    text = _line(run, _best(run))
    return Finding(has in text, f"Returned first: {_around(text, has)}.")


@_of("beams")
def greedy(run: BeamTree, has: str) -> Finding:
    """The greedy text has this."""
    text = _line(run, _greedy(run))
    return Finding(has in text, f"Greedy: {_around(text, has)}.")


def _weighed(node: Node) -> str:
    return f"{node.length} tokens, sum {node.cum_logprob:.2f}, per token {node.cum_logprob / node.length:.3f}"


@_of("beams")
def against_greedy(run: BeamTree, higher: str, shorter: bool = False) -> Finding:
    """The text returned first has a higher `sum` or `mean` of log p than the greedy one."""
    ours, theirs = run.nodes[_best(run)], run.nodes[_greedy(run)]

    def measured(node: Node) -> float:
        return node.cum_logprob / (1 if higher == "sum" else node.length)

    holds = measured(ours) > measured(theirs) and (not shorter or ours.length < theirs.length)
    return Finding(holds, f"Returned first: {_weighed(ours)}. Greedy: {_weighed(theirs)}.")


@_of("beams")
def begins_worse(run: BeamTree) -> Finding:
    """The first token of the text returned first is less likely than the greedy one."""
    ours, theirs = (run.nodes[run.path(place)[0]] for place in (_best(run), _greedy(run)))
    text = f"First tokens: {_token(ours.label)} log p {ours.logprob:.2f}, greedy {_token(theirs.label)} "
    return Finding(ours.logprob < theirs.logprob, f"{text}{theirs.logprob:.2f}.")


@_of("beams")
def lead(run: BeamTree, changes: int) -> Finding:
    """The best running beam changes at least so often: the new one does not go on from the old one."""
    leaders: list[int] = []
    for step in range(max(run.last_step.values(), default=-1) + 1):
        there = [p for p, n in enumerate(run.nodes) if n.step == step and n.status == "kept"]
        if there:
            leaders.append(max(there, key=lambda place: run.nodes[place].score))
    turns = [(old, new) for old, new in pairwise(leaders) if run.nodes[new].parent != old]
    text = f"The lead changed {len(turns)} times"
    if turns:
        old, new = turns[-1]
        one, two = (_around(line := _line(run, place), line[-LONGEST // 2 :]) for place in (old, new))
        text += f", last at token {run.nodes[new].step}: {one} gave way to {two}"
    return Finding(len(turns) >= changes, text + ".")


# Samples


@_of("samples")
def vote(run: Recorded, answer: str, at_least: int, wins: bool = True) -> Finding:
    """So many samples give the answer, and it has the most votes, or (wins: false) another has more."""
    found = votes(run)
    silent = len(run.samples) - found.total()
    (first, most), *rest = found.most_common() or [("", 0)]
    alone = first == answer and all(count < most for _, count in rest)
    counts = ", ".join(f"{name} from {count}" for name, count in found.most_common())
    text = f"Answers: {counts or 'none'}; no answer from {silent} of {len(run.samples)}."
    return Finding(found[answer] >= at_least and (alone if wins else found[answer] < most), text)


@_of("samples")
def picks(run: Recorded, rule: str, answer: str | None) -> Finding:
    """The rule selects a sample with that answer."""
    place = winner(run, rule)
    if place is None:
        return Finding(False, f"{rule} selects nothing.")
    sample = run.samples[place]
    text = f"{rule} picks sample {place + 1}, {_quoted(sample.text)}, which counts as "
    return Finding(sample.answer == answer, f"{text}{sample.answer or 'no answer'}.")


# Speculate


@_of("speculate")
def per_call(run: Speculation, at_least: float = 0, at_most: float = math.inf) -> Finding:
    """So many tokens come from one call of the model."""
    found = rates(rounds(run.runs[0].events))
    text = f"{found.num_tokens} tokens in {found.num_rounds} calls of the model, "
    text += f"{_number(found.tokens_per_call)} a call; "
    text += (
        f"{found.num_accepted} of {found.num_checked} checked drafts accepted, {found.num_drafted} drafted."
    )
    return Finding(_within(found.tokens_per_call, at_least, at_most), text)


@_of("speculate")
def speed(run: Speculation, at_least: float = 0, at_most: float = math.inf) -> Finding:
    """So many times as fast as plain decoding of the same request, just measured."""
    if run.speedup is None:
        return Finding(False, "No pair of runs was measured.")
    plain, fast = run.pairs[0]
    text = f"{plain.milliseconds:.0f} ms a token plain, {fast.milliseconds:.0f} ms speculative: "
    text += f"{run.speedup:.2f} times "
    text += f"as fast. Drafting took {_percent(fast.draft / fast.seconds)} of the time."
    return Finding(_within(run.speedup, at_least, at_most), text)


@_of("speculate")
def same_text(run: Speculation) -> Finding:
    """The text is token for token that of plain decoding."""
    place = run.first_difference
    holds = run.compared and place is None
    return Finding(
        holds, "The plain text is the same." if holds else f"The plain text differs at token {place}."
    )


@_of("speculate")
def rejected(run: Speculation, at_least: int, drafts: Sequence[str] = ()) -> Finding:
    """So many drafts were rejected, these labels among them."""
    pairs = [
        (check.drafted[check.num_accepted].label, check.next_label)
        for check in rounds(run.runs[0].events)
        if check.next_is == "recovered"
    ]
    listed = ", ".join(f"{_token(old)} for {_token(new)}" for old, new in pairs[:4])
    more = f" and {len(pairs) - 4} more" if len(pairs) > 4 else ""
    holds = len(pairs) >= at_least and set(drafts) <= {old for old, _ in pairs}
    return Finding(holds, f"Rejected drafts, with what came: {listed or 'none'}{more}.")


# Structure


@_of("structure")
def result(run: Constrained, verdict: str, has: str = "") -> Finding:
    """The verdict on the constrained text, and what stands in it."""
    judged = next((event for event in run.events if isinstance(event, Judged)), None)
    status, text = judged.status if judged else "not judged", _text(run.steps)
    return Finding(status == verdict and has in text, f"With the grammar, {status}: {_around(text, has)}.")


@_of("structure")
def without(run: Constrained, verdict: str, has: str = "") -> Finding:
    """The verdict on the text without the grammar, and what stands in it."""
    status, reason = run.state.beside_verdict or ("not judged", "")
    text = _text(run.state.beside.tokens)
    return Finding(
        status == verdict and has in text, f"Without it, {status} ({reason}): {_around(text, has)}."
    )


@_of("structure")
def forced(run: Constrained, at_least: float) -> Finding:
    """Of so large a share of the tokens there was only one; how many were appended with others."""
    count = sum(bool(step.grammar and step.grammar.forced) for step in run.steps)
    holds = bool(run.steps) and count / len(run.steps) >= at_least
    text = (
        f"{count} of {len(run.steps)} tokens had no alternative; {len(run.jumped)} cost no call of the model "
    )
    return Finding(holds, f"{text}of their own (jump-forward).")


@_of("structure")
def feasible(run: Constrained, at_most: float, token: int | None = None) -> Finding:
    """The least share of the model's probability that the grammar let through, where, and over the text."""
    steps = [step for step in run.steps if step.grammar and not step.grammar.is_free]
    masses = [step.grammar.feasible_mass for step in steps if step.grammar]
    if not masses:
        return Finding(False, "No token was constrained.")
    place = masses.index(min(masses))
    whole = sum(math.log10(mass) if mass > 0 else -math.inf for mass in masses)
    text = f"Feasible mass is least at token {steps[place].index}, {_token(steps[place].label)}: "
    text += f"{_percent(masses[place])}. Over the whole text the product is 1 in 10^{-whole:.1f}."
    return Finding(masses[place] <= at_most and token in (None, steps[place].index), text)


# KV cache


@_of("kv")
def shared(run: KvState, at_least: int, copies: int = 0) -> Finding:
    """At the peak, sharing saved so many blocks; so many were copied on write."""
    assert run.watch is not None, "a run watches its pool"
    pool = fold(run.watch.start)
    most, peak, first, count = 0, (0, 0), "", 0
    for change in run.changes:
        pool.apply(change)
        if change.operation == "copy":
            count += 1
            old, new = change.block_ids
            first = first or f", block {old} to {new} first"
        held = sum(map(len, pool.tables.values()))
        if held - pool.used > most:
            most, peak = held - pool.used, (held, pool.used)
    text = f"At the peak {peak[0]} entries of block tables lay in {peak[1]} blocks: {most} saved by sharing. "
    return Finding(most >= at_least and count >= copies, f"{text}{count} copied on write{first}.")


@_of("kv")
def together(run: KvState, at_least: int) -> Finding:
    """So many requests were decoded in the same steps."""
    starts: Counter[float] = Counter()
    tokens, last = 0, 0.0
    for member in run.crowd.members:
        times = [event.time + member.offset for event in member.events if isinstance(event, TokenDecoded)]
        if times:
            starts[times[0]] += 1
            starts[times[-1]] -= 1
            tokens, last = tokens + len(times), max(last, times[-1])
    live = most = 0
    for moment in sorted(starts):
        live += starts[moment]
        most = max(most, live)
    text = f"Up to {most} requests in one batch: {tokens} tokens in {last:.1f} s"
    return Finding(most >= at_least, f"{text}, {_number(tokens / last if last else None)} a second together.")


@_of("kv")
def sent_back(run: KvState, at_least: int) -> Finding:
    """So many times a request gave its blocks back and was computed again."""
    lines = []
    for member in run.crowd.members:
        for place, event in enumerate(member.events):
            if isinstance(event, Preempted):
                again = sum(e.seconds for e in member.events[place:] if isinstance(e, Prefilled))
                when = event.time + member.offset
                lines.append(
                    f"{member.name} at {when:.1f} s, {event.num_tokens} tokens read again in {again:.1f} s"
                )
    return Finding(len(lines) >= at_least, f"Sent back: {'; '.join(lines) or 'nobody'}.")


@_of("kv")
def refused(run: KvState, names: Sequence[str]) -> Finding:
    """These requests can never fit."""
    found = [member for member in run.crowd.members if member.error]
    text = "; ".join(f"{member.name} ({member.error})" for member in found)
    return Finding([member.name for member in found] == list(names), f"Refused: {text or 'nobody'}.")


@_of("kv")
def reused(run: KvState, names: Sequence[str], at_least: int) -> Finding:
    """Each of these found so many tokens of its prompt in the cache."""
    ends = {m.name: m.events[-1] for m in run.crowd.members if m.events}
    found = {name: end.num_cached_tokens for name, end in ends.items() if isinstance(end, Finished)}
    holds = all(found.get(name, 0) >= at_least for name in names)
    return Finding(holds, f"Prompt tokens found in the cache: {_joined(found, map(str, found.values()))}")


@_of("kv")
def wasted(run: KvState, blocks: float, buffer: float) -> Finding:
    """Blocks waste at most that share of their slots on average, one buffer for each at least that one."""
    usage = run.live.usage if run.live else None
    ours = usage.waste if usage else None
    theirs = usage.contiguous_waste(run.buffer) if usage else None
    holds = _within(ours, 0, blocks) and _within(theirs, buffer, 1)
    buffers = f"{_percent(theirs)} in buffers of {run.buffer:,}"
    return Finding(holds, f"Empty slots on average: {_percent(ours)} in blocks, {buffers}.")
