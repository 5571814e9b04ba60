"""What one visitor sees: plain state behind the page, one Session per browser tab, nothing global."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from backend import Request, SamplingParams, Trace
from backend.events import Event, Preempted, Prefilled, Started, TokenDecoded, Waiting
from ui import knobs
from ui.link import Link
from ui.runs.log import Log

T = TypeVar("T")
Source = Literal["empty", "recording", "run", "score", "import"]


class Turn:
    """One run's time in a View. `stop` is set to ask it to end, `ended` once it has."""

    def __init__(self, ended: bool = False):
        self.stop = threading.Event()
        self.ended = threading.Event()
        if ended:
            self.ended.set()


@dataclass
class View(Log):
    """One panel's text and where the reader stands in it. The trace may still be growing.

    Attributes:
        prompt: the text in front of the tokens: what the prompt box held, or the prompt's tokens as text.
        number: counts the texts shown; the page keeps its place while it stays the same.
        steps: the tokens of sample 0, and in `drawn_with` the sampling each was drawn with.
        displayed: the step last drawn in the step view, as recorded or evaluated again.
        pinned: the step the reader chose; None follows the newest.
        shown: a step looked at in passing (hover, keyboard); wins over `pinned` while set.
        looked: the step last looked at or pinned.
        turn: the run that fills this view now, or did last.
        notice: what the reader must know about the last run, for example why it was refused.
    """

    source: Source = "empty"
    number: int = 0
    prompt: str = ""
    request: Request | None = None
    steps: list[TokenDecoded] = field(default_factory=list)
    drawn_with: list[SamplingParams] = field(default_factory=list)
    displayed: TokenDecoded | None = None
    pinned: int | None = None
    shown: int | None = None
    looked: int | None = None
    started_at: int = 0
    phase: str = ""
    progress: float | None = None
    notice: str = ""
    stopped: bool = False
    turn: Turn = field(default_factory=lambda: Turn(ended=True))

    def begin(
        self,
        request: Request,
        source: Source,
        kept: Iterable[TokenDecoded] = (),
        drawn_with: Iterable[SamplingParams] = (),
        prompt: str | None = None,
    ) -> None:
        """Forget the text shown and start one that opens with the `kept` steps of its parent.

        Without a `prompt` the one shown stays.
        """
        self.prompt = self.prompt if prompt is None else prompt
        self.number += 1
        self.source, self.request = source, request
        self.steps = list(kept)
        self.drawn_with = list(drawn_with)
        self.displayed = None
        self.events = list(self.steps)
        self.pinned = self.shown = self.looked = None
        self.started_at = len(self.steps)
        self.phase, self.progress, self.notice, self.stopped = "", None, "", False

    def show(self, trace: Trace, source: Source) -> None:
        """Show a finished trace."""
        typed = trace.request.prompt
        if not isinstance(typed, str) or source == "score":
            typed = "".join(trace.started.prompt_labels)
        self.begin(trace.request, source, prompt=typed)
        for event in trace.events:
            self.add(event)
        self.phase = ""

    def show_recording(self, trace: Trace) -> None:
        """Show a recorded run, opened at the step that tells most."""
        self.show(trace, "recording")
        self.pinned = telling_step(self.steps)

    def add(self, event: Event) -> None:
        """Take in the next event of the run."""
        if isinstance(event, Started) and self.steps:
            # The parent's steps stand before the run that continues them; keep Started first.
            self.events.insert(0, event)
            return
        self.events.append(event)
        if isinstance(event, TokenDecoded):
            if event.sample == 0:
                self.steps.append(event)
                self.drawn_with.append(self.request.sampling if self.request else SamplingParams())
            self.phase, self.progress = "generating", None
        elif isinstance(event, Waiting):
            needed, free = event.num_needed_blocks, event.num_free_blocks
            self.phase = f"waiting for memory: needs {needed} blocks, {free} are free"
        elif isinstance(event, Prefilled):
            self.phase, self.progress = _prefill_line(event), event.num_computed_tokens / event.num_tokens
        elif isinstance(event, Preempted):
            self.phase = f"gave its memory to an older run; {event.num_tokens} tokens will be recomputed"

    def strategy(self, kind: type[T]) -> T | None:
        """How the text was asked for, where that was a strategy of this kind."""
        asked = self.request.strategy if self.request else None
        return asked if isinstance(asked, kind) else None

    @property
    def running(self) -> bool:
        return not self.turn.ended.is_set()

    @property
    def trace(self) -> Trace | None:
        """The text as a Trace; None before the run was accepted."""
        if self.request is None or self.started is None:
            return None
        return Trace(self.request, tuple(self.events))

    @property
    def index(self) -> int | None:
        """The step to look at; None without steps."""
        if not self.steps:
            return None
        wanted = self.shown if self.shown is not None else self.pinned
        last = len(self.steps) - 1
        return last if wanted is None else min(max(wanted, 0), last)


