"""What the page needs of an engine, so that other engines can stand in its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from backend.events import Event, TokenDecoded
from backend.grammar.compiler import Compiled
from backend.grammar.verdict import Verdict
from backend.request import Grammar, Request
from backend.trace import Trace


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do. Each field is empty where it can, and says why not where it cannot.

    Attributes:
        sampling: new runs of any prompt under any settings.
        reevaluation: one step of a run again under other settings.
        scoring: the tokens of a given text. grammars: constrained runs.
        beams, stochastic_beams, several_samples: the strategies of these names.
        draft_checks: speculative runs, with the check of every drafted token.
        block_tables: the blocks of the KV pool, live. pool_sizes: pools of other sizes over the same weights.
    """

    sampling: str = ""
    reevaluation: str = ""
    scoring: str = ""
    grammars: str = ""
    beams: str = ""
    stochastic_beams: str = ""
    several_samples: str = ""
    draft_checks: str = ""
    block_tables: str = ""
    pool_sizes: str = ""

    def lacking(self, needs: Iterable[str]) -> str:
        """Why one of these capabilities is not there, the first that is not; empty if all are."""
        return next((reason for need in needs if (reason := getattr(self, need))), "")


@runtime_checkable
class RunStream(Protocol):
    """The events of one run; leaving it early cancels the run. As EventStream."""

    @property
    def request(self) -> Request:
        """What was asked for."""
        ...

    @property
    def number(self) -> int: ...

    @property
    def submitted(self) -> float: ...

    def __iter__(self) -> Iterator[Event]: ...

    def __enter__(self) -> RunStream: ...

    def __exit__(self, *exc: object) -> None: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class EngineProtocol(Protocol):
    """What the tabs and endpoints call; each means what the method of Engine means, errors included."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def model_name(self) -> str:
        """The target's name, as the catalogue or the folder has it."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What the reader should know of this model, in sentences."""
        ...

    @property
    def precision(self) -> str: ...

    @property
    def device(self) -> str: ...

    @property
    def context_length(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def block_size(self) -> int:
        """Tokens in a block of the cache."""
        ...

    @property
    def kv_bytes_per_token(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def label(self, token_id: int) -> str: ...

    def added_text(self, output_ids: Iterable[int], token_id: int) -> str: ...

    def stream(self, request: Request, parent: Any = None) -> RunStream: ...

    def generate(self, request: Request) -> Trace: ...

    def check_room(self, request: Request) -> None: ...

    def evaluate(self, request: Request) -> TokenDecoded: ...

    def score(self, text: str, cache_salt: str = "") -> Trace: ...

    def stream_score(self, text: str, cache_salt: str = "") -> RunStream: ...

    def check_grammar(self, grammar: Grammar) -> Compiled: ...

    def judge(self, grammar: Grammar, text: str) -> Verdict: ...

    def peek(self, request: Request) -> Any: ...

    def with_pool(self, num_blocks: int) -> EngineProtocol: ...

    def watch_pool(self, visitor: str) -> Any: ...

    def find_blocks(self, token_ids: Iterable[int], cache_salt: str) -> list[int]: ...
