"""Speculative runs -> the plain data that the Speculate tab's components draw. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from backend.events import DraftedToken, DraftVerified
from backend.experiments import ChiSquare, Draws, Proof, expected_tokens
from backend.request import Speculative
from ui.numbers import number
from ui.payloads.run import ENDINGS, head
from ui.runs.speculation import Speculation, num_tokens, rates, rounds, telling_round
from ui.session import View

MAX_K = 16
MAX_PROMPT_TOKENS_SHOWN = 40  # the whole prompt stands in the box above
ACCEPTANCES = [step / 100 for step in range(101)]


def pieces(checks: Sequence[DraftVerified], num_shown: int) -> list[dict[str, Any]]:
    """The text as it came about: its tokens, and each rejected draft before the token that replaced it.

    `num_shown` tokens of the output are shown; what a stop string took away is not.
    """
    found = []
    for check in checks:
        for place, token in enumerate(check.drafted[: check.num_accepted + 1]):
            index = check.index + place
            if index < num_shown and token.status != "unused":
                found.append(_piece(token.status, check, place, token))
        after = check.index + check.num_accepted
        if check.next_token_id is not None and after < num_shown:
            kind = check.next_is if check.drafted else "target"
            found.append(_piece(kind, check, check.num_accepted, None))
    return found


def _piece(kind: str, check: DraftVerified, place: int, drafted: DraftedToken | None) -> dict[str, Any]:
    """One token of the text: a drafted one, or the one after a check's drafts."""
    shown = (check.next_token_id, check.next_label, check.next_special)
    if drafted is not None:
        shown = (drafted.token_id, drafted.label, drafted.special)
    return {
        "kind": kind,
        "id": shown[0],
        "label": shown[1],
        "special": shown[2],
        "round": check.number,
        "place": place,
        "numbers": None if drafted is None else numbers(drafted),
    }


def numbers(token: DraftedToken) -> dict[str, Any]:
    """The check of one drafted token; None where it has no such number."""
    known = token.p is not None
    return {
        "p": number(token.p) if token.p is not None else None,
        "q": number(token.q),
        "ratio": number(token.p / token.q) if known and token.p is not None and token.q > 0 else None,
        "threshold": None if token.threshold is None else number(token.threshold),
        "uniform": None if token.uniform is None else number(token.uniform),
    }


def text(view: View, state: Speculation) -> dict[str, Any]:
    """The text with its rounds, and the headline."""
    started, checks = view.started, rounds(view.events)
    labels = list(started.prompt_labels) if started else []
    special = started.prompt_special if started else ()
    hidden = max(0, len(labels) - MAX_PROMPT_TOKENS_SHOWN)
    return {
        **head(view),
        "progress": view.progress,
        "hidden_prompt": hidden,
        "prompt": [[label, place in special] for place, label in enumerate(labels)][hidden:],
        "pieces": pieces(checks, len(view.steps)),
        "selected": _selected(checks, state),
        "status": status(view),
    }


def _selected(checks: Sequence[DraftVerified], state: Speculation) -> list[int] | None:
    chosen = selection(checks, state)
    return None if chosen is None else list(chosen)


def selection(checks: Sequence[DraftVerified], state: Speculation) -> tuple[int, int] | None:
    """(round, place) to look at."""
    chosen = state.selected
    if chosen is not None and 0 <= chosen[0] < len(checks):
        return chosen[0], min(max(chosen[1], 0), max(num_tokens(checks[chosen[0]]) - 1, 0))
    return telling_round(checks)


def status(view: View) -> list[list[str]]:
    """The status line as [name, value] pairs."""
    started, finished = view.started, view.finished
    line: list[list[str]] = []
    if view.steps:
        line.append(["tokens", f"{len(view.steps):,}"])
        line.append(["target calls", f"{len(rounds(view.events)):,}"])
    if finished is not None:
        line.append(["ended", ENDINGS[finished.reason]])
    elif view.stopped:
        line.append(["ended", ENDINGS["cancelled"]])
    if started is not None:
        line += [["seed", str(started.seed)], ["model", started.model]]
    return line


