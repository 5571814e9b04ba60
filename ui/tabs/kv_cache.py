"""KV cache: many requests at once in a real pool of blocks, on screen while they run."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import gradio as gr

from backend import Engine, Request, RequestError, Sample
from backend.errors import PlaygroundError
from ui import components, knobs
from ui.loading import Loader
from ui.payloads import pool as pool_payloads
from ui.payloads import recompute as recompute_payloads
from ui.payloads import size as size_payloads
from ui.presets.model_shapes import ModelShape
from ui.presets.request_sets import POOLS, WHOLE, RequestSet
from ui.runs.crowd import Ask, Crowd
from ui.runs.kv_state import KvState
from ui.runs.recompute import Recompute
from ui.runs.series import Series
from ui.runs.size import BYTES, SizeState, turned
from ui.session import Session, View
from ui.tabs.compose import Compose
from ui.tabs.fields import Fields
from ui.tabs.player import halt, play
from ui.tabs.viewer import QUIET, Updates, take_settings, whole

PERIOD = 0.15  # seconds between redraws while requests run
MAX_STAGGER, MAX_BUFFER, MAX_MEASURED = 60.0, 1_000_000, 40
MAX_NEW_TOKENS, MAX_SAMPLES = 2048, 16  # of one request that is added

FIELDS: list[dict[str, Any]] = [
    {"name": "pool", "title": "pool", "kind": "select",
     "options": [[name, "the page's whole pool" if name == WHOLE else f"{name} blocks"] for name in POOLS],
     "hint": "Where the requests run. The small pools are as real as the whole one, and run dry sooner."},
    {"name": "stagger", "title": "seconds apart", "kind": "number", "min": 0, "max": MAX_STAGGER,
     "step": 0.1, "hint": "Each request of the list starts this long after the one before."},
    {"name": "buffer", "title": "contiguous buffer", "kind": "number", "min": 1, "max": MAX_BUFFER,
     "step": 256, "hint": "Tokens that a cache without blocks would reserve for each sequence."},
    {"name": "max_new_tokens", "title": "new tokens of Add", "kind": "number", "min": 1,
     "max": MAX_NEW_TOKENS, "step": 1, "hint": "Limit of the request that Add puts on the list."},
    {"name": "n", "title": "samples of Add", "kind": "number", "min": 1, "max": MAX_SAMPLES,
     "step": 1, "hint": "Parallel samples that share the prompt's blocks."},
]  # fmt: skip
PROMPT = "One more request: the quickest way to learn a song is"
NOTE = (
    "Run starts the list below. Add puts the text above on it, at once while the list runs. "
    "Temperature, cuts, penalties and seed come from the knobs."
)


class KvCache:
    """The tab's widgets and their wiring."""

    name, title = "kv", "KV cache"

    def __init__(self, loader: Loader, sets: Mapping[str, RequestSet], shapes: Mapping[str, ModelShape]):
        self.loader, self.sets, self.shapes = loader, sets, shapes
        first = next(iter(sets.values()))
        spec = [{"name": s.name, "title": s.title, "look_for": s.look_for} for s in sets.values()]
        self.bar = components.build("lessons", {"chosen": first.name}, "pg-kv-sets", spec=spec)
        self.compose = Compose("kv", PROMPT, more=["Add"])
        self.prompt = self.compose.prompt
        start = {**_values(first), "max_new_tokens": 64, "n": 1}
        self.fields = Fields("kv", FIELDS, start, NOTE)
        view, state = View(), KvState()
        state.crowd.fill(list(first.asks))
        self.pool = self._card("pool", pool_payloads.pool(view, state))
        self.requests = self._card("requests", pool_payloads.requests(view, state, 16, 0.0))
        self.blocks = self._card("blocks", pool_payloads.blocks(view, state))
        with gr.Row(elem_classes="pg-kv-row"):
            self.memory = self._card("memory", pool_payloads.memory(state))
            self.recompute = self._card("recompute", recompute_payloads.payload(Recompute(), False, ""))
        self.size = self._card(
            "size",
            size_payloads.payload(SizeState(), shapes),
            spec={
                "shapes": [[shape.name, shape.title] for shape in shapes.values()],
                "precisions": list(BYTES),
            },
        )

    def _card(self, name: str, value: Any, spec: Any = None) -> gr.HTML:
        component = components.build(name, value, f"pg-kv-{name}", spec=spec)
        component.elem_classes = [*component.elem_classes, "pg-card"]
        return component

    def wire(self, session: gr.State, settings: gr.HTML) -> None:
        self.drawn = [self.pool, self.requests, self.blocks, self.memory]
        self.outputs = outputs = [*self.drawn, self.bar, self.compose.stop]
        inputs = [session, settings, self.prompt, self.fields.html]
        for event in (self.compose.run.click, self.prompt.submit):
            event(self.start, inputs=inputs, outputs=outputs, trigger_mode="multiple", **QUIET)
        self.compose.more[0].click(
            self._add, inputs=inputs, outputs=self.drawn, trigger_mode="multiple", **QUIET
        )
        self.compose.wire_stop(session, lambda session: session.kv)
        self.bar.choose(
            self._choose, inputs=[session], outputs=[self.bar, self.fields.html, self.requests], **QUIET
        )
        for trigger, act in (("remove", _remove), ("fork", _fork), ("choose", _choose_member)):
            getattr(self.requests, trigger)(
                self._acting(act), inputs=[session], outputs=self.drawn, trigger_mode="multiple", **QUIET
            )
        # Not "always_last": of events that overlap it sends the last with the data of the first.
        for component in (self.pool, self.blocks):
            for trigger, act in (("replay", _replay), ("pin", _pin)):
                getattr(component, trigger)(
                    self._acting(act), inputs=[session], outputs=self.drawn, trigger_mode="multiple", **QUIET
                )
        self.recompute.measure(
            self._measure, inputs=[session, settings, self.prompt], outputs=[self.recompute], **QUIET
        )
        self.recompute.halt(lambda session: halt(session.measuring), inputs=[session], queue=False, **QUIET)
        self.size.turn(
            self._turn_size, inputs=[session], outputs=[self.size], trigger_mode="multiple", **QUIET
        )

    def start(self, session: Session, turned: Any, prompt: str, sent: Any) -> Iterator[Updates]:
        """Run the list; the prompt above it is only for Add."""
        take_settings(session, turned)
        view, state, values = session.kv, session.cache, self.fields.read(sent)
        self._fill(session, values["set"])

        def begin(engine: Engine) -> list[Crowd]:
            chosen, stagger, buffer = _read(engine, values)
            with state.lock:
                state.buffer, state.block = buffer, None
                state.crowd.begin(chosen, _maker(session), stagger)
                state.begin_watch(chosen, session.salt)
            view.number += 1
            view.notice, view.stopped = "", False
            return [state.crowd]

        due = 0.0
        yield {**self._list(session), self.bar: {"chosen": state.sets}, **self.compose.running(True)}
        for _ in play(view, self.loader, begin):
            if state.watch is not None and state.crowd.members:
                view.phase = view.phase and _phase(state)
            if time.monotonic() >= due:
                # With every redraw: an update that another follows at once may never reach the page.
                yield {**self._live(session), **self.compose.running(True)}
                due = time.monotonic() + PERIOD
        if not view.running:  # otherwise another run has taken over, and draws
            yield {**self._live(session), **self.compose.running(False)}

    def _add(self, session: Session, turned: Any, prompt: str, sent: Any) -> Updates:
        """One more request: it starts at once while others run."""
        take_settings(session, turned)
        state, values = session.cache, self.fields.read(sent)
        self._fill(session, values["set"])
        try:
            ask = Ask(prompt, values["max_new_tokens"], values["n"])
            _maker(session)(ask)  # bad values are refused here, not at the next run
            if ask.max_new_tokens > MAX_NEW_TOKENS or ask.n > MAX_SAMPLES:
                raise RequestError(
                    f"at most {MAX_NEW_TOKENS:,} new tokens and {MAX_SAMPLES} samples can be added, "
                    f"got {ask.max_new_tokens:,} and {ask.n}"
                )
            state.crowd.add(ask)
            session.kv.notice = ""
        except PlaygroundError as error:
            session.kv.notice = str(error)
        return self._live(session)

    def _choose(self, session: Session, event: gr.EventData) -> Updates:
        """Fill the list from a set."""
        name = str(event._data.get("lesson")) if isinstance(event._data, dict) else ""
        if name not in self.sets:
            return {self.bar: gr.skip()}
        if session.kv.running:
            session.kv.notice = "Requests are running: stop them before another set is put in their place."
            return self._list(session)
        session.cache.sets = ""
        self._fill(session, name)
        session.kv.notice = ""
        session.settings_number += 1
        return {
            self.bar: {"chosen": name},
            self.fields.html: self.fields.value(session.settings_number, _values(self.sets[name])),
            **self._list(session),
        }

    def _fill(self, session: Session, name: Any) -> None:
        """Put a set's requests on the list unless they are there already, or changed since."""
        state, chosen = session.cache, self.sets.get(str(name))
        if chosen is not None and state.sets != chosen.name and not session.kv.running:
            state.sets = chosen.name
            state.crowd.fill(list(chosen.asks))

    def _acting(self, act: Callable[[KvState, gr.EventData], None]) -> Callable[..., Updates]:
        """A handler that does something to the state, says why it cannot, and draws."""

        def handle(session: Session, event: gr.EventData) -> Updates:
            try:
                act(session.cache, event)
                if act in (_remove, _fork):
                    session.kv.notice = ""
            except PlaygroundError as error:
                session.kv.notice = str(error)
            return self._live(session)

        return handle

    def _measure(self, session: Session, turned: Any, prompt: str) -> Iterator[Updates]:
        """The chosen request with a cache, then without, one after the other and with nothing to reuse."""
        take_settings(session, turned)
        view, state = session.measuring, session.cache
        if session.kv.running:
            notice = "Requests are running and would share the time: stop them first, or wait for them."
            yield {self.recompute: recompute_payloads.payload(session.recompute, view.running, notice)}
            return
        ask = state.chosen.ask if state.chosen else Ask(prompt)

        def begin(engine: Engine) -> list[Series]:
            made = _maker(session)(replace(ask, max_new_tokens=min(ask.max_new_tokens, MAX_MEASURED), n=1))
            seed = secrets.randbelow(2**31) if made.seed is None else made.seed
            salt = f"{session.salt}:{secrets.token_hex(8)}"
            runs = [replace(made, seed=seed, cache_salt=salt, use_cache=cached) for cached in (True, False)]
            series = Series(engine, runs)
            session.recompute = Recompute(ask.prompt)
            return [series]

        due = 0.0
        for batch in play(view, self.loader, begin):
            for _, event in batch or ():
                session.recompute.take(event)
            if time.monotonic() >= due:
                yield {self.recompute: recompute_payloads.payload(session.recompute, True, view.notice)}
                due = time.monotonic() + PERIOD
        yield {self.recompute: recompute_payloads.payload(session.recompute, view.running, view.notice)}

    def _turn_size(self, session: Session, event: gr.EventData) -> Updates:
        session.size = turned(session.size, self.shapes, event._data)
        return {self.size: size_payloads.payload(session.size, self.shapes)}

    def draw(self, session: Session) -> Updates:
        """Everything that others may have changed anew: the pool as it is now, whoever uses it."""
        state = session.cache
        self._fill(session, state.sets or next(iter(self.sets)))
        engine = self.loader.engine
        with state.lock:
            if engine is not None and not session.kv.running and (state.engine is None or state.is_full):
                state.begin_watch(state.engine or engine, session.salt)
            state.mark = _mark(session, engine) if engine is not None else None
        return {
            **self._live(session),
            self.bar: {"chosen": state.sets},
        }

    def _live(self, session: Session) -> Updates:
        """What changes while requests run."""
        view, state = session.kv, session.cache
        with state.lock:
            state.refresh()
            return {
                **self._list(session),
                self.pool: pool_payloads.pool(view, state),
                self.blocks: pool_payloads.blocks(view, state),
                self.memory: pool_payloads.memory(state),
            }

    def _list(self, session: Session) -> Updates:
        view, state = session.kv, session.cache
        now = time.perf_counter() - state.crowd.began if view.running else 0.0
        size = state.engine.block_size if state.engine else 16
        return {self.requests: pool_payloads.requests(view, state, size, now)}


