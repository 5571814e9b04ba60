"""A real page on the bundled model, and a Chromium to look at it."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

from app import RECORDING
from backend import Engine, Trace
from ui import page as page_module
from ui.loading import Loader
from ui.presets.lessons import Lesson
from ui.presets.settings import load_sampling_presets

REQUIRED = os.environ.get("PLAYGROUND_REQUIRE_BROWSER") == "1"
PATIENCE = 60_000  # milliseconds for anything that may wait for the model on a slow machine
# The row of tabs is measured after it is drawn; then what does not fit is in the menu.
MEASURED = """() => {
  const row = document.querySelector("#pg-tabs .tab-wrapper").getBoundingClientRect();
  const tabs = document.querySelectorAll("#pg-tabs .tab-container [role=tab]");
  return tabs.length > 0 && [...tabs].every((tab) => tab.getBoundingClientRect().right <= row.right);
}"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.slow)


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
    return blocks, str(blocks.local_url)


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


class Desk:
    """Opens pages and keeps the script errors of those that are open."""

    def __init__(self, browser: Any, site: Site) -> None:
        self.browser, self.site = browser, site
        self.errors: list[str] = []
        self._shared: Any = None

    def context(self, **options: Any) -> Any:
        made = self.browser.new_context(**({"viewport": {"width": 1440, "height": 900}} | options))
        made.set_default_timeout(PATIENCE)
        return made

    def open(self, page: Any, url: str) -> Any:
        page.goto(url)
        page.wait_for_selector(".pg-tab-inspect .pg-token, .pg-tab-score .pg-tokens", state="attached")
        page.wait_for_selector(".pg-knob-number", state="attached")
        page.wait_for_function(MEASURED)
        return page

    def watched(self, context: Any) -> Any:
        page = context.new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        return page

    def shared(self) -> Any:
        """The same browser page every time, opened anew; that takes half the time of a new profile."""
        if self._shared is None or self._shared.is_closed():
            self._shared = self.watched(self.context())
        self._shared.mouse.move(0, 0)
        return self.open(self._shared, self.site.url)


@pytest.fixture(scope="session")
def _desk(browser: Any, site: Site) -> Desk:
    return Desk(browser, site)


@pytest.fixture
def desk(_desk: Desk, site: Site) -> Iterator[Desk]:
    """No run of an earlier test goes on, and script errors fail the test."""
    blocks = site.engine.block_manager
    until(lambda: blocks.num_free_blocks == blocks.num_blocks, "the end of earlier runs")
    _desk.errors.clear()
    yield _desk
    assert _desk.errors == []


@pytest.fixture
def open_page(desk: Desk) -> Iterator[Callable[..., Any]]:
    """Opens the page in a profile of its own."""
    contexts = []

    def open_one(query: str = "", url: str = "", **options: Any) -> Any:
        contexts.append(desk.context(**options))
        return desk.open(desk.watched(contexts[-1]), (url or desk.site.url) + query)

    yield open_one
    for context in contexts:
        context.close()


@pytest.fixture
def page(desk: Desk) -> Any:
    return desk.shared()


