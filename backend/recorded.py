"""An engine without a model: it plays recorded runs back, and says of everything else why it cannot."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NoReturn

from backend.errors import RequestError
from backend.events import Event, Finished, TokenDecoded
from backend.grammar.compiler import Compiled
from backend.grammar.verdict import Verdict
from backend.protocol import Capabilities
from backend.request import Grammar, Request
from backend.trace import Trace

ONLY = "only recorded runs are played back here, there is no model"
LACKING = Capabilities(
    reevaluation=f"A step cannot be computed again: {ONLY}.",
    scoring=f"No text can be scored: {ONLY}.",
    grammars=f"Nothing can be constrained: {ONLY}.",
    beams=f"Nothing can be searched: {ONLY}.",
    stochastic_beams=f"Nothing can be searched: {ONLY}.",
    several_samples=f"No samples can be drawn: {ONLY}.",
    draft_checks=f"Nothing can be drafted: {ONLY}.",
    block_tables=f"There is no pool of blocks: {ONLY}.",
    pool_sizes=f"There is no pool of blocks: {ONLY}.",
)


class RecordedStream:
    """The events of a trace, as EventStream gives those of a run."""

    def __init__(self, request: Request, events: Sequence[Event]):
        self.request, self.number, self.submitted = request, 0, time.perf_counter()
        self._events, self._place, self._cancelled = events, 0, False

    def __iter__(self) -> Iterator[Event]:
        while self._place < len(self._events):
            event = self._events[self._place]
            self._place += 1
            if isinstance(event, Finished) and self._cancelled:
                yield replace(event, reason="cancelled")
            elif not self._cancelled:
                yield event

    def cancel(self) -> None:
        self._cancelled = True

    close = cancel

    def __enter__(self) -> RecordedStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class RecordedEngine:
    """Serves the runs it was given, each to who asks for the same prompt and settings; an EngineProtocol."""

    def __init__(self, traces: Sequence[Trace], capabilities: Capabilities = LACKING):
        """`capabilities` are those of the recorded runs: what was recorded with beams can serve beams."""
        self.traces, self.capabilities = list(traces), capabilities
        self.model_name = traces[0].started.model if traces else "recorded"
        self.precision, self.device = "recorded", "none"
        self.notes: tuple[str, ...] = ()
        self.context_length = self.vocab_size = self.num_layers = self.kv_bytes_per_token = 0
        self.block_size = 16

    def stream(self, request: Request, parent: object = None) -> RecordedStream:
        """Play the run of this request.

        Raises:
            RequestError: it was not recorded.
        """
        return RecordedStream(request, self._find(request).events)

    def generate(self, request: Request) -> Trace:
        return Trace(request, tuple(self.stream(request)))

    def check_room(self, request: Request) -> None:
        self._find(request)

    def _find(self, request: Request) -> Trace:
        for trace in self.traces:
            if _alike(trace, request):
                return trace
        prompts = ", ".join(sorted({repr(trace.request.prompt)[:60] for trace in self.traces}))
        raise RequestError(f"{ONLY}, and none is of this prompt with these settings. Recorded: {prompts}")

    def evaluate(self, request: Request) -> TokenDecoded:
        """The recorded step behind prompt and output_prefix.

        Raises:
            RequestError: no run with these settings passed there.
        """
        asked = (request.sampling, request.output_prefix, tuple(request.prompt))
        place = len(request.output_prefix)
        for trace in self.traces:
            passed = (trace.request.sampling, trace.token_ids[:place], trace.started.prompt_token_ids)
            if passed == asked and place < len(trace.token_ids):
                return trace.steps()[place]
        raise RequestError(self.capabilities.reevaluation or LACKING.reevaluation)

    def encode(self, text: str) -> list[int]:
        return self._refuse("scoring")

    def label(self, token_id: int) -> str:
        return str(token_id)

    def added_text(self, output_ids: Iterable[int], token_id: int) -> str:
        return self._refuse("reevaluation")

    def score(self, text: str, cache_salt: str = "") -> Trace:
        return self._refuse("scoring")

    def stream_score(self, text: str, cache_salt: str = "") -> RecordedStream:
        return self._refuse("scoring")

    def check_grammar(self, grammar: Grammar) -> Compiled:
        return self._refuse("grammars")

    def judge(self, grammar: Grammar, text: str) -> Verdict:
        return self._refuse("grammars")

    def peek(self, request: Request) -> NoReturn:
        self._refuse("draft_checks")

    def with_pool(self, num_blocks: int) -> RecordedEngine:
        return self._refuse("pool_sizes")

    def watch_pool(self, visitor: str) -> NoReturn:
        self._refuse("block_tables")

    def find_blocks(self, token_ids: Iterable[int], cache_salt: str) -> list[int]:
        return []

    def _refuse(self, capability: str) -> NoReturn:
        raise RequestError(getattr(LACKING, capability))


def _alike(trace: Trace, request: Request) -> bool:
    """Whether the trace answers the request; a request without a seed takes any."""
    seed = trace.started.seed if request.seed is None else request.seed
    salt, tables = trace.request.cache_salt, trace.request.num_candidates
    asked = replace(request, seed=seed, cache_salt=salt, num_candidates=tables)
    return replace(trace.request, seed=trace.started.seed) == asked
