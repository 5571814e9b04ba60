"""What a running text costs the page per token: bytes sent, and milliseconds of browser and server.

    python tests/benchmarks/page_traffic.py [--lengths 50 2000] [--pace 15] [--all-tabs]

A tiny model answers every `pace` milliseconds, so that the figures are of the page and not of the model.
Bytes are those of the event stream, uncompressed; browser time is CPU time of the main thread; server time is
CPU time of the process, less that of the same run without a page. Opening the page is not counted. `behind`
is how long after the last step of the model the page has drawn the end. With --all-tabs every tab was opened
before.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

import argparse
import shutil
import time
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright

from backend import Engine, Request, SamplingParams
from tests import models
from tests.browser.conftest import serve
from ui.loading import Loader


class Traffic:
    """What one page has cost since it was opened."""

    def __init__(self, page: Any):
        self.num_bytes = 0
        self._devtools = page.context.new_cdp_session(page)
        self._devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._devtools.send("Network.enable")
        self._devtools.on("Network.dataReceived", self._add)

    def _add(self, event: dict[str, Any]) -> None:
        self.num_bytes += event["dataLength"]

    def read(self) -> tuple[float, float, float]:
        """Bytes, milliseconds of the main thread, milliseconds of this process."""
        metrics = self._devtools.send("Performance.getMetrics")["metrics"]
        task = next(item["value"] for item in metrics if item["name"] == "TaskDuration")
        return self.num_bytes, task * 1000, time.process_time() * 1000


def open_tabs(page: Any) -> None:
    """Open every tab once, and Inspect again."""
    tabs = page.locator("#pg-tabs .tab-container [role=tab]")
    for place in [*range(tabs.count()), 0]:
        tabs.nth(place).click()
        page.wait_for_timeout(500)


def measure(browser: Any, url: str, num_tokens: int, all_tabs: bool = False) -> tuple[list[float], float]:
    """One run, from the click to its last drawing.

    Returns:
        Bytes, browser and server milliseconds per token; the time at which the page showed the end.
    """
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(300_000)
    page.goto(
        f"{url}?{urlencode({'tab': 'inspect', 'temperature': 0, 'seed': 1, 'max_new_tokens': num_tokens})}"
    )
    page.wait_for_selector(".pg-tab-inspect .pg-token", state="attached")
    page.wait_for_timeout(3000)  # what opens the page
    if all_tabs:
        open_tabs(page)
    traffic = Traffic(page)
    before = traffic.read()
    page.locator(".pg-tab-inspect .pg-run").click()
    page.wait_for_selector(".pg-tab-inspect .pg-strip.pg-running", state="attached")
    page.wait_for_selector(".pg-tab-inspect .pg-strip:not(.pg-running)")
    ended = time.monotonic()
    page.wait_for_timeout(1000)  # the last drawings
    after = traffic.read()
    drawn = page.locator(".pg-tab-inspect .pg-token").count()
    assert drawn == num_tokens, f"{drawn} tokens are drawn"
    page.close()
    return [(b - a) / num_tokens for a, b in zip(before, after, strict=True)], ended


def without_page(engine: Engine, num_tokens: int) -> float:
    """Milliseconds of this process per token of the same run, nobody looking."""
    sampling = SamplingParams(temperature=0)
    before = time.process_time()
    engine.generate(Request("Once upon a time", sampling=sampling, max_new_tokens=num_tokens))
    return (time.process_time() - before) * 1000 / num_tokens


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[50, 2000])
    parser.add_argument(
        "--pace", type=float, default=15, help="milliseconds that one step of the model takes"
    )
    parser.add_argument("--all-tabs", action="store_true", help="open every tab before the run")
    options = parser.parse_args()
    engine = models.engine(models.llama(max_position_embeddings=4096), block_size=16, num_blocks=1024)
    forward, last_step = engine._runner.forward, time.monotonic()

    def paced(*args: Any) -> Any:
        nonlocal last_step
        time.sleep(options.pace / 1000)
        last_step = time.monotonic()
        return forward(*args)

    engine._runner.forward = paced  # type: ignore[method-assign, assignment]
    loader = Loader(lambda progress: engine)
    loader.start()
    blocks, url = serve(loader)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        measure(browser, url, 50)  # the first page compiles scripts
        for num_tokens in options.lengths:
            (sent, shown, served), ended = measure(browser, url, num_tokens, options.all_tabs)
            behind = ended - last_step
            served -= without_page(engine, num_tokens)
            costs = f"{sent:6.0f} B, {shown:5.2f} ms browser, {served:5.2f} ms server"
            print(f"{num_tokens:5} tokens: {costs}, per token; {behind:.2f} s behind")
        browser.close()
    blocks.close()
    engine.close()


if __name__ == "__main__":
    main()
