"""How runs end and what text they show, over real models."""

from __future__ import annotations

import pytest

from backend import Engine, Request, Sample, SamplingParams, Trace
from backend.events import SampleFinished, TokenDecoded
from tests import models
from tests.running import audit, finished, greedy


@pytest.fixture(scope="module")
def engine() -> Engine:
    return models.engine(inline=True)


def letters(bias: float = 60) -> SamplingParams:
    """Draws among a to h only, so that a text is readable and short stops match early."""
    ids = dict.fromkeys(models.engine(inline=True).encode("abcdefgh"), bias)
    return SamplingParams(logit_bias=ids, temperature=2)


def assert_ends_together(trace: Trace) -> None:
    """Text, ids, rows and counters end at the same token, in every sample."""
    ends = [event for event in trace.events if isinstance(event, SampleFinished)]
    total = 0
    for end in ends:
        steps = trace.steps(end.sample)
        prefix = len(trace.request.output_prefix)
        assert [step.index for step in steps] == list(range(prefix, prefix + len(steps)))
        assert end.text == "".join(step.text for step in steps)
        assert end.num_tokens == len(steps)
        total += len(steps)
    assert finished(trace.events).num_output_tokens == total
    assert finished(trace.events).reason == ends[[end.sample for end in ends].index(0)].reason


PARAMS = letters()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "stop", [("a",), ("ab", "ba"), ("gh", "h"), ("cde",), ("", "dd", "dd"), ("not there",)]
)
def test_a_stop_string_cuts_the_text_where_it_first_begins(
    engine: Engine, seed: int, stop: tuple[str, ...]
) -> None:
    """F07, F08, F14; the oracle is the run without stops and str.find."""
    request = Request("x", sampling=PARAMS, max_new_tokens=60, seed=seed)
    whole = engine.generate(request)
    assert set(whole.text) <= set("abcdefgh")
    trace = engine.generate(Request("x", sampling=PARAMS, max_new_tokens=60, seed=seed, stop=stop))
    places = [whole.text.find(string) for string in stop if string and string in whole.text]
    cut = min(places, default=len(whole.text))
    assert trace.text == whole.text[:cut]
    assert trace.finish_reason == ("stop" if places else whole.finish_reason)
    assert trace.token_ids == whole.token_ids[: len(trace.token_ids)]
    assert_ends_together(trace)
    audit(engine)


def test_nothing_of_a_stop_string_is_streamed(engine: Engine) -> None:
    whole = engine.generate(Request("x", sampling=PARAMS, max_new_tokens=60, seed=1)).text
    stop = whole[20:26]
    shown = ""
    for event in engine.stream(Request("x", sampling=PARAMS, max_new_tokens=60, seed=1, stop=(stop,))):
        if isinstance(event, TokenDecoded):
            shown += event.text
            assert shown == whole[: len(shown)]
            assert len(shown) <= whole.find(stop)
    assert shown == whole[: whole.find(stop)]


def test_a_half_matched_stop_string_is_shown_at_the_end(engine: Engine) -> None:
    whole = engine.generate(Request("x", sampling=PARAMS, max_new_tokens=20, seed=2)).text
    trace = engine.generate(
        Request("x", sampling=PARAMS, max_new_tokens=20, seed=2, stop=(whole[-4:] + "never",))
    )
    assert (trace.text, trace.finish_reason) == (whole, "length")
    assert_ends_together(trace)


def test_each_sample_stops_for_itself(engine: Engine) -> None:
    request = Request("x", sampling=PARAMS, max_new_tokens=40, seed=3, strategy=Sample(6), stop=("ab", "ca"))
    trace = engine.generate(request)
    assert len({len(trace.steps(number)) for number in range(6)}) > 1
    assert_ends_together(trace)
    audit(engine)


@pytest.mark.parametrize("length", [1, 5, 11])
def test_a_stop_string_may_begin_in_the_branch_before(engine: Engine, length: int) -> None:
    whole = engine.generate(Request("x", sampling=PARAMS, max_new_tokens=40, seed=4))
    stop = whole.text[length - 1 : length + 2]  # its first letter is the last of the prefix
    first = whole.text.find(stop)
    if first < length - 1:
        pytest.skip("the stop string occurs before")
    branch = Request(
        "x", sampling=PARAMS, max_new_tokens=40, seed=4, stop=(stop,), output_prefix=whole.token_ids[:length]
    )
    trace = engine.generate(branch)
    assert (trace.text, trace.finish_reason) == ("", "stop")
    assert trace.token_ids == whole.token_ids[:length]
    assert_ends_together(trace)


