"""Speculative decoding through the engine: the same text, the same numbers, and nothing left behind."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend import Engine, Request, RequestError, Sample, SamplingParams, Speculative, Trace
from backend.events import DraftVerified, TokenDecoded
from backend.model.catalogue import LoadedModel
from tests import models
from tests.engine.test_greedy_equality import PROMPTS as TWENTY
from tests.running import FULL, audit, finished, together

GREEDY = SamplingParams(temperature=0)
PENALISED = SamplingParams(
    temperature=0, repetition_penalty=1.3, frequency_penalty=0.5, no_repeat_ngram_size=3
)
SOURCES: list[dict[str, Any]] = [{"draft": "prompt_lookup"}, {"draft": "layer_skip"}]
NAMES = ["prompt_lookup", "layer_skip"]
PROMPTS = [
    "a b c a b c a b",
    "The old lighthouse stood on a rock. The old lighthouse stood on",
    "def f(x):\n    return x + 1\n\ndef g(x):\n    return x",
    "Once upon a time there was a little fox who lived in a forest and",
]
TIE = 1e-4  # in log-probability; two best nearer than this are a tie


@pytest.fixture
def engine() -> Iterator[Engine]:
    tiny = models.engine()
    yield tiny
    tiny.close()


def drafts_are_free(engine: Engine) -> None:
    """No block is taken, neither of the target's pool nor of any draft's."""
    audit(engine)
    for pool in engine._drafts._pools.values():
        pool.blocks.check_integrity([])
        assert pool.blocks.num_free_blocks == pool.blocks.num_blocks


def rounds(trace: Trace) -> list[DraftVerified]:
    return [event for event in trace.events if isinstance(event, DraftVerified)]


def plain(request: Request) -> Request:
    return replace(request, strategy=Sample())


def assert_same(ours: Trace, theirs: Trace) -> None:
    """Equal texts; where they part, the two best tokens must be a tie of the plain run."""
    if ours.token_ids == theirs.token_ids:
        assert (ours.text, ours.finish_reason) == (theirs.text, theirs.finish_reason)
        return
    pairs = enumerate(zip(ours.token_ids, theirs.token_ids, strict=False))
    at = next(i for i, (a, b) in pairs if a != b)
    table = theirs.steps()[at].candidates
    assert table is not None
    column = dict(zip(table.token_ids, table.after[-1], strict=True))
    assert abs(column[ours.token_ids[at]] - column[theirs.token_ids[at]]) < TIE


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("sampling", [GREEDY, PENALISED], ids=["plain", "penalties"])
def test_greedy_text_of_a_tiny_model_is_that_of_plain_decoding(
    engine: Engine, sampling: SamplingParams, k: int, source: dict[str, Any]
) -> None:
    asked = [
        Request(
            prompt, sampling=sampling, strategy=Speculative(num_draft_tokens=k, **source), max_new_tokens=24
        )
        for prompt in PROMPTS[:3]
    ]
    alone = [engine.generate(plain(request)) for request in asked]
    for ours, theirs in zip([engine.generate(request) for request in asked], alone, strict=True):
        assert_same(ours, theirs)
    for ours, theirs in zip(together(engine, [*asked, plain(asked[0])]), [*alone, alone[0]], strict=True):
        assert_same(ours, theirs)
    drafts_are_free(engine)


# Twenty prompts, k from 1 to 8: mixed over the prompts; with PLAYGROUND_FULL_GRID=1 every k on every prompt.
LENGTHS = [[k] * 20 for k in range(1, 9)] if FULL else [[1 + place % 8 for place in range(20)]]
NEW_TOKENS = 24 if FULL else 12


@pytest.fixture(scope="module")
def short_draft(bundled: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a draft model with the bundled model's tokenizer: its first six layers alone."""
    folder = tmp_path_factory.mktemp("draft")
    model = copy.deepcopy(bundled.model)
    model.model.layers = model.model.layers[:6]
    model.config.num_hidden_layers = 6
    model.save_pretrained(folder)
    bundled.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def plain_texts(bundled_engine: Engine) -> dict[bool, list[Trace]]:
    """The texts of plain greedy decoding, without and with penalties and bans."""
    return {
        penalised: [
            trace for start in (0, 10) for trace in together(bundled_engine, asked[start : start + 10])
        ]
        for penalised in (False, True)
        for asked in [[plain(each) for each in speculative(penalised, "prompt_lookup", [1] * 20)]]
    }


