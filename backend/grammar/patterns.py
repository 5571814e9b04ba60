"""Regular expressions: one dialect that means the same to every engine and to the validator.

A pattern is parsed into sets, sequences, choices and repetitions of characters. Whatever lies outside of
that (look-around, back references, word boundaries, flags) is refused with its place. From the
tree a pattern is written anew for an engine: grammar rules for xgrammar (rules.py), a pattern for llguidance.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

import regex

from backend.errors import GrammarError

MAX_CHARACTERS = 2_000
MAX_DEPTH = 64
MAX_SIZE = 20_000  # character places after all counts are written out

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Chars:
    """One character out of sorted, disjoint ranges of code points."""

    ranges: Ranges


@dataclass(frozen=True)
class Concat:
    """Items one after another; without items, the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """One of the options; without options, nothing at all."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """`item` low to high times; high None is without limit."""

    item: Node
    low: int
    high: int | None


Node = Chars | Concat | Choice | Repeat


def union(parts: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted, disjoint ranges of all the code points in `parts`, in any order."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(parts):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def intersection(left: Ranges, right: Ranges) -> Ranges:
    """Code points in both."""
    return union((max(a, c), min(b, d)) for a, b in left for c, d in right if max(a, c) <= min(b, d))


def complement(ranges: Ranges, within: Ranges) -> Ranges:
    """Code points of `within` that are not in `ranges`."""
    left: list[tuple[int, int]] = []
    for start, end in within:
        for low, high in ranges:
            if low > end or high < start:
                continue
            if low > start:
                left.append((start, low - 1))
            start = high + 1
        if start <= end:
            left.append((start, end))
    return tuple(left)


ANY: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))
ASCII: Ranges = ((0, 0x7F),)
DOT = complement(union([(10, 10), (13, 13), (0x2028, 0x2029)]), ANY)
_DIGIT: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = ((9, 13), (32, 32))
# Python and ECMAScript agree on these among ASCII characters only, so the negated ones are kept to ASCII.
_SHORTHANDS: dict[str, Ranges] = {
    "d": _DIGIT,
    "w": _WORD,
    "s": _SPACE,
    "D": complement(_DIGIT, ASCII),
    "W": complement(_WORD, ASCII),
    "S": complement(_SPACE, ASCII),
}
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}
_REFUSED_GROUPS = {
    "?=": "look-ahead (?=",
    "?!": "look-ahead (?!",
    "?<=": "look-behind (?<=",
    "?<!": "look-behind (?<!",
    "?>": "atomic group (?>",
    "?P=": "back reference (?P=",
    "?P>": "call of a group (?P>",
    "?#": "comment (?#",
}


_NAMED = re.compile(r"\?P?<[A-Za-z_]\w*>", re.ASCII)
# Braces that are text to one dialect and a count, or an approximate match, to another.
_DISPUTED = re.compile(r"\{\s*(?:,\s*\d+|\d+\s*,?\s*\d*\s|[\d\s<=+]*[idse]\s*(?:[<=:,+}]))[^}]*\}?")
_PROPERTY = re.compile(r"\\[pP](?:[A-Z]|\{\^?[A-Za-z_]+(?:=[A-Za-z_]+)?\})")


@cache
def _property(escape: str) -> Ranges:
    """The characters of a Unicode property such as \\p{L}, as the validator's library reads it."""
    every = "".join(chr(code) for low, high in ANY for code in range(low, high + 1))
    found = (match[0] for match in regex.finditer(f"{escape}+", every))
    return union((ord(character), ord(character)) for run in found for character in run)


@dataclass(frozen=True)
class _Branch:
    """One alternative and whether ^ opens and $ closes it."""

    node: Node
    starts: bool
    ends: bool


