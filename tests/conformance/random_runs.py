"""Random runs: python tests/conformance/random_runs.py [--seeds 30] [--schemas NAME ...] [--engine xgrammar]

Ten schemas, sampled at temperature 1.5 with as many samples each. Everything that the verdict calls valid is
read once more by jsonschema; printed are the complete runs, the cut ones, and any disagreement.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import jsonschema

from backend import BestOf, Engine, Grammar, Request, SamplingParams
from backend.events import Judged


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


WORD = {"type": "string", "maxLength": 24}
# Name: schema, prompt, limit of new tokens.
SCHEMAS: dict[str, tuple[dict[str, Any], str, int]] = {
    "person": (_object(name=WORD, age={"type": "integer", "minimum": 0, "maximum": 120}), "A person:", 60),
    "optional": (
        {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "age": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            },
            "required": ["name"],
        },
        "A person:",
        200,
    ),
    "classify": ({"enum": ["positive", "negative", "mixed"]}, "The review is", 16),
    "tags": ({"type": "array", "items": WORD, "minItems": 1, "maxItems": 4}, "Tags:", 120),
    "point": (
        _object(x={"type": "number", "minimum": -1, "maximum": 1}, y={"type": "number"}),
        "A point:",
        120,
    ),
    "date": (_object(day={"type": "string", "format": "date"}, ok={"type": "boolean"}), "A day:", 60),
    "code": ({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"}, "The code:", 24),
    "shape": (
        {
            "oneOf": [
                _object(kind={"const": "circle"}, radius={"type": "integer", "minimum": 1, "maximum": 99}),
                _object(kind={"const": "square"}, side={"type": "integer", "minimum": 1, "maximum": 99}),
            ]
        },
        "A shape:",
        40,
    ),
    "merged": (
        {"allOf": [_object(a={"type": "integer", "minimum": 5}), {"properties": {"a": {"maximum": 9}}}]},
        "A number:",
        24,
    ),
    "tree": (
        {
            "$ref": "#/$defs/t",
            "$defs": {
                "t": _object(v=WORD, kids={"type": "array", "items": {"$ref": "#/$defs/l"}, "maxItems": 2}),
                "l": _object(v=WORD),
            },
        },
        "A tree:",
        200,
    ),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--schemas", nargs="*", default=list(SCHEMAS), choices=list(SCHEMAS))
    parser.add_argument("--engine", default="xgrammar", choices=["xgrammar", "llguidance"])
    arguments = parser.parse_args()
    engine = Engine.load()
    runs = complete = wrong = 0
    for name in arguments.schemas:
        schema, prompt, limit = SCHEMAS[name]
        found = judged(engine, schema, prompt, limit, arguments.seeds, arguments.engine)
        valid = [each for each in found if each.status == "valid"]
        bad = [each for each in found if each.status == "invalid"]
        validator = jsonschema.Draft202012Validator(
            schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        bad += [each for each in valid if not validator.is_valid(json.loads(each.structure))]
        runs, complete, wrong = runs + len(found), complete + len(valid), wrong + len(bad)
        print(f"{name:10} {len(valid)} of {len(found)} complete, {len(bad)} wrong", flush=True)
        for each in bad:
            print(f"    {each.reason}: {each.structure!r}")
    print(f"{runs} runs: {complete / runs:.1%} complete, {wrong} wrong")
    engine.close()
    return int(wrong > 0 or complete < 0.98 * runs)


def judged(
    engine: Engine, schema: dict[str, Any], prompt: str, limit: int, count: int, masks: str
) -> list[Judged]:
    """The verdicts on `count` samples, drawn side by side."""
    request = Request(
        prompt,
        grammar=Grammar(json_schema=schema, engine=masks),  # type: ignore[arg-type]
        sampling=SamplingParams(temperature=1.5),
        strategy=BestOf(n=count, select="mean"),
        max_new_tokens=limit,
        seed=0,
        num_candidates=0,
    )
    return [event for event in engine.generate(request).events if isinstance(event, Judged)]


if __name__ == "__main__":
    sys.exit(main())
