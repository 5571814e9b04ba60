"""Lanes -> the plain data that the compare component draws, and the table as CSV rows. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from backend import BeamSearch, Request, SamplingParams
from backend.comparison import ORDER, Cut, Difference, first_unequal
from backend.events import Finished, TokenDecoded
from backend.metrics import TextMetrics, describe
from backend.stages import DRAW, STAGES
from ui.numbers import bits, fixed, number, percent, probability
from ui.payloads.run import ENDINGS, head
from ui.plots import lanes as plots
from ui.runs.lanes import KNOBS, NAMES, Lanes
from ui.session import View
from ui.titles import pieces, title, written

COLUMNS: list[tuple[str, str]] = [
    ("tokens", "Generated tokens, the end of text included"),
    ("perplexity", "Under the unmodified model: how many equally likely tokens it chose from, on average"),
    ("loop", "The phrase the text keeps repeating at its end (Holtzman et al. 2019): its tokens × times"),
    ("4-grams again", "Share of four-token runs that occurred before in the text"),
    ("distinct-1", "Different tokens over all tokens"),
    ("distinct-2", "Different pairs over all pairs"),
    ("distinct-3", "Different triples over all triples"),
    ("entropy, bits", "Mean over the steps of the model's own uncertainty, in bits"),
    ("tokens/s", "After the first token, all lanes running at once"),
    ("ended", "Why the text ends there"),
]


def payload(view: View, compared: Lanes) -> dict[str, Any]:
    """What the compare component draws."""
    return {
        **head(view),
        "prompt": view.prompt,
        "seed": None if view.started is None else view.started.seed,
        "lanes": lanes(compared),
        "columns": [list(column) for column in COLUMNS],
        "figure": plots.probabilities(compared),
    }


def lanes(compared: Lanes) -> list[dict[str, Any]]:
    """One entry per lane, and one for the human text if there is one."""
    first = compared.lanes[0].tokens if compared.lanes else []
    entries = []
    for place, lane in enumerate(compared.lanes):
        known = compared.differences[place] if place < len(compared.differences) else None
        apart = first_unequal(lane.tokens, first, ended=False) if place else None
        said = _agreement(place, compared)
        if known:
            apart = known.index
            said = sentence(known, NAMES[place], compared.lanes[0].request, lane.request)
        about = summary(lane.request)
        entries.append(_entry(NAMES[place], about, lane.tokens, lane.finished, apart=apart, sentence=said))
    if compared.human:
        entries.append(_entry("✎", "a text somebody wrote, scored", compared.human, None, human=True))
    return entries


def _entry(
    name: str, about: str, steps: Sequence[TokenDecoded], finished: Finished | None, **more: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "summary": about,
        "tokens": [_token(step) for step in steps],
        "row": row(steps, finished),
        "apart": None,
        "sentence": [],
        **more,
    }


def _agreement(place: int, compared: Lanes) -> list[dict[str, str]]:
    if place == 0 or place >= len(compared.differences):
        return []
    return pieces("The same tokens as A: under this seed its settings made no difference.")


def _token(step: TokenDecoded) -> list[Any]:
    return [step.label, number(probability(step.model_logprob), 4), step.rank, step.special]


def summary(request: Request) -> str:
    """What a lane sets, in a line: temperature 0.8, top-p 0.95."""
    if isinstance(request.strategy, BeamSearch):
        return f"beam search, {request.strategy.num_beams} beams"
    params = request.sampling
    greedy = params.temperature == 0
    if greedy:
        params = params.without(DRAW)
    changed = [knob for knob in KNOBS if params.is_on(knob)]
    shown = ["greedy"] if greedy else []
    shown += [f"{title(knob)} {getattr(params, knob):g}" for knob in changed]
    if isinstance(params.order, str) and len(changed) > 1 and not greedy:
        shown.append(f"order of {params.order}")
    return ", ".join(shown) or "pure sampling, nothing switched on"


def row(steps: Sequence[TokenDecoded], finished: Finished | None) -> list[str]:
    """The lane's line of the table, in the order of COLUMNS."""
    found = describe(steps)
    return [
        str(found.num_tokens),
        fixed(found.perplexity, 2),
        loop(found),
        percent(found.repeated_4grams),
        fixed(found.distinct_1, 2),
        fixed(found.distinct_2, 2),
        fixed(found.distinct_3, 2),
        fixed(None if found.mean_entropy is None else bits(found.mean_entropy), 2),
        fixed(_speed(finished), 1),
        ENDINGS[finished.reason] if finished else "",
    ]


