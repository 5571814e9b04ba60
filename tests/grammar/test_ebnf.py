"""Grammars in GBNF: names, places, limits, and whether a text can end."""

from __future__ import annotations

import re

import pytest

from backend.errors import GrammarError
from backend.grammar import ebnf
from tests.grammar.byte_engines import accepts, compiled


@pytest.mark.parametrize(
    ("source", "words", "line", "column"),
    [
        ("", "there is no rule 'root'", 1, 1),
        ('root ::= "a" (', "( is never closed", 1, 14),
        ('root ::= "a" (\n"b"', "( is never closed", 1, 14),
        ("root ::= [a", "a [ that is never closed", 1, 10),
        ('root ::= "a', 'a " that is never closed', 1, 10),
        ('a ::= "x"\na ::= "y"\nroot ::= a', "rule 'a' is defined twice", 2, 1),
        ('root ::= "a"\n  ghost', "rule 'ghost' is not defined", 2, 3),
        ('root ::= "a" @', "'@' means nothing here", 1, 14),
        ('root ::= "a"{3,2}', "the count {3,2} ends before it begins", 1, 13),
        ('root ::= "\\q"', "\\q is no escape", 1, 11),
        ('root ::= "a" )', ") that closes or repeats nothing", 1, 14),
        ('root ::= "a"{1,100000}', "repeats more than 10,000 times", 1, 13),
        ("root ::= TagDispatch(a)", "TagDispatch(...) is not supported", 1, 10),
        ("root ::= []", "[] is an empty set", 1, 10),
        ('root ::= "a\\ud83d\\ude00"', "\\ud83d is half of a pair and no character", 1, 12),
        ("root ::= [a-z\\U0000DFFF]", "\\U0000DFFF is half of a pair", 1, 14),
        ('root ::= "a"\n  "\\\\\\uD800"', "\\uD800 is half of a pair", 2, 6),
        ("root ::= [^a-\\ud900]", "\\ud900 is half of a pair", 1, 14),
        ('root ::= "a\\x4"', "\\x takes two digits", 1, 12),
        ('root "a"', "expected ::= after the name of a rule, found", 1, 6),
    ],
)
def test_errors_name_line_and_column(source, words, line, column):
    with pytest.raises(GrammarError, match=re.escape(words)) as refusal:
        ebnf.read(source)
    assert (refusal.value.line, refusal.value.column) == (line, column)


@pytest.mark.parametrize(
    "source",
    ['root ::= "a" root', 'root ::= "a" b\nb ::= "b" (b | root)', "root ::= a\na ::= root"],
)
def test_a_grammar_without_an_end_is_refused(source):
    with pytest.raises(GrammarError, match="no text is ever complete"):
        ebnf.read(source)


ENGINES = ("xgrammar", "llguidance")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("source", "taken", "refused"),
    [
        (r'root ::= [^"\uD800-\uDFFF]+', ["a", "é", "가"], ['"']),
        (r"root ::= [^a\uD900]+", ["b", "é"], ["a"]),
        (r"root ::= [^a-]+", ["b", "é"], ["a", "-"]),
        (r"root ::= [^-ax]+", ["b", "é"], ["a", "-", "x"]),
        (r"root ::= [^\\ud83d]", ["x", "é"], ["\\", "u", "d", "8"]),
        (r'root ::= "\x41B" | "\xa0"', ["AB", "\xa0"], ["Л"]),
        (r'root ::= "\U0001F600" | [\u00e9-\u00ff] | "\u20ac"', ["😀", "é", "ÿ", "€"], ["e", "ā"]),
        (r"root ::= [^\uAC00-\uD7FF]+", ["a", "é", "ꯀ"], ["가", "힣"]),
    ],
)
def test_escapes_mean_the_same_to_both_engines(engine, source, taken, refused):
    grammar = compiled(engine, ebnf=source)
    assert [text for text in [*taken, *refused] if accepts(grammar, text)] == taken


def test_an_escaped_backslash_begins_no_escape():
    grammar = compiled(ebnf='root ::= "\\\\ud83d"')
    assert accepts(grammar, "\\ud83d")


def test_a_dead_alternative_does_not_condemn_the_rest():
    assert list(ebnf.read('root ::= "a" root | "b" | dead\ndead ::= "c" dead').rules) == ["root"]
    grammar = compiled(ebnf='root ::= ("a" root)? "b"')
    assert [accepts(grammar, text) for text in ("b", "abb", "ab")] == [True, True, False]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000, "nested deeper than 100"),
        (
            "root ::= r0\n" + "\n".join(f'r{n} ::= "a" r{n + 1}' for n in range(2_500)),
            "more than 2,000 rules",
        ),
        ("#" * 100_001, "100,001 characters"),
    ],
)
def test_limits(source, words):
    with pytest.raises(GrammarError, match=words):
        ebnf.read(source)


@pytest.mark.parametrize("engine", ["xgrammar", "llguidance"])
def test_arithmetic(engine):
    source = 'root ::= term ([+*] term)*\nterm ::= [0-9]+ | "(" root ")" # brackets'
    grammar = compiled(engine, ebnf=source)
    assert [accepts(grammar, text) for text in ("1+2*(3+44)", "(1", "1+", "7")] == [True, False, False, True]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("source", "taken", "refused"),
    [
        ('root ::= x "b"\nx ::= [a-z]*', ["ab", "b", "bbb"], ["a", ""]),
        ('root ::= [a-z]+ "bc"', ["abc", "bcbc"], ["bc", "ab"]),
        ('root ::= w " " w | w\nw ::= [a-z]+ ("-" w)?', ["ab", "a-b c", "a b"], ["a-", "a "]),
        ('root ::= ("ab" | "abc") "cd"', ["abcd", "abccd"], ["abc"]),
        ('root ::= "a" ws "b"\nws ::= | " " | "\\n" [ \\t]{0,20}', ["ab", "a b", "a\n\t b"], ["a  b"]),
        ('root ::= ("b" | ) ()', ["", "b"], ["bb"]),
        ("root ::= . .", ["ab", "\n😀"], ["a", "abc"]),
        ("root ::= [a-z]{,3}", ["", "abc"], ["abcd"]),
        ("root ::= 1st -x\n1st ::= [0-9]\n-x ::= 2\n2 ::= [a-c]{2}", ["1ab"], ["1a", "ab"]),
        ('root ::= (1 | "a"){0} "b"\n1 ::= "c"', ["b"], ["cb", "ab"]),
    ],
)
def test_gbnf_is_read_as_llama_cpp_reads_it_and_no_rule_loses_its_ending(engine, source, taken, refused):
    grammar = compiled(engine, ebnf=source)
    assert [text for text in [*taken, *refused] if accepts(grammar, text)] == taken
