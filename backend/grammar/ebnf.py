"""Admission of a grammar in GBNF, the EBNF of llama.cpp: limits, names, and whether every rule can end."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from backend.errors import GrammarError

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
      | (?P<count>\{\s*\d+\s*(?:,\s*\d*\s*)?\})
      | (?P<name>[A-Za-z_][A-Za-z0-9_.\-]*)
      | (?P<mark>[()|*+?])""",
    re.VERBOSE,
)
_HALF = r"\\(?:u|U0000)[dD][89a-fA-F][0-9a-fA-F]{2}"
# Every escape is matched whole, so that what follows an escaped backslash is not taken for one.
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{0,2})|[\s\S])")
_HALVES = re.compile(rf"(?P<halves>(?<!-){_HALF}(?:-{_HALF})?(?!-))|\\[\s\S]")


class Token(NamedTuple):
    """`kind` is a group of _TOKEN; `place` counts characters of the source from 0."""

    kind: str
    text: str
    place: int


@dataclass
class Part:
    """Something a rule is made of, as far as it matters whether it can end.

    `options` are alternatives, each a list of names and further parts, all of which are needed.
    """

    options: list[list[str | Part]] = field(default_factory=list)


def check(source: str) -> int:
    """Number of rules of a grammar that is within the limits, complete, and can end.

    Raises:
        GrammarError: with line and column.
    """
    if len(source) > MAX_CHARACTERS:
        raise GrammarError(
            f"the grammar has {len(source):,} characters, at most {MAX_CHARACTERS:,} are allowed"
        )
    rules = _Reader(source).rules()
    endless = _endless(rules)
    if ROOT in endless:
        names = ", ".join(sorted(endless)[:5])
        raise GrammarError(f"no text is ever complete: {names} can only go on", keyword=ROOT)
    return len(rules)


def spelled(source: str, engine: str) -> str:
    """A grammar that was checked, as an engine must be told it.

    xgrammar takes halves of pairs (U+D800 to U+DFFF) for characters, so sets by what they lack lack them too,
    and it reads any number of digits after \\x. llguidance knows no halves, and few escapes beyond ASCII.
    """
    return _TOKEN.sub(
        lambda token: _spelled(token[0], engine) if token["string"] or token["set"] else token[0], source
    )


def _spelled(text: str, engine: str) -> str:
    if text.startswith("[^"):
        inside = _HALVES.sub(lambda found: "" if found["halves"] else found[0], text[2:-1])
        if engine == "xgrammar":
            inside = r"\ud800-\udfff" + inside if inside.endswith("-") else inside + r"\ud800-\udfff"
        text = f"[^{inside}]"
    return _ESCAPE.sub(partial(_escape, engine), text)


def _escape(engine: str, escape: re.Match[str]) -> str:
    if engine == "xgrammar":
        return rf"\u00{escape[3]}" if escape[3] else escape[0]
    code = int(escape[1] or escape[2] or "0", 16)
    return chr(code) if code > 0xA0 else escape[0]


def _endless(rules: dict[str, Part]) -> set[str]:
    ending: set[str] = set()

    def ends(part: str | Part) -> bool:
        if isinstance(part, str):
            return part in ending
        return any(all(ends(item) for item in option) for option in part.options)

    while found := {name for name, part in rules.items() if name not in ending and ends(part)}:
        ending |= found
    return set(rules) - ending


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
            kind = str(found.lastgroup)
            if kind in ("string", "set"):
                self._check_escapes(found[0], place)
            if kind != "space":
                tokens.append(Token(kind, found[0], place))
            place = found.end()
        return [*tokens, Token("end", "", place)]

    def _check_escapes(self, text: str, place: int) -> None:
        if text.startswith("[^"):  # leaving halves of pairs out changes nothing
            text = _HALVES.sub(lambda found: " " * len(found[0]) if found["halves"] else found[0], text)
        for escape in _ESCAPE.finditer(text):
            if escape[3] is not None and len(escape[3]) < 2:
                raise self._error("\\x takes two digits", place + escape.start())
            if 0xD800 <= int(escape[1] or escape[2] or "0", 16) <= 0xDFFF:
                what = f"{escape[0]} is half of a pair and no character; write the character itself"
                raise self._error(what, place + escape.start())

    @staticmethod
    def _unreadable(character: str) -> str:
        known = {
            '"': 'a " that is never closed on its line',
            "[": "a [ that is never closed on its line",
            "{": "a count reads {2}, {2,} or {2,5}",
            ".": ". is not supported; write [^\\n]",
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

    def _begins_rule(self) -> bool:
        return self._kind() == "name" and self._tokens[self._at + 1].kind == "is"

    def _choice(self) -> Part:
        part = Part([self._sequence()])
        while self._is("|"):
            self._at += 1
            part.options.append(self._sequence())
        return part

    def _sequence(self) -> list[str | Part]:
        items: list[str | Part] = []
        start = self._at
        while self._kind() in ("string", "set", "name") or self._is("("):
            if self._begins_rule():
                break
            items.append(self._repeated(self._element()))
        if self._at == start:
            found = self._tokens[self._at].text or "the end"
            raise self._error(f'expected text, a set, a rule or (; found {found}; nothing is written ""')
        return items

    def _element(self) -> str | Part:
        token = self._tokens[self._at]
        self._at += 1
        if token.kind == "name":
            if self._is("(") and token.place + len(token.text) == self._tokens[self._at].place:
                raise self._error(f"{token.text}(...) is not supported", token.place)
            self._names.setdefault(token.text, token.place)
            return token.text
        if token.kind == "set" and token.text in ("[]", "[^]"):
            raise self._error(f"{token.text} is an empty set", token.place)
        if token.kind in ("string", "set"):
            return Part([[]])
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"brackets are nested deeper than {MAX_DEPTH}", token.place)
        part = self._choice()
        if not self._is(")"):
            raise self._error("( is never closed", token.place)
        self._at += 1
        self._depth -= 1
        return part

    def _repeated(self, item: str | Part) -> str | Part:
        while self._kind() == "count" or any(self._is(mark) for mark in "*+?"):
            token = self._tokens[self._at]
            counts = [int(number) for number in re.findall(r"\d+", token.text)]
            if any(count > MAX_COUNT for count in counts):
                raise self._error(f"{token.text} repeats more than {MAX_COUNT:,} times")
            self._at += 1
            if token.text in "*?" or (counts and counts[0] == 0):
                item = Part([[]])
        return item
