"""The run with a cache and the one without, as the component draws them; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ui.plots.layout import layout, line
from ui.runs.recompute import Measured, Recompute, measure


def payload(state: Recompute, running: bool, notice: str) -> dict[str, Any]:
    """What the component draws."""
    names = ["with a cache", "everything anew"]
    measured = [measure(run) for run in state.runs]
    ids = [[token.token_id for token in run.tokens] for run in state.runs]
    both = len(state.runs) == 2 and all(run.finished for run in state.runs)
    return {
        "running": running,
        "notice": notice,
        "prompt": state.prompt[:120],
        "figure": figure(measured),
        "rows": [
            {
                "name": name,
                "prefill_tokens": run.prefill_tokens,
                "prefill_rate": run.prefill_rate,
                "decode_rate": run.decode_rate,
                "prefill_share": run.prefill_share,
                "per_token": run.decode_seconds / run.decode_tokens * 1000 if run.decode_tokens else None,
                "last": run.gaps[-1] * 1000 if run.gaps else None,
            }
            for name, run in zip(names, measured, strict=False)
        ],
        "same_text": ids[0] == ids[1] if both and not running else None,
    }


def figure(measured: Sequence[Measured]) -> dict[str, Any]:
    """Milliseconds of each token, one line per run."""
    styles = (("with a cache", "var(--pg-kept)", "solid"), ("everything anew", "var(--pg-heat)", "dash"))
    traces = [
        line(
            list(range(2, len(run.gaps) + 2)),
            [gap * 1000 for gap in run.gaps],
            colour,
            2,
            dash,
            name=name,
            hovertemplate="token %{x}: %{y:.0f} ms<extra></extra>",
        )
        for (name, colour, dash), run in zip(styles, measured, strict=False)
    ]
    look = layout(
        (44, 8, 6, 34),
        {"title": {"text": "token", "standoff": 6}},
        {"rangemode": "tozero", "title": {"text": "ms", "standoff": 6}},
    )
    return {"data": traces, "layout": look}
