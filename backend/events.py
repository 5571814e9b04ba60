"""What happened in a run, in the order it happened: frozen dataclasses of plain Python values.

Units: log-probabilities and entropies are natural (nats), times are seconds since the request was
submitted, `sample` counts from 0. Minus infinity marks a token that a stage made impossible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["eos", "length", "stop", "grammar", "cancelled", "context_full", "error"]
PoolOperation = Literal[
    "allocate",
    "reuse",
    "fork",
    "copy",
    "truncate",
    "free",
    "evict",
    "write",
    "forget",
    "preempt",
    "taken",
    "returned",
]


@dataclass(frozen=True, slots=True)
class StageSetting:
    """One switched-on stage and its setting: a number where it is one, else text ("3 tokens")."""

    stage: str
    setting: int | float | str


@dataclass(frozen=True, slots=True)
class Started:
    """The request was accepted. `seed` is the one used, also where none was given.

    `prompt_special`: places in the prompt of tokens that mark structure (a chat turn).
    """

    model: str
    seed: int
    prompt_token_ids: tuple[int, ...]
    prompt_labels: tuple[str, ...]
    stages: tuple[StageSetting, ...]
    time: float = 0.0
    prompt_special: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """The request's next tokens do not fit into the pool now; it runs when blocks come free.

    `num_free_blocks`: free and not spoken for by a run that was admitted before.
    """

    num_needed_blocks: int
    num_free_blocks: int
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Part of the prompt is in the cache: `num_computed_tokens` of `num_tokens` so far.

    `num_cached_tokens` of them were reused from an earlier run instead of computed. `seconds` is the
    model time of this part.
    """

    num_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int
    seconds: float
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """What one stage did at one step.

    Attributes:
        stage: its name, a SamplingParams field.
        setting: as in StageSetting.
        num_kept: tokens still possible after it.
        cut_mass: probability, as it stood before the stage, of the tokens it cut.
        changed: whether it altered any probability.
        threshold: its cutoff in its own unit (stages.StageSpec.unit): the number of ranks, the cumulative
            probability reached, or the least probability kept; None where there is none.
    """

    stage: str
    setting: int | float | str
    num_kept: int
    cut_mass: float
    changed: bool
    threshold: float | None


@dataclass(frozen=True, slots=True)
class Candidates:
    """A table with one column per field, best model probability first (ties: lower id first).

    Attributes:
        token_ids, labels: the tokens; [C].
        model_logprobs: before any stage; [C].
        after: log-probability after each stage, -inf once cut; [num_stages][C].
        cut_by: index of the stage that cut the token, -1 if kept; [C].
        margins: by how much it was cut, in that unit (ranks beyond k, mass already reached beyond p,
            probability missing); None if kept or where the stage has no threshold; [C].
        luck: Gumbel noise of the token at this position; [C]. Drawn is argmax(log p + luck).
        ranks: place among all tokens of the model, 1 for the best; [C], empty where not recorded.
        special: whether the token marks structure (an end of text, a chat turn); [C] or empty, as ranks.
    """

    token_ids: tuple[int, ...]
    labels: tuple[str, ...]
    model_logprobs: tuple[float, ...]
    after: tuple[tuple[float, ...], ...]
    cut_by: tuple[int, ...]
    margins: tuple[float | None, ...]
    luck: tuple[float, ...]
    ranks: tuple[int, ...] = ()
    special: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class GrammarStep:
    """What a grammar meant at one step.

    Attributes:
        num_allowed: tokens it allowed. feasible_mass: the model's own probability of all of them.
        masked_id, masked_label, masked_logprob: the model's favourite where it was not allowed, else None.
        forced: the token adds only text that the grammar left no choice about.
        is_free: still in the free text before the structure.
    """

    num_allowed: int
    feasible_mass: float
    masked_id: int | None
    masked_label: str | None
    masked_logprob: float | None
    forced: bool
    is_free: bool


