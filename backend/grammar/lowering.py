"""What a grammar becomes before an engine compiles it: admitted, with everything named that narrows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backend.errors import GrammarError
from backend.grammar import ebnf, json_source, patterns, spelling
from backend.grammar.rules import written
from backend.grammar.schema.admission import admit
from backend.request import Grammar

KINDS = {
    "json_schema": "JSON schema",
    "regex": "regex",
    "ebnf": "grammar",
    "structural_tag": "structural tag",
}
_MAX_TAG_DEPTH = 32
# format type: fields that hold further formats
_TAG_FORMATS: dict[str, tuple[str, ...]] = {
    "const_string": (),
    "any_text": (),
    "json_schema": (),
    "regex": (),
    "grammar": (),
    "tag": ("content",),
    "triggered_tags": ("tags",),
    "tags_with_separator": ("tags",),
    "sequence": ("elements",),
    "or": ("elements",),
    "optional": ("content",),
    "star": ("content",),
    "plus": ("content",),
}


@dataclass(frozen=True)
class Lowered:
    """A grammar ready for an engine, as plain values that travel to another process.

    Attributes:
        kind: a field of request.Grammar. source: a JSON document with patterns by name, EBNF or Lark, a
            pattern (llguidance), or a structural tag.
        rules: GBNF for the patterns named in source.
        notes: how less than was asked for can be produced, one sentence each.
    """

    kind: str
    source: Any
    rules: dict[str, str]
    notes: tuple[str, ...]


def kind_of(grammar: Grammar) -> str:
    """The field that holds the source."""
    return next(name for name in KINDS if getattr(grammar, name) is not None)


def lower(grammar: Grammar) -> Lowered:
    """Admit a grammar.

    Raises:
        GrammarError: it is wrong, too large, or cannot be enforced exactly; names the place.
    """
    kind = kind_of(grammar)
    text = getattr(grammar, kind)
    if kind == "json_schema":
        schema, inside = json_source.unwrapped(json_source.parse_source(text, "schema"))
        notes = (f"the schema at {inside} is used; what stands around it is no schema",) if inside else ()
        return _placed(text, lambda: _schema(schema, grammar.engine, notes), inside)
    if kind == "regex":
        return _regex(text, grammar.engine)
    if kind == "ebnf":
        rules, left_out = ebnf.read(text)
        spelled = spelling.for_xgrammar if grammar.engine == "xgrammar" else spelling.for_llguidance
        return Lowered(kind, spelled(rules), {}, left_out)
    if grammar.engine != "xgrammar":
        raise GrammarError("a structural tag is enforced by xgrammar only", keyword="structural_tag")
    tag = json_source.parse_source(text, "structural tag")
    return _placed(text, lambda: _structural_tag(tag))


def placeholder(name: str) -> str:
    """What stands for a pattern in a schema until its rule takes that place."""
    return f"__{name}__"


def _schema(schema: Any, engine: str, notes: tuple[str, ...] = ()) -> Lowered:
    admitted = admit(schema, takes_lengths=engine == "llguidance")
    if engine == "llguidance":
        texts = {name: f"^{patterns.to_pattern(node)}$" for name, node in admitted.patterns.items()}
        document = admitted.document(
            lambda name: {"type": "string", "pattern": texts[name]}, lambda name: texts[name]
        )
        return Lowered("json_schema", document, {}, (*notes, *admitted.notes))
    rules = {
        name: written(node, name, in_json=True, quoted=name.startswith("string"))
        for name, node in admitted.patterns.items()
    }
    document = admitted.document(lambda name: {"enum": [placeholder(name)]}, placeholder)
    return Lowered("json_schema", document, rules, (*notes, *admitted.notes))


def _placed(text: str, admit: Callable[[], Lowered], inside: str = "") -> Lowered:
    """What `admit` makes of the JSON text, of its part at `inside`.

    A refusal that names a pointer also gets line and column.
    """
    try:
        return admit()
    except GrammarError as error:
        found = None if error.pointer is None else json_source.place(text, inside + error.pointer)
        if found is None or error.line is not None:
            raise
        raise GrammarError(
            str(error), keyword=error.keyword, pointer=error.pointer, line=found[0], column=found[1]
        ) from None


def _regex(text: str, engine: str) -> Lowered:
    node = patterns.parse(text)
    if patterns.is_empty(node):
        raise GrammarError("no text matches the pattern", keyword="pattern")
    if engine == "llguidance":
        return Lowered("regex", patterns.to_pattern(node), {}, ())
    return Lowered("regex", written(node, ebnf.ROOT), {}, ())


def _structural_tag(tag: Any) -> Lowered:
    if not isinstance(tag, dict) or tag.get("type") != "structural_tag" or "format" not in tag:
        raise GrammarError('a structural tag reads {"type": "structural_tag", "format": {...}}', pointer="")
    rules: dict[str, str] = {}
    notes: dict[str, None] = {}
    lowered = _tag_format(tag["format"], "/format", rules, notes)
    return Lowered("structural_tag", {"type": "structural_tag", "format": lowered}, rules, tuple(notes))


def _tag_format(node: Any, path: str, rules: dict[str, str], notes: dict[str, None]) -> Any:
    """One format of a structural tag; the grammars inside become {"type": "schema" or "rule", ...}."""
    kind = node.get("type") if isinstance(node, dict) else None
    if kind not in _TAG_FORMATS or path.count("/") > _MAX_TAG_DEPTH:
        known = ", ".join(_TAG_FORMATS)
        raise GrammarError(f"format {kind!r} at {path} is not supported; known are {known}", pointer=path)
    if kind == "json_schema":
        return _embedded_schema(node, path, notes)
    if kind == "regex":
        source = written(patterns.parse(str(node.get("pattern"))), ebnf.ROOT)
        return {"type": "grammar", "grammar": source}
    if kind == "grammar":
        if node.get("syntax", "ebnf") != "ebnf":
            raise GrammarError(f"syntax at {path}/syntax: only ebnf is supported", pointer=f"{path}/syntax")
        own_rules, own_notes = ebnf.read(str(node.get("grammar")))
        notes.update(dict.fromkeys(own_notes))
        return {"type": "grammar", "grammar": spelling.for_xgrammar(own_rules)}
    result = dict(node)
    for name in _TAG_FORMATS[kind]:
        inner = node.get(name)
        if isinstance(inner, list):
            result[name] = [
                _tag_format(item, f"{path}/{name}/{number}", rules, notes)
                for number, item in enumerate(inner)
            ]
        else:
            result[name] = _tag_format(inner, f"{path}/{name}", rules, notes)
    return result


def _embedded_schema(node: dict[str, Any], path: str, notes: dict[str, None]) -> dict[str, Any]:
    for name in node:
        if name not in ("type", "json_schema") and (name, node[name]) != ("style", "json"):
            raise GrammarError(f"{name} at {path}/{name} is not supported", pointer=f"{path}/{name}")
    try:
        lowered = _schema(node.get("json_schema"), "xgrammar")
    except GrammarError as error:
        place = f"{path}/json_schema{error.pointer or ''}"
        raise GrammarError(f"in {path}: {error}", keyword=error.keyword, pointer=place) from None
    notes.update(dict.fromkeys(lowered.notes))
    return {"type": "schema", "document": json.dumps(lowered.source), "rules": lowered.rules}
