"""A real page on the bundled model, and a Chromium to look at it."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

from app import RECORDING
from backend import Engine, Trace
from ui import page as page_module
from ui.loading import Loader
from ui.presets.settings import load_sampling_presets

REQUIRED = os.environ.get("PLAYGROUND_REQUIRE_BROWSER") == "1"
PATIENCE = 60_000  # milliseconds for anything that may wait for the model on a slow machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.slow)
            # A starved browser can miss any limit of time; what is wrong fails twice.
            item.add_marker(pytest.mark.flaky(reruns=1))


@dataclass
class Site:
    """A running page. `engine` is the one behind it, for counters that the page does not show."""

    url: str
    engine: Engine


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve(loader: Loader) -> tuple[Any, str]:
    recording = Trace.from_json(RECORDING.read_text(encoding="utf-8"))
    blocks = page_module.build(loader, recording, load_sampling_presets().values())
    blocks.launch(
        server_name="127.0.0.1",
        server_port=free_port(),
        prevent_thread_lock=True,
        quiet=True,
        head=page_module.head(),
        footer_links=[],
        ssr_mode=False,
        mcp_server=True,
    )
    return blocks, blocks.local_url


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    loaded = Engine.load()
    yield loaded
    loaded.close()


@pytest.fixture(scope="session")
def site(engine: Engine) -> Iterator[Site]:
    loader = Loader(lambda progress: engine)
    loader.start()
    blocks, url = serve(loader)
    yield Site(url, engine)
    blocks.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        if REQUIRED:
            pytest.fail("PLAYGROUND_REQUIRE_BROWSER=1, but no chromium is on the PATH")
        pytest.skip("no chromium on the PATH")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Any, site: Site) -> Iterator[Callable[..., Any]]:
    """Opens the page in a profile of its own; script errors on it fail the test."""
    contexts, errors = [], []

    def open_one(query: str = "", url: str = "", **options: Any) -> Any:
        context = browser.new_context(**({"viewport": {"width": 1440, "height": 900}} | options))
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((url or site.url) + query)
        page.wait_for_selector(".pg-tab-inspect .pg-token, .pg-tab-score .pg-tokens", state="attached")
        page.wait_for_selector(".pg-knob-number", state="attached")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture
def page(open_page: Callable[..., Any]) -> Any:
    return open_page()


def until(holds: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"still waiting after {seconds} s: {what}"
        time.sleep(0.02)


def open_tab(page: Any, title: str) -> None:
    """Open a tab by its title, out of the menu if it does not fit into the row."""
    page.wait_for_timeout(300)  # the row is measured, and what does not fit moves into the menu
    tab = page.locator(f'button[role="tab"]:has-text("{title}"):visible')
    if tab.count():
        tab.first.click()
        return
    page.locator("#pg-tabs .overflow-menu > button").click()
    page.locator(f'#pg-tabs .overflow-dropdown button:has-text("{title}")').click()


def text_of(page: Any, selector: str) -> str:
    return page.locator(selector).first.text_content() or ""


def labels(page: Any, panel: str = ".pg-tab-inspect") -> list[str]:
    """What each token of the strip reads."""
    return page.locator(f"{panel} .pg-token").all_text_contents()


def set_run(page: Any, **values: object) -> None:
    """Set fields of the Run group: max_new_tokens, seed, stop, logit_bias."""
    for name, value in values.items():
        page.fill(f'[data-setting="{name}"]', str(value))


def set_knob(page: Any, stage: str, value: float) -> None:
    page.fill(f'.pg-knob[data-stage="{stage}"] .pg-knob-number', str(value))


def run(page: Any, prompt: str | None = None, wait: bool = True) -> None:
    if prompt is not None:
        page.fill("#pg-inspect-prompt textarea", prompt)
    before = page.get_attribute(".pg-tab-inspect .pg-strip", "data-number")
    page.click("#pg-inspect-run")
    page.wait_for_selector(f".pg-tab-inspect .pg-strip:not([data-number='{before}'])")
    if wait:
        wait_for_end(page)


def wait_for_end(page: Any, panel: str = ".pg-tab-inspect") -> None:
    page.wait_for_selector(f"{panel} .pg-strip:not(.pg-running)")


def score(page: Any, text: str) -> None:
    page.click('button[role="tab"]:has-text("Score a text")')
    page.fill("#pg-score-prompt textarea", text)
    page.click("#pg-score-run")
    page.wait_for_selector(".pg-tab-score .pg-token, .pg-tab-score .pg-notice:not([hidden])")
    wait_for_end(page, ".pg-tab-score")
