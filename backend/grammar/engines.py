"""The engines of masks, by the name that a request gives."""

from __future__ import annotations

from typing import Any, Protocol

from backend.grammar.llguidance_engine import LLGuidance
from backend.grammar.lowering import Lowered
from backend.grammar.matcher import Matcher, Tokens
from backend.grammar.xgrammar_engine import XGrammar


class MaskEngine(Protocol):
    """Compiles grammars for the vocabulary it was made with."""

    def __init__(self, tokens: Tokens): ...

    def compile(self, lowered: Lowered) -> tuple[str, int]: ...

    def load(self, text: str) -> Any: ...

    def matcher(self, compiled: Any) -> Matcher: ...


ENGINES: dict[str, type[MaskEngine]] = {"xgrammar": XGrammar, "llguidance": LLGuidance}
