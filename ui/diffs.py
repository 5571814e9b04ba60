"""What a running event sends to the page: the difference to its last update.

gradio.utils.diff of 6.31 counts the deletions of all nested lists together, so that where two lists of one
update grow shorter, the later one loses the wrong entries, and the page stays wrong until the run ends.
"""

from __future__ import annotations

from typing import Any

import gradio.utils

Edit = list[Any]


def install() -> None:
    """Let gradio use `diff`."""
    gradio.utils.diff = diff


def diff(old: Any, new: Any) -> list[Edit]:
    """The edits [action, path, value] that make `new` of `old`, as gradio's clients apply them in order."""
    return _edits(old, new, [])


def _edits(old: Any, new: Any, path: list[Any]) -> list[Edit]:
    if type(old) is not type(new):
        return [["replace", path, new]]
    if old == new:
        return []
    if isinstance(old, str) and new.startswith(old):
        return [["append", path, new[len(old) :]]]
    if isinstance(old, dict):
        kept = [edit for key in old if key in new for edit in _edits(old[key], new[key], [*path, key])]
        gone = [["delete", [*path, key], None] for key in old if key not in new]
        return kept + gone + [["add", [*path, key], new[key]] for key in new if key not in old]
    if isinstance(old, list):
        both = min(len(old), len(new))
        kept = [edit for place in range(both) for edit in _edits(old[place], new[place], [*path, place])]
        # Each deletion moves what follows to the same place.
        gone = [["delete", [*path, both], None] for _ in old[both:]]
        return kept + gone + [["add", [*path, place], new[place]] for place in range(both, len(new))]
    return [["replace", path, new]]
