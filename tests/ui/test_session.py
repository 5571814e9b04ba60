"""One visitor's state."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from backend import Request, SamplingParams, Trace
from backend.events import Finished, Started
from tests.ui.steps import step
from ui import knobs
from ui.loading import Loader
from ui.session import Session, View, forced_step, step_request, take_settings, telling_step

STARTED = Started("tiny", 7, (5, 6), ("Once", " upon"), ())
FINISHED = Finished("length", "", 2, 0, 1, 0.5, 0.1, 0.25, 4.0, 0.8)


def test_each_visitor_gets_a_salt_and_views_of_their_own() -> None:
    template = Session({"top_p": 0.5}, Trace(Request("hi"), (STARTED, step(0))))
    one, two = copy.deepcopy(template), copy.deepcopy(template)
    assert len({template.salt, one.salt, two.salt}) == 3
    one.inspect.steps.clear()
    one.settings["top_p"] = 0.1
    assert len(two.inspect.steps) == 1
    assert two.settings == {"top_p": 0.5}
    assert two.inspect.source == "recording"


def test_a_step_is_evaluated_again_from_the_same_prefix_and_seed() -> None:
    trace = Trace(
        Request("hi", seed=None), (STARTED, step(0, token_id=1), step(1, token_id=2), step(2, token_id=3))
    )
    request = step_request(trace, 2, SamplingParams(top_k=5), "salt")
    assert (request.prompt, request.output_prefix, request.seed) == ((5, 6), (1, 2), 7)
    assert (request.sampling.top_k, request.cache_salt, request.chat) == (5, "salt", False)


def test_a_step_past_the_limit_of_its_run_can_be_evaluated() -> None:
    trace = Trace(Request("hi", max_new_tokens=1), (STARTED, step(0, token_id=1)))
    assert step_request(trace, 1, SamplingParams(), "").max_new_tokens == 2


def test_a_forced_step_carries_the_numbers_of_its_own_candidate() -> None:
    """A cut candidate keeps its place among all tokens, not among those listed."""
    parent = step()
    assert parent.candidates is not None
    table = replace(parent.candidates, ranks=(1, 2, 3, 412), special=(False, False, False, True))
    forced = forced_step(replace(parent, candidates=table), 23, "")
    assert (forced.token_id, forced.label, forced.text, forced.rank) == (23, "\n", "", 412)
    assert (forced.special, forced.forced, forced.uncut_winner) == (True, True, None)
    assert forced.model_logprob == pytest.approx(-2.302585)
    assert forced.logprob == float("-inf")


def test_a_candidate_of_an_older_recording_has_no_rank() -> None:
    assert forced_step(step(), 23, "\n").rank == 0


def test_only_a_recorded_candidate_can_be_forced() -> None:
    with pytest.raises(ValueError, match="token 99 is not among the candidates of step 0"):
        forced_step(step(), 99, "")


def test_a_branch_keeps_the_steps_before_it_and_reads_as_one_trace() -> None:
    view = View()
    request = Request((5, 6), output_prefix=(1, 9), max_new_tokens=4)
    kept = [step(0, token_id=1), step(1, token_id=9, forced=True)]
    view.begin(request, "run", kept, [SamplingParams(), SamplingParams(top_k=2)])
    for event in (STARTED, step(2, token_id=4), FINISHED):
        view.add(event)
    assert view.trace is not None
    assert view.trace.token_ids == (1, 9, 4)
    assert view.trace.started.seed == 7
    assert [params.top_k for params in view.drawn_with] == [0, 2, 0]
    assert Trace.from_json(view.trace.to_json()) == view.trace


def test_the_reader_follows_the_newest_token_until_one_is_chosen() -> None:
    view = View()
    assert view.index is None
    view.show(Trace(Request("hi"), (STARTED, step(0), step(1), step(2))), "run")
    assert view.index == 2
    view.pinned = 1
    assert view.index == 1
    view.shown = 0
    assert view.index == 0
    view.shown, view.pinned = None, 99
    assert view.index == 2


def test_the_telling_step_is_the_likeliest_that_a_cut_changed() -> None:
    same = step(0, uncut_winner=21)
    assert telling_step([same, step(1, model_logprob=-3.0), step(2, model_logprob=-1.0)]) == 2
    assert telling_step([same]) is None


def test_a_loader_says_why_there_is_no_model() -> None:
    def load(progress: Any) -> Any:
        raise_unavailable()

    def raise_unavailable() -> None:
        from backend.errors import ModelUnavailable

        raise ModelUnavailable("tried the index and the cache")

    loader = Loader(load)
    loader.start()
    assert list(loader.wait(0.01)) is not None
    assert loader.done
    assert loader.error == "tried the index and the cache"
    with pytest.raises(Exception, match="tried the index and the cache"):
        loader.require()


def test_settings_older_than_what_the_server_put_in_place_do_not_undo_it() -> None:
    """A tab's own event at the opening of a page may carry the knobs as they stood before a link."""
    session = Session(settings={**knobs.DEFAULTS, "max_new_tokens": 7})
    session.settings_number = 2
    assert not take_settings(session, {"number": 1, "settings": dict(knobs.DEFAULTS)})
    assert session.settings["max_new_tokens"] == 7
    assert take_settings(session, {"number": 2, "settings": {**knobs.DEFAULTS, "max_new_tokens": 9}})
    assert session.settings["max_new_tokens"] == 9
    assert take_settings(session, {"settings": {**knobs.DEFAULTS, "max_new_tokens": 5}})
    assert session.settings["max_new_tokens"] == 5
