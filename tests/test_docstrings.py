"""Everything public in backend says what it is, where it is defined or where what it implements is."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any

import pytest

import backend
from backend.engine import Engine
from backend.stream import EventStream

# What these promise is written at the class that they stand for.
MEANT = {
    "EngineProtocol": Engine,
    "RecordedEngine": Engine,
    "RunStream": EventStream,
    "RecordedStream": EventStream,
}
MODULES = [found.name for found in pkgutil.walk_packages(backend.__path__, "backend.")]


def members(kind: type) -> list[tuple[str, Any]]:
    """The public methods and properties that the class itself defines."""
    found = [(name, member) for name, member in vars(kind).items() if not name.startswith("_")]
    return [pair for pair in found if inspect.isroutine(pair[1]) or isinstance(pair[1], property)]


def undocumented(module: ModuleType) -> list[str]:
    """Public functions, classes and members of them without a docstring of their own or inherited."""
    lacking = []
    for name, thing in vars(module).items():
        if name.startswith("_") or getattr(thing, "__module__", None) != module.__name__:
            continue
        said = thing.__doc__ or ""
        is_signature = said.startswith(f"{name}(")  # what dataclass puts there by itself
        if (inspect.isfunction(thing) or inspect.isclass(thing)) and (not said or is_signature):
            lacking.append(name)
        for member, _ in members(thing) if inspect.isclass(thing) else ():
            places = (thing, MEANT.get(name, thing))
            if not any(inspect.getdoc(getattr(place, member, None)) for place in places):
                lacking.append(f"{name}.{member}")
    return lacking


@pytest.mark.parametrize("name", MODULES)
def test_what_is_public_says_what_it_is(name: str) -> None:
    if not name.endswith("__main__"):
        assert undocumented(importlib.import_module(name)) == []
