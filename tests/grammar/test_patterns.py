"""Regular expressions: the same language as Python's re, or refused with the place."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.errors import GrammarError
from backend.grammar import formats, patterns, validation
from backend.grammar.verdict import judge
from tests.grammar.byte_engines import accepts, compiled

TEXTS = ["".join(letters) for size in range(5) for letters in itertools.product("ab-", repeat=size)]


@pytest.mark.parametrize("engine", ["xgrammar", "llguidance"])
@pytest.mark.parametrize(
    "pattern",
    [
        "a*b",
        "(a|b)+-?",
        "^a|b$",
        "a{2}b{0,2}",
        "[^a]{1,3}",
        "(?:ab)*?",
        "[a-]*",
        "",
        "(|a)b",
        r"\w+\-",
    ],
)
def test_the_language_is_that_of_python(pattern, engine):
    grammar = compiled(engine, regex=pattern)
    oracle = re.compile(pattern)
    assert [accepts(grammar, text) for text in TEXTS] == [bool(oracle.fullmatch(text)) for text in TEXTS]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("a{,3}", "character 2: {,3} is text to some and a count to others"),
        ("a{1, 3}", "{1, 3} is text to some"),
        ("[[:alpha:]]+", "[: of POSIX is not supported"),
        ("[a[.x.]]", "[. of POSIX"),
        ("(abc){e<=1}", "{e<=1} is text to some"),
        ("a{s}", "{s} is text to some"),
        ("a{1<=i<=2}", "is text to some"),
        (r"\p{Nonsense}", "is no property of Unicode"),
        ("(?P<a>x)(?P=a)", "back reference (?P= is not supported"),
        (r"a\Zb", "text after $ can never match"),
        (r"(a\Z)", r"\Z is supported only at the edge"),
    ],
)
def test_what_dialects_read_differently_is_refused_by_name(pattern, words):
    with pytest.raises(GrammarError, match=re.escape(words)):
        compiled(regex=pattern)


@pytest.mark.parametrize("engine", ["xgrammar", "llguidance"])
@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("(?P<year>[0-9]{2})-(?<n>a)", ["12-a"], ["12a"]),
        (r"\A[ab]+\Z", ["ab", "b"], ["", "abc"]),
        (r"\p{L}+", ["aé", "日本"], ["1", "a1"]),
        (r"[\p{Lu}\p{Nd}_-]+", ["A1-_", "É"], ["a"]),
        (r"\P{L}[^\p{L}]", ["12", " é"[:1] + "3"], ["a1", "1a"]),
        (r"{a}\{1,2\}{", ["{a}{1,2}{"], ["a"]),
    ],
)
def test_what_dialects_agree_on_is_read(pattern, good, bad, engine):
    grammar = compiled(engine, regex=pattern)
    assert [text for text in [*good, *bad] if accepts(grammar, text)] == good
    assert [judge(grammar, text, None).status for text in [*good, *bad]] == (
        ["valid"] * len(good) + ["invalid"] * len(bad)
    )


@pytest.mark.parametrize("engine", ["xgrammar", "llguidance"])
@pytest.mark.parametrize("pattern", ["ab", "^ab", "ab$", "^(ab)*$", "^a|b$", r"[^\W]-"])
def test_a_pattern_of_a_schema_is_searched(pattern, engine):
    grammar = compiled(engine, json_schema={"type": "string", "pattern": pattern})
    found = [bool(re.search(pattern, text)) for text in TEXTS]
    assert [accepts(grammar, json.dumps(text)) for text in TEXTS] == found


@given(
    st.recursive(
        st.sampled_from(["a", "b", "-", "[ab]", "[^a]", "."]),
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["*", "+", "?", "{1,2}", "{2}"])).map(
                lambda p: f"(?:{p[0]}){p[1]}"
            ),
            st.tuples(inner, inner).map("".join),
            st.tuples(inner, inner).map("(?:{0[0]}|{0[1]})".format),
        ),
        max_leaves=6,
    )
)
@settings(max_examples=40, deadline=None)
def test_random_patterns_agree_with_python(pattern):
    grammar, oracle = compiled(regex=pattern), re.compile(pattern)
    assert [t for t in TEXTS[:50] if accepts(grammar, t)] == [t for t in TEXTS[:50] if oracle.fullmatch(t)]
    lengths = [len(text) for text in TEXTS if oracle.fullmatch(text)]
    low, high = patterns.lengths(patterns.parse(pattern))
    assert all(low <= length and (high is None or length <= high) for length in lengths)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("a(?<=b)", "character 2: look-behind (?<="),
        ("x*+", "character 2: possessive"),
        ("(a", "character 1: ( is never closed"),
        ("a)", "character 2: a ) that closes nothing"),
        ("a(b$)", "character 4: $ is supported only at the edge"),
        ("[b-a]", "character 3: a range in [] that ends before it begins"),
        ("*a", "character 1: * has nothing to repeat"),
        (r"\pq", r"character 1: escape \p is not supported"),
        ("a{3,2}", "character 2: the count {3,2} ends before it begins"),
        (r"\ud800", r"character 1: \ud800 is no character"),
        ("(" * 65 + ")" * 65, "nested deeper than 64"),
        ("a$b", "character 3: text after $ can never match"),
        ("[]", "character 1: an empty set"),
        ("a\\", "character 2: a \\ at the end"),
    ],
)
def test_what_is_not_supported_is_refused_with_its_place(pattern, words):
    with pytest.raises(GrammarError, match=re.escape(words)):
        patterns.parse(pattern)


@pytest.mark.parametrize("engine", ["xgrammar", "llguidance"])
def test_a_pattern_in_json_escapes_what_json_must_escape(engine):
    grammar = compiled(engine, json_schema={"type": "string", "pattern": "^[^a]{2}$"})
    for text in ('"b', "b\\", "\n\t", "éß", "😀-"):
        assert accepts(grammar, json.dumps(text, ensure_ascii=False)), text
    for raw in ('""b"', '"b\\"', '"\n\t"', '"ab"'):
        assert not accepts(grammar, raw), raw


@pytest.mark.parametrize(
    ("pattern", "low", "high", "expected"),
    [
        ("^[ab]*$", 2, 3, [text for text in TEXTS if re.fullmatch("[ab]{2,3}", text)]),
        ("^a[ab-]*b$", 0, 3, [t for t in TEXTS if re.fullmatch("a[ab-]*b", t) and len(t) <= 3]),
        ("^(a|b)$", 1, 4, ["a", "b"]),
        ("^(a{2}|[b-]+)$", 2, 2, ["aa", "bb", "b-", "-b", "--"]),
    ],
)
def test_a_length_is_worked_into_the_pattern(pattern, low, high, expected):
    grammar = compiled(
        json_schema={"type": "string", "pattern": pattern, "minLength": low, "maxLength": high}
    )
    assert [text for text in TEXTS if accepts(grammar, json.dumps(text))] == expected


def test_a_length_that_cannot_be_worked_in_is_refused_by_xgrammar_and_enforced_by_llguidance():
    schema = {"type": "string", "pattern": "^a+-b+$", "minLength": 5}
    with pytest.raises(GrammarError, match="minLength at /minLength: a length beside this pattern"):
        compiled(json_schema=schema)
    grammar = compiled("llguidance", json_schema=schema)
    assert [accepts(grammar, f'"{text}"') for text in ("aa-b", "aa-bb", "aaa-b")] == [False, True, True]


@pytest.mark.parametrize("name", list(filter(validation.checks_format, formats.PATTERNS)))
def test_formats_agree_with_the_validator(name):
    samples = {
        "date": [
            "2024-02-29",
            "2023-02-29",
            "2023-04-31",
            "1900-02-29",
            "2000-02-29",
            "2023-13-01",
            "999-01-01",
        ],
        "time": ["23:59:59Z", "24:00:00Z", "12:30:00+02:00", "12:30:00", "12:60:00Z", "12:30:00.5Z"],
        "date-time": ["2024-02-29T00:00:00Z", "2023-02-29T00:00:00Z", "2024-02-29 00:00:00Z"],
        "uuid": ["123e4567-e89b-12d3-a456-426614174000", "123e4567e89b12d3a456426614174000", "x"],
        "ipv4": ["192.168.0.1", "256.1.1.1", "01.1.1.1", "1.1.1"],
        "email": ["a@b.co", "a.b+c@d-e.org", "a@", "@b.co", "a b@c.de"],
        "idn-hostname": ["a.b", "-a"],
        "idn-email": ["a@b.co", "a@", "@b.co"],
        "ipv6": ["::", "1::2:3", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::1:2:3:4:5:6:7", "1::2::3", "1:2"],
        "regex": ["^a+$", "[a-z0-9_]?x{2}", "\\\\d*", "(", "a**", "{2}", "[]"],
    }[name]
    grammar = compiled(json_schema={"type": "string", "format": name})
    schema = {"type": "string", "format": name}
    found = [accepts(grammar, json.dumps(sample)) for sample in samples]
    assert True in found
    assert False in found
    for sample, is_possible in zip(samples, found, strict=True):
        assert not is_possible or validation.reason(schema, sample) is None, sample


def test_a_pattern_that_runs_away_does_not_hang_the_validator():
    with pytest.raises(GrammarError, match="takes too long"):
        validation.matches("^(a|aa)+$", "a" * 60 + "b")
