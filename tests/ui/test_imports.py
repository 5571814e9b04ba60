"""Imports inside ui/ point one way."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

UI = Path(__file__).parents[2] / "ui"
# From the bottom up; what stands in one row does not see the rest of the row, its own folder aside.
ORDER = [
    {"components", "diffs", "numbers", "order", "tables", "titles"},
    {"knobs"},
    {"link", "loading", "runs"},
    {"presets", "session"},
    {"plots"},
    {"payloads"},
    {"api", "tabs"},
    {"header"},
    {"page"},
]
LEVELS = {name: level for level, names in enumerate(ORDER) for name in names}


def part(module: str) -> str:
    return module.split(".")[1]


def imported(path: Path) -> set[str]:
    """The modules of ui that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "ui":
            found |= {f"ui.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ui."):
            found.add(node.module or "")
    return found


FILES = sorted(path for path in UI.rglob("*.py") if path != UI / "__init__.py")
SCRIPTS = [UI / "presets" / "record.py"]  # run by hand, no part of the page


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(UI)))
def test_no_import_between_the_parts_of_the_page_points_upward(path: Path) -> None:
    own = path.relative_to(UI).parts[0].removesuffix(".py")
    for module in imported(path):
        other = part(module)
        assert other == own or LEVELS[other] < LEVELS[own], f"{own} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(UI)))
def test_only_who_loads_one_knows_the_engine_itself(path: Path) -> None:
    if path in SCRIPTS:
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("backend"):
            assert not {"Engine", "EventStream"} & {alias.name for alias in node.names}
            assert node.module not in ("backend.engine", "backend.scheduler", "backend.stream")
