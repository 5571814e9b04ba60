"""Tables as CSV text, out and in."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from backend.errors import RequestError

MAX_CHARACTERS = 10_000_000


def to_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """RFC 4180 text with a header line; None is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def from_csv(text: str, header: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a table with exactly this header.

    Raises:
        RequestError: another header, or a line with more or fewer cells.
    """
    if len(text) > MAX_CHARACTERS:
        raise RequestError(f"the table has {len(text):,} characters, at most {MAX_CHARACTERS:,} are read")
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise RequestError(f"this is no CSV table: {error}") from None
    if not lines or lines[0] != list(header):
        found = ", ".join(lines[0])[:200] if lines else "nothing"
        raise RequestError(f"the table must have the columns {', '.join(header)}; found {found}")
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(header):
            raise RequestError(f"line {number} of the table has {len(line)} cells, not {len(header)}")
    return [dict(zip(header, line, strict=True)) for line in lines[1:]]
