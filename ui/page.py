"""Assembles the page: header, knobs and tabs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gradio as gr
import plotly

from backend import Trace
from backend.errors import PlaygroundError, RequestError
from ui import components, knobs, payloads
from ui.api import Api
from ui.loading import Loader
from ui.presets import SamplingPreset
from ui.session import Session
from ui.tabs.inspect import Inspect, take_settings
from ui.tabs.score import Score
from ui.tabs.viewer import Updates

PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
TABS = ("inspect", "score")


def head() -> str:
    """What the page's head needs: styles, shared script, and plotly from its own wheel."""
    return f'{components.head()}\n<script defer src="gradio_api/file={PLOTLY}"></script>'


def build(loader: Loader, recording: Trace | None = None, presets: Iterable[SamplingPreset] = ()) -> gr.Blocks:
    """The page.

    Args:
        loader: loads the model; the page is usable before it is done.
        recording: the run shown at first paint.
        presets: the entries of the presets menu.
    """
    gr.set_static_paths([PLOTLY])
    settings = dict(knobs.DEFAULTS)
    if recording is not None:
        settings |= knobs.settings_of(recording.request.sampling)
    first = Session(settings, recording)
    start, prompt = first.inspect, first.inspect.prompt or "Once upon a time"

    with gr.Blocks(title="Decoding Playground", fill_width=True, analytics_enabled=False) as page:
        state = gr.State(first)
        header = components.build("header", header_payload(loader), "pg-header")
        timer = gr.Timer(0.4)
        saver = components.build("saver", None, "pg-saver")
        with gr.Row(elem_id="pg-shell"):
            with gr.Column(elem_id="pg-side"):
                turned = components.build(
                    "knobs",
                    {"number": 1, "settings": settings, "activity": payloads.activity(start)},
                    "pg-knobs",
                    spec={**knobs.describe(presets), "defaults": settings},
                )
            with gr.Column(elem_id="pg-main"):
                with gr.Tabs(selected="inspect", elem_id="pg-tabs") as tabs:
                    with gr.Tab("Inspect", id="inspect", elem_classes="pg-panel pg-inspect") as inspect_tab:
                        inspect = Inspect(loader, start, prompt)
                    with gr.Tab("Score a text", id="score", elem_classes="pg-panel pg-score") as score_tab:
                        score = Score(loader)

        inspect.wire(state, turned, score.viewer, tabs)
        score.wire(state, turned)
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

        def open_tab(session: Session, sent: Any, name: str) -> Updates:
            session.tab = name
            take_settings(session, sent)
            return score.viewer.draw(session) if name == "score" else inspect.viewer.draw(session)

        for tab, name, viewer in ((inspect_tab, "inspect", inspect.viewer), (score_tab, "score", score.viewer)):
            tab.select(
                lambda session, sent, name=name: open_tab(session, sent, name),
                inputs=[state, turned],
                outputs=viewer.outputs,
                **QUIET,
            )

        def tick(session: Session) -> Updates:
            updates: Updates = {header: header_payload(loader, session)}
            if loader.done:
                updates[timer] = gr.Timer(active=False)
            return updates

        timer.tick(tick, inputs=[state], outputs=[header, timer], **QUIET)

        def share(session: Session, sent: Any, prompt: str, text: str) -> dict[str, Any]:
            take_settings(session, sent)
            view = session.view
            seed = view.started.seed if view.started is not None and session.tab == "inspect" else None
            try:
                link = knobs.to_query(
                    text if session.tab == "score" else prompt,
                    session.settings,
                    session.tab,
                    session.settings.get("seed") if session.settings.get("seed") is not None else seed,
                    view.index if view.pinned is not None else None,
                )
            except RequestError as error:
                raise gr.Error(str(error), print_exception=False) from None
            session.link, session.link_number = link, session.link_number + 1
            return header_payload(loader, session)

        header.share(share, inputs=[state, turned, inspect.prompt, score.text], outputs=[header], **QUIET)
        header.export_json(export_json, inputs=[state], outputs=[saver], **QUIET)
        header.export_text(export_text, inputs=[state], outputs=[saver], **QUIET)

        def restore(session: Session, request: gr.Request) -> Updates:
            """Put in place what a link holds."""
            query = dict(request.query_params)
            # Setting the State once lets gradio drop it some time after the tab is closed.
            kept: Updates = {state: session}
            if "prompt" not in query:
                return kept
            try:
                link = knobs.from_query(query)
            except PlaygroundError as error:
                session.inspect.notice = f"The link was not restored. {error}"
                return {**kept, inspect.viewer.strip: payloads.strip(session.inspect)}
            session.settings = link["settings"]
            session.tab = link["tab"] if link["tab"] in TABS else "inspect"
            session.restore_token, session.run_on_load = link["token"], True
            box = score.text if session.tab == "score" else inspect.prompt
            return {
                **kept,
                turned: {"number": 2, "settings": session.settings, "activity": {}},
                tabs: gr.Tabs(selected=session.tab),
                box: link["prompt"],
            }

        restored = page.load(
            restore,
            inputs=[state],
            outputs=[state, turned, tabs, inspect.prompt, score.text, inspect.viewer.strip],
            **QUIET,
        )
        restored.then(inspect.run_on_load, inputs=[state, inspect.prompt], outputs=inspect.outputs, **QUIET)
        restored.then(score.run_on_load, inputs=[state, score.text], outputs=score.viewer.outputs, **QUIET)
    return page


def header_payload(loader: Loader, session: Session | None = None) -> dict[str, Any]:
    engine = loader.engine
    payload: dict[str, Any] = {"model": "", "facts": [], "loading": "", "fraction": 0.0, "error": loader.error}
    if engine is not None:
        payload["model"] = engine.model_name
        payload["facts"] = [engine.precision, engine.device, f"{engine.context_length:,} tokens of context"]
    elif not loader.done:
        payload |= {"loading": loader.message, "fraction": loader.fraction}
    if session is not None:
        payload |= {"link": session.link, "link_number": session.link_number}
    return payload


def export_json(session: Session) -> dict[str, Any]:
    trace = session.view.trace
    if trace is None:
        raise gr.Error("There is nothing to export yet: run a prompt first.", print_exception=False)
    return {"name": "trace.json", "type": "application/json", "text": trace.to_json(), "number": session.view.number}


def export_text(session: Session) -> dict[str, Any]:
    view = session.view
    if view.trace is None:
        raise gr.Error("There is nothing to export yet: run a prompt first.", print_exception=False)
    return {"name": "text.txt", "type": "text/plain", "text": view.prompt + view.trace.text, "number": view.number}
