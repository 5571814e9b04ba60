"""Rules of a grammar as each engine must be told them."""

from __future__ import annotations

from itertools import groupby

from backend.grammar.ebnf import ROOT, Alternatives, Chars, Count, Name, Part, Sequence
from backend.grammar.patterns import Ranges, to_pattern
from backend.grammar.rules import written_set


def for_xgrammar(rules: dict[str, Part]) -> str:
    """EBNF. Rules get names of their own: xgrammar's may not begin with a digit."""
    names = _names(rules)
    helpers: list[str] = []

    def spelled(part: Part) -> str:
        if isinstance(part, Name):
            return names[part.name]
        if isinstance(part, Chars):
            return written_set(part.ranges)
        if isinstance(part, Sequence):
            runs = [list(run) for _, run in groupby(part.parts, _is_character)]
            words = [_literal(run) if _is_character(run[0]) else " ".join(map(spelled, run)) for run in runs]
            return "(" + (" ".join(words) or '""') + ")"
        if isinstance(part, Alternatives):
            return "(" + " | ".join(map(spelled, part.parts)) + ")"
        item = spelled(part.part)
        if isinstance(part.part, Chars):  # a rule that is one set is counted fast, a set in place is not
            helpers.append(item)
            item = f"set{len(helpers) - 1}"
        return _counted(item, part)

    lines = [f"{names[name]} ::= {spelled(part)}" for name, part in rules.items()]
    return "\n".join([*lines, *(f"set{number} ::= {item}" for number, item in enumerate(helpers))])


def for_llguidance(rules: dict[str, Part]) -> str:
    """Lark, whose every terminal is one character: llguidance takes the longest match of a terminal and
    would never go back, so that a rule such as [a-z]* lost its ending before a letter."""
    names = _names(rules)
    sets: dict[Ranges, str] = {}

    def spelled(part: Part) -> str:
        if isinstance(part, Name):
            return names[part.name]
        if isinstance(part, Chars):
            return sets.setdefault(part.ranges, f"C{len(sets)}")
        if isinstance(part, Sequence):
            return "(" + (" ".join(map(spelled, part.parts)) or '""') + ")"
        if isinstance(part, Alternatives):
            return "(" + " | ".join(map(spelled, part.parts)) + ")"
        return _counted(spelled(part.part), part)

    lines = [f"{names[name]}: {spelled(part)}" for name, part in rules.items()]
    sets_written = [f"{name}: /{to_pattern(Chars(ranges))}/" for ranges, name in sets.items()]
    return "\n".join([f"start: {names[ROOT]}", *lines, *sets_written])


def _names(rules: dict[str, Part]) -> dict[str, str]:
    return {name: ROOT if name == ROOT else f"r{number}" for number, name in enumerate(rules)}


def _counted(item: str, count: Count) -> str:
    if count.high == 0:
        return '""'
    item = f"({item})" if isinstance(count.part, Count) else item
    simple = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    high = "" if count.high is None else count.high
    return f"{item}{simple.get((count.low, count.high), f'{{{count.low},{high}}}')}"


def _is_character(part: Part) -> bool:
    return isinstance(part, Chars) and len(part.ranges) == 1 and part.ranges[0][0] == part.ranges[0][1]


def _literal(run: list[Part]) -> str:
    codes = [part.ranges[0][0] for part in run if isinstance(part, Chars)]
    return '"' + "".join(f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}" for code in codes) + '"'