def test_the_end_of_text_is_a_row_without_text(engine: Engine) -> None:
    params = SamplingParams(temperature=0, logit_bias={models.EOS_ID: 100})
    trace = engine.generate(Request("x", sampling=params, max_new_tokens=5))
    assert (trace.finish_reason, trace.token_ids, trace.text) == ("eos", (models.EOS_ID,), "")
    row = trace.steps()[0]
    assert (row.label, row.special, row.rank) == (
        models.EOS,
        True,
        row.candidates.ranks[row.candidates.token_ids.index(models.EOS_ID)],
    )
    assert [
        label for label, special in zip(row.candidates.labels, row.candidates.special, strict=True) if special
    ] == [models.EOS]
    assert_ends_together(trace)


def test_a_candidate_adds_its_text_half_a_character_and_a_special_token_none(engine: Engine) -> None:
    """Whatever their names look like."""
    first, second = engine.encode("é")
    assert engine.added_text((), engine.encode("a")[0]) == "a"
    assert (engine.added_text((), first), engine.added_text((first,), second)) == ("", "é")
    assert engine.added_text((), models.EOS_ID) == ""


def test_special_tokens_of_a_prompt_are_told(engine: Engine) -> None:
    trace = engine.generate(Request((65, models.EOS_ID, 66), max_new_tokens=1, seed=0))
    assert trace.started.prompt_special == (1,)


def test_the_last_allowed_token_may_be_the_end_of_text(engine: Engine) -> None:
    params = SamplingParams(temperature=0, logit_bias={models.EOS_ID: 100})
    assert engine.generate(Request("x", sampling=params, max_new_tokens=1)).finish_reason == "eos"


def test_the_limit_counts_the_branch(engine: Engine) -> None:
    trace = engine.generate(greedy("x", 10, output_prefix=(65, 66, 67)))
    assert len(trace.token_ids) == 10
    assert len(trace.steps()) == 7
    assert trace.finish_reason == "length"


@pytest.mark.parametrize("seed", range(6))
def test_streamed_text_is_what_decoding_at_once_gives(engine: Engine, seed: int) -> None:
    """Random bytes: mostly broken characters, which must come out as a decoder makes them."""
    trace = engine.generate(
        Request("x", sampling=SamplingParams(temperature=3), max_new_tokens=80, seed=seed)
    )
    data = b"".join(engine._vocabulary.token_bytes(token_id) for token_id in trace.token_ids)
    whole = data.decode("utf-8", "replace")
    # A character that is incomplete at the very end adds nothing.
    assert trace.text in (whole, whole.removesuffix("\ufffd"))
    assert_ends_together(trace)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_ids_beyond_the_tokenizer_are_never_produced(family: str) -> None:
    """E53: 300 rows of logits, 257 tokens, very hot."""
    engine = models.engine(models.MODELS[family](vocab_size=300), inline=True)
    assert engine.vocab_size == 257
    params = SamplingParams(temperature=50)
    for seed in range(10):
        trace = engine.generate(Request("x", sampling=params, max_new_tokens=60, seed=seed))
        assert max(trace.token_ids) < 257
        for step in trace.steps():
            assert step.candidates is not None
            assert max(step.candidates.token_ids) < 257
    audit(engine)


# The bundled model


def test_no_replacement_sign_is_ever_shown(bundled_engine: Engine) -> None:
    """F01."""
    shown, ids = "", []
    for event in bundled_engine.stream(greedy("Repeat: 👩‍🚀漢字नमस्ते🇫🇷", 40)):
        if isinstance(event, TokenDecoded):
            shown += event.text
            ids.append(event.token_id)
            assert "\ufffd" not in event.text
            assert "\ufffd" not in event.label
    assert len(ids) > 1
    assert shown == bundled_engine._tokenizer.decode(ids, skip_special_tokens=True).rstrip("\ufffd")


def test_chat_uses_the_template_and_ends_at_the_end_of_the_turn(bundled_engine: Engine) -> None:
    trace = bundled_engine.generate(greedy("Say only the word: yes", 40, chat=True))
    labels = trace.started.prompt_labels
    assert "".join(labels).endswith("<|im_start|>assistant\n")
    assert labels.count("<|im_start|>") >= 2
    assert trace.finish_reason == "eos"
    assert trace.steps()[-1].label == "<|im_end|>"
    assert trace.steps()[-1].text == ""
    assert_ends_together(trace)


@pytest.mark.parametrize("stop", [".", "\n\n", "the", " a"])
def test_stop_strings_of_the_bundled_model(bundled_engine: Engine, stop: str) -> None:
    prompt = "Photosynthesis is the process by which"
    whole = bundled_engine.generate(greedy(prompt, 50)).text
    trace = bundled_engine.generate(greedy(prompt, 50, stop=(stop,)))
    assert trace.text == (whole[: whole.find(stop)] if stop in whole else whole)
    assert_ends_together(trace)
    audit(bundled_engine)