def parse(pattern: str, search: bool = False) -> Node:
    """The texts a pattern matches as a whole; with `search` those it is found in, as JSON Schema means it.

    Raises:
        GrammarError: not a pattern, an unsupported construct, or too large; names the character.
    """
    if len(pattern) > MAX_CHARACTERS:
        raise GrammarError(
            f"the pattern has {len(pattern):,} characters, at most {MAX_CHARACTERS:,} are allowed",
            keyword="pattern",
        )
    branches = _Parser(pattern).whole()
    rest = Repeat(Chars(ANY), 0, None)
    options: list[Node] = []
    for branch in branches:
        before = (rest,) if search and not branch.starts else ()
        after = (rest,) if search and not branch.ends else ()
        options.append(_concat((*before, branch.node, *after)))
    node = _choice(options)
    if size(node) > MAX_SIZE:
        raise GrammarError(
            f"the pattern has {size(node):,} character places once its counts are written out, "
            f"at most {MAX_SIZE:,} are allowed",
            keyword="pattern",
        )
    return node


def _concat(items: Iterable[Node]) -> Node:
    flat: list[Node] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Concat) else (item,))
    return flat[0] if len(flat) == 1 else Concat(tuple(flat))


def _choice(options: list[Node]) -> Node:
    return options[0] if len(options) == 1 else Choice(tuple(options))


