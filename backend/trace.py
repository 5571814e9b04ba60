"""Trace: the events of one run, what is derived from them, and strict JSON in and out."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError, with_config

from backend import events as ev
from backend import request as rq
from backend.errors import TraceError
from backend.stages import STAGES
from backend.validation import CONFIG, RECORDED

VERSION = 2

T = TypeVar("T")


@dataclass(frozen=True)
class StageActivity:
    """How often a stage altered anything: `num_changed` of `num_steps`; mean cut mass when it did."""

    stage: str
    setting: float | str
    num_changed: int
    num_steps: int
    mean_cut_mass: float


@dataclass(frozen=True)
class Trace:
    """A request and everything that happened while it ran."""

    request: rq.Request
    events: tuple[ev.Event, ...]

    @property
    def started(self) -> ev.Started:
        """The first event.

        Raises:
            StopIteration: the run was refused, so that there is none.
        """
        return next(event for event in self.events if isinstance(event, ev.Started))

    @property
    def finished(self) -> ev.Finished | None:
        """The last event; None while the run goes on."""
        return next((event for event in self.events if isinstance(event, ev.Finished)), None)

    @property
    def finish_reason(self) -> ev.FinishReason | None:
        """None while the run goes on."""
        return self.finished.reason if self.finished else None

    @property
    def selected(self) -> int:
        """Number of the sample that is the result: 0, unless the run selected another."""
        return next((e.sample for e in self.events if isinstance(e, ev.SampleSelected)), 0)

    def steps(self, sample: int | None = None) -> tuple[ev.TokenDecoded, ...]:
        """The tokens of one sample, by default the selected one."""
        number = self.selected if sample is None else sample
        return tuple(e for e in self.events if isinstance(e, ev.TokenDecoded) and e.sample == number)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Generated ids of the selected sample, the fixed prefix of a branch included."""
        steps = self.steps()
        missing = self.request.output_prefix[: steps[0].index] if steps else self.request.output_prefix
        return (*missing, *(step.token_id for step in steps))

    @property
    def text(self) -> str:
        """Text of the selected sample's recorded steps."""
        return "".join(step.text for step in self.steps())

    @property
    def verdict(self) -> ev.Judged | None:
        """What an independent reader says of the selected sample; None without a grammar or an end."""
        judged = [e for e in self.events if isinstance(e, ev.Judged) and e.sample == self.selected]
        if judged or self.request.grammar is None or self.finish_reason is None:
            return judged[-1] if judged else None
        return ev.Judged(self.selected, "incomplete", f"the run ended: {self.finish_reason}", "", self.text)

    @property
    def samples(self) -> tuple[str, ...]:
        """The text of each sample."""
        numbers = sorted({e.sample for e in self.events if isinstance(e, ev.TokenDecoded)})
        return tuple("".join(step.text for step in self.steps(number)) for number in numbers)

    @property
    def perplexity(self) -> float | None:
        """exp of the mean surprise of the selected sample under the unmodified model; None without tokens."""
        steps = self.steps()
        if not steps:
            return None
        return math.exp(-sum(step.model_logprob for step in steps) / len(steps))

    def activity(self) -> tuple[StageActivity, ...]:
        """Per switched-on stage, how often it acted over all recorded steps of all samples."""
        seen: dict[str, list[ev.StageOutcome]] = {}
        for event in self.events:
            if isinstance(event, ev.TokenDecoded):
                for outcome in event.stages:
                    seen.setdefault(outcome.stage, []).append(outcome)
        return tuple(_activity(stage, outcomes) for stage, outcomes in seen.items())

    def branch(self, index: int, token_id: int, **changes: Any) -> rq.Request:
        """The request that follows sample 0 up to output `index` and there takes `token_id` instead.

        Raises:
            TraceError: index is not a recorded step.
        """
        prefix = self.token_ids
        if not 0 <= index < len(prefix):
            raise TraceError(f"cannot branch at token {index}: the run has {len(prefix)} tokens")
        return replace(
            self.request,
            seed=self.started.seed,
            prompt=self.started.prompt_token_ids,
            chat=False,
            output_prefix=(*prefix[:index], token_id),
            max_new_tokens=max(self.request.max_new_tokens, index + 2),
            **changes,
        )

    def to_json(self) -> str:
        """Strict JSON: infinities are the strings "Infinity" and "-Infinity", never NaN or null."""
        events = ",".join(f'["{type(event).__name__}",{_dump(event)}]' for event in self.events)
        return f'{{"version":{VERSION},"request":{_dump(self.request)},"events":[{events}]}}'

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """Read what to_json wrote.

        Raises:
            TraceError: not strict JSON, an unknown version, or a value of the wrong type.
        """
        document = _strict_json(text)
        version = document.get("version") if isinstance(document, dict) else None
        if version not in (1, VERSION) or isinstance(version, bool):
            raise TraceError(f"not a trace of version {VERSION} (found version {version!r})")
        entries = document.get("events")
        if not isinstance(entries, list):
            raise TraceError("the trace has no list of events")
        if version == 1:
            _from_version_1(entries)
        request = _load(rq.Request, document.get("request"))
        trace = cls(request, tuple(_load_event(entry) for entry in entries))
        if not any(isinstance(event, ev.Started) for event in trace.events):
            raise TraceError("the trace has no Started event")
        return trace