def _values(chosen: RequestSet) -> dict[str, Any]:
    """The fields as a set wants them."""
    return {
        "set": chosen.name,
        "pool": chosen.pool,
        "stagger": chosen.stagger,
        "buffer": chosen.buffer,
    }


def _read(engine: Engine, values: Mapping[str, Any]) -> tuple[Engine, float, int]:
    """The engine with the chosen pool, seconds between starts, and tokens of a contiguous buffer.

    Raises:
        RequestError: a value has the wrong type or is out of range.
    """
    pool, stagger, buffer = values["pool"], values["stagger"], values["buffer"]
    if str(pool) not in POOLS:
        raise RequestError(f"pool must be one of {', '.join(POOLS)}, got {str(pool)[:40]!r}")
    if not isinstance(stagger, int | float) or not 0 <= stagger <= MAX_STAGGER:
        raise RequestError(f"seconds apart must be from 0 to {MAX_STAGGER:g}, got {str(stagger)[:40]}")
    if type(buffer) is not int or not 1 <= buffer <= MAX_BUFFER:
        raise RequestError(
            f"contiguous buffer must be a whole number from 1 to {MAX_BUFFER:,}, got {str(buffer)[:40]}"
        )
    return (engine if pool == WHOLE else engine.with_pool(int(pool))), float(stagger), buffer


