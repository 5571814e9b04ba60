"""Token ids as text: what one token adds, how it reads alone, and the text of a growing sequence.

A token is bytes, not characters: a character may be spread over several tokens and a token may hold
the end of one character and the start of the next.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from backend.errors import ModelUnavailable, RequestError

_REPLACEMENT_CHARACTER = "\ufffd"
_LONE_BYTES = re.compile("[\udc80-\udcff]+")  # as the error handler "surrogateescape" leaves them
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """Character to byte in the byte-level BPE of GPT-2: printable Latin-1 stands for itself."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_ALPHABET = _byte_alphabet()


class Vocabulary:
    """The tokens of one Hugging Face tokenizer, read one at a time.

    Byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece style (Llama 2, Mistral, Gemma) tokens are
    taken apart exactly, words (WordPiece, WordLevel) get the space that decoding puts before them. Tokens
    of any other kind are decoded after another. Answers are cached per id.

    Attributes:
        size: one more than the highest id the tokenizer knows; a model may have more rows than that.
    """

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is a transformers tokenizer; the fast kind has a `backend_tokenizer`.

        Raises:
            ModelUnavailable: what a token adds depends on what follows it, so no text could grow by tokens.
        """
        self._tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        steps = _decoder_steps(backend)
        kinds = {step["type"] for step in steps}
        _refuse_backward_steps(steps)
        known = kinds & {"ByteLevel", "ByteFallback", "Metaspace", "Replace"}
        self._words = backend if "WordPiece" in kinds or not known else None
        self._replacements = _replacements(steps)
        self._is_byte_level = "ByteLevel" in kinds
        self._has_byte_tokens = "ByteFallback" in kinds
        self._special_ids = _special_ids(tokenizer, backend)
        self.size: int = max(tokenizer.get_vocab().values(), default=-1) + 1
        self._bytes: dict[int, bytes] = {}
        self._labels: dict[int, str] = {}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, with the tokens the tokenizer puts around every text (such as BOS) or without.

        Raises:
            RequestError: text that is not valid Unicode (half of a surrogate pair).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"character {error.start} of the text is {text[error.start]!r}, half of a surrogate pair"
            ) from None
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def is_special(self, token_id: int) -> bool:
        """Whether the token marks structure (BOS, EOS, a chat turn) and adds no text."""
        return token_id in self._special_ids

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes the token adds to a text that others precede.

        Empty for special tokens and for ids without a token. A leading space is kept always, although
        SentencePiece style tokenizers drop it at the very start of a text.
        """
        if token_id not in self._bytes:
            self._bytes[token_id] = self._read_bytes(token_id)
        return self._bytes[token_id]

    def text(self, token_ids: Iterable[int]) -> str:
        """The text of tokens in the middle of an output; bytes that are no whole character as U+FFFD."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")

    def label(self, token_id: int) -> str:
        """How the token reads alone.

        Its text, unescaped and with its spaces; bytes that are no whole character as "<0xF0 0x9F>",
        beside the characters that are whole; a special token by its name; an id without a token as
        "<id 151700>".
        """
        if token_id not in self._labels:
            self._labels[token_id] = self._read_label(token_id)
        return self._labels[token_id]

    def _name(self, token_id: int) -> str | None:
        if not 0 <= token_id < self.size:
            return None
        name: str | None = self._tokenizer.convert_ids_to_tokens(token_id)
        return name

    def _read_bytes(self, token_id: int) -> bytes:
        name = self._name(token_id)
        if name is None or token_id in self._special_ids:
            return b""
        if self._words is not None:
            if self._words.decoder is None:  # decoding then joins the tokens with spaces
                return f" {name}".encode()
            return self._words.decoder.decode(["a", name]).removeprefix("a").encode()
        if self._is_byte_level:
            return _byte_level_bytes(name)
        if self._has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(name)):
            return bytes.fromhex(match[1])
        if self._replacements:
            for old, new in self._replacements:
                name = name.replace(old, new)
            return name.encode()
        text: str = self._tokenizer.decode([token_id], clean_up_tokenization_spaces=False)
        return text.encode()

    def _read_label(self, token_id: int) -> str:
        name = self._name(token_id)
        if name is None:
            return f"<id {token_id}>"
        return _escaped(self.token_bytes(token_id)) or name


def _decoder_steps(backend: Any) -> list[dict[str, Any]]:
    """The decoder of a `tokenizers.Tokenizer` as a flat list of its serialised steps."""
    if backend is None or backend.decoder is None:
        return []
    steps = [json.loads(backend.decoder.__getstate__())]
    while any(step["type"] == "Sequence" for step in steps):
        steps = [inner for step in steps for inner in step.get("decoders", [step])]
    return steps


def _refuse_backward_steps(steps: list[dict[str, Any]]) -> None:
    """Raises ModelUnavailable where decoding reads a token by what stands after it, or merges equal ones."""
    for step in steps:
        if step["type"] == "CTC" or (step["type"] == "BPEDecoder" and step["suffix"]):
            why = f"its words end in {step['suffix']!r}" if "suffix" in step else "it merges equal tokens"
            raise ModelUnavailable(
                f"the tokenizer cannot be read token by token: {why} (decoder {step['type']}), so what a "
                "token adds depends on the one after it. Use a model with a byte-level, SentencePiece or "
                "WordPiece tokenizer."
            )


def _replacements(steps: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What the decoder replaces in every token, in order; regular expressions are left out."""
    found = []
    for step in steps:
        if step["type"] == "Metaspace":
            found.append((step["replacement"], " "))
        elif step["type"] == "Replace" and "String" in step["pattern"]:
            found.append((step["pattern"]["String"], step["content"]))
    return found


