"""The header: which model, how far it is loaded, share link, export."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import gradio as gr

from backend import Trace
from backend.errors import PlaygroundError, RequestError
from ui import components
from ui.link import Link, parse
from ui.loading import Loader
from ui.session import Session, take_settings
from ui.tabs.inspect import Inspect
from ui.tabs.tab import QUIET, Page, Tab, Updates, got, saved


class Header:
    """The header's widgets and their wiring."""

    def __init__(self, loader: Loader):
        self.loader = loader
        self.bar = components.build("header", model_payload(loader), "pg-header")
        self.saver = components.build("saver", None, "pg-saver")
        self.timer = gr.Timer(0.4)

    def wire(self, page: Page) -> None:
        inspect = page.panels["inspect"]
        assert isinstance(inspect, Inspect)
        self.page, self.inspect, self.panels = page, inspect, page.panels
        self.boxes = [box for panel in page.panels.values() for box in _boxes(panel)]
        fields = [panel.fields.html for panel in page.panels.values() if panel.fields]
        refused: list[Any] = [panel.compose.lack for panel in page.panels.values()]
        refused += [button for panel in page.panels.values() for button in panel.compose.buttons]
        events: list[tuple[Any, Any, list[Any], list[Any]]] = [
            (self.timer.tick, self._tick, fields, [self.bar, self.timer, *fields, *refused]),
            (self.bar.make_link, self._share, [page.knobs, *self.boxes], [self.bar]),
            (self.bar.export_json, export_json, [], [self.saver]),
            (self.bar.export_text, export_text, [], [self.saver]),
            (self.bar.open_trace, self._open, [], inspect.opened),
        ]
        for event, act, inputs, outputs in events:
            event(act, inputs=[page.state, *inputs], outputs=outputs, **QUIET)

    def restore_on(self, blocks: gr.Blocks) -> None:
        """When the page is opened by a link: put in place what the link holds, and run it."""
        page = self.page
        placed = [page.state, page.knobs, page.tabs, *self.boxes, self.inspect.viewer.strip]
        drawn = {output: None for panel in self.panels.values() for output in panel.outputs}
        blocks.load(self._restore, inputs=[page.state], outputs=placed, **QUIET).then(
            self._run_opened, inputs=[page.state], outputs=list(drawn), **QUIET
        )

    def _tick(self, session: Session, *sent: Any) -> Updates:
        """How far the model is loaded; once it is, what its engine cannot serve is greyed."""
        updates: Updates = {self.bar: model_payload(self.loader, session)}
        if not self.loader.done:
            return updates
        updates[self.timer] = gr.Timer(active=False)
        if self.loader.engine is not None:
            held = iter(sent)
            for panel in self.panels.values():
                values = next(held) if panel.fields else None
                updates |= panel.refuse(self.loader.engine.capabilities, values)
        return updates

    def _open(self, session: Session, event: gr.EventData) -> Updates:
        """Show a trace exported earlier, in Inspect; a file that is none leaves the text as it is."""
        view, text = session.inspect, got(event, "text", str)
        session.tab = "inspect"
        try:
            if view.running:
                raise RequestError("A run goes on: stop it before opening a trace.")
            return self.inspect.open(session, Trace.from_json(text or ""), imported=True)
        except PlaygroundError as error:
            view.notice = str(error)
            strip = self.inspect.draw(session, self.inspect.viewer.strip)
            return {**strip, self.page.tabs: gr.Tabs(selected="inspect")}

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
        session.link_note = panel.beyond_link(session)
        session.link_number += 1
        return model_payload(self.loader, session)

    def _restore(self, session: Session, request: gr.Request) -> Updates:
        # Setting the State once lets gradio drop it some time after the tab is closed.
        kept: Updates = {self.page.state: session}
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
            return {**kept, **self.inspect.draw(session, self.inspect.viewer.strip)}
        session.tab, session.settings = panel.name, {}
        turned = session.put_settings(link.settings)
        if panel.fields:
            kept[panel.fields.html] = panel.fields.value(turned["number"], values)
        if "prompt" in query:  # without one, the tab is opened with its settings and nothing runs
            session.opened = link
            kept[panel.prompt] = link.prompt
        return {
            **kept,
            self.page.knobs: turned,
            self.page.tabs: gr.Tabs(selected=panel.name),
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


def _boxes(panel: Tab) -> list[Any]:
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
        context = f"{engine.context_length:,} tokens of context"
        payload["facts"] = [engine.precision, engine.device, context, *engine.notes]
    elif not loader.done:
        payload |= {"loading": loader.message, "fraction": loader.fraction}
    if session is not None:
        payload |= {name: getattr(session, name) for name in ("link", "link_number", "link_note")}
    return payload


def export_json(session: Session) -> dict[str, Any]:
    """The trace on screen as a file for the saver."""
    return saved(session, "trace.json", "application/json", _trace(session).to_json())


def export_text(session: Session) -> dict[str, Any]:
    """Prompt and text on screen as a file for the saver."""
    return saved(session, "text.txt", "text/plain", session.view.prompt + _trace(session).text)


def _trace(session: Session) -> Trace:
    trace = session.view.trace
    if trace is None:
        raise gr.Error("There is nothing to export yet: run a prompt first.", print_exception=False)
    return trace
