"""The bundled model, loaded once: an engine over it, and the stock model beside it as the oracle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from backend import Engine
from backend.model import catalogue
from backend.model.catalogue import LoadedModel


@pytest.fixture(scope="session")
def bundled() -> LoadedModel:
    """A copy of its own: an engine changes the attention of the model it is given."""
    loaded = catalogue.load("smollm2-135m", device=torch.device("cpu"), dtype=torch.float32)
    assert loaded.model.config._attn_implementation == "sdpa"
    return loaded


@pytest.fixture(scope="session")
def bundled_engine() -> Iterator[Engine]:
    engine = Engine.load("smollm2-135m", device="cpu", precision="float32")
    yield engine
    engine.close()
