"""What the KV cache tab draws: timelines, figures, the log in words, one block, the replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend import Engine, Request, Sample, SamplingParams
from backend.events import Finished, PoolChange, Preempted, Prefilled, Started, TokenDecoded, Waiting
from tests import models
from ui.payloads import pool as pool_payloads
from ui.payloads import recompute
from ui.payloads import size as size_payloads
from ui.presets.files import PresetError
from ui.presets.model_shapes import load_model_shapes
from ui.presets.request_sets import FOLDER, load_request_sets
from ui.runs.crowd import Ask, Crowd
from ui.runs.kv_state import KvState
from ui.runs.log import Log
from ui.runs.recompute import Recompute, measure
from ui.runs.size import SizeState, turned
from ui.runs.timeline import Stretch, figures, stretches, throughput
from ui.session import View


def started(time: float = 0.0) -> Started:
    return Started("m", 0, (1, 2), ("a", "b"), (), time)


def token(index: int, time: float, sample: int = 0, token_id: int = 5) -> TokenDecoded:
    return TokenDecoded(
        sample, index, 9, token_id, "x", "x", -1.0, -1.0, 1, 1.0, 0.0, None, (), None, False, time
    )


def prefilled(computed: int, total: int, seconds: float, time: float, cached: int = 0) -> Prefilled:
    return Prefilled(total, computed, cached, seconds, time)


def finished(time: float, reason: Any = "length") -> Finished:
    return Finished(reason, "", 2, 0, 2, 1.0, 0.5, 1.0, 1.0, time)


# The timeline


def test_a_timeline_of_waiting_prefill_in_parts_decode_and_preemption() -> None:
    events = [
        started(),
        Waiting(9, 2, 0.1),
        prefilled(256, 300, 0.5, 1.5),
        prefilled(300, 300, 0.25, 2.0),
        token(0, 2.0),
        token(1, 2.5),
        Preempted(301, 3.0),
        Waiting(20, 2, 3.0),
        prefilled(302, 302, 0.5, 5.0),
        token(2, 5.0),
        finished(6.0),
    ]
    assert stretches(events, now=99.0) == [
        Stretch("waiting", 0.0, 1.0),
        Stretch("prefill", 1.0, 2.0),
        Stretch("decode", 2.0, 3.0),
        Stretch("preempted", 3.0, 4.5),
        Stretch("prefill", 4.5, 5.0),
        Stretch("decode", 5.0, 6.0),
    ]


def test_a_timeline_grows_until_now_while_the_request_goes_on() -> None:
    assert stretches([started()], now=2.0) == [Stretch("waiting", 0.0, 2.0)]
    events = [started(), prefilled(2, 2, 0.5, 1.0), token(0, 1.0)]
    assert stretches(events, now=3.0)[-1] == Stretch("decode", 1.0, 3.0)
    assert stretches([], now=0.0) == []


def test_first_token_and_time_per_token_of_samples_side_by_side() -> None:
    events = [prefilled(40, 40, 0.5, 1.0, cached=32), token(0, 1.0), token(0, 1.0, 1)]
    events += [token(1, 1.5), token(1, 1.5, 1), token(2, 2.0), token(2, 2.0, 1)]
    found = figures(events, block_size=16)
    assert (found.time_to_first_token, found.per_token) == (1.0, 0.5)
    assert (found.hit_blocks, found.miss_blocks) == (2, 1)
    assert figures([started()], 16) == figures([], 16)
    assert figures([token(0, 1.0)], 16).per_token is None


def test_a_fork_counts_the_partly_filled_block_it_shares_as_found() -> None:
    found = figures([prefilled(38, 38, 0.1, 0.2, cached=37)], block_size=16)
    assert (found.hit_blocks, found.miss_blocks) == (3, 0)


def test_throughput_counts_all_tokens_from_the_first_submission() -> None:
    first = (0.0, [started(), token(0, 1.0), token(1, 2.0)])
    second = (1.0, [started(), token(0, 2.0), token(1, 3.0)])
    assert throughput([first, second]) == pytest.approx(4 / 4.0)
    assert throughput([(0.0, [started()])]) is None


# Cached against recomputed


def test_prefill_and_decode_are_measured_apart() -> None:
    events = [started(), prefilled(256, 300, 2.0, 2.0), prefilled(300, 300, 1.0, 3.0)]
    events += [token(0, 3.0), token(1, 3.25), token(2, 3.75), finished(3.75)]
    found = measure(Log(events=events))
    assert found.gaps == (0.25, 0.5)
    assert (found.prefill_tokens, found.prefill_rate) == (300, 100.0)
    assert found.decode_rate == pytest.approx(2 / 0.75)
    assert found.prefill_share == pytest.approx(3 / 3.75)


def test_both_runs_of_an_engine_are_drawn_and_gave_the_same_text() -> None:
    engine = models.engine(block_size=16, inline=True)
    state = Recompute("a prompt")
    for use_cache in (True, False):
        request = Request("a prompt of the engine" * 3, max_new_tokens=6, use_cache=use_cache, seed=2)
        for event in engine.stream(request):
            state.take(event)
    drawn = recompute.payload(state, False, "")
    assert drawn["same_text"] is True
    assert [row["prefill_tokens"] for row in drawn["rows"]] == [66, 66]
    assert [len(line["y"]) for line in drawn["figure"]["data"]] == [5, 5]
    assert all(0 < row["prefill_share"] < 1 for row in drawn["rows"])
    runs = [Log(events=[started(), token(0, 1, token_id=i), finished(1)]) for i in (1, 2)]
    unequal = Recompute("", runs)
    assert recompute.payload(unequal, False, "")["same_text"] is False
    assert recompute.payload(unequal, True, "")["same_text"] is None


# The size formula


def test_the_size_panel_computes_from_the_chosen_shape() -> None:
    shapes = load_model_shapes()
    state = turned(SizeState(), shapes, {"shape": "llama-3-70b", "precision": "bfloat16"})
    drawn = size_payloads.payload(turned(state, shapes, {"batch_size": 32}), shapes)
    assert drawn["total"] == 2 * 80 * 8 * 128 * 4096 * 32 * 2
    assert drawn["ungrouped"] == drawn["total"] * 8
    assert [size for tokens, size, _ in drawn["over_context"] if tokens == 32_768] == [343_597_383_680]
    assert [fits for tokens, _, fits in drawn["over_context"] if tokens in (8_192, 16_384)] == [True, False]
    assert drawn["over_batch"][0][1] * 64 == drawn["over_batch"][-1][1]


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"shape": "nobody"}, "no model shape 'nobody'"),
        ({"shape": ["x"]}, "no model shape"),
        ({"shape": "pasted"}, "no model shape"),
        ({"precision": "int3"}, "precision must be one of"),
        ({"num_tokens": 0}, "tokens must be a whole number from 1"),
        ({"num_tokens": 1.5}, "tokens must be"),
        ({"batch_size": 10**9}, "batch must be"),
        ({"config": "no"}, "not JSON"),
    ],
)
def test_a_bad_choice_is_named_and_changes_nothing(sent: dict[str, Any], message: str) -> None:
    shapes = load_model_shapes()
    state = turned(SizeState(), shapes, sent)
    assert message in state.notice
    unordered = {"notice": "", "drawn": 0}
    before = size_payloads.payload(SizeState(), shapes)
    assert size_payloads.payload(state, shapes) | unordered == before | unordered


def test_a_pasted_config_is_used_at_once() -> None:
    config = (
        '{"architectures": ["<b>X"], "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, '
        '"max_position_embeddings": 128}'
    )
    shapes = load_model_shapes()
    state = turned(SizeState(), shapes, {"config": config})
    assert size_payloads.payload(state, shapes)["per_token"] == 2 * 2 * 4 * 16 * 4
    assert turned(state, shapes, {"shape": "gpt-2"}).shape == "gpt-2"


def test_a_choice_that_arrives_after_a_later_one_is_left_out() -> None:
    shapes = load_model_shapes()
    later = turned(SizeState(), shapes, {"asked": 2, "shape": "gpt-2"})
    assert turned(later, shapes, {"asked": 1, "shape": "llama-3-8b"}) == later
    assert turned(later, shapes, {"asked": 3, "shape": "llama-3-8b"}).shape == "llama-3-8b"


# Sets of requests

VALID = """
position: 1
title: A title
question: Why?
look_for: Something to see
answer: So.
shows:
  - {claim: shared, at_least: 1}
