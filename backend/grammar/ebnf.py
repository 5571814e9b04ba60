"""Grammars in GBNF, the EBNF of llama.cpp: limits, names, whether rules can end, and their trees."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from backend.errors import GrammarError
from backend.grammar.patterns import ANY, Chars, Ranges, complement, intersection, union

MAX_CHARACTERS = 100_000
MAX_RULES = 2_000
MAX_DEPTH = 100
MAX_COUNT = 10_000
ROOT = "root"

_TOKEN = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*)+)
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<set>\[(?:[^\]\\\n]|\\.)*\])
      | (?P<is>::=)
      | (?P<count>\{\s*\d+\s*(?:,\s*\d*\s*)?\}|\{\s*,\s*\d+\s*\})
      | (?P<name>[A-Za-z0-9_\-]+)
      | (?P<mark>[()|*+?.])""",
    re.VERBOSE,
)
# Every escape is matched whole, so that what follows an escaped backslash is not taken for one.
_CHARACTER = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{0,2})|(.))|[\s\S]")
_CONTROLS = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7, "b": 8, "e": 27, "0": 0}
_SURROGATES = (0xD800, 0xDFFF)


class Token(NamedTuple):
    """`kind` is a group of _TOKEN; `place` counts characters of the source from 0."""

    kind: str
    text: str
    place: int


@dataclass(frozen=True)
class Name:
    """A rule by its name."""

    name: str


@dataclass(frozen=True)
class Sequence:
    """Parts one after another; without parts, the empty text."""

    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Alternatives:
    """One of the parts."""

    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Count:
    """`part` low to high times; high None is without limit."""

    part: Part
    low: int
    high: int | None


Part = Name | Chars | Sequence | Alternatives | Count


class Rules(NamedTuple):
    """Rules by name, ROOT among them, each of which can end; `notes` say what was left out."""

    rules: dict[str, Part]
    notes: tuple[str, ...]


def read(source: str) -> Rules:
    """A grammar that is within the limits and complete. Alternatives that could never end are left out.

    Raises:
        GrammarError: with line and column.
    """
    if len(source) > MAX_CHARACTERS:
        raise GrammarError(
            f"the grammar has {len(source):,} characters, at most {MAX_CHARACTERS:,} are allowed"
        )
    rules = _Reader(source).rules()
    ending = _ending(rules)
    endless = [name for name in rules if name not in ending]
    if ROOT in endless:
        names = ", ".join(sorted(endless)[:5])
        raise GrammarError(f"no text is ever complete: {names} can only go on", keyword=ROOT)
    kept = {name: pruned for name in ending if (pruned := _pruned(rules[name], ending)) is not None}
    return Rules(kept, tuple(f"rule {name!r} can only go on without end and is left out" for name in endless))


def _ending(rules: dict[str, Part]) -> dict[str, None]:
    """The rules through which some text ends, in the order of the source."""
    ending: set[str] = set()
    while found := {n for n, part in rules.items() if n not in ending and _pruned(part, ending) is not None}:
        ending |= found
    return {name: None for name in rules if name in ending}


def _pruned(part: Part, ending: set[str] | dict[str, None]) -> Part | None:
    """A part without what leads to rules that do not end; None where nothing is left."""
    if isinstance(part, Name):
        return part if part.name in ending else None
    if isinstance(part, Chars):
        return part
    if isinstance(part, Count):
        item = _pruned(part.part, ending)
        if item is None:
            return None if part.low else Sequence(())
        return Count(item, part.low, part.high)
    parts = [_pruned(each, ending) for each in part.parts]
    kept = tuple(each for each in parts if each is not None)
    if isinstance(part, Sequence):
        return Sequence(kept) if len(kept) == len(parts) else None
    return Alternatives(kept) if kept else None


