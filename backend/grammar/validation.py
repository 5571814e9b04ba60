"""The independent reader of JSON: jsonschema with formats, and patterns that cannot run away.

The only importer of jsonschema.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import jsonschema
import regex
from jsonschema import (
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
)
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

from backend.errors import GrammarError

PATTERN_SECONDS = 0.5
_DRAFT = re.compile(r"draft(?:-0?|/)(\d+)")
_VALIDATORS: dict[int, Any] = {
    4: Draft4Validator,
    6: Draft6Validator,
    7: Draft7Validator,
    2019: Draft201909Validator,
    2020: Draft202012Validator,
}


def checks_format(name: str) -> bool:
    """Whether the validator reads this format; it is an annotation where not."""
    return name in Draft202012Validator.FORMAT_CHECKER.checkers


def unquoted(fragment: str) -> str:
    """A URI fragment as a JSON pointer."""
    return unquote(fragment)


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern is found in a text; gives up on patterns that take too long.

    Raises:
        GrammarError: it is no pattern, or too slow.
    """
    try:
        return regex.search(pattern, text, timeout=PATTERN_SECONDS) is not None
    except regex.error as error:
        raise GrammarError(
            f"the pattern {pattern[:60]!r} is not understood: {error}", keyword="pattern"
        ) from None
    except TimeoutError:
        raise GrammarError(f"the pattern {pattern[:60]!r} takes too long", keyword="pattern") from None


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not matches(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, rules: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "object"):
        for pattern, part in rules.items():
            for key, value in instance.items():
                if matches(pattern, key):
                    yield from validator.descend(value, part, path=key, schema_path=pattern)


def _safe(cls: Any) -> Any:
    return extend(cls, {"pattern": _pattern, "patternProperties": _pattern_properties})


def draft_of(schema: Any) -> int:
    """The draft that $schema names: 4, 6, 7, 2019, or 2020, which is also meant where none is named.

    Raises:
        GrammarError: it is one that is not read here.
    """
    declared = str(schema.get("$schema", "")) if isinstance(schema, dict) else ""
    found = _DRAFT.search(declared)
    draft = int(found[1]) if found else 2020
    if draft not in _VALIDATORS:
        raise GrammarError(
            f"$schema at /$schema: {declared[:80]!r} is not read; drafts 4, 6, 7, 2019-09 and 2020-12 are",
            keyword="$schema",
            pointer="/$schema",
        )
    return draft


def check_schema(schema: Any) -> None:
    """Whether it is a schema at all, by the rules of its draft.

    Raises:
        GrammarError: it is none, or of a draft that is not read here; names keyword and JSON pointer.
    """
    if not isinstance(schema, (dict, bool)):
        raise GrammarError("a JSON Schema is an object, true or false", pointer="")
    try:
        _VALIDATORS[draft_of(schema)].check_schema(schema)
    except SchemaError as error:
        raise _schema_error(error) from None
    except RecursionError:
        raise GrammarError("the schema is nested too deeply", pointer="") from None


def _schema_error(error: SchemaError) -> GrammarError:
    path = [str(part).replace("~", "~0").replace("/", "~1") for part in error.absolute_path]
    pointer = "".join(f"/{part}" for part in path)
    keyword = str(error.absolute_path[-1]) if error.absolute_path else ""
    what = error.message if len(error.message) < 200 else error.message[:197] + "..."
    if keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(error.instance, bool):
        what = "true or false is of draft 4; since draft 6 the bound itself stands here"
    elif keyword == "items" and isinstance(error.instance, list):
        what = "a list is of an older draft; use prefixItems"
    return GrammarError(
        f"{keyword or 'schema'} at {pointer or 'the top'}: {what}", keyword=keyword, pointer=pointer
    )


def reason(schema: Any, value: Any, path: str = "", part: Any = None) -> str | None:
    """Why a value is not valid, or None if it is.

    `part`: a part of `schema` to validate against instead; `path` is its JSON pointer. References are
    resolved within `schema`, nothing is fetched.

    Raises:
        GrammarError: a reference that names nothing, or a pattern that is none.
    """
    cls = _safe(_VALIDATORS[draft_of(schema)])
    root = cls(schema, format_checker=Draft202012Validator.FORMAT_CHECKER, registry=Registry())
    validator = root if part is None else root.evolve(schema=part)
    try:
        error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except Unresolvable as unresolved:
        raise GrammarError(
            f"$ref at {path}: {str(unresolved.ref)[:80]!r} names nothing here; nothing is fetched",
            keyword="$ref",
            pointer=path,
        ) from None
    except RecursionError:
        return "nested too deeply to be read"
    if error is None:
        return None
    where = "".join(f"/{part}" for part in error.absolute_path)
    message = error.message if len(error.message) <= 160 else error.message[:157] + "..."
    return f"{where or 'the whole'}: {message}"
