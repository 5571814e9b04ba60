"""Random runs on the bundled model: whatever is called valid is valid, and nearly all runs end in time.

PLAYGROUND_FULL_GRID=1 takes 30 samples of each of ten schemas, else a few of the shortest.
"""

from __future__ import annotations

import json

import jsonschema
import pytest

from backend import Engine
from tests.conformance.random_runs import SCHEMAS, judged
from tests.running import FULL

NAMES = list(SCHEMAS) if FULL else ["classify", "merged"]
COUNT = 30 if FULL else 4

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("masks", ["xgrammar", "llguidance"] if FULL else ["xgrammar"])
def test_random_runs_end_in_time_and_are_valid(bundled_engine: Engine, masks: str) -> None:
    num_complete = 0
    for name in NAMES:
        schema, prompt, limit = SCHEMAS[name]
        validator = jsonschema.Draft202012Validator(
            schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        found = judged(bundled_engine, schema, prompt, limit, COUNT, masks)
        assert len(found) == COUNT
        assert {event.status for event in found} <= {"valid", "incomplete"}
        for event in found:
            if event.status == "valid":
                num_complete += 1
                validator.validate(json.loads(event.structure))
    assert num_complete >= 0.98 * COUNT * len(NAMES)
