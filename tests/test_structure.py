"""Imports point one way, and each heavy library has its place."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Top-level package: the files that may import it, as paths or folders from the root.
ALLOWED = {
    "transformers": ("backend/model/", "backend/kv/paged_cache.py"),
    "xgrammar": ("backend/grammar/xgrammar_engine.py",),
    "llguidance": ("backend/grammar/llguidance_engine.py",),
    "jsonschema": ("backend/grammar/validation.py",),
    "gradio": ("ui/", "app.py"),
    "plotly": ("ui/", "app.py"),
    "ui": ("ui/", "app.py"),
}

# Module or package: what it must not import, because that lies above it.
NOT_BELOW = {
    "backend/errors.py": ("backend",),
    "backend/request.py": ("backend.events", "backend.trace", "backend.sequence", "backend.engine", "torch"),
    "backend/events.py": ("backend.trace", "backend.sequence", "backend.engine", "torch"),
    "backend/kv/block_manager.py": ("torch", "backend.model", "backend.decoding", "backend.engine"),
    "backend/sampling/": ("backend.model", "backend.decoding", "backend.engine", "backend.kv"),
    "backend/grammar/": (
        "backend.sampling",
        "backend.decoding",
        "backend.engine",
        "backend.model",
        "backend.kv",
    ),
    "backend/model/": ("backend.decoding", "backend.engine", "backend.sampling"),
    "backend/decoding/": ("backend.engine", "backend.model.catalogue"),
    "ui/": ("backend.decoding", "backend.kv", "backend.model.runner", "backend.scheduler"),
}


def sources() -> list[Path]:
    files = [*ROOT.glob("backend/**/*.py"), *ROOT.glob("ui/**/*.py"), *ROOT.glob("app.py")]
    assert len(files) > 10
    return files


def imported(path: Path) -> set[str]:
    """Dotted names a file imports anywhere, also inside functions; `from a import b` counts as a and a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def lies_in(path: Path, places: tuple[str, ...]) -> bool:
    name = path.relative_to(ROOT).as_posix()
    return any(name == place or (place.endswith("/") and name.startswith(place)) for place in places)


def test_the_reader_of_imports_sees_every_form(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("import x.y as z\ndef f():\n    from p.q import r\n")
    assert imported(file) == {"x.y", "p.q", "p.q.r"}


@pytest.mark.parametrize("library", ALLOWED)
def test_library_is_imported_only_in_its_place(library):
    users = [path for path in sources() if any(name.split(".")[0] == library for name in imported(path))]
    assert [path for path in users if not lies_in(path, ALLOWED[library])] == []


@pytest.mark.parametrize("place", NOT_BELOW)
def test_imports_point_downwards(place):
    below = [path for path in sources() if lies_in(path, (place,))]
    assert below, f"{place} does not exist"
    for path in below:
        for name in imported(path):
            upward = [up for up in NOT_BELOW[place] if name == up or name.startswith(f"{up}.")]
            if not (upward == ["backend"] and name.startswith("backend.errors")):
                assert not upward, f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("allowed", ["backend.engine", "backend.request", "backend.trace", "backend.events"])
def test_public_modules_exist(allowed):
    assert (ROOT / f"{allowed.replace('.', '/')}.py").is_file()


def test_importing_backend_loads_no_page_library_and_opens_no_socket():
    code = """
import socket, sys
def refuse(*args, **kwargs): raise AssertionError("network at import")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
import backend
print(sorted({name.split(".")[0] for name in sys.modules} & {"gradio", "plotly", "ui"}))
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "[]", run.stderr


def test_no_file_trusts_remote_code_or_unpickles():
    for path in sources():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value is False, path
        assert not {"pickle", "dill", "joblib"} & imported(path), path
        assert "torch.load(" not in path.read_text(encoding="utf-8"), path