@dataclass(frozen=True, slots=True)
class TokenDecoded:
    """One token was chosen.

    Attributes:
        index: place in the output, from 0. position: place in prompt and output, from 0.
        label: how the token reads on its own; bytes that are no whole character as <0xF0 0x9F>.
        text: what it added to the text (empty while a character is incomplete or for special tokens).
        model_logprob: before any stage. logprob: after all stages (what it was drawn with).
        rank: 1 for the most likely token of the model; 0 where not recorded.
        entropy: of the model's distribution.
        luck: Gumbel noise of the chosen token; 0 for greedy and forced tokens.
        uncut_winner: who would have been drawn if no stage had cut anything; None for forced tokens.
        forced: given (scored text, a branch), not drawn.
        grammar: None without one.
        special: the token marks structure (an end of text, a chat turn) and adds no text.
    """

    sample: int
    index: int
    position: int
    token_id: int
    label: str
    text: str
    model_logprob: float
    logprob: float
    rank: int
    entropy: float
    luck: float
    uncut_winner: int | None
    stages: tuple[StageOutcome, ...]
    candidates: Candidates | None
    forced: bool = False
    time: float = 0.0
    grammar: GrammarStep | None = None
    special: bool = False


@dataclass(frozen=True, slots=True)
class BeamNode:
    """One candidate of a beam step.

    Attributes:
        parent: which of the beams before this step it continues, counted from 0.
        logprob: of this token, after the stages that take part. cum_logprob: of the whole text so far.
        score: what it was ranked by if it ended here: cum_logprob over length ** length_penalty; for
            stochastic beams cum_logprob plus its Gumbel noise.
        status: "kept" grows on as beam number `beam`, "finished" has ended and was offered to the pool,
            "pruned" was not good enough. `beam` is -1 unless kept.
        special: as in TokenDecoded.
    """

    parent: int
    token_id: int
    label: str
    logprob: float
    cum_logprob: float
    score: float
    status: Literal["kept", "finished", "pruned"]
    beam: int
    special: bool = False


@dataclass(frozen=True, slots=True)
class BeamStepped:
    """The beams of one group grew by one token; `nodes` are the best candidates over all, in order."""

    step: int
    nodes: tuple[BeamNode, ...]
    group: int = 0
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class DraftedToken:
    """One guessed token and how it fared.

    Attributes:
        status: "accepted", "rejected", or "unused" where an earlier one was rejected.
        p, q: its probability under target and draft, after all stages; p None if unused; q is 1 for a guess
            without a distribution.
        threshold: min(1, p / q). uniform: the number drawn; accepted if below the threshold. Both None for
            unused tokens and for the coupled check, which compares tokens.
        special: as in TokenDecoded.
    """

    token_id: int
    label: str
    status: Literal["accepted", "rejected", "unused"]
    p: float | None
    q: float
    threshold: float | None
    uniform: float | None
    special: bool = False


@dataclass(frozen=True, slots=True)
class Residual:
    """What a recovered token was drawn from: max(0, p - q), normalised; the rejected token comes first."""

    token_ids: tuple[int, ...]
    labels: tuple[str, ...]
    p: tuple[float, ...]
    q: tuple[float, ...]
    residual: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DraftVerified:
    """One round of speculative decoding: k drafted tokens were checked by one call of the target.

    Attributes:
        number: of the round, from 0. index: place in the output of its first token.
        num_accepted: drafts taken over. next_is: the token after them is "recovered" from a rejection, or
            a "bonus" where every draft was accepted (also where there was none), or there is "none" since
            an accepted token ended the text. next_special: as in TokenDecoded.
        draft_seconds, verify_seconds: time until the drafts were there, and until the target had answered.
    """

    number: int
    index: int
    drafted: tuple[DraftedToken, ...]
    num_accepted: int
    next_token_id: int | None
    next_label: str
    next_is: Literal["recovered", "bonus", "none"]
    residual: Residual | None
    draft_seconds: float
    verify_seconds: float
    time: float = 0.0
    next_special: bool = False


