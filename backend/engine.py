"""Engine: one model, one pool, one loop; requests in, events out."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial

import torch

from backend.decoding.forward import Context, Strategy
from backend.decoding.peek import Peeked, peek
from backend.decoding.plan import plan
from backend.decoding.sample import ended
from backend.decoding.score import score
from backend.drafts import Drafts
from backend.errors import PlaygroundError, RequestError
from backend.events import Event, Finished, Started, TokenDecoded
from backend.grammar.compiler import Compiled, Compiler
from backend.grammar.constraint import Constraint
from backend.grammar.matcher import Tokens
from backend.grammar.verdict import Verdict, judge
from backend.kv.block_manager import BlockManager
from backend.loop import Loop
from backend.model import catalogue
from backend.model.bundled import NAME as BUNDLED
from backend.model.catalogue import LoadedModel
from backend.model.files import first_line
from backend.model.runner import ModelRunner, kv_bytes_per_token
from backend.pool_watch import PoolWatch
from backend.protocol import Capabilities
from backend.request import Grammar, Request, Sample, SamplingParams, Speculative
from backend.sampling import noise
from backend.sampling.pipeline import Pipeline
from backend.scheduler import Pool, Run, Scheduler
from backend.sequence import LONG_SALT, Sequence
from backend.stream import EventStream
from backend.text import OutputText, Vocabulary
from backend.trace import Trace

POOL_BYTES = {"cpu": 1 << 30, "cuda": 4 << 30}
PRECISIONS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int4": torch.float32,  # everything but the weights of linear layers
}


class Engine:
    """Serves any number of requests at once from one model.

    A thread of its own owns the model. With `inline` the loop runs in whichever caller waits for an event,
    for hosts where no thread may hold the device.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        block_size: int = 16,
        num_blocks: int = 1024,
        inline: bool = False,
        verified: bool = False,
    ):
        """`verified`: another engine has already compared this model's paged logits with its own.

        `notes` then holds how the weights were packed and what of the model's settings is not used.
        """
        self.model_name = loaded.name
        self.block_size = block_size
        self.block_manager = BlockManager(num_blocks, block_size)
        self._vocabulary = Vocabulary(loaded.tokenizer)
        self._tokenizer = loaded.tokenizer
        self._runner = ModelRunner(loaded.model, num_blocks, block_size, self._vocabulary.size)
        if not verified:
            self._runner.verify()
        self._loaded = loaded
        self._siblings: dict[int, Engine] = {}
        self._siblings_lock = threading.Lock()
        self._eos_ids, notes = _eos_ids(loaded, self._runner.vocab_size)
        self.notes = (*((self.packing,) if self.packing else ()), *notes)
        pool = Pool(self._runner, self.block_manager)
        self._loop = Loop(Scheduler(pool), inline)
        self._drafts = Drafts(loaded, pool, self._loop.add_pool)
        self._inline = inline
        self._closed = False

    @classmethod
    def load(
        cls,
        name: str = BUNDLED,
        *,
        device: str = "auto",
        precision: str = "auto",
        block_size: int = 16,
        num_blocks: int | None = None,
        inline: bool = False,
        progress: Callable[[str, float], None] | None = None,
    ) -> Engine:
        """Load a model by catalogue name, Hugging Face id, folder or GGUF file.

        Args:
            device: "auto" takes CUDA where there is one, else the CPU.
            precision: "auto" is bfloat16 on CUDA and float32, the reference, elsewhere. "int4", on the CPU
                only, keeps the weights of linear layers in 4 bits.
            num_blocks: size of the KV pool; None fits it to the memory.
            progress: called with a message and a fraction from 0 to 1.

        Raises:
            ModelUnavailable: the weights cannot be had or the model cannot be run correctly.
            RequestError: device or precision is none of the known ones.
        """
        chosen = _device(device)
        dtype = _dtype(precision, chosen)
        loaded = catalogue.load(
            name, device=chosen, dtype=dtype, packed=precision == "int4", progress=progress
        )
        if num_blocks is None:
            per_block = kv_bytes_per_token(loaded.model) * block_size
            num_blocks = max(64, POOL_BYTES[chosen.type] // per_block)
        return cls(loaded, block_size=block_size, num_blocks=num_blocks, inline=inline)

    @property
    def capabilities(self) -> Capabilities:
        """All there are."""
        return Capabilities()

    @property
    def device(self) -> str:
        """Where the model runs, as torch writes it: "cpu", "cuda:0"."""
        return str(self._runner.device)

    @property
    def precision(self) -> str:
        """float32, bfloat16, float16 or int4."""
        return "int4" if self._loaded.packing else str(self._runner.model.dtype).removeprefix("torch.")

    @property
    def packing(self) -> str:
        """What int4 made of the weights, in words; empty in another precision."""
        return str(self._loaded.packing or "")

    @property
    def context_length(self) -> int:
        """Tokens of prompt and output together that the model can hold."""
        return self._runner.context_length

    @property
    def vocab_size(self) -> int:
        """Entries of a row of logits, V; a tokenizer may know fewer."""
        return self._runner.vocab_size

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token takes in all layers."""
        return kv_bytes_per_token(self._runner.model)

    @property
    def num_layers(self) -> int:
        """Decoder layers of the target."""
        return int(self._runner.model.config.get_text_config().num_hidden_layers)

    @property
    def has_chat_template(self) -> bool:
        """Whether a request may set chat."""
        return bool(self._tokenizer.chat_template)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, as a prompt would be encoded."""
        return self._vocabulary.encode(text)

    def label(self, token_id: int) -> str:
        """How a token reads on its own; see text.Vocabulary.label."""
        return self._vocabulary.label(token_id)

    def added_text(self, output_ids: Iterable[int], token_id: int) -> str:
        """What a token adds to the text of an output; empty for a special token or half a character."""
        return OutputText(self._vocabulary, (), output_ids).push(token_id).text

    def stream(self, request: Request, parent: EventStream | None = None) -> EventStream:
        """Start a run and return its live events.

        A `parent` that still goes on then shares its blocks as far as the tokens agree, the last and partly
        filled one included; whoever writes to a shared block first copies it.

        Raises:
            RequestError: the request does not fit the model or the pool; nothing was started.
        """
        prompt_ids = self._prompt_ids(request)
        chosen = plan(request, self._drafts)
        self._check_room(request, len(prompt_ids), chosen.num_sequences)
        constraint = self._constraint(request, chosen.num_sequences)
        decode = chosen.decode
        if request.output_prefix and request.output_prefix[-1] in self._eos_ids:
            decode = partial(ended, reason="eos")
        elif constraint is not None and constraint.is_over(request.output_prefix):
            decode = partial(ended, reason="grammar")
        return self._start(request, prompt_ids, chosen.sampling, decode, parent, constraint)

    def generate(self, request: Request) -> Trace:
        """Run to the end.

        Raises:
            RequestError: as stream.
            PlaygroundError: the run ended with an error.
        """
        return _completed(request, self.stream(request))

    def check_room(self, request: Request) -> None:
        """Refuse, without starting it, a request that can never fit the model or the pool.

        Raises:
            RequestError: it names what is needed and what there is.
        """
        num_sequences = plan(request, self._drafts).num_sequences
        self._check_room(request, len(self._prompt_ids(request)), num_sequences)

    def watch_pool(self, visitor: str) -> PoolWatch:
        """From now on, what happens to the blocks of runs with this salt, or one that begins "salt:"."""
        return self._loop.ask(lambda scheduler: scheduler.watch(visitor))

    def find_blocks(self, token_ids: Iterable[int], cache_salt: str) -> list[int]:
        """The full blocks that hold the first of these tokens for that salt now, in their order."""
        known = list(token_ids)

        def find(_: Scheduler) -> list[int]:
            salts = (cache_salt, cache_salt + LONG_SALT)
            return max((self.block_manager.find(known, salt) for salt in salts), key=len)

        return self._loop.ask(find)

    def with_pool(self, num_blocks: int) -> Engine:
        """An engine over the same weights with a loop and a pool of that size of its own; one per size."""
        with self._siblings_lock:
            if self._closed:
                raise PlaygroundError("the engine is closed")
            if num_blocks not in self._siblings:
                self._siblings[num_blocks] = Engine(
                    self._loaded,
                    block_size=self.block_size,
                    num_blocks=num_blocks,
                    inline=self._inline,
                    verified=True,
                )
            return self._siblings[num_blocks]

    def score(self, text: str, cache_salt: str = "") -> Trace:
        """Log-probability and rank of every token of a given text; the first has nothing before it.

        Raises:
            RequestError: the text is empty, has one token only, or exceeds the context.
        """
        stream = self.stream_score(text, cache_salt)
        return _completed(stream.request, stream)

    def stream_score(self, text: str, cache_salt: str = "") -> EventStream:
        """The events of a score as they come: Started with the first token, then each token that follows.

        Raises:
            RequestError: as score.
        """
        request = Request(text, max_new_tokens=1, cache_salt=cache_salt)
        token_ids = self._prompt_ids(request)
        if len(token_ids) < 2:
            raise RequestError(
                "scoring needs at least two tokens: the first has nothing to be predicted from"
            )
        self._check_room(request, len(token_ids), 1)
        first, rest = token_ids[:1], tuple(token_ids[1:])
        return self._start(
            request,
            first,
            request.sampling,
            lambda context: score(context, rest),
            num_known_tokens=len(token_ids),
        )

    def evaluate(self, request: Request) -> TokenDecoded:
        """The next step of a request, prompt and output_prefix given, without running on.

        Raises:
            RequestError, PlaygroundError: as generate.
        """
        single = replace(request, max_new_tokens=len(request.output_prefix) + 1, stop=(), strategy=Sample())
        steps = self.generate(single).steps()
        if not steps:
            raise RequestError("there is no next step: the output already ends the text")
        return steps[0]

    def check_grammar(self, grammar: Grammar) -> Compiled:
        """Compile a grammar without running it; later runs find it compiled.

        Raises:
            GrammarError: it is wrong, cannot be enforced exactly, or takes too long; names the place.
        """
        return self._compiler.compile(grammar)

    def judge(self, grammar: Grammar, text: str) -> Verdict:
        """What an independent reader says of any text under a grammar.

        Raises:
            GrammarError: as check_grammar.
        """
        return judge(self.check_grammar(grammar), text, None)

    def peek(self, request: Request) -> Peeked:
        """What draft and target make of the next token of a speculative request, without drawing it.

        Raises:
            RequestError, PlaygroundError: as generate.
        """
        if not isinstance(request.strategy, Speculative):
            raise RequestError("only a speculative request has a draft to look at")
        prompt_ids = self._prompt_ids(request)
        drafter = self._drafts.prepare(request.strategy)
        self._check_room(replace(request, max_new_tokens=len(request.output_prefix) + 1), len(prompt_ids), 1)
        found: list[Peeked] = []
        stream = self._start(
            request,
            prompt_ids,
            request.sampling,
            lambda context: peek(context, drafter(context), found),
            constraint=self._constraint(request, 1),
        )
        _completed(request, stream)
        if not found:
            raise PlaygroundError("the engine was closed before the step was computed")
        return found[0]

    def close(self) -> None:
        """Stop the loop; runs that still go on are cancelled."""
        with self._siblings_lock:
            self._closed = True
            siblings = list(self._siblings.values())
        for sibling in siblings:
            sibling.close()
        self._loop.close()
        if "_compiler" in self.__dict__:
            self._compiler.close()

    @cached_property
    def _tokens(self) -> Tokens:
        """The vocabulary as grammars see it: special tokens have no text."""
        texts = [self._vocabulary.token_bytes(token_id) for token_id in range(self.vocab_size)]
        for token_id in self._eos_ids:
            texts[token_id] = b""
        return Tokens(tuple(texts), tuple(sorted(self._eos_ids)))

    @cached_property
    def _compiler(self) -> Compiler:
        return Compiler(self._tokens)

    def _constraint(self, request: Request, num_sequences: int) -> Constraint | None:
        """The grammar of one run, moved past its output_prefix.

        Raises:
            GrammarError: as check_grammar, and where the prefix breaks the grammar.
        """
        if request.grammar is None:
            return None
        constraint = Constraint(self.check_grammar(request.grammar), self._tokens, num_sequences + 1)
        constraint.after(request.output_prefix)
        return constraint

    def _prompt_ids(self, request: Request) -> list[int]:
        if isinstance(request.prompt, str):
            prompt_ids = self._encode_prompt(request.prompt, request.chat)
        else:
            prompt_ids = list(request.prompt)
        self._check_ids("prompt", prompt_ids)
        self._check_ids("logit_bias", request.sampling.logit_bias)
        self._check_ids("output_prefix", request.output_prefix)
        length = len(prompt_ids) + len(request.output_prefix)
        if length >= self.context_length:
            raise RequestError(
                f"the prompt has {length:,} tokens; {self.model_name} holds {self.context_length:,}, "
                "one of which must be left for the output"
            )
        return prompt_ids

    def _check_ids(self, name: str, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            if token_id >= self.vocab_size:
                last = self.vocab_size - 1
                raise RequestError(f"{name} holds token id {token_id}; {self.model_name} has ids 0 to {last}")

    def _encode_prompt(self, prompt: str, chat: bool) -> list[int]:
        if not chat:
            prompt_ids = self._vocabulary.encode(prompt)
        elif not self.has_chat_template:
            raise RequestError(f"{self.model_name} has no chat template; send the prompt without chat")
        else:
            prompt_ids = self._vocabulary.encode(self._in_template(prompt), add_special_tokens=False)
        if not prompt_ids:
            raise RequestError(f"the prompt {prompt[:40]!r} has no tokens")
        return prompt_ids

    def _in_template(self, prompt: str) -> str:
        """The prompt as the user's turn of a chat.

        Raises:
            RequestError: the model's chat template does not work; names it and its reason.
        """
        messages = [{"role": "user", "content": prompt}]
        try:
            return str(
                self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            )
        except Exception as error:  # a template is a program: it may raise anything
            template = self._tokenizer.chat_template
            kind = (
                f"chat templates ({', '.join(template)})" if isinstance(template, dict) else "chat template"
            )
            raise RequestError(
                f"the {kind} of {self.model_name} cannot be used: {type(error).__name__}: "
                f"{first_line(error)}; send the prompt without chat"
            ) from error

    def _context_length(self, num_known_tokens: int) -> int:
        """Tokens that a request with so many known beforehand can hold.

        A model with two sets of position factors would have to compute a text anew where the length passes
        their border, and its probabilities would jump. So the text ends there; a longer prompt uses the long
        factors from its first token on.
        """
        border = self._runner.border
        if border is None or self._is_long(num_known_tokens):
            return self.context_length
        return min(border + 1, self.context_length)

    def _is_long(self, num_known_tokens: int) -> bool:
        """Whether a text with so many tokens known beforehand uses the long position factors."""
        return self._runner.border is not None and num_known_tokens > self._runner.border

    def _context_ends(self, context_length: int) -> str:
        if context_length == self.context_length:
            return ""
        return (
            f"The text ends after {context_length:,} tokens, where {self.model_name} changes its position "
            f"factors (original_max_position_embeddings {self._runner.border:,}); a prompt longer than that "
            "uses the long ones throughout."
        )

    def _check_room(self, request: Request, num_prompt_tokens: int, num_samples: int) -> None:
        """A request that could not run even alone in the pool is refused at once."""
        if not request.use_cache:
            return
        # The last token is drawn, but its own keys and values are never needed.
        limit = self._context_length(num_prompt_tokens + len(request.output_prefix))
        longest = min(num_prompt_tokens + request.max_new_tokens, limit) - 1
        shared = num_prompt_tokens // self.block_size if num_samples > 1 else 0
        needed = shared + num_samples * (self.block_manager.num_blocks_for(longest) - shared)
        if needed > self.block_manager.num_blocks:
            raise RequestError(
                f"the request may need {needed:,} blocks of {self.block_size} tokens "
                f"({num_prompt_tokens:,} prompt tokens, {num_samples} x {request.max_new_tokens:,} new); "
                f"the pool has {self.block_manager.num_blocks:,}"
            )

    def _start(
        self,
        request: Request,
        prompt_ids: list[int],
        sampling: SamplingParams,
        decode: Callable[[Context], Strategy],
        parent: EventStream | None = None,
        constraint: Constraint | None = None,
        num_known_tokens: int | None = None,
    ) -> EventStream:
        """`num_known_tokens`: length of the text known beforehand; None for prompt and output_prefix."""
        seed = noise.draw_seed() if request.seed is None else request.seed
        known_ids = (*prompt_ids, *request.output_prefix)
        context_length = self._context_length(num_known_tokens or len(known_ids))
        is_long = self._is_long(num_known_tokens or len(known_ids))
        salt = request.cache_salt + LONG_SALT * is_long
        context = Context(
            request=request,
            prompt_ids=known_ids,
            root=Sequence(list(known_ids), len(prompt_ids), salt),
            seed=seed,
            pipeline=Pipeline(
                sampling,
                self._vocabulary.label,
                request.num_candidates,
                constraint,
                self._vocabulary.is_special,
            ),
            vocabulary=self._vocabulary,
            blocks=self.block_manager,
            eos_ids=self._eos_ids,
            context_length=context_length,
            constraint=constraint,
        )
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        ended = threading.Event()

        def emit(event: Event) -> None:
            if isinstance(event, Finished) and event.reason == "context_full" and not event.message:
                event = replace(event, message=self._context_ends(context_length))
            events.put(event)
            if isinstance(event, Finished):
                ended.set()

        run = Run(decode(context), emit, len(prompt_ids), request.use_cache)
        run.parent = parent.run if parent is not None and request.use_cache else None
        run.report(
            Started(
                model=self.model_name,
                seed=seed,
                prompt_token_ids=tuple(prompt_ids),
                prompt_labels=tuple(map(self._vocabulary.label, prompt_ids)),
                stages=context.pipeline.settings,
                prompt_special=tuple(
                    place
                    for place, token_id in enumerate(prompt_ids)
                    if self._vocabulary.is_special(token_id)
                ),
            )
        )
        self._loop.add(run)
        return EventStream(request, self._loop, run, events, ended)


def _completed(request: Request, stream: EventStream) -> Trace:
    trace = Trace(request, tuple(stream))
    finished = trace.finished
    if finished is not None and finished.reason == "error":
        raise PlaygroundError(finished.message)
    return trace


def _eos_ids(loaded: LoadedModel, vocab_size: int) -> tuple[frozenset[int], tuple[str, ...]]:
    """The ids that end a text, and a note on those that are no token of the model."""
    configured = loaded.model.generation_config.eos_token_id if loaded.model.generation_config else None
    if configured is None:
        configured = loaded.model.config.get_text_config().eos_token_id
    if configured is None:
        return frozenset(), ()
    given = [configured] if isinstance(configured, int) else configured
    outside = [token_id for token_id in given if not 0 <= token_id < vocab_size]
    note = (
        f"end ids outside the vocabulary are ignored: {', '.join(map(str, outside))} "
        f"({loaded.name} has ids 0 to {vocab_size - 1})"
    )
    return frozenset(given).difference(outside), (note,) if outside else ()


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.split(":")[0] not in POOL_BYTES:
        raise RequestError(f"device must be auto, {' or '.join(POOL_BYTES)}, got {name!r}")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise RequestError(f"device {name!r} was asked for, but torch finds no CUDA device")
    return torch.device(name)


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in PRECISIONS:
        raise RequestError(f"precision must be auto, {', '.join(PRECISIONS)}, got {name!r}")
    if name == "int4" and device.type != "cpu":
        raise RequestError(f"precision int4 is computed on the CPU only, not on {device}")
    return PRECISIONS[name]
