"""The bundled model in int4: how far from float32, and the same greedy text however it is computed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from backend import BeamSearch, Engine, Request, SamplingParams, Speculative
from backend.events import TokenDecoded
from backend.model.catalogue import LoadedModel
from backend.model.packed import HalfLinear
from backend.model.runner import Piece

pytestmark = pytest.mark.slow

TEXT = Path(__file__).parents[2] / "README.md"
PART = 500  # tokens that are computed at once
GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def int4() -> Iterator[Engine]:
    engine = Engine.load("smollm2-135m", device="cpu", precision="int4", num_blocks=256)
    yield engine
    engine.close()


def test_its_groups_are_the_file_s_own(int4: Engine) -> None:
    assert int4.packing == "int4: 210 layers in 4 bits, the file's own; 1 layers in 16"


def test_its_weights_take_less_than_400_megabytes(int4: Engine) -> None:
    model = int4._loaded.model
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in model.state_dict().values()}
    half = sum(m.in_features * m.out_features * 2 for m in model.modules() if isinstance(m, HalfLinear))
    assert sum(held.values()) + half < 400e6


def test_int4_agrees_with_float32_over_2000_tokens(
    int4: Engine, bundled: LoadedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = int4.encode(TEXT.read_text(encoding="utf-8"))[: 4 * PART]
    assert len(ids) == 4 * PART
    kl, same, off = [], [], []
    for start in range(0, len(ids), PART):
        part = list(ids[start : start + PART])
        found = int4._runner.forward([Piece(part, 0, None, PART)])[0]
        with torch.inference_mode():
            expected = bundled.model(torch.tensor([part])).logits[0]
        p, q = expected.log_softmax(-1), found.log_softmax(-1)
        kl.append((p.exp() * (p - q)).sum(-1))
        same.append(p.argmax(-1) == q.argmax(-1))
        off.append((found - expected).square().mean(-1).sqrt())
    mean_kl, worst_kl = float(torch.cat(kl).mean()), float(torch.cat(kl).max())
    agreement, error = float(torch.cat(same).float().mean()), float(torch.cat(off).mean())
    with capsys.disabled():
        print(f"\nint4 against float32: KL {mean_kl:.5f} a token (worst {worst_kl:.4f}), "
              f"the same first token {agreement:.1%}, logits off by {error:.3f}")  # fmt: skip
    assert mean_kl < 0.002
    assert worst_kl < 0.1
    assert agreement > 0.97
    assert error < 0.2


def test_greedy_text_is_the_same_alone_batched_and_drafted(int4: Engine) -> None:
    prompts = ["The capital of France is", "Once upon a time", "one two three one two three one"]
    requests = [Request(prompt, sampling=GREEDY, max_new_tokens=16) for prompt in prompts]
    alone = [list(int4.generate(request).token_ids) for request in requests]
    runs = [list(stream) for stream in [int4.stream(request) for request in requests]]
    assert [[e.token_id for e in run if isinstance(e, TokenDecoded)] for run in runs] == alone
    for request, ids in zip(requests, alone, strict=True):
        strategy = Speculative("prompt_lookup", 4)
        drafted = Request(request.prompt, sampling=GREEDY, max_new_tokens=16, strategy=strategy)
        assert list(int4.generate(drafted).token_ids) == ids


def test_one_beam_is_greedy_and_no_block_is_kept(int4: Engine) -> None:
    request = Request("The sea", sampling=GREEDY, max_new_tokens=12)
    beam = Request("The sea", strategy=BeamSearch(num_beams=1), max_new_tokens=12)
    free = int4.block_manager.num_free_blocks
    assert int4.generate(beam).token_ids == int4.generate(request).token_ids
    assert int4.block_manager.num_free_blocks == free