def _special_ids(tokenizer: Any, backend: Any) -> frozenset[int]:
    if backend is None:
        return frozenset(tokenizer.all_special_ids)
    added = backend.get_added_tokens_decoder()
    return frozenset(token_id for token_id, token in added.items() if token.special)


def _byte_level_bytes(name: str) -> bytes:
    # An added token may hold characters outside the alphabet; it is then meant literally.
    if all(character in _BYTE_ALPHABET for character in name):
        return bytes(_BYTE_ALPHABET[character] for character in name)
    return name.encode()


def _escaped(data: bytes) -> str:
    def escape(match: re.Match[str]) -> str:
        return f"<{' '.join(f'0x{ord(character) - 0xDC00:02X}' for character in match[0])}>"

    return _LONE_BYTES.sub(escape, data.decode("utf-8", "surrogateescape"))


@dataclass(frozen=True, slots=True)
class Released:
    """What became final by one call: the next tokens in the order they were pushed.

    Attributes:
        texts: what each of them adds to the shown text; "" for a special token or a character that a
            later token completes.
        stopped: a stop string matched. The tokens pushed and not released by now are dropped.
        clipped: the stop string begins inside the last of these tokens: of its text only the part before
            the stop is in `texts`, and no more than that may be shown as its label.
    """

    texts: tuple[str, ...] = ()
    stopped: bool = False
    clipped: bool = False

    @property
    def text(self) -> str:
        """What all of them add."""
        return "".join(self.texts)


class _Held(NamedTuple):
    """A token not released yet. It covers the characters from `start` up to, not including, `end`.

    Positions count from the start of the sequence. A character begun but not completed counts in
    `end`, but its text belongs to the token that completes it.
    """

    text: str
    start: int
    end: int
    is_prefix: bool


