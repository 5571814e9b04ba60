"""The compiling process: each grammar is compiled in a fork of it, which a time limit can kill.

Run as `python -m backend.grammar.worker FD`; FD is a connection that brings the vocabulary, then numbered
jobs, and takes back (number, answer). Jobs run side by side, so that a slow one holds up nobody.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from backend.errors import GrammarError
from backend.grammar.engines import ENGINES
from backend.grammar.lowering import Lowered
from backend.grammar.matcher import MaskEngine, Tokens

MAX_CHILDREN = 4
MAX_COMPILED = 32 << 20  # characters of a compiled grammar
MEMORY = 3 << 30


def serve(jobs: Connection) -> None:
    """Answer jobs until the connection ends."""
    tokens: Tokens = jobs.recv()
    engines = {name: engine(tokens) for name, engine in ENGINES.items()}
    jobs.send(None)
    children: dict[Connection, tuple[int, int, float]] = {}  # pipe: (number of the job, process, seconds)
    while True:
        for ready in wait([*children, *([jobs] if len(children) < MAX_CHILDREN else [])]):
            if ready is not jobs:
                jobs.send(_collected(ready, *children.pop(ready)))  # type: ignore[arg-type, call-overload]
                continue
            try:
                number, engine, lowered, seconds = jobs.recv()
            except EOFError:
                return
            answers, pipe = Pipe(duplex=False)
            process = os.fork()
            if process == 0:
                _work(engines[engine], lowered, seconds, pipe)
            pipe.close()
            children[answers] = number, process, seconds


def _collected(pipe: Connection, number: int, process: int, seconds: float) -> tuple[int, dict[str, Any]]:
    try:
        answer = pipe.recv()
    except EOFError:
        answer = {"message": "the compiler stopped without an answer"}
    pipe.close()
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        answer = {"message": f"compiling took longer than {seconds:g} seconds and was stopped"}
    return number, answer


def _work(engine: MaskEngine, lowered: Lowered, seconds: float, pipe: Connection) -> None:
    """Compile in the forked process; never returns. The alarm ends it wherever it is, in C++ too."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        _limit_memory()
        started = time.perf_counter()
        compiled, num_rules = engine.compile(lowered)
        if len(compiled) > MAX_COMPILED:
            raise GrammarError(f"the compiled grammar takes more than {MAX_COMPILED >> 20} MB")
        seconds = time.perf_counter() - started
        answer: dict[str, Any] = {"compiled": compiled, "num_rules": num_rules, "seconds": seconds}
    except GrammarError as error:
        place = {"line": error.line, "column": error.column, "keyword": error.keyword}
        answer = {"message": str(error), **place}
    except MemoryError:
        answer = {"message": "compiling needs too much memory and was stopped"}
    except Exception as error:
        answer = {"message": f"{type(error).__name__}: {str(error)[:300]}"}
    signal.setitimer(signal.ITIMER_REAL, 0)
    pipe.send(answer)
    os._exit(0)


def _limit_memory() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    except (ImportError, ValueError, OSError):  # not every system has such a limit
        pass


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
