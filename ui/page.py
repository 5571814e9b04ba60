"""Assembles the page: header, knobs and tabs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gradio as gr
import plotly

from backend import Trace
from ui import components, knobs, payloads
from ui.api import Api
from ui.header import Header
from ui.lessons import load_lessons
from ui.loading import Loader
from ui.presets import SamplingPreset
from ui.session import Session
from ui.tabs.beams import Beams
from ui.tabs.inspect import Inspect
from ui.tabs.samples import Samples
from ui.tabs.score import Score
from ui.tabs.speculate import FOLDER as SPECULATION
from ui.tabs.speculate import Speculate
from ui.tabs.viewer import QUIET, Updates, Viewer, take_settings

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
    settings, lessons = dict(knobs.DEFAULTS), load_lessons()
    if recording is not None:
        settings |= knobs.settings_of(recording.request.sampling)
    first = Session(settings, recording)
    start = first.inspect
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
                with gr.Tab("Inspect", id="inspect", elem_classes="pg-panel pg-inspect") as inspect_tab:
                    inspect = Inspect(loader, start, start.prompt or "Once upon a time")
                with gr.Tab("Beams", id="beams", elem_classes="pg-panel pg-beams") as beams_tab:
                    beams = Beams(loader, lessons)
                with gr.Tab("Samples", id="samples", elem_classes="pg-panel pg-samples-tab") as samples_tab:
                    samples = Samples(loader, lessons)
                with gr.Tab("Speculate", id="speculate", elem_classes="pg-panel pg-speculate") as drafts_tab:
                    speculate = Speculate(loader, load_lessons(SPECULATION))
                with gr.Tab("Score a text", id="score", elem_classes="pg-panel pg-score") as score_tab:
                    score = Score(loader)

        inspect.wire(state, turned, score.viewer, tabs)
        score.wire(state, turned)
        beams.wire(state, turned)
        samples.wire(state, turned)
        speculate.wire(state, turned)
        header.wire(state, turned, tabs, inspect, score)
        header.restore_on(page)
        Api(loader).wire()

        def turn(session: Session, sent: Any) -> Updates:
            return score.turn(session, sent) if session.tab == "score" else inspect.turn(session, sent)

        turned.turn(
            turn,
            inputs=[state, turned],
            outputs=[inspect.viewer.strip, inspect.viewer.step, score.viewer.step],
            trigger_mode="always_last",
            **QUIET,
        )
        _draw_when_opened(inspect_tab, "inspect", inspect.viewer, state, turned)
        _draw_when_opened(score_tab, "score", score.viewer, state, turned)
        _draw_when_opened(beams_tab, "beams", beams, state, turned)
        _draw_when_opened(samples_tab, "samples", samples, state, turned)
        _draw_when_opened(drafts_tab, "speculate", speculate, state, turned)
    return page


def _draw_when_opened(
    tab: gr.Tab, name: str, viewer: Viewer | Beams | Samples | Speculate, state: gr.State, turned: gr.HTML
) -> None:
    def opened(session: Session, sent: Any) -> Updates:
        session.tab = name
        take_settings(session, sent)
        return viewer.draw(session)

    tab.select(opened, inputs=[state, turned], outputs=viewer.outputs, **QUIET)