def detail(view: View, state: Speculation) -> dict[str, Any] | None:
    """The selected round; None before there is one."""
    checks = rounds(view.events)
    chosen = selection(checks, state)
    if chosen is None:
        return None
    check, place = checks[chosen[0]], chosen[1]
    strategy = view.strategy(Speculative)
    return {
        "key": f"{view.number}:{check.number}",
        "round": check.number,
        "num_rounds": len(checks),
        "place": place,
        "coupled": strategy is not None and strategy.verify == "coupled",
        "num_accepted": check.num_accepted,
        "drafted": [
            {"label": token.label, "id": token.token_id, "status": token.status, **numbers(token)}
            for token in check.drafted
        ],
        "next": None
        if check.next_token_id is None
        else {"label": check.next_label, "id": check.next_token_id, "is": check.next_is},
        "residual": residual_bars(check),
        "draft_ms": number(check.draft_seconds * 1000, 3),
        "verify_ms": number(check.verify_seconds * 1000, 3),
    }


def residual_bars(check: DraftVerified, limit: int = 8) -> list[dict[str, Any]]:
    """What the recovered token was drawn from: the rejected token, the recovered one, then the likeliest."""
    left = check.residual
    if left is None:
        return []
    order = sorted(range(len(left.token_ids)), key=lambda i: -left.residual[i])
    first = [0, *(i for i in order if left.token_ids[i] == check.next_token_id)]
    chosen = [*first, *(i for i in order if i not in first)][:limit]
    return [
        {
            "label": left.labels[i],
            "p": number(left.p[i]),
            "q": number(left.q[i]),
            "left": number(max(0.0, left.p[i] - left.q[i])),
            "residual": number(left.residual[i]),
            "rejected": i == 0,
            "drawn": left.token_ids[i] == check.next_token_id,
        }
        for i in chosen
        if i in first or left.p[i] > 0 or left.q[i] > 0
    ]


def payoff(view: View, state: Speculation) -> dict[str, Any]:
    """What the rounds gave, measured beside the formula, and the time beside plain decoding."""
    checks = rounds(view.events)
    lengths, strategy = [len(check.drafted) for check in checks], view.strategy(Speculative)
    return {
        **formula_point(view),
        **{
            name: value if isinstance(value, int) else _rounded(value)
            for name, value in rates(checks).named.items()
        },
        "draft": strategy.draft if strategy else "",
        "mean_drafted": number(statistics.mean(lengths), 3) if checks else None,
        "rounds": [
            [check.num_accepted, check.next_is if check.drafted else "target", len(check.drafted)]
            for check in checks
        ],
        "selected": _selected(checks, state),
        "speed": speed(state),
        "verdict": verdict(state),
    }


def _rounded(value: float | None) -> float | str | None:
    return None if value is None else number(value, 4)


def speed(state: Speculation) -> dict[str, Any] | None:
    """Milliseconds per token, medians over the pairs measured; None before the first pair is complete."""
    pairs = state.pairs
    if not pairs:
        return None

    def median(values: Sequence[float]) -> float | str:
        return number(statistics.median(values), 4)

    fast = [pair[1] for pair in pairs]
    return {
        "num_pairs": len(pairs),
        "ratio": _rounded(state.speedup),
        "ratios": [number(plain.milliseconds / quick.milliseconds, 4) for plain, quick in pairs],
        "plain": median([plain.milliseconds for plain, _ in pairs]),
        "speculative": median([run.milliseconds for run in fast]),
        "draft": median([run.draft / run.num_tokens * 1000 for run in fast]),
        "verify": median([run.verify / run.num_tokens * 1000 for run in fast]),
        "overhead": median([run.overhead / run.num_tokens * 1000 for run in fast]),
    }