class _Reader:
    def __init__(self, source: str):
        self._source = source
        self._tokens = self._split()
        self._at = 0
        self._depth = 0
        self._names: dict[str, int] = {}

    def rules(self) -> dict[str, Part]:
        rules: dict[str, Part] = {}
        while self._kind() != "end":
            name = self._take("name", "the name of a rule")
            self._take("is", "::= after the name of a rule")
            if name.text in rules:
                raise self._error(f"rule {name.text!r} is defined twice", name.place)
            rules[name.text] = self._choice()
            if len(rules) > MAX_RULES:
                raise self._error(f"more than {MAX_RULES:,} rules", name.place)
            if self._kind() == "mark":
                raise self._error(f"{self._tokens[self._at].text} that closes or repeats nothing")
        if ROOT not in rules:
            raise GrammarError(f"there is no rule {ROOT!r}, where a text begins", line=1, column=1)
        for name_text, place in self._names.items():
            if name_text not in rules:
                raise self._error(f"rule {name_text!r} is not defined", place)
        return rules

    def _split(self) -> list[Token]:
        tokens = []
        place = 0
        while place < len(self._source):
            found = _TOKEN.match(self._source, place)
            if found is None:
                raise self._error(self._unreadable(self._source[place]), place)
            if found.lastgroup != "space":
                tokens.append(Token(str(found.lastgroup), found[0], place))
            place = found.end()
        return [*tokens, Token("end", "", place)]

    @staticmethod
    def _unreadable(character: str) -> str:
        known = {
            '"': 'a " that is never closed on its line',
            "[": "a [ that is never closed on its line",
            "{": "a count reads {2}, {2,}, {,5} or {2,5}",
            "'": "text stands in double quotes",
        }
        return known.get(character, f"{character!r} means nothing here")

    def _error(self, what: str, place: int | None = None) -> GrammarError:
        place = self._tokens[self._at].place if place is None else place
        line = self._source.count("\n", 0, place) + 1
        column = place - self._source.rfind("\n", 0, place)
        return GrammarError(f"grammar, line {line}, column {column}: {what}", line=line, column=column)

    def _kind(self) -> str:
        return self._tokens[self._at].kind

    def _take(self, kind: str, wanted: str) -> Token:
        token = self._tokens[self._at]
        if token.kind != kind:
            raise self._error(f"expected {wanted}, found {token.text or 'the end'}")
        self._at += 1
        return token

    def _is(self, mark: str) -> bool:
        token = self._tokens[self._at]
        return token.kind == "mark" and token.text == mark

    def _choice(self) -> Part:
        options = [self._sequence()]
        while self._is("|"):
            self._at += 1
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Alternatives(tuple(options))

    def _sequence(self) -> Part:
        items: list[Part] = []
        while self._kind() in ("string", "set", "name") or self._is("(") or self._is("."):
            if self._kind() == "name" and self._tokens[self._at + 1].kind == "is":
                break
            items.append(self._repeated(self._element()))
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _element(self) -> Part:
        token = self._tokens[self._at]
        self._at += 1
        if token.kind == "name":
            if self._is("(") and token.place + len(token.text) == self._tokens[self._at].place:
                raise self._error(f"{token.text}(...) is not supported", token.place)
            self._names.setdefault(token.text, token.place)
            return Name(token.text)
        if token.kind == "set":
            return self._set(token)
        if token.kind == "string":
            codes = [code for code, _, _ in self._characters(token.text[1:-1], token.place + 1)]
            return Sequence(tuple(Chars(((code, code),)) for code in codes))
        if token.text == ".":
            return Chars(ANY)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"brackets are nested deeper than {MAX_DEPTH}", token.place)
        part = self._choice()
        if not self._is(")"):
            raise self._error("( is never closed", token.place)
        self._at += 1
        self._depth -= 1
        return part

    def _characters(self, text: str, place: int, halves: bool = False) -> list[tuple[int, bool, int]]:
        """(code point, is it escaped, place) of each character; halves of pairs only if `halves`."""
        found = []
        for match in _CHARACTER.finditer(text):
            at = place + match.start()
            by_four, by_eight, by_two, other = match.groups()
            if by_two is not None and len(by_two) < 2:
                raise self._error("\\x takes two digits", at)
            if other is not None and other.isalnum() and other not in _CONTROLS:
                raise self._error(f"{match[0]} is no escape", at)
            if digits := by_four or by_eight or by_two:
                code = int(digits, 16)
            else:
                code = _CONTROLS.get(other, ord(other)) if other is not None else ord(match[0])
            if code > 0x10FFFF:
                raise self._error(f"{match[0]} is no character", at)
            if _SURROGATES[0] <= code <= _SURROGATES[1] and not halves:
                what = f"{match[0]} is half of a pair and no character; write the character itself"
                raise self._error(what, at)
            found.append((code, match[0] != chr(code), at))
        return found

    def _set(self, token: Token) -> Chars:
        negated = token.text.startswith("[^")
        inside = token.text[2:-1] if negated else token.text[1:-1]
        if not inside:
            raise self._error(f"{token.text} is an empty set", token.place)
        members = self._characters(inside, token.place + 1 + negated, halves=True)
        parts: list[tuple[int, int]] = []
        at = 0
        while at < len(members):
            low, _, place = members[at]
            high = low
            if at + 2 < len(members) and members[at + 1][:2] == (ord("-"), False):
                high = members[at + 2][0]
                at += 2
                if high < low:
                    raise self._error("a range in [] that ends before it begins", place)
            whole = _SURROGATES[0] <= low and high <= _SURROGATES[1]
            if not (negated and whole):  # leaving halves of pairs out changes nothing
                for code, end in ((low, place), (high, members[at][2])):
                    if _SURROGATES[0] <= code <= _SURROGATES[1]:
                        found = self._source[end : end + (10 if self._source[end + 1] == "U" else 6)]
                        what = f"{found} is half of a pair and no character; write the character itself"
                        raise self._error(what, end)
                parts.append((low, high))
            at += 1
        ranges: Ranges = union(parts)
        return Chars(complement(ranges, ANY) if negated else intersection(ranges, ANY))

    def _repeated(self, item: Part) -> Part:
        while self._kind() == "count" or any(self._is(mark) for mark in "*+?"):
            token = self._tokens[self._at]
            simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
            if token.text in simple:
                low, high = simple[token.text]
            else:
                first, comma, last = token.text[1:-1].replace(" ", "").partition(",")
                low = int(first or 0)
                high = int(last) if last.strip() else None if comma else low
            if max(low, high or 0) > MAX_COUNT:
                raise self._error(f"{token.text} repeats more than {MAX_COUNT:,} times")
            if high is not None and high < low:
                raise self._error(f"the count {token.text} ends before it begins")
            self._at += 1
            item = Count(item, low, high)
        return item
