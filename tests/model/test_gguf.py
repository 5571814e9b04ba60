"""GGUF files of each type: float32 is what the file says, int4 is float32 within its rounding."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch

from backend import Engine, Request, SamplingParams, Speculative
from backend.errors import ModelUnavailable
from backend.events import TokenDecoded
from backend.model import catalogue
from backend.model.packed import HalfLinear, PackedLinear
from tests import gguf_files

KINDS = ("Q4_0", "Q4_1", "Q4_K", "Q8_0")


@pytest.fixture(
    scope="module", params=[(a, k) for a in gguf_files.ARCHITECTURES for k in KINDS], ids="-".join
)
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / f"{'-'.join(request.param)}.gguf"
    gguf_files.write(path, *request.param)
    return path


def load(file: Path, packed: bool) -> catalogue.LoadedModel:
    return catalogue.load(str(file), device=torch.device("cpu"), dtype=torch.float32, packed=packed)


def test_packed_logits_are_those_of_the_dequantized_weights(file: Path) -> None:
    full, small = load(file, packed=False), load(file, packed=True)
    ids = torch.randint(256, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected, found = full.model(ids).logits, small.model(ids).logits
    four = "Q8_0" not in file.name
    assert small.packing is not None
    assert small.packing.error < 1e-5
    assert (small.packing.num_packed, small.packing.num_half) == ((14, 1) if four else (0, 15))
    assert isinstance(small.model.model.layers[0].self_attn.q_proj, PackedLinear if four else HalfLinear)
    assert (found - expected).norm() / expected.norm() < (0.03 if four else 2e-3)
    kl = (expected.softmax(-1) * (expected.log_softmax(-1) - found.log_softmax(-1))).sum(-1)
    assert kl.mean() < 5e-3


def test_weights_in_memory_are_the_file_s(file: Path) -> None:
    weight = load(file, packed=False).model.model.layers[1].mlp.down_proj.weight
    tensor = next(t for t in gguf.GGUFReader(file).tensors if t.name == "blk.1.ffn_down.weight")
    expected = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
    torch.testing.assert_close(weight.detach(), expected)


def test_greedy_text_is_the_same_alone_batched_and_drafted(file: Path) -> None:
    engine = Engine.load(str(file), device="cpu", precision="int4", num_blocks=128, block_size=4)
    try:
        greedy = SamplingParams(temperature=0)
        requests = [Request(p, sampling=greedy, max_new_tokens=16) for p in ("abcabcabc", "Hello", "7 8 9")]
        alone = [engine.generate(request).token_ids for request in requests]
        events = [list(stream) for stream in [engine.stream(request) for request in requests]]
        assert [[e.token_id for e in run if isinstance(e, TokenDecoded)] for run in events] == [
            list(ids) for ids in alone
        ]
        drafted = Request(
            "abcabcabc", sampling=greedy, max_new_tokens=16, strategy=Speculative("prompt_lookup", 4)
        )
        assert engine.generate(drafted).token_ids == alone[0]
    finally:
        engine.close()


def test_a_file_that_is_no_gguf_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(ModelUnavailable, match=r"broken\.gguf could not be read"):
        load(path, packed=False)
