"""Whatever masks lead to is UTF-8: no surrogates, no long forms, nothing beyond U+10FFFF."""

from __future__ import annotations

import random

import pytest

from backend.grammar.engines import ENGINES
from backend.grammar.lowering import lower
from backend.grammar.matcher import Tokens
from backend.request import Grammar
from tests.grammar.byte_engines import compiled

TAG = '{"type": "structural_tag", "format": {"type": "regex", "pattern": "[^a]+"}}'
# What comes before the free text, and the grammar.
SOURCES = {
    "a JSON string": (b'"', {"json_schema": {"type": "string"}}),
    "a JSON string of bounded length": (b'"', {"json_schema": {"type": "string", "maxLength": 3}}),
    "a JSON string with a pattern": (b'"', {"json_schema": {"type": "string", "pattern": "^.+$"}}),
    "a name in a JSON object": (b'{"', {"json_schema": {"type": "object"}}),
    "any JSON": (b'["', {"json_schema": {}}),
    "a regex": (b"", {"regex": "[^a]+"}),
    "a negated set": (b"", {"ebnf": 'root ::= [^"]+'}),
    "a set of a range": (b"", {"ebnf": "root ::= [a-\uffee]+"}),
    "a structural tag": (b"", {"structural_tag": TAG}),
}
# Where UTF-8 leaves next to nothing behind a first byte
NARROW = {
    "a regex without Hangul": (b"", {"regex": "[^\\uac00-\\ud7ff]+"}),
    "a set without Hangul": (b"", {"ebnf": "root ::= [^\\uac00-\\ud7ff]+"}),
    "a pattern without Hangul": (
        b'"',
        {"json_schema": {"type": "string", "pattern": "^[^\\uac00-\\ud7ff]{1,9}$"}},
    ),
    "a set of a few": (b"", {"ebnf": "root ::= [\\ud7fe-\\ue001]+"}),
}
CASES = [
    (engine, name) for engine in ENGINES for name in SOURCES if (engine, name[-3:]) != ("llguidance", "tag")
]


def is_begun(data: bytes) -> bool:
    """Whether some valid text begins with these bytes."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


@pytest.mark.parametrize(("engine", "name"), CASES)
def test_no_mask_leads_out_of_utf8(engine, name):
    prefix, source = SOURCES[name]
    start = compiled(engine, **source).matcher()
    assert all(start.accept(byte) for byte in prefix)
    for first in (0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF4):
        matcher = start.fork()
        if not matcher.accept(first):
            assert first > 0xEF, "a character below U+10000 is missing"
            continue
        allowed = {byte for byte in range(256) if matcher.allowed()[byte]}
        assert allowed == {byte for byte in range(256) if is_begun(bytes([first, byte]))}
        for byte in set(range(256)) - allowed:
            assert not matcher.accept(byte)


@pytest.mark.parametrize(
    ("engine", "name"), [*CASES, *((engine, name) for engine in ENGINES for name in NARROW)]
)
def test_no_byte_leads_into_a_dead_end(engine, name):
    prefix, source = (SOURCES | NARROW)[name]
    start = compiled(engine, **source).matcher()
    assert all(start.accept(byte) for byte in prefix)
    chance = random.Random(3)
    for _ in range(60):
        matcher = start.fork()
        for _ in range(12):
            allowed = [byte for byte in range(256) if matcher.allowed()[byte]]
            assert allowed or matcher.is_complete()
            if not allowed:
                break
            assert matcher.accept(chance.choice([byte for byte in allowed if byte >= 0x80] or allowed))


@pytest.mark.parametrize("engine", ENGINES)
def test_random_walks_are_text(engine):
    chance = random.Random(7)
    for _ in range(200):
        matcher, text = compiled(engine, regex="[\\u0800-\\uffff]{1,5}").matcher(), bytearray()
        while not matcher.is_complete() or chance.random() < 0.7:
            allowed = [byte for byte in range(256) if matcher.allowed()[byte]]
            if not allowed:
                break
            text.append(chance.choice([byte for byte in allowed if byte in (0xED, 0xA0, 0x9F)] or allowed))
            assert matcher.accept(text[-1])
        assert all("\u0800" <= character <= "\uffff" for character in text.decode())


LONG = (
    b"\xed",
    b"\xed\x9f",
    b"\x9f\xbf",
    b"\xa0\x80",
    b"x\xed\xa0",
    b"\xed\xb0\x80",
    b"\xea\xb0\x80\xed",
    b"\xbf",
)


@pytest.mark.parametrize("engine", ENGINES)
def test_tokens_of_several_bytes_write_no_surrogate(engine):
    """Rollback and fork keep the place inside a character."""
    vocabulary = Tokens((*(bytes([byte]) for byte in range(256)), *LONG, b""), (256 + len(LONG),))
    masks = ENGINES[engine](vocabulary)
    source, _ = masks.compile(lower(Grammar(engine=engine, ebnf='root ::= [^"]*')))
    matcher = masks.matcher(masks.load(source))
    number = {text: 256 + place for place, text in enumerate(LONG)}

    def allowed_of(at) -> set[bytes]:
        return {text for text in LONG if at.allowed()[number[text]]}

    begins = {b"\xed", b"\xed\x9f", b"\xea\xb0\x80\xed"}
    assert allowed_of(matcher) == begins
    for lead in (b"\xed", b"\xea\xb0\x80\xed"):
        assert matcher.accept(number[lead])
        fork = matcher.fork()
        assert allowed_of(matcher) == allowed_of(fork) == {b"\x9f\xbf"}
        assert not matcher.accept(number[b"\xa0\x80"])
        assert matcher.accept(number[b"\x9f\xbf"])
        assert allowed_of(matcher) == begins
        assert allowed_of(fork) == {b"\x9f\xbf"}
        matcher.rollback(1)
        assert allowed_of(matcher) == {b"\x9f\xbf"}
        matcher.rollback(1)
        assert allowed_of(matcher) == begins
