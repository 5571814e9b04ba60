"""Trace -> the plain data that the page's components draw. Pure functions.

Everything returned is strict JSON: infinities become the strings "inf" and "-inf", and a token that
a stage made impossible is marked as cut, never left empty. Entropy and surprise are in bits here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from backend.events import Candidates, StageOutcome, TokenDecoded
from backend.stages import STAGES, measured
from ui.numbers import bits, number, percent, probability
from ui.session import View
from ui.titles import pieces, title, written

MAX_PROMPT_TOKENS_SHOWN = 400
CHUNK = 64  # rows of the strip that travel together
MAX_BARS = 40


def head(view: View) -> dict[str, Any]:
    """What every picture of a run begins with: which run it is, and how that goes."""
    return {
        "number": view.number,
        "running": view.running,
        "phase": view.phase,
        "notice": view.notice,
    }


def strip_row(step: TokenDecoded) -> list[Any]:
    """[id, label, probability, surprise, rank, entropy, forced, special] of one token."""
    return [
        step.token_id,
        step.label,
        number(probability(step.model_logprob), 4),
        number(bits(-step.model_logprob), 4),
        step.rank,
        number(bits(step.entropy), 3),
        step.forced,
        step.special,
    ]


def strip(view: View, stale: bool = False, whole: bool = True) -> dict[str, Any]:
    """The token strip with its status line.

    `rows` are chunks of rows by the index of their first one. Where not `whole`, only the last one or two:
    the page keeps the rows before them, and asks for all of them where it has not.
    """
    started = view.started
    prompt = list(started.prompt_labels) if started else []
    ids = list(started.prompt_token_ids) if started else []
    special = started.prompt_special if started else ()
    hidden = max(0, len(prompt) - MAX_PROMPT_TOKENS_SHOWN)
    total = len(view.steps)
    first = 0 if whole else max(0, total // CHUNK - 1) * CHUNK
    return {
        "number": view.number,
        "source": view.source,
        "running": view.running,
        "hidden_prompt": hidden,
        "prompt": [
            [token_id, label, place in special]
            for place, (token_id, label) in enumerate(zip(ids, prompt, strict=True))
            if place >= hidden
        ],
        "expected": max(total, view.request.max_new_tokens if view.request else 0),
        "total": total,
        "rows": {
            str(start): [strip_row(step) for step in view.steps[start : min(start + CHUNK, total)]]
            for start in range(first, total, CHUNK)
        },
        "pinned": view.pinned,
        "phase": view.phase,
        "progress": view.progress,
        "status": status(view),
        "notice": view.notice,
        "stale": stale,
    }


ENDINGS = {
    "eos": "end of text",
    "length": "token limit",
    "stop": "stop string",
    "grammar": "grammar complete",
    "cancelled": "stopped",
    "context_full": "context full",
    "error": "error",
}


def status(view: View) -> list[list[str]]:
    """The status line as [name, value] pairs."""
    line: list[list[str]] = []
    if view.steps:
        line.append(["tokens", f"{len(view.steps):,}"])
    started, finished = view.started, view.finished
    speed, first = _timing(view)
    if view.source == "score" and view.steps:
        mean = -sum(step.model_logprob for step in view.steps) / len(view.steps)
        line.append(["bits a token", f"{bits(mean):.2f}"])
        line.append(["perplexity", f"{math.exp(min(mean, 700)):.3g}"])
    else:
        if speed is not None:
            line.append(["tok/s", f"{speed:.1f}"])
        if first is not None:
            line.append(["first token", f"{first:.2f} s"])
    if view.stopped:
        line.append(["ended", ENDINGS["cancelled"]])
    elif finished is not None and view.source != "score":
        line.append(["ended", ENDINGS[finished.reason]])
    if started is not None and view.source != "score":
        line.append(["seed", str(started.seed)])
    if started is not None:
        line.append(["model", started.model])
    return line


def _timing(view: View) -> tuple[float | None, float | None]:
    """Tokens per second and time to first token of the last run, live or final."""
    if view.finished is not None and view.finished.tokens_per_second is not None:
        return view.finished.tokens_per_second, view.finished.time_to_first_token
    fresh = view.steps[view.started_at :]
    if not fresh:
        return None, None
    seconds = fresh[-1].time - fresh[0].time
    return ((len(fresh) - 1) / seconds if seconds > 0 else None), fresh[0].time


def step(
    shown: TokenDecoded,
    *,
    key: str,
    recorded: TokenDecoded | None = None,
    note: str = "",
) -> dict[str, Any]:
    """One step as a pipeline.

    Args:
        shown: the step to draw, as recorded or evaluated again under other knobs.
        recorded: what the text has at this place, where that is another step object.
        note: why something cannot be shown, for display.
    """
    table = shown.candidates
    in_text = recorded or shown
    result: dict[str, Any] = {
        "key": key,
        "index": shown.index,
        "position": shown.position,
        "again": recorded is not None,
        "note": note,
        "token": {"id": in_text.token_id, "label": in_text.label, "forced": in_text.forced},
        "winner": {"id": shown.token_id, "label": shown.label},
        "model": number(probability(in_text.model_logprob)),
        "rank": in_text.rank,
        "entropy": number(bits(in_text.entropy), 4),
        "surprise": number(bits(-in_text.model_logprob), 4),
        "final": number(probability(shown.logprob)),
        "luck": number(shown.luck, 4),
        "stages": [_stage(outcome) for outcome in shown.stages],
        "rows": [],
        "charts": [],
        "verdict": verdict(shown, recorded),
    }
    if table is not None:
        result["rows"] = candidate_rows(table, shown)
        result["charts"] = charts(table, shown.stages)
        result["listed_mass"] = number(sum(map(probability, table.model_logprobs)), 4)
        result["num_kept"] = shown.stages[-1].num_kept if shown.stages else None
    return result


def _stage(outcome: StageOutcome) -> dict[str, Any]:
    return {
        "stage": outcome.stage,
        "title": title(outcome.stage),
        "setting": written(outcome.setting),
        "kept": outcome.num_kept,
        "cut_mass": number(outcome.cut_mass, 4),
        "changed": outcome.changed,
    }


def candidate_rows(table: Candidates, shown: TokenDecoded) -> list[dict[str, Any]]:
    """One row per candidate, the model's best first.

    `after` holds one entry per stage up to the one that cut the token, so a cut token's row ends
    with the value it had before the cut; `margin` says by how much it was cut.
    """
    rows = []
    for place, token_id in enumerate(table.token_ids):
        cut_by = table.cut_by[place]
        upto = len(table.after) if cut_by < 0 else cut_by
        final = (table.after[-1] if table.after else table.model_logprobs)[place]
        rows.append(
            {
                "id": token_id,
                "label": table.labels[place],
                "model": number(probability(table.model_logprobs[place])),
                "after": [number(probability(column[place])) for column in table.after[:upto]],
                "cut_by": cut_by,
                "margin": margin(table.margins[place], shown.stages[cut_by]) if cut_by >= 0 else "",
                "final": number(probability(final)) if cut_by < 0 else "cut",
                "luck": number(table.luck[place], 4),
                "total": number(final + table.luck[place], 4),
                "won": token_id == shown.token_id,
                "uncut": token_id == shown.uncut_winner and shown.uncut_winner != shown.token_id,
            }
        )
    return rows


def margin(value: float | None, outcome: StageOutcome) -> str:
    """Why a stage cut a token, as the comparison that it lost: "0.9612 > 0.95"."""
    found = measured(outcome.stage, outcome.setting, outcome.threshold, value)
    if found is None:
        return f"masked by {title(outcome.stage)}"
    reached, limit = found
    unit = STAGES[outcome.stage].unit
    if unit == "rank":
        return f"rank {round(reached):,} > {round(limit):,}"
    if unit == "probability":
        return f"{percent(reached)} < {percent(limit)}"
    return f"{reached:.4f} ≥ {written(limit)} before it"


def verdict(shown: TokenDecoded, recorded: TokenDecoded | None) -> list[dict[str, str]]:
    """What the step comes to: short pieces of {text} and {token}, put together by the page."""
    said: list[dict[str, str]] = []
    if recorded is not None:
        same = recorded.token_id == shown.token_id
        verb = "would be" if recorded.forced else "is still" if same else "is"
        said += pieces(f"With these knobs the draw {verb} ", shown.label)
        if not same:
            said += pieces(", not ", recorded.label, _fate(shown, recorded))
        elif recorded.forced:
            said += pieces(", as in the text")
    elif shown.forced:
        said += pieces("Given, not drawn")
    if shown.uncut_winner is not None and shown.uncut_winner != shown.token_id:
        label = _label_of(shown, shown.uncut_winner)
        said += pieces(". Without the cuts " if said else "Without the cuts ", label, " would have won")
    return said or pieces(_plain_verdict(shown))


def _plain_verdict(shown: TokenDecoded) -> str:
    if any((outcome.stage, outcome.setting) == ("temperature", 0) for outcome in shown.stages):
        return "Greedy: the most likely token is taken"
    if any(outcome.cut_mass > 0 for outcome in shown.stages):
        return "The same token would have won without the cuts"
    return "Nothing was cut at this step"


def _fate(shown: TokenDecoded, recorded: TokenDecoded) -> str:
    table = shown.candidates
    if table is None:
        return ""
    if recorded.token_id not in table.token_ids:
        return " (it is not among the candidates any more)"
    place = table.token_ids.index(recorded.token_id)
    cut_by = table.cut_by[place]
    if cut_by < 0:
        return ""
    outcome = shown.stages[cut_by]
    return f" (cut by {title(outcome.stage)}: {margin(table.margins[place], outcome)})"


def _label_of(shown: TokenDecoded, token_id: int) -> str:
    table = shown.candidates
    if table is not None and token_id in table.token_ids:
        return table.labels[table.token_ids.index(token_id)]
    return f"token {token_id}"


def charts(table: Candidates, stages: Sequence[StageOutcome]) -> list[dict[str, Any]]:
    """One picture per cutting stage, each in the geometry of its rule.

    Bars hold [label, probability before the stage, still possible after it]; tokens that an earlier
    stage cut are not drawn. `line` is the stage's limit, in its unit, and `line_text` what stands at it.
    """
    return [
        chart
        for place, outcome in enumerate(stages)
        if outcome.stage in STAGES
        and STAGES[outcome.stage].geometry
        and (chart := _chart(table, place, outcome)) is not None
    ]


def _chart(table: Candidates, place: int, outcome: StageOutcome) -> dict[str, Any] | None:
    before = table.after[place - 1] if place else table.model_logprobs
    alive = [i for i in range(len(before)) if not 0 <= table.cut_by[i] < place]
    # Ties keep the table's order, which is the rule at a border: the lower token id wins.
    alive.sort(key=lambda i: -before[i])
    # Past the border as well, so that the picture reaches its line.
    shown = alive[: max(MAX_BARS, outcome.num_kept + 8)]
    bars: list[list[Any]] = [
        [table.labels[i], number(probability(before[i])), table.cut_by[i] != place] for i in shown
    ]
    if not bars:
        return None
    spec = STAGES[outcome.stage]
    more = outcome.num_kept - sum(bar[2] for bar in bars)
    if spec.geometry == "staircase" and more > 0:  # kept tokens that the table does not list, as one step
        rest = 1 - outcome.cut_mass - sum(probability(before[i]) for i in shown)
        bars.append([f"{more:,} more tokens", number(max(0.0, rest)), True])
    limit = outcome.threshold if spec.unit == "probability" else outcome.setting
    if not isinstance(limit, int | float):
        return None
    said = percent(limit) if spec.unit == "probability" else written(limit)
    return {
        "stage": outcome.stage,
        "title": spec.title,
        "setting": written(outcome.setting),
        "geometry": spec.geometry,
        "reading": spec.reading,
        "line": number(limit),
        "line_text": spec.line.format(setting=written(outcome.setting), limit=said),
        "kept": outcome.num_kept,
        "cut_mass": number(outcome.cut_mass, 4),
        "best": number(max(probability(before[i]) for i in alive)),
        "bars": bars,
        "tokens": len(shown) + max(0, more),
    }


def activity(view: View) -> dict[str, str]:
    """Per stage, how often it acted over the text, as a short line."""
    trace = view.trace
    if trace is None or not view.steps:
        return {}
    return {
        item.stage: activity_line(item.stage, item.num_changed, item.num_steps, item.mean_cut_mass)
        for item in trace.activity()
    }


def activity_line(stage: str, num_changed: int, num_steps: int, mean_cut_mass: float) -> str:
    """How often a stage acted, in words: cut 31 % of steps, 4.2 % mass."""
    if num_changed == 0:
        return "never fired"
    share = percent(num_changed / num_steps)
    if stage in STAGES and STAGES[stage].cuts:
        return f"cut {share} of steps, {percent(mean_cut_mass)} mass"
    return f"acted on {share} of steps"
