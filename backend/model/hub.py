"""Models of the Hugging Face hub, brought into the hub's own cache on this machine."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2
import huggingface_hub
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError

from backend.errors import ModelUnavailable
from backend.model.files import first_line, is_wanted, refuse_unsafe_files
from backend.model.progress import Progress, watch_growth

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_TIMEOUT = 10.0  # seconds for the list of files


def folder(repo_id: str, report: Progress) -> Path:
    """The folder of a hub model, downloaded if it is not there yet; without a network, what is there.

    Raises:
        ModelUnavailable: names each way tried, why it failed, and what to do.
    """
    try:
        return _download(repo_id, report)
    except (OSError, httpx2.HTTPError, ValueError) as error:
        reason = _reason(error)
    try:
        return Path(huggingface_hub.snapshot_download(repo_id, local_files_only=True))
    except (OSError, ValueError) as error:
        raise ModelUnavailable(
            f"{repo_id} cannot be had. Tried: the Hugging Face hub: {reason}; its cache on this machine "
            f"({HF_HUB_CACHE}): not there. Check the spelling and the network; for a private or gated model "
            "set HF_TOKEN; or give a local folder with a model, or the bundled model's name."
        ) from error


def _download(repo_id: str, report: Progress) -> Path:
    """Fetch the configuration, tokenizer and safetensors files; never code or pickles."""
    info = huggingface_hub.model_info(repo_id, timeout=_TIMEOUT, files_metadata=True)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    refuse_unsafe_files(repo_id, "its hub repository", sizes)
    wanted = [file for file in sizes if is_wanted(file)]
    total = sum(sizes[file] for file in wanted)
    blobs = Path(HF_HUB_CACHE) / f"models--{repo_id.replace('/', '--')}" / "blobs"
    with watch_growth(blobs, total, f"Fetching {repo_id} ({total / 1e6:,.0f} MB, once)", report):
        return Path(huggingface_hub.snapshot_download(repo_id, revision=info.sha, allow_patterns=wanted))


def _reason(error: Exception) -> str:
    if isinstance(error, GatedRepoError):
        return "the model is gated and the token given, if any, has no access"
    if isinstance(error, RepositoryNotFoundError):
        return "no such model, or it is private"
    if isinstance(error, OfflineModeIsEnabled):
        return "not asked, HF_HUB_OFFLINE is set"
    return f"{type(error).__name__}: {first_line(error)}"
