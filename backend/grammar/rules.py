"""Patterns as rules of a grammar, for xgrammar, and as the inside of a JSON string."""

from __future__ import annotations

from dataclasses import replace

from backend.grammar.patterns import (
    ANY,
    Chars,
    Choice,
    Concat,
    Node,
    Ranges,
    Repeat,
    complement,
    intersection,
    is_empty,
    union,
)

MAX_ESCAPED = 4
SURROGATES = (0xD800, 0xDFFF)
_LAST = 0x10FFFF
_MUST_ESCAPE = union([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)])
_SHORT_FORMS = {0x22: '"', 0x5C: "\\", 8: "b", 9: "t", 10: "n", 12: "f", 13: "r"}


def written(node: Node, name: str, in_json: bool = False, quoted: bool = False) -> str:
    """EBNF in which the rule `name` is the pattern; further rules have names that begin with it.

    `in_json`: for the inside of a JSON string; `quoted`: with its quotes. Characters that JSON must
    escape are written escaped, each in one way: quote and backslash, and the control characters that have a
    short form; other control characters are left out.
    """
    writer = _Writer(name, in_json)
    right = writer.right_side(node)
    if quoted:  # in the same rule: xgrammar is slow where a rule ends with a count
        right = f'"\\"" {right} "\\""'
    return "\n".join([f"{name} ::= {right}", *writer.rules]) + "\n"


class _Writer:
    def __init__(self, name: str, in_json: bool):
        self._name = name
        self._in_json = in_json
        self.rules: list[str] = []

    def right_side(self, node: Node) -> str:
        if isinstance(node, Chars):
            return _json_set(node.ranges) if self._in_json else written_set(node.ranges)
        if isinstance(node, Repeat):
            return self._repeat(node)
        if isinstance(node, Choice):
            return "(" + " | ".join(map(self.right_side, node.options)) + ")"
        return "(" + (" ".join(map(self.right_side, node.items)) or '""') + ")"

    def _repeat(self, node: Repeat) -> str:
        if node.high == 0:
            return '("")'
        high = "" if node.high is None else str(node.high)
        item = self.right_side(node.item)
        # xgrammar counts a rule that is one set fast; the set itself, written in place, takes it seconds.
        if isinstance(node.item, Chars):
            helper = f"{self._name}_set{len(self.rules)}"
            self.rules.append(f"{helper} ::= {item}")
            item = helper
        if node.low and node.high is None:  # what is not counted is fast, whatever it is
            return f"({item}{{{node.low},{node.low}}} {item}*)"
        return f"({item}{{{node.low},{high}}})"


def written_set(ranges: Ranges) -> str:
    """A set as xgrammar takes it; one character as a literal."""

    def code(value: int) -> str:
        return f"\\u{value:04x}" if value <= 0xFFFF else f"\\U{value:08x}"

    def members(of: Ranges) -> str:
        return "".join(code(a) if a == b else f"{code(a)}-{code(b)}" for a, b in of)

    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return f'"{code(ranges[0][0])}"'
    # A set that reaches to the last character is written by what it lacks: xgrammar is made for that. It
    # takes surrogates for characters.
    if ranges and ranges[-1][1] == _LAST and (lacks := complement(ranges, ANY)):
        return f"[^{members(union([*lacks, SURROGATES]))}]"
    return f"[{members(ranges)}]"


def _json_set(ranges: Ranges) -> str:
    plain = complement(_MUST_ESCAPE, ranges)
    escaped = [form for code, form in _SHORT_FORMS.items() if intersection(ranges, ((code, code),))]
    options = [written_set(plain)] if plain else []
    if escaped:
        options.append('"\\\\" ' + written_set(union((ord(form), ord(form)) for form in escaped)))
    return options[0] if plain and not escaped else "(" + " | ".join(options) + ")"


def counted_plainly(node: Node) -> Node:
    """The same, but sets that are counted beyond MAX_ESCAPED leave out what JSON must escape.

    xgrammar counts a plain set in no time, but an alternative of sets takes it tens of milliseconds a mask.
    """
    if isinstance(node, Repeat):
        if isinstance(node.item, Chars) and max(node.low, node.high or 0) > MAX_ESCAPED:
            plain = complement(_MUST_ESCAPE, node.item.ranges)
            if not plain or plain == node.item.ranges:
                return node
            counted = Repeat(Chars(plain), node.low, node.low if node.high is None else node.high)
            return counted if node.high is not None else Concat((counted, replace(node, low=0)))
        return replace(node, item=counted_plainly(node.item))
    if isinstance(node, Choice):
        return Choice(tuple(map(counted_plainly, node.options)))
    if isinstance(node, Concat):
        return Concat(tuple(map(counted_plainly, node.items)))
    return node


def has_writable_text(node: Node) -> bool:
    """Whether some text can be written in a JSON string by the escapes of `written`."""
    keep = complement(_MUST_ESCAPE, ANY) + tuple((code, code) for code in _SHORT_FORMS)
    return not is_empty(_within(node, union(keep)))


def _within(node: Node, ranges: Ranges) -> Node:
    if isinstance(node, Chars):
        return Chars(intersection(node.ranges, ranges))
    if isinstance(node, Repeat):
        return replace(node, item=_within(node.item, ranges))
    if isinstance(node, Choice):
        return Choice(tuple(_within(option, ranges) for option in node.options))
    return Concat(tuple(_within(item, ranges) for item in node.items))
