"""Both mask engines over a vocabulary of single bytes, without a model or a process."""

from __future__ import annotations

from typing import Any

from backend.grammar.compiler import Compiled
from backend.grammar.engines import ENGINES
from backend.grammar.lowering import lower
from backend.grammar.matcher import MaskEngine, Tokens
from backend.request import Grammar

END = 256
BYTES = Tokens((*(bytes([byte]) for byte in range(256)), b""), (END,))
_engines: dict[str, MaskEngine] = {}


def engine(name: str) -> MaskEngine:
    if name not in _engines:
        _engines[name] = ENGINES[name](BYTES)
    return _engines[name]


def compiled(name: str = "xgrammar", **fields: Any) -> Compiled:
    """Admitted and compiled; GrammarError if refused."""
    grammar = Grammar(**{"engine": name, **fields})
    lowered = lower(grammar)
    source, num_rules = engine(name).compile(lowered)
    return Compiled(grammar, num_rules, 0.0, lowered.notes, engine(name), engine(name).load(source))


def accepts(grammar: Compiled, text: str) -> bool:
    """Whether the masks allow every byte of the text, and then its end."""
    matcher = grammar.matcher()
    for byte in text.encode():
        if not matcher.allowed()[byte]:
            return False
        assert matcher.accept(byte)
    return matcher.is_complete()