@dataclass(frozen=True, slots=True)
class Preempted:
    """The pool ran dry: the blocks were given to older requests; the run is recomputed later."""

    num_tokens: int
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class SampleFinished:
    """One sample is complete.

    Attributes:
        cum_logprob: sum of its log-probabilities: the model's, in a search those it compared.
        score: what a search ranked it by; else None.
    """

    sample: int
    reason: FinishReason
    text: str
    num_tokens: int
    cum_logprob: float
    score: float | None = None
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Judged:
    """An independent reader looked at a sample that a grammar constrained.

    Attributes:
        status: "valid", "incomplete" where the run ended before the grammar did, or "invalid".
        reason: by what it was found valid, or what is wrong.
        free_text, structure: the parts of the text before and under the grammar.
    """

    sample: int
    status: Literal["valid", "incomplete", "invalid"]
    reason: str
    free_text: str
    structure: str
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class SampleSelected:
    """One of several samples was chosen.

    Attributes:
        select: the rule. sample: the chosen one.
        scores: by the rule, one per sample: sum or mean of model log-probabilities, share of votes, or
            mean similarity to the others.
        answers: what was extracted from each sample, None where nothing was found.
        similarities: chrF, 0 to 100, of each sample (row) with each as its reference; only for "mbr".
    """

    select: str
    sample: int
    scores: tuple[float, ...]
    answers: tuple[str | None, ...]
    similarities: tuple[tuple[float, ...], ...]
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of every run.

    Attributes:
        reason: of the (selected) sample, or "cancelled" or "error" for the whole run.
        message: for "error", what went wrong; else empty.
        time_to_first_token: submission to first token, waiting included; None without a token.
        prefill_seconds: model time spent on the prompt. decode_seconds: first to last token.
        tokens_per_second: tokens after the first, over decode_seconds; None below two tokens.
    """

    reason: FinishReason
    message: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    time_to_first_token: float | None
    prefill_seconds: float
    decode_seconds: float
    tokens_per_second: float | None
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolChange:
    """Something happened in the pool, to whichever run; see Engine.watch_pool. Not part of a trace.

    Attributes:
        operation: what changed the block table of the sequence, or
            "write": tokens of the sequence were computed; `block_ids` became findable by it;
            "forget": a findable block is about to be overwritten;
            "preempt": the run loses its blocks to an older one, the frees follow;
            "taken", "returned": other visitors use these blocks, or do no more; nothing else is told of them.
        run, sequence: whose; -1 for other visitors. salt: of the sequence; empty for other visitors.
        block_ids: the blocks concerned; for "copy" the source and its copy.
        num_tokens: of the sequence that are in the cache afterwards.
        token_ids: what a "write" put there, the last of those `num_tokens`.
        time: time.perf_counter() when it was recorded.
    """

    operation: PoolOperation
    run: int
    sequence: int
    block_ids: tuple[int, ...]
    num_tokens: int = 0
    token_ids: tuple[int, ...] = ()
    time: float = 0.0
    salt: str = ""


@dataclass(frozen=True, slots=True)
class SequenceState:
    """A living sequence: its block table and the tokens that are in the cache."""

    run: int
    sequence: int
    block_ids: tuple[int, ...]
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool at one moment, as one visitor may see it.

    Attributes:
        sequences: the visitor's own. findable: blocks of theirs that others may find by content.
        idle: the visitor's free blocks that are still findable, with their tokens, least recently used first.
        taken: blocks that other visitors use.
    """

    num_blocks: int
    block_size: int
    sequences: tuple[SequenceState, ...]
    findable: tuple[int, ...]
    idle: tuple[tuple[int, tuple[int, ...]], ...]
    taken: tuple[int, ...]


Event = (
    Started
    | Waiting
    | Prefilled
    | TokenDecoded
    | BeamStepped
    | DraftVerified
    | Preempted
    | SampleFinished
    | Judged
    | SampleSelected
    | Finished
)