def verdict(state: Speculation) -> dict[str, str]:
    """Whether the text is that of plain decoding, as {"kind", "text"}."""
    if not state.compared:
        return {"kind": "", "text": ""}
    at = state.first_difference
    if not state.lossless:
        return {
            "kind": "drawn",
            "text": "Another draw from the same distribution as plain decoding; Prove it tests that.",
        }
    if at is None:
        return {"kind": "same", "text": "Same text as plain decoding, token for token."}
    return {"kind": "differs", "text": f"Plain decoding differs from token {at} on: a tie within rounding."}


def formula() -> dict[str, Any]:
    """Tokens per target call for every k and acceptance the picture offers; grid[k - 1][acceptance]."""
    return {
        "acceptances": ACCEPTANCES,
        "grid": [[number(expected_tokens(a, k), 6) for a in ACCEPTANCES] for k in range(1, MAX_K + 1)],
    }


def formula_point(view: View) -> dict[str, Any]:
    """Where the run lies in the picture of the formula."""
    strategy, counted = view.strategy(Speculative), rates(rounds(view.events))
    return {
        "number": view.number,
        "running": view.running,
        "k": strategy.num_draft_tokens if strategy else None,
        "acceptance": _rounded(counted.acceptance),
        "tokens_per_call": _rounded(counted.tokens_per_call),
    }


def proof(view: View, state: Speculation) -> dict[str, Any]:
    """The draws of one step over each other, and which step the button would prove."""
    checks = rounds(view.events)
    target = provable(checks, selection(checks, state))
    found, strategy = state.proof, view.strategy(Speculative)
    result: dict[str, Any] = {
        "number": view.number,
        "proving": state.proving,
        "note": state.proof_note,
        "step": None,
        "done": None,
    }
    if strategy and strategy.verify == "coupled":
        result["note"] = (
            state.proof_note
            or "A coupled check draws what plain decoding draws, so the texts are compared instead."
        )
    elif target is not None:
        token = checks[target[0]].drafted[target[1]]
        result["step"] = {"round": target[0], "place": target[1], "label": token.label}
    elif checks:
        result["note"] = state.proof_note or "No draft was checked in this round; choose one with a draft."
    if found is not None and state.proof_of is not None:
        result["done"] = {"of": list(state.proof_of), **draws(found)}
    return result


def provable(checks: Sequence[DraftVerified], chosen: tuple[int, int] | None) -> tuple[int, int] | None:
    """The drafted and checked token at a place, or the last one before it in the round; None without one."""
    if chosen is None:
        return None
    check = checks[chosen[0]]
    num_checked = sum(token.status != "unused" for token in check.drafted)
    return (check.number, min(chosen[1], num_checked - 1)) if num_checked else None


def draws(found: Proof) -> dict[str, Any]:
    labels: list[str | None] = [*found.labels, None]  # None: all other tokens together
    p, q = [*found.p, found.p_other], [*found.q, found.q_other]
    return {
        "num_draws": found.num_draws,
        "num_accepted": found.num_accepted,
        "acceptance": number(found.acceptance),
        "rows": [
            {
                "label": label,
                "p": number(p[i]),
                "q": number(q[i]),
                "speculative": found.speculative.counts[i],
                "plain": found.plain.counts[i],
                "careless": found.careless.counts[i],
            }
            for i, label in enumerate(labels)
            if label is not None or p[i] > 0 or found.speculative.counts[i]
        ],
        "fits": {
            "speculative": _fit(found.speculative),
            "plain": _fit(found.plain),
            "careless": _fit(found.careless),
        },
    }


def _fit(series: Draws) -> dict[str, Any]:
    fit: ChiSquare = series.fit
    return {
        "statistic": number(fit.statistic, 4),
        "degrees": fit.num_bins - 1,
        "p_value": number(fit.p_value, 3),
        "fits": not math.isinf(fit.statistic) and fit.p_value > 0.001,
    }
