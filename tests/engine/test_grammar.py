"""Constrained decoding through the engine: an independent matcher, every strategy, errors, limits."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from backend import (
    BeamSearch,
    BestOf,
    Engine,
    Grammar,
    GrammarError,
    Request,
    Sample,
    SamplingParams,
    Speculative,
    Trace,
)
from backend.events import DraftVerified, GrammarStep, Judged, Preempted
from tests import models
from tests.grammar.byte_engines import accepts, compiled
from tests.running import audit, guarded, kinds, together

GREEDY = SamplingParams(temperature=0)
HOT = SamplingParams(temperature=1.5)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ann", "bob"]}, "n": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["name", "n"],
}
GRAMMARS = {
    "schema": {"json_schema": SCHEMA},
    "regex": {"regex": "[a-d]{3}(-[0-9]{2,4})*!"},
    "ebnf": {"ebnf": 'root ::= "(" root ")" | [xyz]{2,5} | root "+" [0-9]'},
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = models.engine(num_blocks=96)
    yield engine
    engine.close()


def constrained(name: str, **fields: Any) -> Request:
    grammar = Grammar(**(GRAMMARS[name] | fields.pop("grammar", {})))
    return Request(fields.pop("prompt", "the result: "), grammar=grammar, **({"max_new_tokens": 48} | fields))


def brute_force(name: str, prompt: str, max_new_tokens: int) -> list[int]:
    """Greedy by hand: the stock model, masked byte by byte by the engine that was not asked."""
    model = models.llama()
    tokenizer = models.byte_tokenizer()
    ids = tokenizer(prompt)["input_ids"]
    byte_of = [tokenizer.decode([token_id]) for token_id in range(models.EOS_ID)]
    grammar = compiled("llguidance", **GRAMMARS[name])
    vocabulary = models.engine()._vocabulary
    assert len(byte_of) == models.EOS_ID
    matcher, output = grammar.matcher(), []
    for _ in range(max_new_tokens):
        logits = model(torch.tensor([ids + output])).logits[0, -1].clone()
        may = matcher.allowed()
        for token_id in range(models.EOS_ID):
            (byte,) = vocabulary.token_bytes(token_id)
            if not may[byte]:
                logits[token_id] = -torch.inf
        if not matcher.is_complete():
            logits[models.EOS_ID] = -torch.inf
        best = int(logits.argmax())
        output.append(best)
        if best == models.EOS_ID or not matcher.accept(vocabulary.token_bytes(best)[0]):
            break
        if matcher.is_complete() and not matcher.allowed()[:256].any():
            break
    return output


@pytest.mark.parametrize("jump_forward", [True, False])
@pytest.mark.parametrize("name", GRAMMARS)
def test_greedy_is_brute_force_masking_with_an_independent_matcher(engine, name, jump_forward):
    request = constrained(name, sampling=GREEDY, grammar={"jump_forward": jump_forward})
    trace = engine.generate(request)
    assert list(trace.token_ids) == brute_force(name, "the result: ", 48)
    audit(engine)


@pytest.mark.parametrize("name", GRAMMARS)
def test_both_engines_give_the_same_text(engine, name):
    texts = [
        engine.generate(constrained(name, sampling=HOT, seed=5, grammar={"engine": mask})).text
        for mask in ("xgrammar", "llguidance")
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", GRAMMARS)
def test_jump_forward_changes_nothing_but_the_number_of_calls(engine, name, seed):
    plain, jumped = (
        engine.generate(constrained(name, sampling=HOT, seed=seed, grammar={"jump_forward": jump}))
        for jump in (False, True)
    )
    assert jumped.token_ids == plain.token_ids
    for mine, other in zip(jumped.steps(), plain.steps(), strict=True):
        assert (mine.rank, mine.grammar.num_allowed, mine.grammar.forced) == (
            other.rank,
            other.grammar.num_allowed,
            other.grammar.forced,
        )
    rounds = [event for event in jumped.events if isinstance(event, DraftVerified)]
    assert all(len(event.drafted) > 0 for event in rounds)
    assert not any(isinstance(event, DraftVerified) for event in plain.events)
    if name == "schema":
        assert sum(event.num_accepted for event in rounds) >= len('{"name": ')


@pytest.mark.parametrize("draft", ["prompt_lookup", "layer_skip"])
@pytest.mark.parametrize("k", range(1, 9))
def test_speculation_equals_plain_constrained_decoding(engine, k, draft):
    prompt = '{"name": "ann", "n": 12} {"name": "bob", "n": 7} '
    for name in ("schema", "ebnf"):
        plain = constrained(name, prompt=prompt, sampling=HOT, seed=k, grammar={"jump_forward": False})
        strategy = Speculative(draft=draft, num_draft_tokens=k, verify="coupled")
        trace = engine.generate(replace(plain, strategy=strategy))
        expected = engine.generate(plain)
        assert trace.token_ids == expected.token_ids
        assert trace.verdict == replace(expected.verdict, time=trace.verdict.time)
        assert trace.verdict.status in ("valid", "incomplete")
    rejection = replace(plain, sampling=GREEDY, strategy=replace(strategy, verify="rejection"))
    assert engine.generate(rejection).token_ids == engine.generate(replace(plain, sampling=GREEDY)).token_ids
    audit(engine)


@pytest.mark.parametrize(
    "strategy",
    [
        BeamSearch(num_beams=4, num_return_sequences=4),
        BeamSearch(num_beams=4, num_beam_groups=2, diversity_penalty=1.0, num_return_sequences=4),
        BeamSearch(num_beams=4, stochastic=True, num_return_sequences=4),
        BestOf(n=4),
        Sample(n=4),
    ],
)
@pytest.mark.parametrize("name", GRAMMARS)
def test_every_line_of_every_strategy_obeys(engine, name, strategy):
    trace = engine.generate(constrained(name, sampling=HOT, strategy=strategy, seed=2))
    judged = sorted((e for e in trace.events if isinstance(e, Judged)), key=lambda event: event.sample)
    assert len(judged) == len(trace.samples) > 0
    grammar = compiled("llguidance", **GRAMMARS[name])
    for event, text in zip(judged, trace.samples, strict=True):
        assert event.structure == text
        assert event.status == ("valid" if accepts(grammar, text) else "incomplete")
    assert trace.verdict in judged
    audit(engine)


def test_beams_return_every_word_of_a_small_language(engine):
    strategy = BeamSearch(num_beams=3, num_return_sequences=3)
    request = Request(
        "a pet: ", grammar=Grammar(regex="^(cat|car|dog)$"), strategy=strategy, max_new_tokens=10
    )
    trace = engine.generate(request)
    assert sorted(trace.samples) == ["car", "cat", "dog"]
    assert {event.status for event in trace.events if isinstance(event, Judged)} == {"valid"}


def test_the_grammar_is_one_stage_and_its_mass_is_the_models(engine):
    trace = engine.generate(
        constrained("schema", sampling=replace(HOT, top_p=0.9), grammar={"jump_forward": False})
    )
    assert [stage.stage for stage in trace.started.stages] == ["grammar", "temperature", "top_p"]
    for step in trace.steps():
        outcome, grammar = step.stages[0], step.grammar
        assert (outcome.stage, outcome.setting) == ("grammar", "JSON schema")
        assert outcome.num_kept == grammar.num_allowed
        assert outcome.cut_mass == pytest.approx(1 - grammar.feasible_mass, abs=1e-5)
        best = max(zip(step.candidates.model_logprobs, step.candidates.token_ids, strict=True))
        if grammar.masked_id is not None:
            assert (grammar.masked_logprob, grammar.masked_id) == best
            assert step.token_id != grammar.masked_id
        if grammar.num_allowed == 1:
            assert grammar.forced
    forced = "".join(step.text for step in trace.steps() if step.grammar.forced)
    assert forced.startswith('{"name": "')


def test_a_trace_with_a_grammar_survives_json(engine):
    trace = engine.generate(constrained("schema", grammar={"reason_first": 3}))
    read = Trace.from_json(trace.to_json())
    assert read == trace
    assert isinstance(read.steps()[0].grammar, GrammarStep)
    assert read.steps()[0].grammar.is_free
    assert not read.steps()[3].grammar.is_free


@pytest.mark.parametrize(
    ("fields", "reason", "status", "words"),
    [
        ({"max_new_tokens": 5}, "length", "incomplete", "cut at the limit of 5 new tokens"),
        ({"stop": ("am",)}, "stop", "incomplete", "cut by a stop string"),
        ({}, "grammar", "valid", "jsonschema"),
    ],
)
def test_how_a_run_ends_is_told_by_the_verdict(engine, fields, reason, status, words):
    trace = engine.generate(constrained("schema", sampling=GREEDY, **fields))
    assert (trace.finish_reason, trace.verdict.status) == (reason, status)
    assert words in trace.verdict.reason
    assert trace.verdict.structure == trace.text


def test_an_end_token_ends_where_more_could_follow(engine):
    request = Request("x", grammar=Grammar(regex="[ab]*"), sampling=HOT, max_new_tokens=300, seed=1)
    trace = engine.generate(replace(request, sampling=replace(HOT, logit_bias={models.EOS_ID: 3})))
    assert (trace.finish_reason, trace.verdict.status) == ("eos", "valid")
    assert models.EOS_ID not in trace.token_ids[:-1]


def test_a_branch_keeps_the_grammar_and_cannot_leave_it(engine):
    trace = engine.generate(constrained("schema", sampling=GREEDY))
    ids = {step.label: step.token_id for step in trace.steps()}
    branch = trace.branch(len('{"name": "'), engine.encode("b")[0])
    text = '{"name": "b' + engine.generate(branch).text
    assert text.startswith('{"name": "bob", "n": ')
    with pytest.raises(GrammarError, match=r"token 1 of the output, id \d+, breaks the grammar"):
        engine.generate(trace.branch(1, ids["{"]))
    whole = engine.generate(replace(branch, output_prefix=trace.token_ids))
    assert (whole.finish_reason, whole.verdict.status, whole.text) == ("grammar", "valid", "")


def test_a_cancelled_run_is_incomplete(engine):
    request = Request("x", grammar=Grammar(regex="a{300}"), max_new_tokens=300, sampling=GREEDY)
    with engine.stream(request) as stream:
        events = [next(stream) for _ in range(8)]
    trace = Trace(request, (*events, *stream))
    if trace.finish_reason == "cancelled":
        assert (trace.verdict.status, trace.verdict.reason) == ("incomplete", "the run ended: cancelled")
    audit(engine)


def test_preemption_gives_the_same_text(engine):
    grammar = Grammar(regex="([a-d][xyz]){30}")
    requests = [Request("ab", grammar=grammar, sampling=HOT, seed=n, max_new_tokens=64) for n in range(8)]
    alone = [engine.generate(request).token_ids for request in requests]
    traces = together(engine, requests)
    assert [trace.token_ids for trace in traces] == alone
    assert any(isinstance(event, Preempted) for trace in traces for event in trace.events)
    assert {trace.verdict.status for trace in traces} == {"valid"}
    audit(engine)


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ({"json_schema": '{"type": }'}, "line 1, column 10"),
        ({"json_schema": {"type": "nothing"}}, "type at /type"),
        ({"ebnf": 'root ::= "a" ghost'}, "line 1, column 14: rule 'ghost' is not defined"),
        ({"json_schema": False}, "no value can satisfy the schema"),
        ({"ebnf": 'root ::= "a" root'}, "no text is ever complete"),
        ({"regex": "a(?=b)"}, "character 2: look-ahead"),
        ({"regex": "[^\\u0000-\\uffff\\d]&"}, ""),
    ],
)
def test_errors_name_the_place_and_the_next_run_is_fine(engine, grammar, words):
    if words:
        with pytest.raises(GrammarError) as refusal:
            engine.stream(Request("x", grammar=Grammar(**grammar)))
        assert words in str(refusal.value)
    assert engine.generate(Request("x", grammar=Grammar(regex="ab"), sampling=GREEDY)).text == "ab"
    audit(engine)


def test_free_text_that_leaves_no_room_for_the_structure_is_incomplete(engine):
    request = Request("x", grammar=Grammar(regex="a", reason_first=8), max_new_tokens=8, sampling=GREEDY)
    verdict = engine.generate(request).verdict
    assert (verdict.status, verdict.structure) == ("incomplete", "")
    assert engine.evaluate(replace(request, max_new_tokens=20)).grammar.is_free


def test_a_grammar_that_compiles_too_long_is_stopped_while_others_keep_streaming(engine):
    engine.check_grammar(Grammar(regex="warm"))  # the process is there
    # Within every limit of size, and far beyond two seconds of work.
    names = range(40)
    slow = Grammar(
        ebnf="\n".join(
            [
                "root ::= " + " ".join(f"x{n}" for n in names),
                *(f"x{n} ::= (x{n} | [^a-z]* y{n} | y{n}{{1,9000}} | [a-f]* )" for n in names),
                *(f"y{n} ::= ([b-y]? x{(n + 1) % 40}? z)*" for n in names),
                "z ::= [^\\u0000-\\u0010]{0,9000} | [a-z]{2,8000}",
            ]
        )
    )
    outcome: list[str] = []

    def ask() -> None:
        try:
            engine.check_grammar(slow)
            outcome.append("compiled")
        except GrammarError as error:
            outcome.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    num_tokens = 0
    while asking.is_alive():
        num_tokens += len(engine.generate(Request("x", sampling=GREEDY, max_new_tokens=8)).token_ids)
    asking.join()
    assert outcome == ["compiling took longer than 2 seconds and was stopped"]
    assert num_tokens > 8
    assert engine.generate(Request("x", grammar=Grammar(regex="ab"), sampling=GREEDY)).text == "ab"


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ({"json_schema": '{"type": "array", "items": ' * 800 + "{}" + "}" * 800}, "nested deeper than"),
        (
            {"ebnf": "root ::= r0\n" + "\n".join(f'r{n} ::= "a" r{n + 1}' for n in range(2_300))},
            "2,000 rules",
        ),
        ({"regex": "(z{1,1000}){1,1000}"}, "1,000,000 character places"),
        ({"regex": "(" * 20_000 + ")" * 20_000}, "40,000 characters"),
    ],
)
def test_hostile_sizes_are_refused_before_anything_is_compiled(engine, grammar, words):
    with pytest.raises(GrammarError, match=words):
        guarded(lambda: engine.check_grammar(Grammar(**grammar)))


def test_the_compiling_process_is_started_again_after_it_died(engine):
    engine.check_grammar(Grammar(regex="a1"))
    engine._compiler._process._process.kill()
    engine._compiler._process._process.wait()
    assert guarded(lambda: engine.check_grammar(Grammar(regex="a2")), 60).num_rules == 1


def test_the_verdict_comes_before_the_end_of_its_sample(engine):
    trace = engine.generate(constrained("schema", sampling=GREEDY))
    last = kinds(trace.events)[-3:]
    assert last == ["Judged", "SampleFinished", "Finished"]
    assert json.loads(trace.verdict.structure)["name"] in ("ann", "bob")