def _prefill_line(event: Prefilled) -> str:
    reused = f", {event.num_cached_tokens} reused" if event.num_cached_tokens else ""
    return f"reading the prompt: {event.num_computed_tokens} of {event.num_tokens} tokens{reused}"


class Views(dict[str, View]):
    """A View by name, made when first asked for."""

    def __missing__(self, name: str) -> View:
        return self.setdefault(name, View())  # one step, so that two handlers get the same


class Session:
    """One browser tab. `salt` keeps its cached prompt blocks from being reused by anyone else.

    `views` are the texts by name of the tab, and `state` what a tab holds besides. `settings_number` counts
    the settings that the server, not the reader, put in place. `opened` is the link the page was opened with,
    until it has run.
    Not a dataclass: gradio would take the value of a State apart if it were one.
    """

    def __init__(self, settings: dict[str, Any] | None = None, recording: Trace | None = None):
        """`settings` and the `recording` are what the page shows first."""
        self.salt = secrets.token_hex(16)
        self.views = Views()
        self._states: dict[type, Any] = {}
        self.settings = dict(settings or {})
        self.tab = "inspect"
        self.link, self.link_number, self.link_note = "", 0, ""
        self.num_saved = 0
        self.settings_number = 1
        self.opened: Link | None = None
        self._start = (dict(self.settings), recording)
        if recording is not None:
            self.inspect.show_recording(recording)

    @property
    def inspect(self) -> View:
        """The text in Inspect, which other tabs speak of."""
        return self.views["inspect"]

    @property
    def view(self) -> View:
        """The view of the open tab."""
        return self.views[self.tab]

    def state(self, kind: type[T]) -> T:
        """The visitor's object of that class, made by calling it when first asked for."""
        found: T = self._states.get(kind) or self._states.setdefault(kind, kind())
        return found

    def put(self, state: object) -> None:
        """Take this object as the one of its class from now on."""
        self._states[type(state)] = state

    def put_settings(
        self, settings: Mapping[str, Any], activity: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Put settings in place; the value that tells the knobs of it, and how often each acted."""
        self.settings |= settings
        self.settings_number += 1
        return {"number": self.settings_number, "settings": self.settings, "activity": dict(activity or {})}

    def __deepcopy__(self, memo: dict[int, Any]) -> Session:
        """A new visitor's session: gradio copies the start value of a State for each one."""
        return Session(*self._start)


def take_settings(session: Session, sent: Any) -> bool:
    """Keep the settings the knobs sent; what is not a set of settings leaves the last ones.

    Settings sent before the knobs took over what the server put in place since (a link, an opened trace) are
    older than that and must not undo it. False for these: whatever came with them is as old.
    """
    settings = sent.get("settings") if isinstance(sent, dict) else None
    number = sent.get("number") if isinstance(sent, dict) else None
    outdated = isinstance(number, int) and number < session.settings_number
    if isinstance(settings, dict) and not outdated:
        session.settings = {name: settings.get(name, default) for name, default in knobs.DEFAULTS.items()}
    return not outdated


def telling_step(steps: Sequence[TokenDecoded]) -> int | None:
    """A step worth showing first: where a cut changed the draw, preferably to a likely token."""
    changed = [step for step in steps if step.uncut_winner is not None and step.uncut_winner != step.token_id]
    return max(changed, key=lambda step: step.model_logprob).index if changed else None


def step_request(trace: Trace, index: int, sampling: SamplingParams, salt: str) -> Request:
    """The request whose next step is step `index` of the trace, under other sampling settings."""
    prefix = trace.token_ids[:index]
    return replace(
        trace.request,
        prompt=trace.started.prompt_token_ids,
        chat=False,
        seed=trace.started.seed,
        sampling=sampling,
        output_prefix=prefix,
        max_new_tokens=max(trace.request.max_new_tokens, len(prefix) + 1),
        cache_salt=salt,
    )


def forced_step(parent: TokenDecoded, token_id: int, text: str) -> TokenDecoded:
    """The parent's step with `token_id`, which adds `text`, in its place, with that candidate's numbers.

    Raises:
        ValueError: the token is not among the recorded candidates.
    """
    table = parent.candidates
    if table is None or token_id not in table.token_ids:
        raise ValueError(f"token {token_id} is not among the candidates of step {parent.index}")
    row = table.token_ids.index(token_id)
    return replace(
        parent,
        token_id=token_id,
        label=table.labels[row],
        text=text,
        model_logprob=table.model_logprobs[row],
        logprob=table.after[-1][row] if table.after else table.model_logprobs[row],
        rank=table.ranks[row] if table.ranks else 0,
        special=bool(table.special) and table.special[row],
        luck=0.0,
        uncut_winner=None,
        forced=True,
    )
