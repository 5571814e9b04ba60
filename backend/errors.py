"""Every error this package raises on purpose.

PlaygroundError
├── RequestError       a request that cannot be run as asked; also a ValueError
│   └── GrammarError   a grammar that is wrong, or that cannot be enforced exactly
├── ModelUnavailable   weights that cannot be had, or a model that cannot be run correctly
├── OutOfBlocks        the KV pool has too few free blocks right now (handled by the scheduler)
└── TraceError         text that is not a trace of a known version; also a ValueError

Messages name the value that was given and the limit it broke, so that they can be shown as they are.
"""


class PlaygroundError(Exception):
    """Base of all errors raised on purpose."""


class RequestError(PlaygroundError, ValueError):
    """A request that cannot be run as asked."""


class GrammarError(RequestError):
    """A grammar that is wrong, or that cannot be enforced exactly.

    Attributes:
        keyword: what it is about (a schema keyword, a construct); empty where nothing is named.
        pointer: JSON pointer of the place in a schema; None elsewhere.
        line, column: place in the source, from 1; None where unknown.
    """

    def __init__(
        self,
        message: str,
        *,
        keyword: str = "",
        pointer: str | None = None,
        line: int | None = None,
        column: int | None = None,
    ):
        super().__init__(message)
        self.keyword = keyword
        self.pointer = pointer
        self.line = line
        self.column = column


class NoTokenLeft(PlaygroundError):
    """A stage cut every token: the line cannot go on. Names the stage, and those that cut before it."""


class ModelUnavailable(PlaygroundError):
    """The weights cannot be had, or the model cannot be run correctly here."""


class OutOfBlocks(PlaygroundError):
    """The pool has fewer free blocks than an operation needs."""


class TraceError(PlaygroundError, ValueError):
    """The text is not a trace this version can read."""
