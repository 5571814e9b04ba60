"""Lanes: settings run side by side under one seed, what they gave, and where each leaves the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar

from backend import BeamSearch, Request, Sample, Trace
from backend.comparison import Difference, first_difference
from backend.errors import RequestError
from backend.events import Candidates, Event, TokenDecoded
from backend.protocol import EngineProtocol
from backend.stages import STAGES
from backend.validation import CONFIG, text
from ui import knobs
from ui.runs.log import Log

MIN_LANES, MAX_LANES = 2, 8
MAX_ROWS = 60  # candidates kept per step and lane: eight lanes of full tables would fill the memory
KNOBS = tuple(knob.name for knob in knobs.KNOBS)
NAMES = "ABCDEFGH"


@dataclass
class Lane(Log):
    """One run. `events` grow while it goes on."""

    request: Request

    def add(self, event: Event) -> None:
        self.events.append(slim(event) if isinstance(event, TokenDecoded) else event)

    @property
    def trace(self) -> Trace | None:
        """None before the run was accepted."""
        return Trace(self.request, tuple(self.events)) if self.started else None


@dataclass
class Lanes:
    """The lanes of one comparison.

    Attributes:
        differences: per lane, where it leaves lane A; None where it does not, and empty until compared.
        human_text: a text somebody wrote. human: its tokens, scored; empty without one.
    """

    lanes: list[Lane] = field(default_factory=list)
    differences: list[Difference | None] = field(default_factory=list)
    human: Sequence[TokenDecoded] = ()
    human_text: str = ""

    def explain(self, engine: EngineProtocol, prompt: str, salt: str) -> None:
        """Name the causes, and score the human text after the prompt.

        Raises:
            RequestError, PlaygroundError: as Engine.generate and Engine.score.
        """
        if not self.differences:
            self.compare(engine)
        if self.human_text.strip():
            trace = engine.score(f"{prompt}{self.human_text}", cache_salt=salt)
            self.human = trace.steps()[max(0, len(engine.encode(prompt)) - 1) :]

    def compare(self, engine: EngineProtocol) -> None:
        """Name what made each lane leave lane A.

        Raises:
            RequestError, PlaygroundError: as Engine.generate.
        """
        traces = [lane.trace for lane in self.lanes]
        first = traces[0]
        self.differences = [
            None
            if trace is None or first is None or trace is first
            else first_difference(engine, first, trace)
            for trace in traces
        ]


def requests(prompt: str, settings: Mapping[str, Any], lanes: Any, salt: str) -> list[Request]:
    """One Request per lane: what the lane sets, everything else from the knobs; one seed for all.

    Raises:
        RequestError: too few or too many lanes, an unknown setting, or a value out of range.
    """
    if not isinstance(lanes, list) or not MIN_LANES <= len(lanes) <= MAX_LANES:
        given = len(lanes) if isinstance(lanes, list) else lanes
        raise RequestError(f"a comparison takes {MIN_LANES} to {MAX_LANES} lanes, got {given!r}")
    base = knobs.seeded(knobs.request(prompt, settings, salt))
    return [_request(base, name, lane) for name, lane in zip(NAMES, lanes, strict=False)]


def _request(base: Request, name: str, lane: Any) -> Request:
    if not isinstance(lane, dict):
        raise RequestError(f"lane {name} must map names to values, got {lane!r}")
    for key in lane:
        if key not in (*KNOBS, "num_beams", "order"):
            raise RequestError(f"lane {name} has the unknown setting {str(key)[:40]!r}")
    own: dict[str, Any] = {knob: lane.get(knob, STAGES[knob].neutral) for knob in KNOBS}
    try:
        beams = BeamSearch(num_beams=lane.get("num_beams", 1))
        sampling = replace(base.sampling, **own, order=lane.get("order") or base.sampling.order)
    except RequestError as error:
        raise RequestError(f"lane {name}: {error}") from None
    return replace(base, sampling=sampling, strategy=beams if beams.num_beams > 1 else Sample())


@dataclass(frozen=True)
class LaneFields:
    """The Compare tab's own settings, as a lesson gives them."""

    __pydantic_config__: ClassVar = CONFIG
    lanes: list[dict[str, Any]]
    human: Annotated[str, text()] = ""

    def __post_init__(self) -> None:
        requests("-", knobs.DEFAULTS, self.lanes, "")


def of_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The lane that the knobs describe."""
    return {knob: settings[knob] for knob in KNOBS if settings.get(knob) != STAGES[knob].neutral}


def slim(step: TokenDecoded) -> TokenDecoded:
    """The step with its table cut down to the first MAX_ROWS rows, the drawn token and the uncut winner."""
    table = step.candidates
    if table is None or len(table.token_ids) <= MAX_ROWS:
        return step
    named = {step.token_id, step.uncut_winner}
    places = [i for i, token_id in enumerate(table.token_ids) if i < MAX_ROWS or token_id in named]

    def rows(column: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(column[place] for place in places) if column else ()

    columns = {
        column.name: rows(getattr(table, column.name)) for column in fields(table) if column.name != "after"
    }
    after = tuple(map(rows, table.after))
    return replace(step, candidates=Candidates(**columns, after=after))
