"""Each stage of the pipeline described once; what it does to the logits stands in sampling.processors.

Validation, orders, knobs, drawing, exports and imports read this table and nothing else. It imports no
tensors, so that requests can read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Engine = Literal["transformers", "vllm", "llama.cpp", "openai"]
Geometry = Literal["", "ranks", "staircase", "ratio", "band"]
Unit = Literal["", "rank", "mass", "probability"]


@dataclass(frozen=True)
class Elsewhere:
    """A stage in another engine.

    Attributes:
        name: of its setting. sampler, option: llama.cpp's name of the sampler and of the command line option.
        default: what the engine takes where the setting is left out, if that is not off.
        off: what switches it off there, if that is not our neutral value.
        always: written down even where it is off.
        counts_prompt: it counts prompt and output where ours counts the output alone.
    """

    name: str
    sampler: str = ""
    option: str = ""
    default: float | None = None
    off: float | None = None
    always: bool = False
    counts_prompt: bool = False


@dataclass(frozen=True)
class StageSpec:
    """What there is to know of one stage, a field of SamplingParams.

    Attributes:
        title: as the page shows it. hint: what it does, in a line.
        neutral: the value that switches it off; None where the setting is no number.
        low, high: the values allowed. above_zero: the least one that is not 0.
        slider, step: range and step of its knob, narrower than what may be typed; None if it has no knob.
        whole: whole numbers only.
        shapes_draw: it belongs to the draw and not to the text's score: a grammar's mask comes before it, a
            beam search leaves it out, and greedy decoding elsewhere does without it.
        cuts: it makes tokens impossible; else it moves probability among them.
        places: where it stands in an order that differs from this table's, the least number first.
        unit: of its limit and margins: a rank, the probability of the tokens before, or the token's own
            probability; "" where it tells none.
        geometry: how its cut is drawn; "" if it is not. reading: what the drawing shows.
        line: text at the drawn line, made from {setting} and {limit}.
        elsewhere: the engines that have it.
    """

    name: str
    title: str
    hint: str
    neutral: float | None
    low: float
    high: float
    places: Mapping[str, int]
    above_zero: float = 0.0
    slider: tuple[float, float] | None = None
    step: float = 0.0
    whole: bool = False
    shapes_draw: bool = False
    cuts: bool = False
    unit: Unit = ""
    geometry: Geometry = ""
    reading: str = ""
    line: str = ""
    elsewhere: Mapping[Engine, Elsewhere] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The heading its knob stands under."""
        return "Sampling" if self.shapes_draw else "Penalties"


def _sampler(name: str, sampler: str, option: str, **more: Any) -> Elsewhere:
    """A sampler of llama.cpp: always named, since its server and command line have defaults of their own."""
    return Elsewhere(name, sampler, option, always=True, **more)


