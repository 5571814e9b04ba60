"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest
import torch

from tests.running import FULL

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
# Several test processes share the cores; together they must not use more threads than there are.
torch.set_num_threads(max(1, torch.get_num_threads() // WORKERS))
# The same examples on every run; the full grid looks for new ones.
hypothesis.settings.register_profile("same", derandomize=True)
if not FULL:
    hypothesis.settings.load_profile("same")


@pytest.fixture(autouse=True)
def _one_thread_for_tiny_models(request: pytest.FixtureRequest) -> Iterator[None]:
    """A second thread only waits in products this small; on a busy machine it costs a factor of twenty."""
    if request.node.get_closest_marker("slow"):
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
