"""KV cache: many requests at once in a real pool of blocks, on screen while they run."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import gradio as gr

from backend import Request, Sample
from backend.errors import PlaygroundError
from backend.events import Event
from backend.protocol import EngineProtocol
from ui import knobs
from ui.payloads import pool as pool_payloads
from ui.payloads import recompute as recompute_payloads
from ui.payloads import size as size_payloads
from ui.presets.model_shapes import load_model_shapes
from ui.presets.request_sets import POOLS, WHOLE, RequestSet, load_request_sets
from ui.runs.crowd import Ask, Crowd
from ui.runs.kv_state import KvState
from ui.runs.recompute import Recompute
from ui.runs.series import Series
from ui.runs.size import BYTES, SizeState, turned
from ui.session import Session, take_settings
from ui.tabs.fields import Fields, number, select
from ui.tabs.lesson_bar import Guided, LessonBar, settings
from ui.tabs.player import halt
from ui.tabs.tab import Page, Tab, Updates, got

MAX_MEASURED = 40  # new tokens of a measured request
FIELDS: list[dict[str, Any]] = [
    select(
        "pool",
        "pool",
        {name: "the page's whole pool" if name == WHOLE else f"{name} blocks" for name in POOLS},
        "Where the requests run. The small pools are as real as the whole one, and run dry sooner.",
        needs="pool_sizes",
    ),
    number("stagger", "seconds apart", 0, 60, 0, "Each request starts this long after the one before.", 0.1),
    number(
        "buffer",
        "contiguous buffer",
        1,
        1_000_000,
        2048,
        "Tokens that a cache without blocks would reserve for each sequence.",
        256,
    ),
    number(
        "max_new_tokens", "new tokens of Add", 1, 2048, 64, "Limit of the request that Add puts on the list."
    ),
    number("n", "samples of Add", 1, 16, 1, "Parallel samples that share the prompt's blocks."),
]
PROMPT = "One more request: the quickest way to learn a song is"
NOTE = (
    "Run starts the list below. Add puts the text above on it, at once while the list runs. "
    "Temperature, cuts, penalties and seed come from the knobs."
)


class SetBar(LessonBar):
    """The sets of requests as lessons."""

    tab: KvCache

    def placed(self, session: Session, lesson: Guided) -> tuple[Updates, Any]:
        assert isinstance(lesson, RequestSet)
        turned = session.put_settings(settings(lesson))
        updates, sent = self.tab.fill_anew(session, lesson)
        return {self.tab.page.knobs: turned, **updates}, sent

    def _payload(self, session: Session) -> dict[str, Any]:
        """The set on the list is the one chosen, however it came there."""
        drawn, chosen = super()._payload(session), session.state(KvState).sets
        return drawn | {"chosen": chosen, "found": drawn["found"] if drawn["chosen"] == chosen else None}


class KvCache(Tab):
    """The tab's widgets and their wiring. The measurement beside the pool has a View of its own."""

    name, title = "kv", "KV cache"
    needs = ("block_tables",)
    lessons: LessonBar
    fields: Fields

    def __init__(self, page: Page):
        super().__init__(page)
        self.sets, self.shapes = load_request_sets(), load_model_shapes()
        first = next(iter(self.sets.values()))
        self._fill(page.first, first.name)
        self.lessons = SetBar(self, self.sets.values(), "sets")
        self.lay_out(PROMPT, FIELDS, NOTE, start=_values(first), more=["Add"])
        self.pool = self.picture("pool", pool_payloads.pool, KvState)
        self.requests = self.picture("requests", _requests, KvState)
        self.blocks = self.picture("blocks", pool_payloads.blocks, KvState)
        with gr.Row(elem_classes="pg-kv-row"):
            self.memory = self.picture("memory", lambda _, state: pool_payloads.memory(state), KvState)
            self.recompute = self.card("recompute", self._recompute)
        spec_of_size = {
            "shapes": [[shape.name, shape.title] for shape in self.shapes.values()],
            "precisions": list(BYTES),
        }
        self.size = self.card(
            "size",
            lambda session: size_payloads.payload(session.state(SizeState), self.shapes),
            spec=spec_of_size,
        )
        self.live = [self.pool, self.requests, self.blocks, self.memory]

    @property
    def outputs(self) -> list[Any]:
        return [*self.live, self.lessons.bar, self.compose.stop]

    def wire(self) -> None:
        super().wire()
        self.on(self.compose.more[0].click, self._add, *self.asked, outputs=self.live)
        for trigger, act in (("remove", _remove), ("fork", _fork), ("choose", _choose_member)):
            self.on(getattr(self.requests, trigger), self._acting(act), outputs=self.live)
        for component in (self.pool, self.blocks):
            for trigger, act in (("replay", _replay), ("pin", _pin)):
                self.on(getattr(component, trigger), self._acting(act), outputs=self.live)
        asked = [self.page.knobs, self.prompt]
        self.on(self.recompute.measure, self._measure, *asked, outputs=[self.recompute], mode=None)
        self.wire_stop(self.recompute.halt, "recompute")
        self.on(self.size.turn, self._turn_size, outputs=[self.size])

    def start(self, session: Session, turned: Any, prompt: str, sent: Any = None) -> Iterator[Updates]:
        """Run the list; the prompt above it is only for Add."""
        self._fill(session, self.fields.read(sent)["set"])
        for place, updates in enumerate(super().start(session, turned, prompt, sent)):
            yield {**updates, **(self.draw(session, self.lessons.bar) if place < 3 else {})}

    def begin(
        self, session: Session, engine: EngineProtocol, prompt: str, values: dict[str, Any]
    ) -> Sequence[Crowd]:
        view, state = self.view(session), session.state(KvState)
        chosen = engine if values["pool"] == WHOLE else engine.with_pool(int(values["pool"]))
        with state.lock:
            state.buffer, state.block = values["buffer"], None
            state.crowd.begin(chosen, _maker(session), values["stagger"])
            state.begin_watch(chosen, session.salt)
        view.number += 1
        view.notice, view.stopped = "", False
        return [state.crowd]

    def take(self, session: Session, number: int, event: Event) -> None:
        """Each member of the crowd keeps its own events."""

    def phase(self, session: Session) -> str:
        state = session.state(KvState)
        if state.watch is None or not state.crowd.members:
            return ""
        live = sum(member.is_live for member in state.crowd.members)
        return f"{live} of {len(state.crowd.members)} requests in the batch"

    def _add(self, session: Session, turned: Any, prompt: str, sent: Any) -> Updates:
        """One more request: it starts at once while others run."""
        take_settings(session, turned)
        view, values = self.view(session), self.fields.read(sent)
        self._fill(session, values["set"])
        try:
            values = self.fields.checked(values)
            ask = Ask(prompt, values["max_new_tokens"], values["n"])
            _maker(session)(ask)  # bad values are refused here, not at the next run
            session.state(KvState).crowd.add(ask)
            view.notice = ""
        except PlaygroundError as error:
            view.notice = str(error)
        return self.draw_live(session)

    def seen(self, session: Session) -> KvState:
        return session.state(KvState)

    def fill_anew(self, session: Session, chosen: RequestSet) -> tuple[Updates, Any]:
        """Put a set's requests on the list, whatever is there, and its values into the fields; and these."""
        halt(self.view(session))
        session.state(KvState).sets = ""
        self._fill(session, chosen.name)
        session.settings_number += 1
        sent = self.fields.value(session.settings_number, _values(chosen))
        return {self.fields.html: sent, **self.draw(session, self.requests)}, sent

    def _fill(self, session: Session, name: Any) -> None:
        """Put a set's requests on the list unless they are there already, or changed since."""
        state, chosen = session.state(KvState), self.sets.get(str(name))
        if chosen is not None and state.sets != chosen.name and not self.view(session).running:
            state.sets = chosen.name
            state.crowd.fill(list(chosen.asks))

    def beyond_link(self, session: Session) -> str:
        state = session.state(KvState)
        chosen = self.sets.get(state.sets)
        asks = [member.ask for member in state.crowd.members]
        if chosen is not None and asks == list(chosen.asks):
            return ""
        return f"It does not hold your changes: it opens {chosen.title if chosen else 'a ready list'}."

    def _acting(self, act: Callable[[KvState, gr.EventData], None]) -> Callable[..., Updates]:
        """A handler that does something to the state, says why it cannot, and draws."""

        def handle(session: Session, event: gr.EventData) -> Updates:
            view = self.view(session)
            try:
                act(session.state(KvState), event)
                if act in (_remove, _fork):
                    view.notice = ""
            except PlaygroundError as error:
                view.notice = str(error)
            return self.draw_live(session)

        return handle

    def _measure(self, session: Session, turned: Any, prompt: str) -> Iterator[Updates]:
        """The chosen request with a cache, then without, one after the other and with nothing to reuse."""
        take_settings(session, turned)
        view, chosen = session.views["recompute"], session.state(KvState).chosen
        if self.view(session).running:
            view.notice = "Requests are running and would share the time: stop them first, or wait for them."
            yield self.draw(session, self.recompute)
            return
        ask = chosen.ask if chosen else Ask(prompt)

        def begin(engine: EngineProtocol) -> list[Series]:
            made = _maker(session)(replace(ask, max_new_tokens=min(ask.max_new_tokens, MAX_MEASURED), n=1))
            made = replace(knobs.seeded(made), cache_salt=f"{session.salt}:{secrets.token_hex(8)}")
            series = Series(engine, [replace(made, use_cache=cached) for cached in (True, False)])
            session.put(Recompute(ask.prompt))
            return [series]

        yield from self.play(
            session,
            begin,
            take=lambda session, _, event: session.state(Recompute).take(event),
            draw=lambda session: self.draw(session, self.recompute),
            view=view,
        )

    def _recompute(self, session: Session) -> dict[str, Any]:
        view = session.views["recompute"]
        return recompute_payloads.payload(session.state(Recompute), view.running, view.notice)

    def _turn_size(self, session: Session, event: gr.EventData) -> Updates:
        session.put(turned(session.state(SizeState), self.shapes, event._data))
        return self.draw(session, self.size)

    def draw(self, session: Session, *only: gr.HTML) -> Updates:
        """With the pool as it is now, whoever uses it. Opened: the list, a pool to watch and the mark too."""
        state = session.state(KvState)
        with state.lock:
            if only:
                state.refresh()
                return super().draw(session, *only)
            self._fill(session, state.sets or next(iter(self.sets)))
            engine = self.loader.engine
            if engine is not None and not engine.capabilities.lacking(self.needs):
                if not self.view(session).running and (state.engine is None or state.is_full):
                    state.begin_watch(state.engine or engine, session.salt)
                state.mark = _mark(session, engine)
            return self.draw(session, *self.live, self.lessons.bar)

    def draw_live(self, session: Session) -> Updates:
        return self.draw(session, *self.live)

    draw_end = draw_live