class _Parser:
    def __init__(self, pattern: str):
        self._pattern = pattern
        self._place = 0
        self._depth = 0

    def whole(self) -> list[_Branch]:
        branches = self._branches(is_top=True)
        if self._place < len(self._pattern):
            raise self._error("a ) that closes nothing")
        return branches

    def _error(self, what: str, place: int | None = None) -> GrammarError:
        place = self._place if place is None else place
        return GrammarError(
            f"pattern, character {place + 1}: {what}", keyword="pattern", line=1, column=place + 1
        )

    def _peek(self, length: int = 1) -> str:
        return self._pattern[self._place : self._place + length]

    def _branches(self, is_top: bool) -> list[_Branch]:
        branches = [self._branch(is_top)]
        while self._peek() == "|":
            self._place += 1
            branches.append(self._branch(is_top))
        return branches

    def _branch(self, is_top: bool) -> _Branch:
        starts = ends = False
        items: list[Node] = []
        while (character := self._peek()) and character not in "|)":
            if character in "^$":
                at_edge = not items and not ends if character == "^" else True
                if not is_top or not at_edge:
                    raise self._error(f"{character} is supported only at the edge of the whole pattern")
                starts, ends = starts or character == "^", ends or character == "$"
                self._place += 1
                if self._peek() and self._peek() in "*+?{":
                    raise self._error("a repeated anchor")
                continue
            if self._peek(2) in ("\\A", "\\Z"):
                if not is_top or (self._peek(2) == "\\A" and (items or ends)):
                    raise self._error(f"{self._peek(2)} is supported only at the edge of the whole pattern")
                starts, ends = starts or self._peek(2) == "\\A", ends or self._peek(2) == "\\Z"
                self._place += 2
                continue
            if ends:
                raise self._error("text after $ can never match", self._place)
            items.append(self._repeated(self._atom()))
        return _Branch(_concat(items), starts, ends)

    def _atom(self) -> Node:
        character = self._peek()
        if character == "(":
            return self._group()
        if character == "[":
            return Chars(self._set())
        if character in "*+?":
            raise self._error(f"{character} has nothing to repeat")
        if character == "{" and self._counts() is not None:
            raise self._error("{ has nothing to repeat")
        if character == "{" and (disputed := _DISPUTED.match(self._pattern, self._place)):
            what = (
                f"{disputed[0][:20]} is text to some and a count to others; write {{0,n}}, or \\{{ for text"
            )
            raise self._error(what)
        self._place += 1
        if character == ".":
            return Chars(DOT)
        if character == "\\":
            self._place -= 1
            ranges = self._escape(in_set=False)
            return Chars(ranges)
        return Chars(((ord(character), ord(character)),))

    def _group(self) -> Node:
        start = self._place
        self._place += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"groups are nested deeper than {MAX_DEPTH}")
        if self._peek(2) == "?:":
            self._place += 2
        elif name := _NAMED.match(self._pattern, self._place):
            self._place = name.end()
        elif self._peek() == "?":
            named = next((text for key, text in _REFUSED_GROUPS.items() if self._peek(len(key)) == key), None)
            raise self._error(f"{named or 'flags (' + self._peek(2)} is not supported", start)
        branches = self._branches(is_top=False)
        if self._peek() != ")":
            raise self._error("( is never closed", start)
        self._place += 1
        self._depth -= 1
        return _choice([branch.node for branch in branches])

    def _repeated(self, node: Node) -> Node:
        start = self._place
        counts = self._counts()
        if counts is None:
            return node
        low, high, length = counts
        self._place += length
        if high is not None and high < low:
            raise self._error(f"the count {{{low},{high}}} ends before it begins", start)
        if self._peek() == "+":
            raise self._error("possessive repetition is not supported", start)
        if self._peek() == "?":  # lazy: the same texts
            self._place += 1
        if self._counts() is not None:
            raise self._error("a repetition of a repetition needs brackets")
        return Repeat(node, low, high)

    def _counts(self) -> tuple[int, int | None, int] | None:
        """(low, high, length of the quantifier) here; None where there is none."""
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if self._peek() in simple:
            low, high = simple[self._peek()]
            return low, high, 1
        end = self._pattern.find("}", self._place)
        if self._peek() != "{" or end < 0:
            return None
        low_text, comma, high_text = self._pattern[self._place + 1 : end].partition(",")
        digits = low_text.isascii() and low_text.isdigit() and (not high_text or high_text.isdigit())
        if not digits or len(low_text) > 9 or len(high_text) > 9:
            return None
        low = int(low_text)
        high = int(high_text) if high_text else None if comma else low
        return low, high, end - self._place + 1

    def _escape(self, in_set: bool) -> Ranges:
        start = self._place
        self._place += 1
        character = self._peek()
        if not character:
            raise self._error("a \\ at the end", start)
        if found := _PROPERTY.match(self._pattern, start):
            self._place = found.end()
            try:
                return _property(found[0])
            except regex.error:
                raise self._error(f"{found[0]} is no property of Unicode", start) from None
        self._place += 1
        if character in _SHORTHANDS:
            return _SHORTHANDS[character]
        if character in _CONTROLS:
            return ((_CONTROLS[character],) * 2,)
        if character == "b" and in_set:
            return ((8, 8),)
        if character == "0" and not self._peek().isdigit():
            return ((0, 0),)
        if character in "xu":
            return self._code_point(start, 2 if character == "x" else 4)
        if character.isdigit():
            raise self._error(f"back reference \\{character} is not supported", start)
        if character.isalnum():
            what = "word boundary" if character in "bB" else "escape"
            raise self._error(f"{what} \\{character} is not supported", start)
        return ((ord(character), ord(character)),)

    def _code_point(self, start: int, digits: int) -> Ranges:
        text = self._peek(digits)
        try:
            value = int(text, 16) if len(text) == digits and text.isalnum() else None
        except ValueError:
            value = None
        if value is None or 0xD800 <= value <= 0xDFFF:
            raise self._error(f"\\{self._pattern[start + 1]}{text} is no character", start)
        self._place += digits
        return ((value, value),)

    def _set(self) -> Ranges:
        start = self._place
        self._place += 1
        negated = self._peek() == "^"
        self._place += negated
        parts: list[tuple[int, int]] = []
        has_shorthand = False
        first = True
        while (character := self._peek()) != "]" or first:
            if not character:
                raise self._error("[ is never closed", start)
            if character == "]":  # "[]" and "[^]" mean different things to different engines
                raise self._error("an empty set [] is not supported", start)
            first = False
            if self._peek(2) in ("[:", "[.", "[="):
                raise self._error(f"{self._peek(2)} of POSIX is not supported; write the characters")
            low, is_shorthand = self._member()
            has_shorthand = has_shorthand or is_shorthand
            if self._peek() == "-" and self._peek(2) not in ("-", "-]") and not is_shorthand:
                place = self._place
                self._place += 1
                high, is_shorthand = self._member()
                single = len(low) == len(high) == 1 and low[0][0] == low[0][1] and high[0][0] == high[0][1]
                if is_shorthand or not single or high[0][0] < low[0][0]:
                    raise self._error("a range in [] that ends before it begins", place)
                parts.append((low[0][0], high[0][0]))
            else:
                parts.extend(low)
        self._place += 1
        ranges = intersection(union(parts), ANY)
        if negated:
            return complement(ranges, ASCII if has_shorthand else ANY)
        return ranges

    def _member(self) -> tuple[Ranges, bool]:
        """One member of a set, and whether it is a shorthand such as \\d."""
        if self._peek() == "\\":
            is_shorthand = self._peek(2)[1:] in _SHORTHANDS
            return self._escape(in_set=True), is_shorthand
        character = self._peek()
        if not character:
            raise self._error("[ is never closed")
        self._place += 1
        return ((ord(character), ord(character)),), False