# In the default order.
_TABLE = (
    StageSpec(
        name="repetition_penalty",
        title="repetition",
        hint="Scales down tokens seen in prompt or output. 1 is off.",
        neutral=1,
        low=0.01,
        high=10,
        slider=(0.8, 2),
        step=0.01,
        places={"transformers": 10, "vllm": 20, "llama.cpp": 10},
        elsewhere={
            "transformers": Elsewhere("repetition_penalty"),
            "vllm": Elsewhere("repetition_penalty"),
            "llama.cpp": _sampler("repeat_penalty", "penalties", "--repeat-penalty"),
        },
    ),
    StageSpec(
        name="frequency_penalty",
        title="frequency",
        hint="Subtracted per earlier use in the output. 0 is off.",
        neutral=0,
        low=-2,
        high=2,
        slider=(-2, 2),
        step=0.05,
        places={"transformers": 11, "vllm": 21, "llama.cpp": 11},
        elsewhere={
            "vllm": Elsewhere("frequency_penalty"),
            "llama.cpp": _sampler(
                "frequency_penalty", "penalties", "--frequency-penalty", counts_prompt=True
            ),
            "openai": Elsewhere("frequency_penalty"),
        },
    ),
    StageSpec(
        name="presence_penalty",
        title="presence",
        hint="Subtracted once if used in the output. 0 is off.",
        neutral=0,
        low=-2,
        high=2,
        slider=(-2, 2),
        step=0.05,
        places={"transformers": 12, "vllm": 22, "llama.cpp": 12},
        elsewhere={
            "vllm": Elsewhere("presence_penalty"),
            "llama.cpp": _sampler("presence_penalty", "penalties", "--presence-penalty", counts_prompt=True),
            "openai": Elsewhere("presence_penalty"),
        },
    ),
    StageSpec(
        name="no_repeat_ngram_size",
        title="no-repeat",
        hint="No run of this many tokens occurs twice. 0 is off.",
        neutral=0,
        low=0,
        high=1_000,
        slider=(0, 10),
        step=1,
        whole=True,
        cuts=True,
        places={"transformers": 20, "vllm": 0, "llama.cpp": 20},
        elsewhere={"transformers": Elsewhere("no_repeat_ngram_size")},
    ),
    StageSpec(
        name="logit_bias",
        title="bias",
        hint="Added to the logits of chosen tokens.",
        neutral=None,
        low=-100,
        high=100,
        places={"transformers": 0, "vllm": 10, "llama.cpp": 0},
        elsewhere={
            "transformers": Elsewhere("sequence_bias"),
            "vllm": Elsewhere("logit_bias"),
            "llama.cpp": Elsewhere("logit_bias"),
            "openai": Elsewhere("logit_bias"),
        },
    ),
    StageSpec(
        name="temperature",
        title="temperature",
        hint="Divides the logits. 0 is greedy, 1 leaves them alone.",
        neutral=1,
        low=0,
        high=100,
        above_zero=1e-6,
        slider=(0, 2),
        step=0.05,
        shapes_draw=True,
        places={"transformers": 30, "vllm": 30, "llama.cpp": 100},
        elsewhere={
            "transformers": Elsewhere("temperature", always=True),
            "vllm": Elsewhere("temperature", always=True),
            "llama.cpp": _sampler("temperature", "temperature", "--temp", default=0.8),
            "openai": Elsewhere("temperature", always=True),
        },
    ),
    StageSpec(
        name="top_k",
        title="top-k",
        hint="Keeps this many best tokens. 0 is off.",
        neutral=0,
        low=0,
        high=1_000_000,
        slider=(0, 200),
        step=1,
        whole=True,
        shapes_draw=True,
        cuts=True,
        unit="rank",
        geometry="ranks",
        reading="tokens by rank; the line is rank k",
        line="k = {setting}",
        places={"transformers": 40, "vllm": 50, "llama.cpp": 30},
        elsewhere={
            "transformers": Elsewhere("top_k", default=50, always=True),
            "vllm": Elsewhere("top_k", off=-1),
            "llama.cpp": _sampler("top_k", "top_k", "--top-k", default=40),
        },
    ),
    StageSpec(
        name="top_p",
        title="top-p",
        hint="Keeps the smallest set that holds this probability. 1 is off.",
        neutral=1,
        low=0,
        high=1,
        slider=(0, 1),
        step=0.01,
        shapes_draw=True,
        cuts=True,
        unit="mass",
        geometry="staircase",
        reading="probability added up from the best; the line is p",
        line="p = {setting}",
        places={"transformers": 50, "vllm": 60, "llama.cpp": 50},
        elsewhere={
            "transformers": Elsewhere("top_p", always=True),
            "vllm": Elsewhere("top_p"),
            "llama.cpp": _sampler("top_p", "top_p", "--top-p", default=0.95),
            "openai": Elsewhere("top_p", always=True),
        },
    ),
    StageSpec(
        name="min_p",
        title="min-p",
        hint="Keeps tokens at least this fraction as likely as the best. 0 is off.",
        neutral=0,
        low=0,
        high=1,
        slider=(0, 0.5),
        step=0.005,
        shapes_draw=True,
        cuts=True,
        unit="probability",
        geometry="ratio",
        reading="each token against a fraction of the best; log scale",
        line="{setting} × best = {limit}",
        places={"transformers": 60, "vllm": 40, "llama.cpp": 60},
        elsewhere={
            "transformers": Elsewhere("min_p"),
            "vllm": Elsewhere("min_p"),
            "llama.cpp": _sampler("min_p", "min_p", "--min-p", default=0.05),
        },
    ),
    StageSpec(
        name="typical_p",
        title="typical-p",
        hint="Keeps tokens about as surprising as expected. 1 is off.",
        neutral=1,
        low=0,
        high=1,
        slider=(0, 1),
        step=0.01,
        shapes_draw=True,
        cuts=True,
        unit="mass",
        geometry="band",
        reading="kept where surprise is near the entropy",
        places={"transformers": 70, "vllm": 70, "llama.cpp": 40},
        elsewhere={
            "transformers": Elsewhere("typical_p"),
            "llama.cpp": _sampler("typical_p", "typ_p", "--typical"),
        },
    ),
    StageSpec(
        name="top_n_sigma",
        title="top-n-sigma",
        hint="Keeps logits within this many standard deviations of the largest. 0 is off.",
        neutral=0,
        low=0,
        high=100,
        slider=(0, 5),
        step=0.05,
        shapes_draw=True,
        cuts=True,
        unit="probability",
        geometry="ratio",
        reading="each token against the best, less n standard deviations of the logits; log scale",
        line="best − {setting} σ = {limit}",
        places={"transformers": 80, "vllm": 80, "llama.cpp": 25},
        elsewhere={"llama.cpp": _sampler("top_n_sigma", "top_n_sigma", "--top-nsigma", off=-1)},
    ),
)

STAGES: dict[str, StageSpec] = {spec.name: spec for spec in _TABLE}
DRAW = tuple(spec.name for spec in _TABLE if spec.shapes_draw)


def _ordered(engine: str) -> tuple[str, ...]:
    return tuple(spec.name for spec in sorted(_TABLE, key=lambda spec: spec.places[engine]))


ORDERS: dict[str, tuple[str, ...]] = {
    "default": tuple(STAGES),
    # GenerationMixin._get_logits_processor, 5.24: as the default, but bias comes before the penalties
    "transformers": _ordered("transformers"),
    # vllm.v1.sample.sampler.Sampler: bias, penalties, temperature, min-p, then top-k and top-p
    "vllm": _ordered("vllm"),
    # llama.cpp common_params_sampling.samplers: the cuts see the distribution before temperature
    "llama.cpp": _ordered("llama.cpp"),
}


def completed(order: Iterable[str]) -> tuple[str, ...]:
    """The order with the stages it does not name at its end: it may be older than they are."""
    named = tuple(order)
    return (*named, *(stage for stage in STAGES if stage not in named))


def measured(
    stage: str, setting: object, threshold: float | None, margin: float | None
) -> tuple[float, float] | None:
    """What a cut token was measured at, and the stage's limit, both in the stage's unit.

    None where the stage has no unit, or the margin is not known.
    """
    unit = STAGES[stage].unit if stage in STAGES else ""
    limit = threshold if unit == "probability" else setting
    if not unit or margin is None or not isinstance(limit, int | float):
        return None
    return (max(0.0, limit - margin) if unit == "probability" else limit + margin), limit