class OutputText:
    """The text of one growing sequence, shown as far as no stop string can begin in it.

    Bytes become text incrementally: an incomplete character waits for its rest, and invalid bytes
    give U+FFFD just as decoding everything at once would.

    Stop strings match the text, however it is cut into tokens. The match that begins first wins, as
    `min(text.find(stop) for stop in stop)` over the whole text; so a match waits while a longer stop
    string that began before it is still open. A token is held back while a stop string may begin in
    it, and released as soon as none can.
    """

    def __init__(self, vocabulary: Vocabulary, stop: tuple[str, ...], prefix: Iterable[int] = ()) -> None:
        """
        Args:
            stop: empty strings among them are ignored.
            prefix: generated tokens already shown (a branch). They are never released. A match must
                end after them; if it begins in them, no further text is shown.
        """
        self._vocabulary = vocabulary
        self._stop = tuple(string for string in stop if string)
        self._longest = max(map(len, self._stop), default=0)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held: deque[_Held] = deque()
        self._window = ""  # text of the held tokens
        self._window_start = 0  # position of its first character
        self._next_start = 0  # no stop string begins before this position
        self._prefix_end = 0
        self._shown: list[str] = []
        self._is_over = False
        self._has_stopped = False
        for token_id in prefix:
            self._take(token_id, is_prefix=True)
            self._prefix_end = self._window_end
            self._release(*self._scan())

    @property
    def text(self) -> str:
        """All released text, without the prefix."""
        return "".join(self._shown)

    def push(self, token_id: int) -> Released:
        """Add one generated token. After a stop or `finish`, tokens are dropped."""
        if self._is_over:
            return Released(stopped=self._has_stopped)
        self._take(token_id, is_prefix=False)
        return self._release(*self._scan())

    def finish(self) -> Released:
        """No token follows: release what is held. An incomplete last character adds nothing.

        A match that waited for a longer stop string is now final, so this can stop, too.
        """
        if self._is_over:
            return Released(stopped=self._has_stopped)
        matches = (i for i in range(self._next_start, self._window_end) if self._matches_at(i))
        match = next(matches, None)
        self._is_over = True
        if match is not None:
            return self._release(match, has_stopped=True)
        return self._release(self._window_end + 1, has_stopped=False)

    @property
    def _window_end(self) -> int:
        return self._window_start + len(self._window)

    @property
    def _incomplete(self) -> bytes:
        """Bytes of the character that has begun and not ended; at most three."""
        return self._decoder.getstate()[0]

    def _take(self, token_id: int, is_prefix: bool) -> None:
        start = self._window_end
        text = self._decoder.decode(self._vocabulary.token_bytes(token_id))
        self._window += text
        end = self._window_end + bool(self._incomplete)
        self._held.append(_Held(text, start, end, is_prefix))

    def _scan(self) -> tuple[int, bool]:
        """The first position where a stop string begins or may begin, and whether it does.

        The end of the text, an incomplete character included, if there is none.
        """
        incomplete = self._incomplete
        end = self._window_end + bool(incomplete)
        for position in range(self._next_start, end if self._stop else 0):
            if self._matches_at(position):
                return position, True
            if self._may_begin_at(position, incomplete):
                return position, False
        return end, False

    def _matches_at(self, position: int) -> bool:
        return any(
            self._window.startswith(string, position - self._window_start)
            and position + len(string) > self._prefix_end
            for string in self._stop
        )

    def _may_begin_at(self, position: int, incomplete: bytes) -> bool:
        """Whether the text from `position` on is the proper beginning of a stop string."""
        length = self._window_end - position
        if length >= self._longest:
            return False
        text = self._window[position - self._window_start :]
        return any(
            len(string) > length and string.startswith(text) and _may_become(incomplete, string[length])
            for string in self._stop
        )

    def _release(self, position: int, has_stopped: bool) -> Released:
        """Release the tokens that end at or before `position`, and on a stop the part of one more."""
        texts = []
        while self._held and self._held[0].end <= position:
            token = self._held.popleft()
            if not token.is_prefix:
                texts.append(token.text)
        clipped = False
        if has_stopped:
            self._is_over = self._has_stopped = True
            first = self._held[0]
            clipped = first.start < position and not first.is_prefix
            if clipped:
                texts.append(first.text[: position - first.start])
            self._held.clear()
        start = self._held[0].start if self._held else self._window_end
        self._window = self._window[start - self._window_start :]
        self._window_start = start
        self._next_start = position
        self._shown += texts
        return Released(tuple(texts), has_stopped, clipped)


def _may_become(incomplete: bytes, character: str) -> bool:
    """Whether a character that began with these bytes (maybe none) can turn out to be `character`."""
    return character.encode("utf-8", "surrogatepass").startswith(incomplete) or (
        character == _REPLACEMENT_CHARACTER
    )
