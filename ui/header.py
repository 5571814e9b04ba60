"""The header: which model, how far it is loaded, share link, export."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr

from backend import SamplingParams, Trace
from backend.errors import PlaygroundError, RequestError
from ui import components, knobs
from ui.link import Link, parse
from ui.loading import Loader
from ui.payloads import run as payloads
from ui.session import Session
from ui.tabs.inspect import Inspect
from ui.tabs.panel import Panel
from ui.tabs.viewer import QUIET, Updates, take_settings


class Header:
    """The header's widgets and their wiring."""

    def __init__(self, loader: Loader):
        self.loader = loader
        self.bar = components.build("header", model_payload(loader), "pg-header")
        self.saver = components.build("saver", None, "pg-saver")
        self.timer = gr.Timer(0.4)

    def wire(
        self, state: gr.State, turned: gr.HTML, tabs: gr.Tabs, inspect: Inspect, panels: Sequence[Panel]
    ) -> None:
        self.state, self.turned, self.tabs, self.inspect = state, turned, tabs, inspect
        self.panels = {panel.name: panel for panel in panels}
        self.boxes = [box for panel in panels for box in _boxes(panel)]
        self.timer.tick(self._tick, inputs=[state], outputs=[self.bar, self.timer], **QUIET)
        self.bar.make_link(self._share, inputs=[state, turned, *self.boxes], outputs=[self.bar], **QUIET)
        self.bar.export_json(export_json, inputs=[state], outputs=[self.saver], **QUIET)
        self.bar.export_text(export_text, inputs=[state], outputs=[self.saver], **QUIET)

        self.bar.open_trace(
            self._open,
            inputs=[state],
            outputs=[*inspect.viewer.outputs, tabs, inspect.prompt, turned],
            **QUIET,
        )

    def restore_on(self, page: gr.Blocks) -> None:
        """When the page is opened by a link: put in place what the link holds, and run it."""
        placed = [self.state, self.turned, self.tabs, *self.boxes, self.inspect.viewer.strip]
        drawn = {output: None for panel in self.panels.values() for output in panel.outputs}
        page.load(self._restore, inputs=[self.state], outputs=placed, **QUIET).then(
            self._run_opened, inputs=[self.state], outputs=list(drawn), **QUIET
        )

    def _tick(self, session: Session) -> Updates:
        updates: Updates = {self.bar: model_payload(self.loader, session)}
        if self.loader.done:
            updates[self.timer] = gr.Timer(active=False)
        return updates

    def _open(self, session: Session, event: gr.EventData) -> Updates:
        """Show a trace exported earlier, in Inspect; a file that is none leaves the text as it is."""
        view, text = session.inspect, (event._data or {}).get("text")
        session.tab = "inspect"
        try:
            if view.running:
                raise RequestError("A run goes on: stop it before opening a trace.")
            view.show(Trace.from_json(text if isinstance(text, str) else ""), "import")
            session.settings |= knobs.settings_of(
                view.drawn_with[-1] if view.drawn_with else SamplingParams()
            )
            session.settings_number += 1
            knobs_sent = {"number": session.settings_number, "settings": session.settings}
        except PlaygroundError as error:
            view.notice = str(error)
            return {self.inspect.viewer.strip: payloads.strip(view), self.tabs: gr.Tabs(selected="inspect")}
        return {
            **self.inspect.viewer.draw(session),
            self.tabs: gr.Tabs(selected="inspect"),
            self.inspect.prompt: view.prompt,
            self.turned: {**knobs_sent, "activity": payloads.activity(view)},
        }

    def _share(self, session: Session, sent: Any, *boxes: Any) -> dict[str, Any]:
        take_settings(session, sent)
        view, panel = session.view, self.panels[session.tab]
        held = dict(zip(self.boxes, boxes, strict=True))
        settings = dict(session.settings)
        if settings.get("seed") is None and view.started is not None and view.source != "score":
            settings["seed"] = view.started.seed
        elif settings.get("seed") is None and view.request is not None:
            settings["seed"] = view.request.seed  # of a sweep: the first of its runs
        own = panel.fields.changed(held[panel.fields.html]) if panel.fields else {}
        link = Link(
            prompt=held[panel.prompt],
            tab=panel.name,
            settings=settings,
            fields=json.dumps(own, ensure_ascii=False),
            token=view.index if view.pinned is not None else None,
            model=view.started.model if view.started is not None else "",
        )
        try:
            session.link = link.query()
        except RequestError as error:
            raise gr.Error(str(error), print_exception=False) from None
        session.link_number += 1
        return model_payload(self.loader, session)

    def _restore(self, session: Session, request: gr.Request) -> Updates:
        # Setting the State once lets gradio drop it some time after the tab is closed.
        kept: Updates = {self.state: session}
        query = dict(request.query_params)
        if not query.keys() & {"prompt", "tab", "fields"}:
            return kept
        try:
            link = parse(query)
            if link.tab not in self.panels:
                raise RequestError(f"there is no tab {link.tab[:40]!r}; there are {', '.join(self.panels)}")
            panel = self.panels[link.tab]
            values = panel.fields.from_link(link.fields) if panel.fields else {}
        except PlaygroundError as error:
            session.inspect.notice = f"The link was not restored. {error}"
            return {**kept, self.inspect.viewer.strip: payloads.strip(session.inspect)}
        session.tab, session.settings = panel.name, dict(link.settings)
        session.settings_number += 1
        number = session.settings_number
        if panel.fields:
            kept[panel.fields.html] = panel.fields.value(number, values)
        if "prompt" in query:  # without one, the tab is opened with its settings and nothing runs
            session.opened = link
            kept[panel.prompt] = link.prompt
        return {
            **kept,
            self.turned: {"number": number, "settings": session.settings, "activity": {}},
            self.tabs: gr.Tabs(selected=panel.name),
        }

    def _run_opened(self, session: Session) -> Iterator[Updates]:
        """Run what the link holds, once, and look at its token."""
        link, session.opened = session.opened, None
        if link is None:
            yield {self.inspect.viewer.strip: gr.skip()}
            return
        session.tab = link.tab  # the page, as it is built, also says that its first tab is open
        panel, view = self.panels[link.tab], session.view
        sent = panel.fields.value(0, panel.fields.from_link(link.fields)) if panel.fields else None
        yield from panel.start(session, None, link.prompt, sent)
        if view.running or view.started is None:
            return
        if link.model and link.model != view.started.model:
            view.notice = f"The link's text was made by {link.model}; this page runs {view.started.model}."
        view.pinned = link.token
        yield panel.draw(session)


