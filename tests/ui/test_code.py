"""What the Code tab writes down."""

from __future__ import annotations

import pytest

from backend import BeamSearch, BestOf, Sample
from backend.errors import RequestError
from backend.interop.export import TARGETS, known_as
from ui import knobs
from ui.tabs.code import Exported, payload, request


def test_the_fields_choose_the_strategy() -> None:
    for name, strategy in (("sample", Sample()), ("beams", BeamSearch(3)), ("best_of", BestOf(3))):
        assert request("p", knobs.DEFAULTS, {"strategy": name, "n": 3}).strategy == strategy
    with pytest.raises(RequestError, match="strategy must be one of sample, beams, best_of, got 'x'"):
        request("p", knobs.DEFAULTS, {"strategy": "x", "n": 3})


def test_a_snippet_for_every_engine_with_the_knobs_of_the_session() -> None:
    settings = knobs.DEFAULTS | {"temperature": 0.35, "seed": 8}
    drawn = payload(settings, Exported("A prompt"), "some/model")
    assert [item["name"] for item in drawn["snippets"]] == list(TARGETS)
    for item in drawn["snippets"]:
        assert "0.35" in item["code"]
        assert "A prompt" in item["code"]
    assert "prompt is empty" in payload(settings, Exported(""), "some/model")["notice"]


def test_models_go_by_their_name_on_the_hub() -> None:
    assert known_as("smollm2-135m") == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert known_as("smollm2-360m") == "HuggingFaceTB/SmolLM2-360M-Instruct"
    assert known_as("/some/folder") == "/some/folder"
