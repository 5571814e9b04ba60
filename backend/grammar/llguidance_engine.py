"""llguidance: the second engine, and the only importer of it."""

from __future__ import annotations

import json

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from backend.errors import GrammarError, PlaygroundError
from backend.grammar.lowering import Lowered
from backend.grammar.matcher import MaskEngine, Matcher, Tokens, unpacked
from backend.grammar.probe import probe

_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Without it a mask would allow one way only to cut forced text into tokens.
_HEADER = '%llguidance {"no_forcing": true}'


class _Vocabulary:
    """What LLTokenizer reads; it asks for encodings only where it guesses at forced tokens."""

    bos_token_id = None

    def __init__(self, tokens: Tokens):
        self.eos_token_id = tokens.end_ids[0] if tokens.end_ids else len(tokens.texts) - 1
        self.tokens = [text or b"<special>" for text in tokens.texts]
        self.special_token_ids = [number for number, text in enumerate(tokens.texts) if not text]
        self._bytes = {text: number for number, text in enumerate(tokens.texts) if len(text) == 1}

    def __call__(self, text: str | bytes) -> list[int]:
        data = text if isinstance(text, bytes) else text.encode()
        return [self._bytes[bytes([byte])] for byte in data if bytes([byte]) in self._bytes]


class LLGuidance(MaskEngine):
    """Compiles for one vocabulary."""

    def __init__(self, tokens: Tokens):
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Vocabulary(tokens)), n_vocab=len(tokens.texts))
        self._vocab_size = len(tokens.texts)

    def compile(self, lowered: Lowered) -> tuple[str, int]:
        source = _source(lowered)
        failed, messages = LLMatcher.validate_grammar_with_warnings(source, self._tokenizer)
        if failed or messages:
            what = messages[0].strip().splitlines()[0][:200]
            raise GrammarError(
                f"llguidance cannot read this grammar: {what}" if lowered.kind == "ebnf" else what
            )
        try:
            matcher = self.matcher(source)
        except PlaygroundError as error:
            raise GrammarError(f"the grammar is too large to be run: {error}") from None
        probe(matcher, "write it with fewer alternatives and counts")
        return source, str(lowered.source).count("\n") + 1 if lowered.kind == "ebnf" else 1

    def load(self, text: str) -> str:
        return text

    def matcher(self, compiled: str) -> LMatcher:
        return LMatcher(self._tokenizer, LLMatcher(self._tokenizer, compiled, log_level=0), self._vocab_size)


class LMatcher(Matcher):
    """Wraps llguidance.LLMatcher.

    Raises:
        PlaygroundError: llguidance gave up; in its words.
    """

    def __init__(self, tokenizer: LLTokenizer, matcher: LLMatcher, vocab_size: int):
        self._tokenizer = tokenizer
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise PlaygroundError(f"llguidance: {self._matcher.get_error().strip()[:300]}")

    def accept(self, token_id: int) -> bool:
        return self._matcher.try_consume_tokens([token_id]) == 1

    def accept_bytes(self, data: bytes) -> bool:
        token_ids = self._tokenizer.tokenize_bytes(data)
        return self._matcher.try_consume_tokens(token_ids) == len(token_ids)

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)
        self._check()

    def fork(self) -> LMatcher:
        return LMatcher(self._tokenizer, self._matcher.deep_copy(), self._vocab_size)

    def allowed(self) -> NDArray[np.bool_]:
        if self._matcher.is_stopped():
            self._check()
            return np.zeros(self._vocab_size, dtype=np.bool_)
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        return unpacked(bits, self._vocab_size)

    def is_complete(self) -> bool:
        return self._matcher.is_accepting()


def _source(lowered: Lowered) -> str:
    if lowered.kind == "json_schema":
        schema = json.dumps(lowered.source | {"x-guidance": _OPTIONS})
        return LLMatcher.grammar_from_lark(f"{_HEADER}\nstart: %json {schema}")
    if lowered.kind == "regex":
        # The slash would end the pattern, but patterns.to_pattern writes every character as its number.
        return LLMatcher.grammar_from_lark(f"{_HEADER}\nstart: /{lowered.source}/")
    return LLMatcher.grammar_from_lark(f"{_HEADER}\n{lowered.source}")
