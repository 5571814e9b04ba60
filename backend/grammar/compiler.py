"""Compiler: grammars in, matchers out; compilation happens in a process that can be killed."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from backend.errors import GrammarError, PlaygroundError
from backend.grammar.engines import ENGINES
from backend.grammar.lowering import Lowered, lower
from backend.grammar.matcher import MaskEngine, Matcher, Tokens
from backend.request import Grammar

SECONDS = 2.0
START_SECONDS = 120.0  # a cold process on a busy machine
MAX_CACHED = 64


@dataclass(frozen=True)
class Compiled:
    """A grammar that masks can be made of.

    Attributes:
        num_rules: of the grammar the engine works with. seconds: time it took to compile.
        notes: how less than was asked for can be produced, one sentence each.
    """

    grammar: Grammar
    num_rules: int
    seconds: float
    notes: tuple[str, ...]
    engine: MaskEngine
    handle: Any

    def matcher(self) -> Matcher:
        """A matcher at the start of a text."""
        return self.engine.matcher(self.handle)


class Compiler:
    """Compiles for one vocabulary; any number of threads may call it.

    `seconds` is the time limit of one compilation.
    """

    def __init__(self, tokens: Tokens, seconds: float = SECONDS):
        self._tokens = tokens
        self._seconds = seconds
        self._engines: dict[str, MaskEngine] = {}
        self._cache: OrderedDict[tuple[str, ...], Compiled] = OrderedDict()
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def compile(self, grammar: Grammar) -> Compiled:
        """Admit and compile; the latest results are kept.

        Raises:
            GrammarError: the grammar is wrong, cannot be enforced, or takes too long.
        """
        lowered = lower(grammar)
        key = (grammar.engine, lowered.kind, json.dumps(lowered.source), json.dumps(lowered.rules))
        with self._lock:
            found = self._cache.get(key)
            if found is not None:
                self._cache.move_to_end(key)
        if found is None:
            found = self._compiled(grammar, lowered)
            with self._lock:
                self._cache[key] = found
                while len(self._cache) > MAX_CACHED:
                    self._cache.popitem(last=False)
        return Compiled(grammar, found.num_rules, found.seconds, lowered.notes, found.engine, found.handle)

    def _compiled(self, grammar: Grammar, lowered: Lowered) -> Compiled:
        answer = self._running().ask(grammar.engine, lowered, self._seconds)
        if "message" in answer:
            raise GrammarError(answer.pop("message"), **answer)
        engine = self._engine(grammar.engine)
        handle = engine.load(answer["compiled"])
        return Compiled(grammar, answer["num_rules"], answer["seconds"], lowered.notes, engine, handle)

    def _engine(self, name: str) -> MaskEngine:
        with self._lock:
            if name not in self._engines:
                self._engines[name] = ENGINES[name](self._tokens)
            return self._engines[name]

    def _running(self) -> _Process:
        with self._lock:
            if self._process is None or not self._process.alive:
                self._process = _Process(self._tokens)
            return self._process

    def close(self) -> None:
        """End the process."""
        with self._lock:
            if self._process is not None:
                self._process.close()
                self._process = None


class _Process:
    """The worker process and the jobs it has not answered yet."""

    def __init__(self, tokens: Tokens):
        paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "backend.grammar.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # whatever a library prints
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
            )
        self._connection = Connection(ours.detach())
        self._jobs: dict[int, Future[dict[str, Any]]] = {}
        self._next = 0
        self._lock = threading.Lock()  # of sending; the answering thread must never wait for it
        self._ready: Future[None] = Future()
        threading.Thread(target=self._serve, args=(tokens,), name="grammar answers", daemon=True).start()
        atexit.register(self.close)

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def ask(self, engine: str, lowered: Lowered, seconds: float) -> dict[str, Any]:
        """The answer to a job; its time limit, which the process itself keeps, counts from when it is ready.

        Raises:
            PlaygroundError: the process ended or does not answer.
        """
        answer: Future[dict[str, Any]] = Future()
        try:
            self._ready.result(START_SECONDS)
            with self._lock:
                self._jobs[self._next] = answer
                self._connection.send((self._next, engine, lowered, seconds))
                self._next += 1
            return answer.result(START_SECONDS)
        except (FutureTimeout, OSError):
            self.close()
            raise PlaygroundError("the process that compiles grammars does not answer") from None

    def _serve(self, tokens: Tokens) -> None:
        """Hand out answers until the process is gone; nobody is left waiting then."""
        try:
            self._connection.send(tokens)
            self._ready.set_result(self._connection.recv())
            while True:
                number, answer = self._connection.recv()
                self._jobs.pop(number).set_result(answer)
        except (EOFError, OSError):
            pass
        error = PlaygroundError("the process that compiles grammars ended")
        futures: list[Future[Any]] = [self._ready, *list(self._jobs.values())]
        for future in futures:
            if not future.done():
                future.set_exception(error)

    def close(self) -> None:
        """End the process; who still waits gets a PlaygroundError."""
        atexit.unregister(self.close)
        self._process.kill()
        self._process.wait()