def _speed(finished: Finished | None) -> float | None:
    """Tokens a second; of a search, whose tokens are all known at its end, over the whole run."""
    if finished is None or not finished.num_output_tokens:
        return None
    if finished.time and finished.decode_seconds < finished.time / 100:
        return finished.num_output_tokens / finished.time
    return finished.tokens_per_second


def loop(found: TextMetrics) -> str:
    return f"{found.phrase.num_tokens} × {found.phrase.num_times}" if found.phrase else "none"


def sentence(found: Difference, name: str, first: Request, other: Request) -> list[dict[str, str]]:
    """Why lane `name` leaves lane A where it does: short pieces of {text} and {token}."""
    names = ("A", name)
    where = f"First difference at token {found.index}: "
    if found.kind == "ended":
        longer, shorter = names if found.labels[0] else names[::-1]
        return pieces(f"{where}{shorter} stops, {longer} goes on.")
    if found.kind == "strategy":
        return pieces(where + _searches(names, first, other))
    if found.kind == "rounding":
        return pieces(f"{where}the settings act alike here; the best two tokens are equal up to rounding.")
    if found.kind != "stages":
        return pieces(f"{where}the two do not share the same {found.kind}.")
    if found.cut is not None:
        why = _cut_pieces(found.cut, found, names)
    else:
        why = _turn_pieces(found, names, first.sampling, other.sampling)
    stages = " and ".join(_called(stage) for stage in found.causes)
    both = "either alone" if len(found.causes) == 2 else "fewer"
    more = f" ({both} would not do)" if len(found.causes) > 1 else ""
    checked = f" Checked: without {stages} in both, both draw the same token{more}."
    return [*pieces(where), *why, *pieces(checked)]


def _called(stage: str) -> str:
    return "the changed order" if stage == ORDER else title(stage)


def _searches(names: tuple[str, str], first: Request, other: Request) -> str:
    searching = [
        f"{name} searches with {asked.strategy.num_beams} beams"
        for name, asked in zip(names, (first, other), strict=True)
        if isinstance(asked.strategy, BeamSearch)
    ]
    return f"{' and '.join(searching)}: whole texts compete there, so no one stage is the cause."


def _cut_pieces(cut: Cut, found: Difference, names: tuple[str, str]) -> list[dict[str, str]]:
    where, other = names[cut.run], names[1 - cut.run]
    if cut.stage == "temperature":  # only 0 makes tokens impossible
        greedy, rank = f"{where} is greedy and takes the likeliest token, ", f" (rank {cut.rank:,})."
        return pieces(greedy, found.labels[cut.run], f"; {other} drew ", cut.label, rank)
    stage = f"in {where} {title(cut.stage)} {written(cut.setting)} cut "
    then = f" ({_measured(cut)}), which {other} drew; {where} then drew "
    return pieces(stage, cut.label, then, found.labels[cut.run], ".")


def _measured(cut: Cut) -> str:
    rank = f"rank {cut.rank:,}"
    if cut.reached is None or cut.limit is None:
        return rank
    unit = STAGES[cut.stage].unit
    if unit == "rank":
        return f"{rank}, place {cut.reached:,.0f} of {cut.limit:,.0f} kept"
    if unit == "probability":
        return f"{rank}, {percent(cut.reached)} < {percent(cut.limit)}"
    return f"{rank}, cumulative {cut.reached:.4g} before it"


def _turn_pieces(
    found: Difference, names: tuple[str, str], first: SamplingParams, other: SamplingParams
) -> list[dict[str, str]]:
    greedy = [name for name, params in zip(names, (first, other), strict=True) if params.temperature == 0]
    if "temperature" in found.causes and len(greedy) == 1:
        why = f"{greedy[0]} is greedy and takes the likeliest token. A drew "
        return pieces(why, found.labels[0], f", {names[1]} drew ", found.labels[1], ".")
    turned = ", ".join(_setting_pair(stage, first, other) for stage in found.causes)
    then = f"{_lead(found.leads[0])}, {names[1]} drew "
    end = f"{_lead(found.leads[1])}; lead in log p + luck." if found.leads[1] is not None else "."
    return pieces(f"{turned} turned the draw. A drew ", found.labels[0], then, found.labels[1], end)


def _lead(value: float | None) -> str:
    return "" if value is None or math.isinf(value) else f" by {value:.2g}"


def _setting_pair(stage: str, first: SamplingParams, other: SamplingParams) -> str:
    if stage == ORDER:
        return "the other order of the stages"
    if stage == "logit_bias":
        return "the other biases"
    return f"{title(stage)} {getattr(other, stage):g} instead of {getattr(first, stage):g}"