def size(node: Node) -> int:
    """Character places once counts are written out; what an automaton grows with."""
    if isinstance(node, Chars):
        return 1
    if isinstance(node, Repeat):
        return size(node.item) * max(node.low + 1 if node.high is None else node.high, 1)
    return sum(size(item) for item in (node.items if isinstance(node, Concat) else node.options))


def lengths(node: Node) -> tuple[int, int | None]:
    """Shortest and longest text, in characters; None is without limit."""
    if isinstance(node, Chars):
        return 1, 1
    if isinstance(node, Repeat):
        low, high = lengths(node.item)
        none = node.high is None or high is None
        return low * node.low, 0 if high == 0 else None if none else (high or 0) * (node.high or 0)
    if isinstance(node, Choice):
        found = [lengths(option) for option in node.options]
        longest = [high for _, high in found]
        return min(low for low, _ in found), None if None in longest else max(h or 0 for h in longest)
    total_low, total_high = 0, 0
    unlimited = False
    for item in node.items:
        low, high = lengths(item)
        total_low += low
        unlimited = unlimited or high is None
        total_high += high or 0
    return total_low, None if unlimited else total_high


def is_empty(node: Node) -> bool:
    """Whether no text matches at all."""
    if isinstance(node, Chars):
        return not node.ranges
    if isinstance(node, Repeat):
        return node.low > 0 and is_empty(node.item)
    if isinstance(node, Choice):
        return all(is_empty(option) for option in node.options)
    return any(is_empty(item) for item in node.items)


def limited(node: Node, low: int, high: int | None) -> Node | None:
    """The texts of `node` that are low to high characters long; None where that is no such pattern.

    Done where at most one part has a length of its own choosing and that part repeats single characters.
    """
    shortest, longest = lengths(node)
    if low <= shortest and (high is None or (longest is not None and longest <= high)):
        return node
    if isinstance(node, Choice):
        options = [limited(option, low, high) for option in node.options]
        return None if None in options else Choice(tuple(option for option in options if option))
    items = node.items if isinstance(node, Concat) else (node,)
    free = [item for item in items if lengths(item)[0] != lengths(item)[1]]
    if len(free) != 1 or not isinstance(free[0], Repeat) or lengths(free[0].item) != (1, 1):
        return Choice(()) if not free else None
    fixed = sum(lengths(item)[0] for item in items if item is not free[0])
    repeat = free[0]
    most = None if high is None else high - fixed
    ends = [end for end in (most, repeat.high) if end is not None]
    bounds = replace(repeat, low=max(repeat.low, low - fixed), high=min(ends, default=None))
    if bounds.high is not None and bounds.high < bounds.low:
        return Choice(())
    return _concat(bounds if item is repeat else item for item in items)


def to_pattern(node: Node) -> str:
    """The pattern anew for llguidance, in the dialect of the Rust library regex, without anchors."""
    if isinstance(node, Chars):
        code = "\\x{{{:x}}}".format
        return "[" + "".join(code(a) if a == b else f"{code(a)}-{code(b)}" for a, b in node.ranges) + "]"
    if isinstance(node, Repeat):
        high = "" if node.high is None else str(node.high)
        return f"(?:{to_pattern(node.item)}){{{node.low},{high}}}"
    if isinstance(node, Choice):
        return "(?:" + "|".join(to_pattern(option) for option in node.options) + ")"
    return "(?:" + "".join(to_pattern(item) for item in node.items) + ")"
