"""The Structure tab's payloads and its shipped grammars, without a page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.comparison import first_unequal
from backend.errors import GrammarError
from backend.events import DraftedToken, DraftVerified, Finished, GrammarStep, Judged, TokenDecoded
from backend.request import Grammar
from tests.grammar.byte_engines import compiled
from ui.payloads import structure
from ui.presets.files import PresetError
from ui.presets.lessons import load_lessons
from ui.runs.log import Log
from ui.runs.structure import StructureFields, StructureState, error_report
from ui.session import View
from ui.tabs.lesson_bar import settings, values
from ui.tabs.structure import FOLDER, START, request


def step(index: int, mass: float = 1.0, **fields: Any) -> TokenDecoded:
    grammar = GrammarStep(**({
        "num_allowed": 3, "feasible_mass": mass, "masked_id": None, "masked_label": None,
        "masked_logprob": None, "forced": False, "is_free": False,
    } | fields))  # fmt: skip
    return TokenDecoded(
        sample=0, index=index, position=index, token_id=index, label=f"t{index}", text=f"t{index}",
        model_logprob=-0.6931471805599453, logprob=0.0, rank=1, entropy=0.0, luck=0.0, uncut_winner=None,
        stages=(), candidates=None, grammar=grammar,
    )  # fmt: skip


def test_every_shipped_grammar_compiles_and_makes_its_request() -> None:
    lessons = load_lessons(FOLDER)
    names = [lesson.name for lesson in lessons]
    assert names == ["person", "classify", "date", "arithmetic", "nested", "fight", "reason", "tool"]
    for lesson in lessons:
        asked = request(lesson.prompt, settings(lesson), values(lesson, START), "")
        assert asked.grammar == StructureFields(**lesson.fields).grammar()
        assert (asked.max_new_tokens, asked.chat, asked.seed) == (
            lesson.max_new_tokens,
            lesson.chat,
            lesson.seed,
        )
        assert asked.sampling == lesson.settings
        assert compiled(**{lesson.fields["kind"]: lesson.fields["source"]}).num_rules > 0


def test_a_grammar_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "position: 1\ntab: structure\ntitle: T\nprompt: p\nquestion: q?\nlook_for: l\nanswer: a\n"
        "max_new_tokens: 4\nshows:\n  - {claim: result, verdict: valid}\n"
        "fields:\n  kind: lark\n"
    )
    with pytest.raises(PresetError, match="kind must be one of json_schema, regex, ebnf, structural_tag"):
        load_lessons(tmp_path)
    assert StructureFields(kind="regex", source="a", reason_first=3).grammar() == Grammar(
        regex="a", reason_first=3
    )


def test_the_steps_against_the_model_come_lowest_first() -> None:
    masses = [0.9, 0.04, 0.01, 0.5, 0.001, 0.03, 0.02, 0.049, 0.0001, 0.06]
    steps = [step(index, mass) for index, mass in enumerate(masses)]
    assert [low.index for low in structure.fights(steps)] == [8, 4, 2, 6, 5, 1, 7]
    assert structure.fights([step(0, 0.0, is_free=True)]) == []


def test_tokens_that_came_together_are_those_accepted() -> None:
    drafts = tuple(DraftedToken(n, "x", "accepted", 1.0, 1.0, None, None) for n in range(3))
    event = DraftVerified(0, 4, drafts, 2, 7, "y", "recovered", None, 0.0, 0.0)
    assert structure.jumped([step(0), event]) == {4, 5}


def test_a_row_tells_what_the_grammar_meant() -> None:
    shown = structure.row(
        step(1, 0.25, masked_id=9, masked_label=" no", masked_logprob=-0.6931471805599453), True
    )
    assert shown == {
        "label": "t1", "text": "t1", "p": 0.5, "jumped": True, "allowed": 3, "mass": 0.25, "forced": False,
        "free": False, "wanted": " no", "wanted_p": 0.5,
    }  # fmt: skip


def test_only_a_valid_json_value_is_laid_out() -> None:
    def judged(status: Any, text: str) -> Judged:
        return Judged(0, status, "", "", text)

    assert structure.parsed(judged("valid", '{"a": [1]}')) == '{\n  "a": [\n    1\n  ]\n}'
    assert structure.parsed(judged("incomplete", '{"a": 1}')) == ""
    assert structure.parsed(judged("valid", "2024-01-01")) == ""
    assert structure.parsed(None) == ""


def test_an_error_shows_the_line_it_is_about_cut_around_the_place() -> None:
    source = "first\n" + "x" * 100 + "!" + "y" * 100
    report = error_report(GrammarError("bad", line=2, column=101), source)
    drawn = structure.compiled(report)
    assert (drawn["line"], drawn["column"]) == (2, 101)
    assert drawn["before"] == "x" * 39
    assert drawn["after"] == "!" + "y" * 60
    assert structure.compiled(error_report(GrammarError("bad"), source))["line"] is None


def test_only_the_end_of_text_is_called_an_end() -> None:
    """A step without text may also be the first half of a character."""
    for reason, end in (("eos", 1), ("length", None), ("stop", None)):
        steps = [replace(step(0), text=""), replace(step(1), text="")]
        state = StructureState(has_beside=True, beside=Log(events=list(steps)))
        assert state.beside.finished is None
        state.beside.events.append(Finished(reason, "", 1, 0, 2, 0.1, 0.1, 0.1, 10.0, time=1.0))
        shown = structure.beside(View(), state)
        assert shown is not None
        assert (shown["tokens"], shown["difference"], shown["end"]) == (["", ""], None, end)


def test_the_first_difference() -> None:
    left, right = [step(0), step(1)], [step(0), step(5), step(6)]
    assert first_unequal(left, right) == 1
    assert first_unequal(left, left[:1], ended=False) is None
    assert first_unequal(left, left[:1]) == 1


@pytest.mark.parametrize(("num_low", "shown", "more"), [(0, 0, 0), (6, 6, 0), (7, 6, 1), (30, 6, 24)])
def test_steps_against_the_model_that_are_not_listed_are_counted(num_low: int, shown: int, more: int) -> None:
    view = View()
    view.steps = [step(index, 0.01) for index in range(num_low)]
    payload = structure.texts(view, StructureState())
    assert (len(payload["fights"]), payload["more_fights"]) == (shown, more)
    assert payload["fights"] == sorted(payload["fights"])
