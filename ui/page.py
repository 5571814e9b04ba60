"""Assembles the page: header, knobs and tabs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gradio as gr
import plotly

from backend import Trace
from ui import components, knobs
from ui.api.cache import CacheApi
from ui.api.experiments import ExperimentsApi
from ui.api.generation import Api
from ui.header import Header
from ui.loading import Loader
from ui.payloads import run as payloads
from ui.presets.lessons import load_lessons
from ui.presets.model_shapes import load_model_shapes
from ui.presets.request_sets import load_request_sets
from ui.presets.settings import SamplingPreset
from ui.session import Session
from ui.tabs.beams import Beams
from ui.tabs.code import Code
from ui.tabs.compare import Compare
from ui.tabs.inspect import Inspect
from ui.tabs.kv_cache import KvCache
from ui.tabs.lab import Lab
from ui.tabs.panel import Panel
from ui.tabs.samples import Samples
from ui.tabs.score import Score
from ui.tabs.speculate import FOLDER as SPECULATION
from ui.tabs.speculate import Speculate
from ui.tabs.structure import FOLDER as GRAMMARS
from ui.tabs.structure import Structure
from ui.tabs.sweep import SweepTab
from ui.tabs.viewer import QUIET, Updates, take_settings

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
    gr.set_static_paths([PLOTLY])
    settings, lessons, grammars = dict(knobs.DEFAULTS), load_lessons(), load_lessons(GRAMMARS)
    if recording is not None:
        settings |= knobs.settings_of(recording.request.sampling)
    first = Session(settings, recording)
    start = first.inspect
    opened: dict[str, gr.Tab] = {}
    with gr.Blocks(title="Decoding Playground", fill_width=True, analytics_enabled=False) as page:
        state = gr.State(first)
        header = Header(loader)
        with gr.Row(elem_id="pg-shell"):
            with gr.Column(elem_id="pg-side"):
                turned = components.build(
                    "knobs",
                    {"number": 1, "settings": settings, "activity": payloads.activity(start)},
                    "pg-knobs",
                    spec={**knobs.describe(presets), "defaults": settings},
                )
            with gr.Column(elem_id="pg-main"), gr.Tabs(selected="inspect", elem_id="pg-tabs") as tabs:
                with _tab(Inspect) as opened["inspect"]:
                    inspect = Inspect(loader, start, start.prompt or "Once upon a time")
                with _tab(Compare) as opened["compare"]:
                    compare = Compare(loader, lessons)
                with _tab(SweepTab) as opened["sweep"]:
                    sweep = SweepTab(loader)
                with _tab(Beams) as opened["beams"]:
                    beams = Beams(loader, lessons)
                with _tab(Samples) as opened["samples"]:
                    samples = Samples(loader, lessons)
                with _tab(Speculate) as opened["speculate"]:
                    speculate = Speculate(loader, load_lessons(SPECULATION))
                with _tab(KvCache) as opened["kv"]:
                    kv_cache = KvCache(loader, load_request_sets(), load_model_shapes())
                with _tab(Structure) as opened["structure"]:
                    structure = Structure(loader, grammars)
                with _tab(Score) as opened["score"]:
                    score = Score(loader)
                with _tab(Lab) as opened["lab"]:
                    lab = Lab(loader, [*lessons, *(lesson for lesson in grammars if lesson.question)])
                with _tab(Code) as opened["code"]:
                    code = Code(loader)
        panels: list[Panel] = [inspect, compare, sweep, beams, samples, speculate, kv_cache]
        panels += [structure, score, lab, code]
        for panel in panels:
            panel.wire(state, turned)
            _draw_when_opened(opened[panel.name], panel, state, turned)
        inspect.wire_branches_of(score.viewer, tabs, state)
        compare.wire_inspect(inspect, state, turned)
        sweep.wire_inspect(inspect, state, turned)
        bars = [compare.lessons, beams.lessons, samples.lessons, structure.lessons]
        lab.wire_lessons(bars, tabs, state)
        header.wire(state, turned, tabs, inspect, panels)
        header.restore_on(page)
        Api(loader).wire()
        ExperimentsApi(loader).wire()
        CacheApi(loader).wire()

        def turn(session: Session, sent: Any) -> Updates:
            if session.tab == "code":
                return code.turn(session, sent)
            return score.turn(session, sent) if session.tab == "score" else inspect.turn(session, sent)

        turned.turn(
            turn,
            inputs=[state, turned],
            outputs=[inspect.viewer.strip, inspect.viewer.step, score.viewer.step, *code.outputs],
            trigger_mode="always_last",
            **QUIET,
        )
    return page


def _tab(panel: type[Panel]) -> gr.Tab:
    return gr.Tab(panel.title, id=panel.name, elem_classes=f"pg-panel pg-tab-{panel.name}")


def _draw_when_opened(tab: gr.Tab, panel: Panel, state: gr.State, turned: gr.HTML) -> None:
    def opened(session: Session, sent: Any) -> Updates:
        if take_settings(session, sent):  # otherwise a link has opened another tab meanwhile
            session.tab = panel.name
        # How often a knob changed anything is said of the run in Inspect; beside another it would mislead.
        activity = payloads.activity(session.inspect) if panel.name == "inspect" else {}
        return {turned: {"activity": activity}, **panel.draw(session)}

    outputs = list(dict.fromkeys([*panel.outputs, turned]))
    tab.select(opened, inputs=[state, turned], outputs=outputs, **QUIET)