def until(holds: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"still waiting after {seconds} s: {what}"
        time.sleep(0.02)


def open_tab(page: Any, title: str) -> None:
    """Open a tab by its title, out of the menu if it does not fit into the row."""
    tab = page.locator(f'#pg-tabs button[role="tab"]:has-text("{title}"):visible')
    if tab.count():
        tab.first.click()
    else:
        page.locator("#pg-tabs .overflow-menu > button").click()
        page.locator(f'#pg-tabs .overflow-dropdown button:has-text("{title}")').click()
    page.wait_for_selector(f'#pg-tabs button.selected:has-text("{title}")', state="attached")


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


def settled(page: Any, view: str, tab: str) -> None:
    """Wait for the last drawing of a run: the view runs no more, and Stop, part of that drawing, is off."""
    page.wait_for_selector(f"{view}:not(.pg-running)")
    page.wait_for_selector(f"#pg-{tab}-stop[disabled]", state="attached")


def start(page: Any, view: str, tab: str) -> None:
    """Press a tab's Run and wait until `view`, which counts what it shows, shows the new run."""
    with begun(page, view):
        page.click(f"#pg-{tab}-run")


@contextmanager
def begun(page: Any, view: str) -> Iterator[None]:
    """What is done inside begins a run: wait until `view` shows it."""
    shown = page.locator(view)  # a tab that was never opened shows nothing yet
    before = shown.get_attribute("data-number") if shown.count() else 0
    yield
    page.wait_for_selector(f"{view}:not([data-number='{before}'])")


def run(page: Any, prompt: str | None = None, wait: bool = True) -> None:
    if prompt is not None:
        page.fill("#pg-inspect-prompt textarea", prompt)
    start(page, ".pg-tab-inspect .pg-strip", "inspect")
    if wait:
        wait_for_end(page)


def wait_for_end(page: Any, tab: str = "inspect") -> None:
    settled(page, f".pg-tab-{tab} .pg-strip", tab)


def choose_lesson(page: Any, view: str, tab: str, lesson: Lesson) -> None:
    """Click a lesson's button, wait until its prompt and its fields are in place, and stop its run."""
    with begun(page, view):
        page.click(f'.pg-tab-{tab} [data-lesson="{lesson.name}"]')
    page.wait_for_selector(f'.pg-tab-{tab} [data-lesson="{lesson.name}"][aria-pressed="true"]')
    lesson_stands(page, tab, lesson)
    stop(page, view, tab)


def stop(page: Any, view: str, tab: str) -> None:
    """Press Stop of the run that `view` shows, unless it is over, and wait for the last drawing of it."""
    button = f"#pg-{tab}-stop"
    page.wait_for_selector(f"{button}:not([disabled]), {view}:not(.pg-running)", state="attached")
    page.evaluate("(query) => document.querySelector(query).click()", button)
    settled(page, view, tab)


def lesson_stands(page: Any, tab: str, lesson: Lesson) -> None:
    """Wait for what a lesson sets: the prompt, the tab's fields, the knobs."""
    page.wait_for_function(
        """([tab, prompt, limit, seed]) => {
          const value = (query) => document.querySelector(query).value;
          return value(`#pg-${tab}-prompt textarea`) === prompt &&
            value(`.pg-tab-${tab} [data-field="max_new_tokens"]`) === limit &&
            value('[data-setting="seed"]') === seed;
        }""",
        arg=[
            tab,
            lesson.prompt,
            str(lesson.max_new_tokens),
            "" if lesson.seed is None else str(lesson.seed),
        ],
    )


def score(page: Any, text: str) -> None:
    open_tab(page, "Score a text")
    page.fill("#pg-score-prompt textarea", text)
    start(page, ".pg-tab-score .pg-strip", "score")
    wait_for_end(page, "score")


def aim_at_bar(page: Any, plot: str, place: int) -> int:
    """Put the pointer into a curve's bar and wait until plotly has seen it; `place` counts from the tallest.

    Where a bar stands is asked of plotly, not computed from the picture. Returns the token's index.
    """
    page.wait_for_function(
        "([query, place]) => document.querySelector(query)?.data?.[0]?.x?.length > place", arg=[plot, place]
    )
    x, y, index = page.locator(plot).evaluate(
        """(node, place) => {
          node.scrollIntoView({ block: "center" });
          const bars = [...node.data[0].x].map((x, i) => [x, node.data[0].y[i]]).sort((a, b) => b[1] - a[1]);
          const [index, height] = bars[place];
          const { xaxis, yaxis } = node._fullLayout, box = node.getBoundingClientRect();
          const across = xaxis._offset + xaxis.d2p(index), down = yaxis._offset + yaxis.d2p(height / 2);
          return [box.x + across, box.y + down, index];
        }""",
        place,
    )
    page.mouse.move(x, y)
    page.locator(f"{plot} .hoverlayer .hovertext").wait_for()
    return int(index)