def speculative(penalised: bool, draft: str, lengths: list[int]) -> list[Request]:
    return [
        Request(
            prompt[:200],
            sampling=PENALISED if penalised else GREEDY,
            strategy=Speculative(draft=draft, num_draft_tokens=k),
            max_new_tokens=NEW_TOKENS,
        )
        for prompt, k in zip(TWENTY, lengths, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("penalised", [False, True], ids=["plain", "penalties"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda ks: f"k={ks[0]}" if FULL else "mixed")
@pytest.mark.parametrize("source", ["prompt_lookup", "layer_skip", "draft model"])
def test_greedy_text_of_twenty_prompts_is_that_of_plain_decoding(
    source: str,
    lengths: list[int],
    penalised: bool,
    bundled_engine: Engine,
    short_draft: str,
    plain_texts: dict[bool, list[Trace]],
) -> None:
    asked = speculative(penalised, short_draft if source == "draft model" else source, lengths)
    expected = plain_texts[penalised]
    alone = range(20) if FULL else (0, 9)
    for number in alone:
        assert_same(bundled_engine.generate(asked[number]), expected[number])
    other = Request("The sea", sampling=SamplingParams(), seed=1, max_new_tokens=12)
    for start in (0, 10):
        batch = [*asked[start : start + 10], other]
        found = together(bundled_engine, batch)[:-1]
        for ours, theirs in zip(found, expected[start : start + 10], strict=True):
            assert_same(ours, theirs)
    drafts_are_free(bundled_engine)


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
def test_coupled_text_is_that_of_plain_sampling(bundled_engine: Engine, source: dict[str, Any]) -> None:
    sampling = SamplingParams(temperature=0.8, top_p=0.95, repetition_penalty=1.1)
    strategy = Speculative(num_draft_tokens=3, verify="coupled", **source)
    asked = [
        Request(PROMPTS[1], sampling=sampling, strategy=strategy, max_new_tokens=20, seed=seed)
        for seed in range(8)
    ]
    ours = together(bundled_engine, asked)
    theirs = together(bundled_engine, [plain(request) for request in asked])
    assert [trace.token_ids for trace in ours] == [trace.token_ids for trace in theirs]
    assert any(check.num_accepted for trace in ours for check in rounds(trace))
    drafts_are_free(bundled_engine)


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
def test_coupled_text_of_a_tiny_model_is_that_of_plain_sampling(
    engine: Engine, source: dict[str, Any]
) -> None:
    strategy = Speculative(num_draft_tokens=4, verify="coupled", adaptive=True, **source)
    for seed in range(40):
        request = Request("abcabcabc", strategy=strategy, max_new_tokens=16, seed=seed)
        assert engine.generate(request).token_ids == engine.generate(plain(request)).token_ids
    drafts_are_free(engine)


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
def test_a_stop_string_ends_text_ids_and_rows_where_plain_decoding_does(
    engine: Engine, source: dict[str, Any]
) -> None:
    free = Request("abcabcabc", sampling=GREEDY, max_new_tokens=40)
    ids = engine.generate(free).token_ids
    stops = [bytes_of(engine, ids[start : start + 2]) for start in range(0, 30, 3)]
    assert any(stops)
    for stop in filter(None, stops):
        request = replace(free, stop=(stop,), strategy=Speculative(num_draft_tokens=6, **source))
        ours, theirs = engine.generate(request), engine.generate(plain(request))
        assert (ours.text, ours.token_ids, ours.finish_reason) == (
            theirs.text,
            theirs.token_ids,
            theirs.finish_reason,
        )
        assert len(ours.steps()) == len(ours.token_ids)
    drafts_are_free(engine)


def bytes_of(engine: Engine, token_ids: list[int] | tuple[int, ...]) -> str:
    """Their labels, empty where one is no printable text."""
    labels = [engine.label(token_id) for token_id in token_ids]
    return "" if any(len(label) != 1 for label in labels) else "".join(labels)


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
@pytest.mark.parametrize("left", [1, 2, 5])
def test_the_end_of_the_context_is_exact(engine: Engine, source: dict[str, Any], left: int) -> None:
    prompt = tuple(int(i % 7) for i in range(models.CONTEXT - left))
    request = Request(
        prompt,
        sampling=SamplingParams(temperature=0, logit_bias={models.EOS_ID: -100}),
        strategy=Speculative(num_draft_tokens=4, **source),
        max_new_tokens=50,
    )
    trace = engine.generate(request)
    assert (len(trace.token_ids), trace.finish_reason) == (left, "context_full")
    assert trace.token_ids == engine.generate(plain(request)).token_ids
    drafts_are_free(engine)


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
@pytest.mark.parametrize("num_events", [1, 4, 9])
def test_cancelling_leaves_no_block_taken_in_any_pool(
    engine: Engine, source: dict[str, Any], num_events: int
) -> None:
    request = Request(
        "abcabcabc",
        sampling=SamplingParams(logit_bias={models.EOS_ID: -100}),
        strategy=Speculative(num_draft_tokens=4, **source),
        max_new_tokens=400,
        seed=1,
    )
    with engine.stream(request) as stream:
        for _ in range(num_events):
            next(stream)
    drafts_are_free(engine)


@pytest.fixture
def target_folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "target", models.byte_tokenizer())


def saved(folder: Path, tokenizer: Any) -> Path:
    models.llama().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("verify", ["rejection", "coupled"])
def test_a_copy_of_the_target_accepts_everything(
    target_folder: Path, temperature: float, verify: Any
) -> None:
    engine = Engine.load(str(target_folder), device="cpu", precision="float32", num_blocks=128, block_size=4)
    try:
        for seed in range(4):
            request = Request(
                "abcabc",
                sampling=SamplingParams(temperature=temperature, top_k=20, repetition_penalty=1.2),
                strategy=Speculative(str(target_folder), 5, verify),
                max_new_tokens=30,
                seed=seed,
            )
            trace = engine.generate(request)
            checked = [token for check in rounds(trace) for token in check.drafted]
            # Batches of other sizes round differently: a threshold may fall short of 1 by float noise.
            assert sum(token.status == "accepted" for token in checked) >= len(checked) - 1
            assert checked
            for token in checked:
                assert token.p is None or token.p == pytest.approx(token.q, abs=1e-4)
            if verify == "coupled" or temperature == 0:
                assert trace.token_ids == engine.generate(plain(request)).token_ids
        drafts_are_free(engine)
    finally:
        engine.close()


def test_a_draft_with_another_tokenizer_is_refused_with_the_reason(engine: Engine, tmp_path: Path) -> None:
    other = models.byte_tokenizer()
    other.add_tokens(["<extra>"])
    folder = saved(tmp_path / "other", other)
    with pytest.raises(RequestError, match=r"another tokenizer \(258 tokens, 1 of them different"):
        engine.stream(Request("abc", strategy=Speculative(str(folder))))
    drafts_are_free(engine)


@pytest.mark.parametrize("context_length", [16, 20, 32, 40])
def test_drafts_stop_where_the_context_of_their_model_ends(
    engine: Engine, tmp_path: Path, context_length: int
) -> None:
    models.gpt2(n_positions=context_length).save_pretrained(tmp_path)
    models.byte_tokenizer().save_pretrained(tmp_path)
    strategy = Speculative(str(tmp_path), 4, adaptive=False)
    request = Request("abcabcabcabc", sampling=GREEDY, strategy=strategy, max_new_tokens=40)
    trace = engine.generate(request)
    assert trace.token_ids == engine.generate(plain(request)).token_ids
    # What lies at position context_length is still drawn; what follows it would have to be read.
    drafted = [12 + check.index + len(check.drafted) for check in rounds(trace) if check.drafted]
    assert max(drafted) == context_length + 1
    drafts_are_free(engine)


@pytest.mark.parametrize("rows", [256, 200, 3])
def test_a_draft_without_embeddings_for_all_tokens_is_refused(
    engine: Engine, tmp_path: Path, rows: int
) -> None:
    model = models.gpt2(n_embd=8)
    model.resize_token_embeddings(rows)
    model.save_pretrained(tmp_path)
    models.byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(RequestError, match=f"it has embeddings for {rows} tokens, tiny has 257"):
        engine.stream(Request("abc", strategy=Speculative(str(tmp_path))))


@pytest.mark.parametrize("draft", ["medusa", "eagle"])
def test_drafts_that_need_training_are_refused_by_name(engine: Engine, draft: str) -> None:
    with pytest.raises(RequestError, match="needs trained heads"):
        engine.stream(Request("abc", strategy=Speculative(draft)))


@pytest.mark.parametrize("layers", [(2,), (0, 1)])
def test_layers_that_cannot_be_skipped_are_refused(engine: Engine, layers: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match="cannot skip layers"):
        engine.stream(Request("abc", strategy=Speculative("layer_skip", skip_layers=layers)))


@pytest.mark.parametrize("source", SOURCES, ids=NAMES)
@pytest.mark.parametrize("k", [1, 4, 8])
def test_logits_after_a_rejection_equal_a_recompute(engine: Engine, source: dict[str, Any], k: int) -> None:
    """C11: no stale keys of rejected drafts."""
    request = Request(
        "abcabcabcab",
        sampling=SamplingParams(temperature=1.0, logit_bias={models.EOS_ID: -100}),
        strategy=Speculative(num_draft_tokens=k, **source),
        max_new_tokens=24,
        seed=5,
    )
    trace = engine.generate(request)
    after = [check.index + check.num_accepted + 1 for check in rounds(trace) if check.next_is == "recovered"]
    places = [place for place in after if place < len(trace.token_ids)]
    assert places, "nothing was rejected"
    for place in places:
        again = engine.evaluate(
            replace(plain(request), output_prefix=tuple(trace.token_ids[:place]), use_cache=False)
        )
        step = trace.steps()[place]
        assert step.candidates is not None
        assert again.candidates is not None
        known = dict(zip(again.candidates.token_ids, again.candidates.model_logprobs, strict=True))
        shared = [
            (value, known[token_id])
            for token_id, value in zip(step.candidates.token_ids, step.candidates.model_logprobs, strict=True)
            if token_id in known
        ]
        assert len(shared) >= 20
        assert all(value == pytest.approx(other, abs=1e-4) for value, other in shared)


def test_rounds_come_before_their_rows_and_count_them(engine: Engine) -> None:
    request = Request("abcabcabc", strategy=Speculative(num_draft_tokens=4), max_new_tokens=30, seed=2)
    trace = engine.generate(request)
    emitted = 0
    for event in trace.events:
        if isinstance(event, DraftVerified):
            assert event.index == emitted
        elif isinstance(event, TokenDecoded):
            assert event.index == emitted
            emitted += 1
    assert finished(trace.events).num_output_tokens == emitted
    assert Trace.from_json(trace.to_json()).events == trace.events


def test_a_recovered_token_is_always_among_those_recorded(engine: Engine) -> None:
    request = Request(
        "abcabcabc",
        sampling=SamplingParams(temperature=3.0),
        strategy=Speculative(),
        max_new_tokens=60,
        seed=4,
    )
    checks = [check for check in rounds(engine.generate(request)) if check.residual is not None]
    assert checks
    for check in checks:
        assert check.residual is not None
        assert check.next_token_id in check.residual.token_ids
        assert check.residual.token_ids[0] == check.drafted[check.num_accepted].token_id
