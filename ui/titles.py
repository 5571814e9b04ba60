"""What stages and settings are called on the page."""

from __future__ import annotations

from backend.stages import STAGES


def title(stage: str) -> str:
    """What a stage is called; the grammar's mask, which is no setting, goes by its own name."""
    return STAGES[stage].title if stage in STAGES else stage


def pieces(*parts: str) -> list[dict[str, str]]:
    """A sentence as the page puts it together: texts and labels of tokens by turns, a text first."""
    return [{("text", "token")[place % 2]: part} for place, part in enumerate(parts) if part or place % 2]


def written(setting: float | str) -> str:
    """A setting as text: a number without rounding or trailing zeros."""
    return setting if isinstance(setting, str) else f"{setting:.12g}"
