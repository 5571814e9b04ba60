"""Assembles the page: header, knobs and tabs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gradio as gr
import plotly

from backend import Trace
from ui import components, diffs, knobs
from ui.api.cache import CacheApi
from ui.api.defaults import fill_left_out
from ui.api.experiments import ExperimentsApi
from ui.api.generation import Api
from ui.header import Header
from ui.loading import Loader
from ui.payloads import run as payloads
from ui.presets.lessons import LESSONS_FOLDER, load_lessons
from ui.presets.settings import SamplingPreset, menu_entry
from ui.session import Session, take_settings
from ui.tabs import speculate, structure
from ui.tabs.beams import Beams
from ui.tabs.code import Code
from ui.tabs.compare import Compare
from ui.tabs.inspect import Inspect
from ui.tabs.kv_cache import KvCache
from ui.tabs.lab import Lab
from ui.tabs.samples import Samples
from ui.tabs.score import Score
from ui.tabs.speculate import Speculate
from ui.tabs.structure import Structure
from ui.tabs.sweep import SweepTab
from ui.tabs.tab import QUIET, Page, Tab, Updates

# The tabs from left to right; a new one is added here.
TABS: list[type[Tab]] = [
    Inspect,
    Compare,
    SweepTab,
    Beams,
    Samples,
    Speculate,
    KvCache,
    Structure,
    Score,
    Lab,
    Code,
]
LESSONS = (LESSONS_FOLDER, speculate.FOLDER, structure.FOLDER)
PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"


def head() -> str:
    """What the page's head needs: styles, shared script, and plotly from its own wheel."""
    return f'{components.head()}\n<script defer src="gradio_api/file={PLOTLY}"></script>'


def build(
    loader: Loader, recording: Trace | None = None, presets: Iterable[SamplingPreset] = ()
) -> gr.Blocks:
    """The page.

    Args:
        loader: loads the model; the page is usable before it is done.
        recording: the run shown at first paint.
        presets: the entries of the presets menu.
    """
    diffs.install()
    gr.set_static_paths([PLOTLY])
    settings = dict(knobs.DEFAULTS)
    if recording is not None:
        settings |= knobs.settings_of(recording.request.sampling)
    first = Session(settings, recording)
    lessons = [lesson for folder in LESSONS for lesson in load_lessons(folder)]
    opened: dict[str, gr.Tab] = {}
    with gr.Blocks(title="Decoding Playground", fill_width=True, analytics_enabled=False) as blocks:
        state = gr.State(first)
        header = Header(loader)
        with gr.Row(elem_id="pg-shell"):
            with gr.Column(elem_id="pg-side"):
                turned = components.build(
                    "knobs",
                    {"number": 1, "settings": settings, "activity": payloads.activity(first.inspect)},
                    "pg-knobs",
                    spec={**knobs.describe(map(menu_entry, presets)), "defaults": settings},
                )
            with gr.Column(elem_id="pg-main"), gr.Tabs(selected="inspect", elem_id="pg-tabs") as tabs:
                page = Page(loader, first, state, turned, tabs, lessons)
                for kind in TABS:
                    classes = f"pg-panel pg-tab-{kind.name}"
                    with gr.Tab(kind.title, id=kind.name, elem_classes=classes) as opened[kind.name]:
                        kind(page)
        for panel in page.panels.values():
            panel.wire()
            _draw_when_opened(opened[panel.name], panel)
        header.wire(page)
        header.restore_on(blocks)
        for api in (Api, ExperimentsApi, CacheApi):
            api(loader).wire()
        fill_left_out(blocks)

        def turn(session: Session, sent: Any) -> Updates:
            """The pictures that follow the knobs: those of the open tab, or of Inspect if it has none."""
            take_settings(session, sent)
            found = page.panels[session.tab]
            panel = found if found.turning else page.panels["inspect"]
            return panel.draw(session, *panel.turning)

        turned.turn(
            turn,
            inputs=[state, turned],
            outputs=[card for panel in page.panels.values() for card in panel.turning],
            trigger_mode="always_last",
            **QUIET,
        )
    return blocks


def _draw_when_opened(tab: gr.Tab, panel: Tab) -> None:
    turned = panel.page.knobs

    def opened(session: Session, sent: Any) -> Updates:
        if take_settings(session, sent):  # otherwise a link has opened another tab meanwhile
            session.tab = panel.name
        # How often a knob changed anything is said of the run in Inspect; beside another it would mislead.
        activity = payloads.activity(session.inspect) if panel.name == "inspect" else {}
        return {turned: {"activity": activity}, **panel.draw(session)}

    panel.on(tab.select, opened, turned, outputs=[*panel.cards, turned], mode=None)