def _maker(session: Session) -> Callable[[Ask], Request]:
    """Makes the request of a line under the knobs as they are now."""
    settings, salt = dict(session.settings), session.salt

    def make(ask: Ask) -> Request:
        asked = knobs.request(ask.prompt, settings | {"max_new_tokens": ask.max_new_tokens}, salt)
        return replace(asked, strategy=Sample(ask.n), num_candidates=0)

    return make


def _phase(state: KvState) -> str:
    live = sum(member.is_live for member in state.crowd.members)
    return f"{live} of {len(state.crowd.members)} requests in the batch"


def _named(event: gr.EventData) -> Any:
    return event._data.get("name") if isinstance(event._data, dict) else None


def _remove(state: KvState, event: gr.EventData) -> None:
    state.crowd.remove(state.find(_named(event)))


def _fork(state: KvState, event: gr.EventData) -> None:
    state.member = state.crowd.fork(state.find(_named(event))).name


def _choose_member(state: KvState, event: gr.EventData) -> None:
    state.member = state.find(_named(event)).name


def _replay(state: KvState, event: gr.EventData) -> None:
    """Look at the pool as it was after some changes; no number follows the newest."""
    turn = whole(event, "turn") or 0
    if turn >= state.turn:  # a later turn of the slider may have been served first
        state.turn, state.at = turn, whole(event, "at")


def _pin(state: KvState, event: gr.EventData) -> None:
    state.block = whole(event, "block")


def _mark(session: Session, engine: Engine) -> dict[str, Any] | None:
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
    shown = session.cache.engine is engine
    return {"label": step.label, "position": len(ids) - 1, "slot": slot, "block": block, "shown": shown}
