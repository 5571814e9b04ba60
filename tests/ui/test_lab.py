"""The Lab's calculators, prompts and verdict."""

from __future__ import annotations

from typing import Any

import pytest

from backend.degeneration import METHODS, MIN_PROMPTS, Measured
from backend.errors import RequestError
from ui.payloads import lab as lab_payloads
from ui.payloads import worked as worked_payloads
from ui.runs.outcomes import Outcomes
from ui.session import View
from ui.tabs import lab
from ui.tabs.fields import check


def facts(name: str, **inputs: Any) -> dict[str, str]:
    result = worked_payloads.results({name: inputs})[name]
    assert result["error"] == ""
    return dict(result["facts"])


def test_every_calculator_opens_with_a_textbook_example() -> None:
    assert set(worked_payloads.results(None)) == {card["name"] for card in worked_payloads.CARDS}
    assert facts("softmax") == {"best": "0.8638"}
    assert facts("nucleus") == {"kept": "4", "their probability": "0.87"}
    assert facts("min_p") == {"cutoff": "0.04", "kept": "4"}
    assert facts("rounds") == {
        "tokens per round": "3.47",
        "limit for long drafts": "4.00",
        "reached": "86.7 %",
    }
    assert facts("beams") == {"first": "-1.0000", "second": "-0.5000", "wins": "the second"}
    assert facts("blocks") == {
        "one buffer wastes": "92.2 %",
        "blocks": "20",
        "tokens in the last": "16",
        "blocks waste": "0 %",
        "at worst": "4.7 %",
    }


def test_moved_sliders_move_the_numbers() -> None:
    assert facts("nucleus", top_p=0.5) == {"kept": "2", "their probability": "0.60"}
    assert facts("min_p", probabilities="0.05 0.006 0.004")["cutoff"] == "0.005"
    assert facts("rounds", a=0.8, k=4)["tokens per round"] == "3.36"
    assert facts("rounds", a=1, k=4)["limit for long drafts"] == "no limit"
    assert facts("blocks", tokens=100)["one buffer wastes"] == "97.6 %"
    assert facts("beams", penalty=0)["wins"] == "the first"
    bars = worked_payloads.results({"nucleus": {"top_p": 0.5}})["nucleus"]["bars"]
    assert [bar[3] for bar in bars] == [True, True, False, False, False, False]


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("softmax", {"logits": "a"}, "'a' is not a number"),
        ("softmax", {"logits": 3}, "logits must be numbers"),
        ("softmax", {"temperature": "hot"}, "temperature must be a number, got 'hot'"),
        ("nucleus", {"probabilities": "0.9 0.9"}, "add up to at most 1, these to 1.8"),
        ("beams", {"first": "-1"}, "first takes two numbers, a sum and a length, got 1"),
        (
            "blocks",
            {"tokens": 4000, "buffer": 256},
            "4000 tokens must be 1 or more and fit the buffer of 256",
        ),
        ("rounds", {"a": float("nan")}, "a must be a number, got 'nan'"),
    ],
)
def test_an_input_that_cannot_be_used_is_named_on_its_card(name: str, inputs: Any, message: str) -> None:
    found = worked_payloads.results({name: inputs})
    assert message in found[name]["error"]
    assert not any(result["error"] for other, result in found.items() if other != name)


def test_the_experiment_opens_with_enough_prompts() -> None:
    found = lab.prompts()
    assert len(found) >= MIN_PROMPTS
    assert lab.lines("\n".join(found)) == found
    for text, got in (("", 0), ("a\n" * 67, 67)):
        with pytest.raises(RequestError, match=f"1 to 66 prompts, one a line, got {got}"):
            lab.lines(text)


def test_its_fields_are_checked() -> None:
    assert check(lab.FIELDS, lab.START | {"max_new_tokens": 256.0})["max_new_tokens"] == 256
    with pytest.raises(RequestError, match="new tokens must be a whole number from 1 to 256, got 257"):
        check(lab.FIELDS, lab.START | {"max_new_tokens": 257})
    for seed in (1.5, "x", float("nan"), True):
        with pytest.raises(RequestError, match="seed must be a whole number"):
            check(lab.FIELDS, lab.START | {"seed": seed})


def row(perplexity: float, repeats: float, num_texts: int = 20) -> Measured:
    return Measured(num_texts, perplexity, 0.0, repeats, 0.1, 1.0)


def test_the_verdict_follows_the_numbers_whichever_way_they_fall() -> None:
    rows = {"greedy": row(2.1, 0.33), "beam": row(1.6, 0.47), "nucleus": row(13.3, 0.004)}
    assert lab_payloads.verdict(rows, running=False) == (
        "The likelihood trap shows here: what is likelier repeats itself more. 4-grams again: greedy 33.0 %, "
        "beams 47.0 %, nucleus 0.4 %; perplexity: 2.1, 1.6, 13.3."
    )
    assert lab_payloads.verdict({**rows, "beam": row(1.6, 0.001)}, running=False).startswith(
        "The likelihood trap does not show here."
    )
    assert lab_payloads.verdict({**rows, "nucleus": row(13.3, 0.0, 3)}, running=False).endswith(
        "Only 3 texts: little to go by."
    )
    assert lab_payloads.verdict(rows, running=True) == ""
    assert lab_payloads.verdict({}, running=False) == ""


def test_before_anything_is_measured_both_tables_stand() -> None:
    drawn = lab_payloads.payload(View(), Outcomes())
    assert [item["name"] for item in drawn["measured"]] == list(METHODS)
    assert all(item["cells"][1:] == ["0", *["–"] * 5] for item in drawn["measured"])
    assert drawn["published"][1]["cells"] == ["Greedy", "5,000", "1.50", "73.7 %", "–", "0.50", "1.00"]