def _activity(stage: str, outcomes: list[ev.StageOutcome]) -> StageActivity:
    changed = [outcome for outcome in outcomes if outcome.changed]
    mass = sum(outcome.cut_mass for outcome in changed) / len(changed) if changed else 0.0
    return StageActivity(stage, outcomes[-1].setting, len(changed), len(outcomes), mass)


# Unknown fields are refused at every level, so the setting goes on the nested classes as well.
_NESTED = (
    ev.StageSetting,
    ev.StageOutcome,
    ev.Candidates,
    ev.BeamNode,
    ev.DraftedToken,
    ev.Residual,
    ev.GrammarStep,
)
_DOCUMENTS = (*get_args(ev.Event), *get_args(rq.Strategy), rq.Request)
for _cls in (*_NESTED, *get_args(ev.Event)):
    with_config(CONFIG)(_cls)
_ADAPTERS: dict[str, TypeAdapter[Any]] = {cls.__name__: TypeAdapter(cls) for cls in _DOCUMENTS}
_EVENTS = {cls.__name__ for cls in get_args(ev.Event)}


# The salt separates visitors' caches; it is a secret of the session and stays out of shared files.
_PRIVATE = {"cache_salt"}


def _dump(value: Any) -> str:
    return _ADAPTERS[type(value).__name__].dump_json(value, exclude=_PRIVATE).decode()


def _load(cls: type[T], fields: Any) -> T:
    try:
        return _ADAPTERS[cls.__name__].validate_python(fields, context=RECORDED)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise TraceError(f"trace field {cls.__name__}.{where}: {first['msg']}") from None


def _load_event(entry: Any) -> ev.Event:
    known = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
    if not known or entry[0] not in _EVENTS:
        raise TraceError(f"not an event of this version: {str(entry)[:80]}")
    return _load(getattr(ev, entry[0]), entry[1])


def _from_version_1(entries: list[Any]) -> None:
    """There a stage's setting was always text, and changes of blocks were events.

    What cannot be read is left for the check that follows.
    """
    entries[:] = [
        entry for entry in entries if not (isinstance(entry, list) and entry[:1] == ["BlocksChanged"])
    ]
    for entry in entries:
        fields = entry[1] if isinstance(entry, list) and len(entry) == 2 else None
        stages = fields.get("stages") if isinstance(fields, dict) else None
        for outcome in stages if isinstance(stages, list) else ():
            spec = STAGES.get(str(outcome.get("stage"))) if isinstance(outcome, dict) else None
            if spec is not None and spec.neutral is not None:
                with contextlib.suppress(KeyError, TypeError, ValueError):
                    outcome["setting"] = (int if spec.whole else float)(outcome["setting"])


def _strict_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise TraceError(f"not strict JSON: it holds the bare constant {constant}")

    try:
        return json.loads(text, parse_constant=refuse)
    except TraceError:
        raise
    except (ValueError, RecursionError) as error:  # ValueError also for integers of thousands of digits
        raise TraceError(f"not JSON: {error}") from None
