"""Links that restore the page."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest

from backend.errors import RequestError
from backend.stages import ORDERS
from ui import knobs
from ui.link import Link, parse
from ui.tabs import beams, samples, speculate
from ui.tabs.fields import Fields


def test_a_link_restores_prompt_settings_seed_tab_and_token() -> None:
    settings = {
        **knobs.DEFAULTS,
        "temperature": 1.25,
        "order": list(reversed(ORDERS["vllm"])),
        "logit_bias": {"198": -100},
        "stop": ["\n\n", "ü&="],
        "chat": True,
    }
    link = Link("a & b = ü\n<c>", "beams", {**settings, "seed": 12}, '{"num_beams": 3}', 3, "a/model")
    assert parse(dict(parse_qsl(link.query()))) == link


def test_a_link_leaves_defaults_out() -> None:
    assert Link("a").query() == "prompt=a&tab=inspect"


def test_a_named_order_reads_well_in_a_link() -> None:
    query = Link("a", settings={"order": "llama.cpp"}).query()
    assert "order=llama.cpp" in query
    assert parse(dict(parse_qsl(query))).settings["order"] == "llama.cpp"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"prompt": "a", "top_p": "2"}, "top_p must be .* between 0 and 1, got 2"),
        ({"prompt": "a", "top_p": "<img>"}, "top_p in the link cannot be read"),
        ({"prompt": "a", "top_p": "NaN"}, "top_p must be"),
        ({"prompt": "a", "token": "-1"}, "token in the link must be a whole number"),
        ({"prompt": "a", "stop": "[" * 100_000}, "stop in the link cannot be read"),
    ],
)
def test_a_malformed_link_is_refused_by_name(query: dict[str, str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        parse(query)


def test_a_prompt_too_long_for_a_link_is_refused() -> None:
    with pytest.raises(RequestError, match=r"the link would have 7,0\d\d characters, at most 6,000 work"):
        Link("x" * 7000).query()


TABS = (beams, samples, speculate)


@pytest.mark.parametrize("tab", TABS)
def test_a_link_holds_the_fields_that_were_changed(tab) -> None:
    fields = Fields("x", tab.FIELDS, tab.NOTE)
    changed = fields.changed({"values": tab.START | {"max_new_tokens": 7, "unknown": 1}})
    assert changed == {"max_new_tokens": 7}
    assert fields.from_link('{"max_new_tokens": 7, "unknown": 1}') == {"max_new_tokens": 7}
    assert fields.value(3, {"max_new_tokens": 7})["values"] == tab.START | {"max_new_tokens": 7}


@pytest.mark.parametrize(
    "text", ["", "[1]", "null", "{", "[" * 100_000, '{"num_beams": "4"}', '{"num_beams": true}']
)
def test_fields_of_a_malformed_link_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="in the link"):
        Fields("x", beams.FIELDS).from_link(text)
