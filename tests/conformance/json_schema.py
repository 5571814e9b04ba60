"""JSON Schema conformance: python tests/conformance/json_schema.py PATH [--verbose]

PATH is a checkout of https://github.com/json-schema-org/JSON-Schema-Test-Suite. For each engine choice,
over the required part of draft 2020-12:

compiled      schemas that were admitted
refused       schemas refused by name, with the keywords named most
unsound       invalid instances that the masks let through and that the verdict then calls valid
let through   invalid instances that the masks let through, whatever the verdict
over-strict   valid instances that cannot be produced (key order, closed objects and the like)

The exit status is 1 if anything was unsound.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parents[2]))

from backend.errors import GrammarError, PlaygroundError
from backend.grammar import validation
from backend.grammar.engines import ENGINES
from backend.grammar.lowering import lower
from backend.grammar.matcher import MaskEngine, Tokens
from backend.request import Grammar

BYTES = Tokens((*(bytes([byte]) for byte in range(256)), b""), (256,))


class Tally:
    """Counts of one engine."""

    def __init__(self) -> None:
        self.num_schemas = self.num_compiled = self.num_valid = self.num_invalid = 0
        self.refused: Counter[str] = Counter()
        self.unsound: list[str] = []
        self.let_through: list[str] = []
        self.over_strict: list[str] = []


def accepts(engine: MaskEngine, compiled: Any, text: str) -> bool:
    """Whether the masks allow a text from its first byte to its end."""
    matcher = engine.matcher(compiled)
    for byte in text.encode():
        if not matcher.allowed()[byte] or not matcher.accept(byte):
            return False
    return matcher.is_complete()


def check(name: str, engine: MaskEngine, group: dict[str, Any], tally: Tally) -> None:
    """One schema of the suite and its instances."""
    tally.num_schemas += 1
    schema = group["schema"]
    try:
        text = json.dumps(schema)
        lowered = lower(Grammar(json_schema=text, engine=cast(Any, name)))
        compiled = engine.load(engine.compile(lowered)[0])
    except GrammarError as error:
        tally.refused[error.keyword or str(error)[:50]] += 1
        return
    tally.num_compiled += 1
    for test in group["tests"]:
        label = f"{group['description']} / {test['description']}"
        accepted = accepts(engine, compiled, json.dumps(test["data"], ensure_ascii=False))
        if test["valid"]:
            tally.num_valid += 1
            if not accepted:
                tally.over_strict.append(label)
            continue
        tally.num_invalid += 1
        if accepted:
            tally.let_through.append(label)
            if validation.reason(schema, test["data"]) is None:
                tally.unsound.append(label)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help="checkout of JSON-Schema-Test-Suite")
    parser.add_argument("--verbose", action="store_true", help="name what was let through or over-strict")
    arguments = parser.parse_args()
    files = sorted((arguments.path / "tests" / "draft2020-12").glob("*.json"))
    if not files:
        parser.error(f"{arguments.path} holds no tests/draft2020-12")
    groups = [group for file in files for group in json.loads(file.read_text(encoding="utf-8"))]
    status = 0
    for name, kind in ENGINES.items():
        engine, tally = kind(BYTES), Tally()
        for group in groups:
            try:
                check(name, engine, group, tally)
            except PlaygroundError as error:
                print(f"{name}: {group['description']}: {error}")
                status = 1
        status = status or int(bool(tally.unsound))
        report(name, tally, arguments.verbose)
    return status


def report(name: str, tally: Tally, verbose: bool) -> None:
    named = ", ".join(f"{keyword} {count}" for keyword, count in tally.refused.most_common(12))
    print(f"{name}: {tally.num_schemas} schemas")
    print(f"  compiled     {tally.num_compiled}")
    print(f"  refused      {sum(tally.refused.values())}   ({named})")
    print(f"  unsound      {len(tally.unsound)}")
    print(f"  let through  {len(tally.let_through)} of {tally.num_invalid} invalid instances")
    print(f"  over-strict  {len(tally.over_strict)} of {tally.num_valid} valid instances")
    if verbose:
        for title, labels in (("let through", tally.let_through), ("over-strict", tally.over_strict)):
            for label in labels:
                print(f"    {title}: {label}")


if __name__ == "__main__":
    sys.exit(main())
