"""The engines of masks, by the name that a request gives."""

from __future__ import annotations

from backend.grammar.llguidance_engine import LLGuidance
from backend.grammar.matcher import MaskEngine
from backend.grammar.xgrammar_engine import XGrammar

ENGINES: dict[str, type[MaskEngine]] = {"xgrammar": XGrammar, "llguidance": LLGuidance}