def _requests(view: Any, state: KvState) -> dict[str, Any]:
    now = time.perf_counter() - state.crowd.began if view.running else 0.0
    return pool_payloads.requests(view, state, state.engine.block_size if state.engine else 16, now)


def _values(chosen: RequestSet) -> dict[str, Any]:
    """The fields as a set wants them."""
    return {
        "set": chosen.name,
        "pool": chosen.pool,
        "stagger": chosen.stagger,
        "buffer": chosen.buffer,
    }


def _maker(session: Session) -> Callable[[Ask], Request]:
    """Makes the request of a line under the knobs as they are now."""
    settings, salt = dict(session.settings), session.salt

    def make(ask: Ask) -> Request:
        asked = knobs.request(ask.prompt, settings | {"max_new_tokens": ask.max_new_tokens}, salt)
        return replace(asked, strategy=Sample(ask.n), num_candidates=0)

    return make


def _remove(state: KvState, event: gr.EventData) -> None:
    state.crowd.remove(state.find(got(event, "name", str)))


def _fork(state: KvState, event: gr.EventData) -> None:
    state.member = state.crowd.fork(state.find(got(event, "name", str))).name


def _choose_member(state: KvState, event: gr.EventData) -> None:
    state.member = state.find(got(event, "name", str)).name


def _replay(state: KvState, event: gr.EventData) -> None:
    """Look at the pool as it was after some changes; no number follows the newest."""
    turn = got(event, "turn", int) or 0
    if turn >= state.turn:  # a later turn of the slider may have been served first
        state.turn, state.at = turn, got(event, "at", int)


def _pin(state: KvState, event: gr.EventData) -> None:
    state.block = got(event, "block", int)


def _mark(session: Session, engine: EngineProtocol) -> dict[str, Any] | None:
    """Where the token last looked at in Inspect lies now, in the whole pool."""
    view = session.inspect
    place = view.looked if view.looked is not None else view.index
    trace = view.trace
    if view.source != "run" or trace is None or place is None or place >= len(view.steps):
        return None
    step = view.steps[place]
    ids = (*trace.started.prompt_token_ids, *(token.token_id for token in view.steps[: place + 1]))
    found = engine.find_blocks((*ids, *(token.token_id for token in view.steps[place + 1 :])), session.salt)
    index, slot = divmod(len(ids) - 1, engine.block_size)
    block = found[index] if index < len(found) else None
    shown = session.state(KvState).engine is engine
    return {"label": step.label, "position": len(ids) - 1, "slot": slot, "block": block, "shown": shown}
