"""The engine of the Decoding Playground: language model decoding that shows its work."""

from backend.decoding import selection
from backend.engine import Engine
from backend.errors import GrammarError, ModelUnavailable, PlaygroundError, RequestError, TraceError
from backend.events import Event
from backend.kv.size import contiguous, in_blocks, kv_cache_bytes
from backend.request import BeamSearch, BestOf, Grammar, Request, Sample, SamplingParams, Speculative
from backend.stream import EventStream
from backend.trace import Trace

__all__ = [
    "BeamSearch",
    "BestOf",
    "Engine",
    "Event",
    "EventStream",
    "Grammar",
    "GrammarError",
    "ModelUnavailable",
    "PlaygroundError",
    "Request",
    "RequestError",
    "Sample",
    "SamplingParams",
    "Speculative",
    "Trace",
    "TraceError",
    "contiguous",
    "in_blocks",
    "kv_cache_bytes",
    "selection",
]
