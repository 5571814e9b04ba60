"""The named endpoints and the files the server gives out, over HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from backend import Trace
from tests.browser.conftest import Site

ENDPOINTS = (
    "generate",
    "score",
    "beam_search",
    "best_of",
    "speculate",
    "structure",
    "compare",
    "sweep",
    "measure",
    "export_code",
    "read_settings",
    "run_together",
    "cache_size",
)
JSON = {"Content-Type": "application/json"}


def call(site: Site, name: str, data: list[Any]) -> tuple[str, Any]:
    """("complete", outputs) or ("error", message) of one call."""
    start = httpx.post(
        f"{site.url}gradio_api/call/{name}", content=json.dumps({"data": data}), headers=JSON, timeout=60
    )
    if start.status_code != 200:
        return "error", start.text
    answer = httpx.get(f"{site.url}gradio_api/call/{name}/{start.json()['event_id']}", timeout=120).text
    lines = [line for line in answer.splitlines() if line]
    kind = next(line.removeprefix("event: ") for line in reversed(lines) if line.startswith("event: "))
    return kind, json.loads(
        next(line for line in reversed(lines) if line.startswith("data: ")).removeprefix("data: ")
    )


def arguments(**changes: Any) -> list[Any]:
    values: dict[str, Any] = {
        "prompt": "The sea",
        "temperature": 0.8,
        "top_k": 0,
        "top_p": 0.95,
        "min_p": 0.0,
        "typical_p": 1.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "no_repeat_ngram_size": 0,
        "logit_bias": None,
        "order": None,
        "max_new_tokens": 4,
        "stop": None,
        "seed": 3,
        "chat": False,
    }
    return list((values | changes).values())


def test_generate_gives_text_and_trace(site: Site) -> None:
    kind, (text, document) = call(site, "generate", arguments())
    assert kind == "complete"
    trace = Trace.from_json(json.dumps(document))
    assert trace.text == text
    assert len(trace.token_ids) == 4
    assert trace.started.seed == 3


def test_score_gives_perplexity_and_trace(site: Site) -> None:
    kind, (perplexity, document) = call(site, "score", ["The cat sat on the mat."])
    assert kind == "complete"
    trace = Trace.from_json(json.dumps(document))
    assert trace.perplexity == pytest.approx(perplexity)
    assert all(step.forced for step in trace.steps())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_k": 2.5}, "top_k must be a whole number from 0 to 1000000, got 2.5"),
        ({"top_k": None}, "top_k must be a whole number from 0 to 1000000, got None"),
        ({"top_k": "9"}, "top_k must be a whole number from 0 to 1000000, got '9'"),
        ({"top_k": 1e9}, "top_k must be a whole number from 0 to 1000000, got 1000000000"),
        ({"temperature": float("nan")}, "between 0 and 100, got nan"),
        ({"temperature": True}, "between 0 and 100, got True"),
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": None}, "prompt must be a list of token ids, got None"),
        ({"stop": 5}, "stop must be a list of strings, got 5"),
        ({"logit_bias": {"49152": 1}}, "logit_bias holds token id 49152"),
        ({"logit_bias": [1]}, "logit_bias must map token ids to numbers, got [1]"),
        ({"order": ["top_k"]}, "order must name each of"),
        ({"chat": "yes"}, "chat must be true or false, got 'yes'"),
        ({"prompt": "x" * 300_000}, "prompt has 300,000 characters, at most 200,000 are allowed"),
    ],
)
def test_a_bad_value_is_named_and_the_next_call_works(
    site: Site, changes: dict[str, Any], message: str
) -> None:
    kind, answer = call(site, "generate", arguments(**changes))
    assert kind == "error"
    assert message in (answer if isinstance(answer, str) else answer["error"])
    assert call(site, "generate", arguments(max_new_tokens=1))[0] == "complete"


def test_only_the_named_endpoints_are_public_and_each_is_described(site: Site) -> None:
    info = httpx.get(f"{site.url}gradio_api/info", timeout=30).json()
    assert set(info["named_endpoints"]) == {f"/{name}" for name in ENDPOINTS}
    assert info["unnamed_endpoints"] == {}
    parameters = info["named_endpoints"]["/generate"]["parameters"]
    assert {parameter["parameter_name"] for parameter in parameters} >= {
        "prompt",
        "temperature",
        "top_k",
        "seed",
    }


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/proc/self/environ",
        "../../../../etc/passwd",
        "%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/etc/./passwd",
        "app.py",
    ],
)
def test_files_of_the_server_are_not_given_out(site: Site, path: str) -> None:
    answer = httpx.get(f"{site.url}gradio_api/file={path}", timeout=30)
    assert answer.status_code in (403, 404)
    assert "root:" not in answer.text


def test_plotly_is_served_from_its_own_wheel(site: Site) -> None:
    page = httpx.get(site.url, timeout=30).text
    source = page[page.index("gradio_api/file=") :].split('"')[0].split("\\")[0]
    answer = httpx.get(site.url + source, timeout=30)
    assert answer.status_code == 200
    assert "plotly.js" in answer.text[:300]
