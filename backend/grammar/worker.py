"""The compiling process: each grammar is compiled in a fork of it, which a time limit can kill.

Run as `python -m backend.grammar.worker`. Lines of JSON on standard input: first the vocabulary, then jobs;
one line of JSON on standard output for each. Jobs run side by side, so that a slow one holds up nobody.
"""

from __future__ import annotations

import base64
import json
import os
import selectors
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from backend.errors import GrammarError, PlaygroundError
from backend.grammar.engines import ENGINES
from backend.grammar.lowering import Lowered
from backend.grammar.matcher import Tokens

MAX_CHILDREN = 4
MAX_COMPILED = 32 << 20  # characters of a compiled grammar
MEMORY = 3 << 30


@dataclass
class _Child:
    job: dict[str, Any]
    process: int
    pipe: int
    ends: float
    answer: bytearray = field(default_factory=bytearray)


def main() -> None:
    """Serve until standard input ends."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no reply
    first = json.loads(sys.stdin.buffer.readline())
    texts = tuple(base64.b64decode(text) for text in first["texts"])
    _Server(Tokens(texts, tuple(first["end_ids"])), replies).run()


class _Server:
    def __init__(self, tokens: Tokens, replies: BinaryIO):
        self._engines = {name: engine(tokens) for name, engine in ENGINES.items()}
        self._replies = replies
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, _Child] = {}
        self._jobs: list[dict[str, Any]] = []
        self._input = bytearray()
        self._open = True

    def run(self) -> None:
        self._reply({"ready": True})
        os.set_blocking(0, False)
        self._selector.register(0, selectors.EVENT_READ)
        while self._open:
            ends = [child.ends for child in self._children.values()]
            wait = max(0.0, min(ends) - time.monotonic()) if ends else None
            for key, _ in self._selector.select(wait):
                if key.fd == 0:
                    self._read_jobs()
                else:
                    self._read_child(self._children[key.fd])
            self._end_late()
            while self._jobs and len(self._children) < MAX_CHILDREN:
                self._start(self._jobs.pop(0))
        for child in self._children.values():
            os.kill(child.process, signal.SIGKILL)

    def _reply(self, message: dict[str, Any]) -> None:
        self._replies.write(json.dumps(message).encode() + b"\n")
        self._replies.flush()

    def _read_jobs(self) -> None:
        data = os.read(0, 1 << 20)
        self._open = bool(data)
        self._input += data
        *lines, rest = self._input.split(b"\n")
        self._input = bytearray(rest)
        self._jobs += [json.loads(line) for line in lines]

    def _start(self, job: dict[str, Any]) -> None:
        read_end, write_end = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(read_end)
            _work(self._engines, job, write_end)
        os.close(write_end)
        self._children[read_end] = _Child(job, process, read_end, time.monotonic() + job["seconds"])
        self._selector.register(read_end, selectors.EVENT_READ)

    def _read_child(self, child: _Child) -> None:
        data = os.read(child.pipe, 1 << 20)
        child.answer += data
        if not data:
            whole = bytes(child.answer) or b'{"error": {"message": "the compiler stopped without an answer"}}'
            self._close(child)
            self._reply(json.loads(whole) | {"job": child.job["job"]})

    def _end_late(self) -> None:
        for child in list(self._children.values()):
            if time.monotonic() >= child.ends:
                os.kill(child.process, signal.SIGKILL)
                self._close(child)
                seconds = child.job["seconds"]
                message = f"compiling took longer than {seconds:g} seconds and was stopped"
                self._reply({"job": child.job["job"], "error": {"message": message}})

    def _close(self, child: _Child) -> None:
        self._selector.unregister(child.pipe)
        os.close(child.pipe)
        os.waitpid(child.process, 0)
        del self._children[child.pipe]


def _work(engines: dict[str, Any], job: dict[str, Any], pipe: int) -> None:
    """Compile in the forked process; never returns."""
    try:
        _limit_memory()
        started = time.perf_counter()
        lowered = Lowered(job["kind"], job["source"], job["rules"], ())
        compiled, num_rules = engines[job["engine"]].compile(lowered)
        if len(compiled) > MAX_COMPILED:
            raise GrammarError(f"the compiled grammar takes more than {MAX_COMPILED >> 20} MB")
        seconds = time.perf_counter() - started
        answer: dict[str, Any] = {"compiled": compiled, "num_rules": num_rules, "seconds": seconds}
    except GrammarError as error:
        place = {"line": error.line, "column": error.column, "keyword": error.keyword}
        answer = {"error": {"message": str(error), **place}}
    except MemoryError:
        answer = {"error": {"message": "compiling needs too much memory and was stopped"}}
    except (PlaygroundError, Exception) as error:
        answer = {"error": {"message": f"{type(error).__name__}: {str(error)[:300]}"}}
    with os.fdopen(pipe, "wb") as out:
        out.write(json.dumps(answer).encode())
    os._exit(0)


def _limit_memory() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    except (ImportError, ValueError, OSError):  # not every system has such a limit
        pass


if __name__ == "__main__":
    main()