def _boxes(panel: Panel) -> list[Any]:
    """What a link must hold of a tab."""
    return [panel.prompt, *([panel.fields.html] if panel.fields else [])]


def model_payload(loader: Loader, session: Session | None = None) -> dict[str, Any]:
    """What the header shows of the model, and the link last asked for."""
    engine = loader.engine
    payload: dict[str, Any] = {
        "model": "",
        "facts": [],
        "loading": "",
        "fraction": 0.0,
        "error": loader.error,
    }
    if engine is not None:
        payload["model"] = engine.model_name
        payload["facts"] = [
            engine.packing or engine.precision,
            engine.device,
            f"{engine.context_length:,} tokens of context",
        ]
    elif not loader.done:
        payload |= {"loading": loader.message, "fraction": loader.fraction}
    if session is not None:
        payload |= {"link": session.link, "link_number": session.link_number}
    return payload


def export_json(session: Session) -> dict[str, Any]:
    """The trace on screen as a file for the saver."""
    trace = session.view.trace
    if trace is None:
        raise gr.Error("There is nothing to export yet: run a prompt first.", print_exception=False)
    return _file(session, "trace.json", "application/json", trace.to_json())


def export_text(session: Session) -> dict[str, Any]:
    """Prompt and text on screen as a file for the saver."""
    view = session.view
    if view.trace is None:
        raise gr.Error("There is nothing to export yet: run a prompt first.", print_exception=False)
    return _file(session, "text.txt", "text/plain", view.prompt + view.trace.text)


def _file(session: Session, name: str, kind: str, text: str) -> dict[str, Any]:
    session.num_saved += 1
    return {"name": name, "type": kind, "text": text, "number": session.num_saved}
