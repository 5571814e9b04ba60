"""Compiler: grammars in, matchers out; compilation happens in a process that can be killed."""

from __future__ import annotations

import atexit
import base64
import json
import os
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.errors import GrammarError, PlaygroundError
from backend.grammar.engines import ENGINES, MaskEngine
from backend.grammar.lowering import Lowered, lower
from backend.grammar.matcher import Matcher, Tokens
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
        answer = self._running().ask(
            {
                "engine": grammar.engine,
                "kind": lowered.kind,
                "source": lowered.source,
                "rules": lowered.rules,
                "seconds": self._seconds,
            }
        )
        if "error" in answer:
            error = answer["error"]
            raise GrammarError(
                error["message"],
                keyword=error.get("keyword", ""),
                line=error.get("line"),
                column=error.get("column"),
            )
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
        root = str(Path(__file__).parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "backend.grammar.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        )
        self._jobs: dict[int, Future[dict[str, Any]]] = {}
        self._next = 0
        self._lock = threading.Lock()
        self._ready: Future[None] = Future()
        texts = [base64.b64encode(text).decode() for text in tokens.texts]
        threading.Thread(
            target=self._send, args=({"texts": texts, "end_ids": tokens.end_ids},), daemon=True
        ).start()
        threading.Thread(target=self._read, name="grammar answers", daemon=True).start()
        atexit.register(self.close)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """The answer to a job; the time limit counts from when the process is ready.

        Raises:
            PlaygroundError: the process ended or does not answer.
        """
        answer: Future[dict[str, Any]] = Future()
        try:
            self._ready.result(START_SECONDS)
            with self._lock:
                number = self._next
                self._next += 1
                self._jobs[number] = answer
            self._send(job | {"job": number})
            deadline = time.monotonic() + START_SECONDS  # the process itself keeps the limit of a job
            return answer.result(max(0.0, deadline - time.monotonic()))
        except (FutureTimeout, OSError):
            self.close()
            raise PlaygroundError("the process that compiles grammars does not answer") from None

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            with self._lock:
                self._process.stdin.write(json.dumps(message).encode() + b"\n")
                self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            self._fail()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            if "ready" in answer:
                self._ready.set_result(None)
                continue
            with self._lock:
                waiting = self._jobs.pop(answer["job"], None)
            if waiting is not None:
                waiting.set_result(answer)
        self._fail()

    def _fail(self) -> None:
        """The process is gone: nobody may be left waiting."""
        error = PlaygroundError("the process that compiles grammars ended")
        with self._lock:
            waiting, self._jobs = list(self._jobs.values()), {}
        if not self._ready.done():
            waiting.append(self._ready)  # type: ignore[arg-type]
        for future in waiting:
            if not future.done():
                future.set_exception(error)

    def close(self) -> None:
        atexit.unregister(self.close)
        self._process.kill()
        self._process.wait()
