"""The lessons as shipped, and the refusals of the loader."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend import BeamSearch, BestOf
from ui.page import LESSONS
from ui.presets.files import PresetError
from ui.presets.lessons import LESSONS_FOLDER, load_lessons
from ui.presets.request_sets import load_request_sets
from ui.runs import lanes
from ui.runs.claims import CLAIMS
from ui.tabs import beams, compare, samples
from ui.tabs.lesson_bar import settings, values

VALID = """
position: 1
tab: beams
title: A title
prompt: Some text
question: Why?
look_for: Something to see
answer: So.
shows:
  - {claim: against_greedy, higher: sum}
max_new_tokens: 8
fields:
  num_beams: 2
"""


def test_every_lesson_of_the_folder_loads_and_makes_a_request() -> None:
    lessons = load_lessons()
    assert len(lessons) == len(list(LESSONS_FOLDER.glob("*.yaml"))) >= 7
    assert {lesson.tab for lesson in lessons} >= {"beams", "samples", "compare"}
    for lesson in lessons:
        if lesson.tab == "beams":
            asked = beams.request(lesson.prompt, settings(lesson), values(lesson, beams.START), "")
            assert asked.strategy == BeamSearch(**lesson.fields)
        elif lesson.tab == "samples":
            asked = samples.request(
                lesson.prompt, settings(lesson), values(lesson, samples.START), "vote", ""
            )
            assert asked.strategy == BestOf(lesson.fields["n"], "mbr", lesson.fields.get("answer"))
            assert asked.sampling == lesson.settings
        elif lesson.tab == "compare":
            fields = values(lesson, compare.START)
            made = lanes.requests(lesson.prompt, settings(lesson), fields["lanes"], "")
            assert len(made) == len(lesson.fields["lanes"])
            assert fields["max_new_tokens"] == lesson.max_new_tokens
            continue
        else:
            continue
        assert (asked.max_new_tokens, asked.chat, asked.seed) == (
            lesson.max_new_tokens,
            lesson.chat,
            lesson.seed,
        )


def test_every_lesson_asks_and_claims_something_and_every_claim_is_made_by_one() -> None:
    lessons = [*(each for folder in LESSONS for each in load_lessons(folder)), *load_request_sets().values()]
    for lesson in lessons:
        assert "?" in lesson.question, lesson.name
        assert lesson.shows, lesson.name
    made = {(claim.tab, claim.name) for lesson in lessons for claim in lesson.shows}
    assert made == {(tab, name) for tab, names in CLAIMS.items() for name in names}


def test_the_stop_rule_of_a_lesson_reaches_the_request(tmp_path: Path) -> None:
    for text, rule in (("true", True), ("false", False), ("never", "never")):
        (tmp_path / "a.yaml").write_text(VALID + f"  early_stopping: {text}\n")
        (lesson,) = load_lessons(tmp_path)
        asked = beams.request(lesson.prompt, settings(lesson), values(lesson, beams.START), "")
        assert asked.strategy == BeamSearch(2, early_stopping=rule)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (VALID + "colour: red\n", r"a\.yaml has the unknown key 'colour'"),
        (VALID.replace("title: A title\n", ""), r"a\.yaml lacks the key 'title'"),
        (VALID.replace("prompt: Some text", "prompt: 7"), r"a\.yaml: prompt must be text, got 7"),
        (VALID.replace("tab: beams", "tab: bemas"), r"a\.yaml: tab must be one of beams, .* got 'bemas'"),
        (VALID.replace("num_beams: 2", "num_beams: 0"), r"a\.yaml: fields: num_beams must be .* got 0"),
        (VALID.replace("num_beams", "beams"), r"a\.yaml: fields has the unknown key 'beams'"),
        (
            VALID + "settings: {top_p: 2}\n",
            r"a\.yaml: settings: top_p must be a number between 0 and 1, got 2",
        ),
        (VALID + "chat: 1\n", r"a\.yaml: chat must be true or false, got 1"),
        (VALID + "seed: -1\n", r"a\.yaml: seed must be a whole number from 0, got -1"),
        (
            VALID.replace("tokens: 8", "tokens: 0"),
            r"a\.yaml: max_new_tokens must be a whole number from 1, got 0",
        ),
        ("a: [", r"a\.yaml is not YAML"),
        (VALID.replace("question: Why?\n", ""), r"a\.yaml lacks the key 'question'"),
        (VALID.replace("answer: So.", "answer: ''"), r"a\.yaml: answer must be text, got ''"),
        (VALID.replace("  - {claim: against_greedy, higher: sum}", "  []"), "a list of at least one claim"),
        (VALID.replace("{claim: against_greedy, ", "{"), "shows must hold mappings with a claim"),
        (VALID.replace("against_greedy", "wins"), r"of beams one can claim best, .*, not 'wins'"),
        (VALID.replace("higher: sum", "lower: sum"), r"shows: against_greedy: .*argument"),
        (
            VALID.replace("tab: beams", "tab: compare")
            .replace("num_beams: 2", "lanes: [{}]")
            .replace("against_greedy, higher: sum", "lacks, text: x"),
            r"a\.yaml: fields: a comparison takes 2 to 8 lanes, got 1",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(PresetError, match=message):
        load_lessons(tmp_path)
