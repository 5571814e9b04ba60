"""The endpoints of experiments over HTTP and as MCP tools, and the README's examples."""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from backend import Request, SamplingParams
from tests.browser.conftest import Site
from tests.browser.test_endpoints import ENDPOINTS, call

README = Path(__file__).parent.parent.parent / "README.md"


def answer(site: Site, name: str, *data: Any) -> Any:
    kind, outputs = call(site, name, list(data))
    assert kind == "complete", outputs
    return outputs[0]


def test_compare_gives_texts_and_the_verified_cause(site: Site) -> None:
    settings = {"seed": 3, "max_new_tokens": 8}
    found = answer(site, "compare", "Once upon a time", [{}, {}, {"top_p": 0.5}], settings)
    first, same, cut = found["lanes"]
    assert found["seed"] == 3
    assert first["text"] == same["text"]
    assert same["difference"] is None
    assert cut["difference"]["causes"] == ["top_p"]
    assert "top-p 0.5 cut" in cut["difference"]["sentence"]
    alone = Request("Once upon a time", sampling=SamplingParams(top_p=0.5), seed=3, max_new_tokens=8)
    assert cut["text"] == site.engine.generate(alone).text


def test_sweep_gives_every_run(site: Site) -> None:
    rows = answer(site, "sweep", "The sea", "top_k", 1, 2, 2, 2, {"seed": 5, "max_new_tokens": 4})
    assert [(row["value"], row["seed"]) for row in rows] == [(1, 5), (1, 6), (2, 5), (2, 6)]
    assert rows[0]["text"] == rows[1]["text"]  # top-k 1 leaves no choice
    assert rows[0]["survivors"] == 1
    assert rows[2]["survivors"] == 2


def test_measure_tells_a_loop(site: Site) -> None:
    found = answer(site, "measure", ["one two one two one two one two", "The cat sat on the mat."])
    loop, plain = found["texts"]
    assert loop["phrase"] == {"num_tokens": 2, "num_times": 3}  # the first token is not predicted
    assert plain["phrase"] is None
    assert 0 <= found["self_bleu"] < 0.1
    assert plain["perplexity"] == pytest.approx(site.engine.score("The cat sat on the mat.").perplexity)


def test_code_out_and_settings_in(site: Site) -> None:
    written = answer(site, "export_code", "Hi", "openai", {"temperature": 0.5, "top_p": 0.9, "seed": 2})
    assert json.loads(written["code"])["temperature"] == 0.5
    found = answer(site, "read_settings", written["code"])
    assert found["source"] == "OpenAI-style"
    assert (found["prompt"], found["settings"]["top_p"], found["settings"]["seed"]) == ("Hi", 0.9, 2)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("compare", ["p", [{}], None], "2 to 8 lanes"),
        ("compare", ["p", [{}, {"colour": 1}], None], "lane B has the unknown setting"),
        ("sweep", ["p", "order", 0, 1, 2, 2, None], "not 'order'"),
        ("sweep", ["p", "top_p", 0, 1, 2, 1000, None], "2,000 runs"),
        ("measure", [[]], "1 to 64 texts"),
        ("measure", [[3]], "1 to 64 texts"),
        ("export_code", ["p", "tgi", None], "target must be one of"),
        ("read_settings", ["[]"], "must be a JSON object"),
        ("read_settings", [5], "text must be JSON text"),
    ],
)
def test_bad_values_are_named(site: Site, name: str, data: list[Any], message: str) -> None:
    kind, found = call(site, name, data)
    assert kind == "error"
    assert message in (found if isinstance(found, str) else found["error"])


def test_every_endpoint_is_an_mcp_tool_with_described_parameters(site: Site) -> None:
    async def ask() -> tuple[list[Any], Any]:
        async with (
            streamable_http_client(f"{site.url}gradio_api/mcp/") as (reading, writing, _),
            ClientSession(reading, writing) as session,
        ):
            await session.initialize()
            tools = (await session.list_tools()).tools
            generate = next(tool.name for tool in tools if tool.name.endswith("generate"))
            values = {"prompt": "The sea", "temperature": 0, "max_new_tokens": 3}
            return tools, await session.call_tool(generate, values)

    with ThreadPoolExecutor(1) as apart:  # this thread may hold playwright's event loop
        tools, result = apart.submit(lambda: asyncio.run(ask())).result()
    by_name = {next(name for name in ENDPOINTS if tool.name.endswith(name)): tool for tool in tools}
    assert set(by_name) == set(ENDPOINTS)
    assert len(tools) == len(ENDPOINTS)
    for tool in tools:
        assert len(tool.description) > 20
        for parameter in tool.inputSchema["properties"].values():
            assert parameter.get("description"), tool.name
    greedy = Request("The sea", sampling=SamplingParams(temperature=0), max_new_tokens=3)
    assert not result.isError
    assert site.engine.generate(greedy).text in json.dumps(
        [item.text for item in result.content], ensure_ascii=False
    )


def test_the_examples_of_the_readme_run(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Every Python block under "Over HTTP", as it stands but for the address."""
    section = README.read_text(encoding="utf-8").split("## Over HTTP")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    code = "\n".join(blocks).replace("http://127.0.0.1:7860", site.url)
    for name in ENDPOINTS:
        assert f'api_name="/{name}"' in code, name
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out