pool: 48
stagger: 0.2
buffer: 1024
texts:
  sea: The sea.
requests:
  - {prompt: Once, max_new_tokens: 180}
  - {prompt: [sea, sea], n: 3}
"""


def test_every_set_loads_and_says_what_to_look_for() -> None:
    sets = load_request_sets()
    assert len(sets) == len(list(FOLDER.glob("*.yaml"))) >= 6
    assert next(iter(sets)) == "mixed"
    assert all(len(chosen.look_for) > 40 for chosen in sets.values())
    assert len(sets["crowd"].asks) == 16


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("pool: 48", "pool: 47", "pool must be one of"),
        ("claim: shared", "claim: seen", "of kv one can claim shared"),
        ("stagger: 0.2", "stagger: -1", "stagger must be a number between 0 and 60, got -1"),
        ("max_new_tokens: 180", "max_new_tokens: 0", "request 1: max_new_tokens"),
        ("max_new_tokens: 180", "limit: 3", "unknown key 'limit'"),
        ("prompt: [sea, sea]", "prompt: [bread]", "no text is called 'bread'"),
    ],
)
def test_a_wrong_set_is_refused_by_name(tmp_path: Path, old: str, new: str, message: str) -> None:
    (tmp_path / "set.yaml").write_text(VALID, encoding="utf-8")
    assert load_request_sets(tmp_path)["set"].asks == (Ask("Once", 180), Ask("The sea.\nThe sea.", 64, 3))
    assert old in VALID
    (tmp_path / "set.yaml").write_text(VALID.replace(old, new), encoding="utf-8")
    with pytest.raises(PresetError, match=message):
        load_request_sets(tmp_path)


# The pool in words and numbers


@pytest.mark.parametrize(
    ("block_ids", "text"), [((), ""), ((3,), "3"), ((0, 1, 2, 5, 7, 8), "0–2, 5, 7–8"), ((4, 3), "4, 3")]
)
def test_block_numbers_are_gathered_into_ranges(block_ids: tuple[int, ...], text: str) -> None:
    assert pool_payloads.ranges(block_ids) == text


def played(engine: Engine, visitor: str = "v", n: int = 2, limit: int = 12) -> KvState:
    """A state after one request of n samples."""
    state = KvState()
    state.crowd.fill([Ask("abcdefghijklmnopqrstu", limit, n)])
    state.begin_watch(engine, visitor)

    def make(ask: Ask) -> Request:
        params = SamplingParams(temperature=1.0, logit_bias={models.EOS_ID: -100})
        return Request(
            ask.prompt, sampling=params, max_new_tokens=limit, seed=1, strategy=Sample(n), cache_salt=visitor
        )

    state.crowd.begin(engine, make, 0.0)
    list(state.crowd)
    state.refresh()
    return state


@pytest.fixture
def engine():
    made = models.engine(block_size=4, num_blocks=40)
    yield made
    made.close()


def test_the_log_tells_takes_forks_copies_and_frees_in_words(engine: Engine) -> None:
    state = played(engine)
    told = [text for _, _, text, _ in pool_payloads.blocks(View(), state)["log"]]
    assert told[0] == "A takes 0–5"
    assert told[1] == "A.2 forks: shares 0–5"
    assert told[2].startswith("A copies 5 → ")
    assert any(text.startswith("A.2 gives back 0–") for text in told)


def test_the_replay_begins_empty_shows_every_state_between_and_ends_in_the_live_one(engine: Engine) -> None:
    state = played(engine)
    view = View()
    live = pool_payloads.pool(view, state) | {"drawn": 0}
    assert live["at"] == live["total"] == len(state.changes)
    state.at = len(state.changes)
    assert pool_payloads.pool(view, state) | {"live": True, "drawn": 0} == live
    state.at = 0
    assert pool_payloads.pool(view, state)["counts"] == {
        "used": 0,
        "shared": 0,
        "reusable": 0,
        "others": 0,
        "free": 40,
    }
    fork = next(place for place, change in enumerate(state.changes) if change.operation == "fork")
    state.at = fork + 1
    shown = pool_payloads.pool(view, state)
    assert (shown["counts"]["used"], shown["counts"]["shared"]) == (6, 6)
    assert shown["refs"][:7] == [2] * 6 + [0]
    assert shown["filled"][:7] == [4] * 5 + [1, 0]
    assert shown["owners"][:7] == [0] * 6 + [pool_payloads.FREE]
    assert len(pool_payloads.blocks(view, state)["log"]) == 2
    assert pool_payloads.blocks(view, state)["tables"][1][:3] == ["A.2", 0, [0, 1, 2, 3, 4, 5]]


def test_after_the_end_only_findable_blocks_are_left_and_they_count_as_free(engine: Engine) -> None:
    counts = pool_payloads.pool(View(), played(engine))["counts"]
    assert counts["used"] == 0
    assert counts["free"] == 40
    assert counts["reusable"] == engine.block_manager.num_reusable_blocks > 5


def test_a_block_says_whose_it_is_what_it_holds_and_why(engine: Engine) -> None:
    state = played(engine)
    state.block = 1
    state.at = next(place for place, change in enumerate(state.changes) if change.operation == "fork") + 1
    block = pool_payloads.blocks(View(), state)["block"]
    assert block["what"] == "in use, 4 of 4 slots filled"
    assert block["owners"] == [["A", 1, 4, 7], ["A.2", 1, 4, 7]]
    assert block["tokens"] == ["e", "f", "g", "h"]
    assert [text for _, text in block["history"]] == ["A takes 0–5", "A.2 forks: shares 0–5"]
    state.at = None
    block = pool_payloads.blocks(View(), state)["block"]
    assert block["what"].startswith("free, but can be found by content")
    state.block = 39
    assert pool_payloads.blocks(View(), state)["block"]["what"] == "free"
    state.block = 10**6
    assert pool_payloads.blocks(View(), state)["block"] is None


def test_each_token_points_at_the_block_that_holds_it_also_after_the_end(engine: Engine) -> None:
    state = played(engine, n=1)
    text = pool_payloads.blocks(View(), state)["text"]
    assert text["labels"][:3] == ["a", "b", "c"]
    assert len(text["labels"]) == 21 + 12
    table = next(iter(state.live.left.values()))  # type: ignore[union-attr]
    # 32 tokens were stored, the last one never; all eight blocks were full.
    assert text["blocks"] == [table[position // 4] for position in range(32)] + [-1]


def test_another_visitors_blocks_have_no_tokens_owner_or_history() -> None:
    """D06 on screen, while the other one runs."""
    engine = models.engine(block_size=4, num_blocks=40, inline=True)
    state = KvState()
    state.begin_watch(engine, "me")
    stream = engine.stream(Request("a secret of somebody else", max_new_tokens=9, cache_salt="you"))
    while not isinstance(next(stream), TokenDecoded):
        pass
    state.refresh()
    for block_id in range(40):
        if engine.block_manager.ref_count(block_id):
            state.block = block_id
            break
    grid, around = pool_payloads.pool(View(), state), pool_payloads.blocks(View(), state)
    assert grid["counts"]["others"] > 5
    assert grid["owners"][state.block] == pool_payloads.OTHERS
    assert (grid["filled"][state.block], grid["refs"][state.block]) == (0, 0)
    block = around["block"]
    assert (block["what"], block["owners"], block["tokens"], block["findable"]) == (
        "in use by others",
        [],
        [],
        False,
    )
    assert around["tables"] == []
    assert all(text.startswith("others ") for _, _, text, _ in around["log"])
    stream.close()
    state.refresh()
    assert pool_payloads.pool(View(), state)["counts"]["reusable"] == 0


def test_memory_compares_the_same_run_in_blocks_and_in_buffers(engine: Engine) -> None:
    state = played(engine, n=1)
    state.buffer = 64
    drawn = pool_payloads.memory(state)
    per_token = 2 * 2 * 2 * 8 * 4  # keys and values, layers, KV heads, head size, float32
    assert drawn["bytes_per_token"] == engine.kv_bytes_per_token == per_token
    assert drawn["pool_bytes"] == 160 * per_token
    assert drawn["contiguous"]["mean"] == 64 * per_token
    assert drawn["contiguous"]["fit"] == 2
    assert drawn["blocks"]["fit"] == 5  # 32 tokens, eight blocks each
    lengths = range(21, 33)  # one step for each of 12 tokens, the prompt first
    assert drawn["contiguous"]["waste"] == pytest.approx(1 - sum(lengths) / (12 * 64))
    blocks = [-(-length // 4) * 4 for length in lengths]
    assert drawn["blocks"]["waste"] == pytest.approx(1 - sum(lengths) / sum(blocks))
    assert (drawn["blocks"]["longest"], drawn["contiguous"]["longest"]) == (0, 0.5)
    state.buffer = 16
    assert pool_payloads.memory(state)["too_long"] is True


def test_the_list_shows_state_figures_and_timeline_of_each_request(engine: Engine) -> None:
    state = played(engine, n=2)
    drawn = pool_payloads.requests(View(), state, 4, 0.0)
    (row,) = drawn["rows"]
    assert (row["name"], row["state"], row["num_prompt"], row["num_tokens"]) == ("A", "token limit", 21, 24)
    assert (row["hits"], row["misses"], row["live"]) == (0, 6, False)
    assert [kind for kind, _, _ in row["stretches"]][-2:] == ["prefill", "decode"]
    assert drawn["span"] == row["stretches"][-1][2]
    assert drawn["throughput"] > 0
    crowd = Crowd()
    crowd.fill([Ask("x" * 500)])
    waiting = pool_payloads.requests(View(), KvState(crowd=crowd), 4, 0.0)
    assert waiting["rows"][0]["prompt"] == "x" * 160 + "…"
    assert (waiting["span"], waiting["throughput"]) == (0.0, None)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (PoolChange("evict", 1, 1, (3,)), "3 evicted for another tab: least recently used"),
        (PoolChange("preempt", 1, 1, ()), "another tab is preempted for an older request"),
        (PoolChange("taken", -1, -1, (3, 4)), "others take 3–4"),
        (PoolChange("truncate", 1, 1, ()), "another tab cuts tokens"),
    ],
)
def test_changes_in_words(change: PoolChange, text: str) -> None:
    assert pool_payloads.line(KvState(), change) == text
