"""xgrammar: the only importer of it. Everything is compiled from EBNF that admission has made exact."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xgrammar
from numpy.typing import NDArray

from backend.errors import GrammarError
from backend.grammar.lowering import Lowered, placeholder
from backend.grammar.matcher import MaskEngine, Matcher, Tokens, unpacked
from backend.grammar.probe import probe

_SLOW = "xgrammar counts alternatives slowly, such as (a|bc){0,200}: use * instead, or choose llguidance"
_PLACE = re.compile(r"at line (\d+), column (\d+): (.*)", re.DOTALL)
_PREFIX = re.compile(r"^\[[\d:]+\] \S+:\d+: ")
_LEAD = b"\xed"
_SECOND = re.compile(rb"[\xa0-\xbf]")
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")


class XGrammar(MaskEngine):
    """Compiles for one vocabulary."""

    def __init__(self, tokens: Tokens):
        self._info = xgrammar.TokenizerInfo(
            list(tokens.texts),
            xgrammar.VocabType.RAW,
            vocab_size=len(tokens.texts),
            stop_token_ids=list(tokens.end_ids) or None,
        )
        self._surrogates = Surrogates(tokens.texts)

    def compile(self, lowered: Lowered) -> tuple[str, int]:
        compiler = xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)
        try:
            if lowered.kind == "structural_tag":
                compiled = compiler.compile_structural_tag(json.dumps(_with_rules(lowered.source)))
            else:
                compiled = compiler.compile_grammar(_ebnf(lowered))
        except (RuntimeError, ValueError) as error:
            raise _readable(error) from None
        probe(self.matcher(compiled), _SLOW)
        return compiled.serialize_json(), str(compiled.grammar).count("::=")

    def load(self, text: str) -> Any:
        return xgrammar.CompiledGrammar.deserialize_json(text, self._info)

    def matcher(self, compiled: Any) -> XMatcher:
        return XMatcher(xgrammar.GrammarMatcher(compiled), self._surrogates)


class Surrogates:
    """Which tokens would write a surrogate (U+D800 to U+DFFF), which xgrammar takes for a character.

    In UTF-8 these are the bytes ED A0..BF xx, and no valid text holds them; ED alone begins true characters.
    """

    def __init__(self, texts: Sequence[bytes]):
        self.ends_with_lead = np.array([text.endswith(_LEAD) for text in texts], dtype=np.bool_)
        self._inside = np.array([_SURROGATE.search(text) is not None for text in texts], dtype=np.bool_)
        self._second = np.array([_SECOND.match(text) is not None for text in texts], dtype=np.bool_)

    def written_by(self, after_lead: bool) -> NDArray[np.bool_]:
        """Tokens that write one, given whether the text so far ends with the byte ED; [vocab_size]."""
        return self._inside | self._second if after_lead else self._inside


class XMatcher(Matcher):
    """Wraps xgrammar.GrammarMatcher; tokens that would write half a surrogate pair are masked."""

    def __init__(self, matcher: Any, surrogates: Surrogates, after_lead: Sequence[bool] = (False,)):
        self._matcher = matcher
        self._surrogates = surrogates
        # One for the start and one for each step that can be taken back.
        self._after_lead = list(after_lead)
        self._vocab_size = len(surrogates.ends_with_lead)
        self._bits = xgrammar.allocate_token_bitmask(1, self._vocab_size)

    def accept(self, token_id: int) -> bool:
        if self._surrogates.written_by(self._after_lead[-1])[token_id]:
            return False
        return self._advanced(
            self._matcher.accept_token(token_id), bool(self._surrogates.ends_with_lead[token_id])
        )

    def accept_bytes(self, data: bytes) -> bool:
        if not data:
            return True
        return self._advanced(self._matcher.accept_string(data), data.endswith(_LEAD))

    def _advanced(self, accepted: bool, after_lead: bool) -> bool:
        if accepted:
            self._after_lead.append(after_lead)
        return bool(accepted)

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)
        del self._after_lead[len(self._after_lead) - count :]

    def fork(self) -> XMatcher:
        return XMatcher(self._matcher.fork(), self._surrogates, self._after_lead)

    def allowed(self) -> NDArray[np.bool_]:
        if self._matcher.is_terminated():
            return np.zeros(self._vocab_size, dtype=np.bool_)
        with torch.inference_mode(False):
            self._matcher.fill_next_token_bitmask(self._bits)
        allowed = unpacked(self._bits.numpy().view(np.uint8).reshape(-1), self._vocab_size)
        return allowed & ~self._surrogates.written_by(self._after_lead[-1])

    def is_complete(self) -> bool:
        return bool(self._matcher.is_completed())


def _ebnf(lowered: Lowered) -> str:
    if lowered.kind == "json_schema":
        return schema_rules(json.dumps(lowered.source), lowered.rules)
    return str(lowered.source)


def schema_rules(document: str, rules: dict[str, str]) -> str:
    """A schema in the small form as EBNF; the placeholders of patterns give way to rules.

    Separators are ", " and ": ", as json.dumps writes them, and there is no other white space.
    """
    source = str(xgrammar.Grammar.from_json_schema(document, any_whitespace=False))
    for name, own_rules in rules.items():
        mark = placeholder(name)
        source = source.replace(f'"\\"{mark}\\""', name)
        source = source.replace(f'Regex("{mark}", json_string=true)', name)
        source += f"\n{own_rules}"
        if mark in source:
            raise GrammarError(f"a pattern could not be put into its place ({mark})", keyword="pattern")
    return source


def _with_rules(node: Any) -> Any:
    """A structural tag whose schemas have become grammars."""
    if isinstance(node, list):
        return [_with_rules(item) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") == "schema":
        return {"type": "grammar", "grammar": schema_rules(node["document"], node["rules"])}
    return {name: _with_rules(value) for name, value in node.items()}


def _readable(error: Exception) -> GrammarError:
    text = _PREFIX.sub("", str(error)).strip()
    if found := _PLACE.search(text):
        line, column = int(found[1]), int(found[2])
        what = f"grammar, line {line}, column {column}: {found[3].strip()}"
        return GrammarError(what, line=line, column=column)
    return GrammarError(text[:300])
