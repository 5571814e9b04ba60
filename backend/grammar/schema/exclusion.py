"""Whether alternatives exclude each other, so that oneOf says the same as anyOf."""

from __future__ import annotations

from typing import Any

from backend.grammar.schema.nodes import kinds, refusal, same
from backend.grammar.schema.references import References


def check_exclusive(options: list[dict[str, Any]], references: References, path: str) -> None:
    """Of oneOf: two alternatives at once would be wrong, and a mask cannot count.

    Raises:
        GrammarError: some value may satisfy two alternatives.
    """
    for number, left in enumerate(options):
        for other in range(number + 1, len(options)):
            if not _apart(references, left, options[other], 4):
                raise refusal(
                    "oneOf",
                    path,
                    f"alternatives {number} and {other} are not plainly exclusive, and exactly one is "
                    "not enforced otherwise; use anyOf, or a key with a different const in each",
                )


def _apart(references: References, left: dict[str, Any], right: dict[str, Any], depth: int) -> bool:
    """Whether plainly no value satisfies both."""
    if depth == 0:
        return False
    left, right = references.followed(left), references.followed(right)
    for one, two in ((left, right), (right, left)):
        if "anyOf" in one:
            return all(_apart(references, option, two, depth - 1) for option in one["anyOf"])
    found = [kinds(left), kinds(right)]
    if not found[0] & found[1]:
        return True
    if "enum" in left and "enum" in right:
        return not any(same(a, b) for a in left["enum"] for b in right["enum"])
    if "properties" in left and "properties" in right:
        shared = set(left["required"]) & set(right["required"])
        if any(
            _apart(references, left["properties"][key], right["properties"][key], depth - 1) for key in shared
        ):
            return True
    return False
