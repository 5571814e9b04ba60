"""The presets as shipped, and the refusals of the loader."""

from pathlib import Path

import pytest

from backend.request import SamplingParams
from ui.presets.files import PresetError
from ui.presets.settings import SAMPLING_FOLDER, load_sampling_presets

CHEAT_SHEET = {  # task: temperature and top-p, lowest and highest
    "factual-qa": ((0.0, 0.3), (1.0, 1.0)),
    "code-generation": ((0.0, 0.2), (0.95, 0.95)),
    "math-reasoning": ((0.6, 0.7), (0.95, 0.95)),
    "general-chat": ((0.7, 1.0), (0.9, 0.95)),
    "creative-writing": ((1.0, 1.3), (0.95, 1.0)),
    "brainstorming": ((1.0, 1.2), (0.98, 0.98)),
    "structured-extraction": ((0.0, 0.0), (1.0, 1.0)),
    "self-consistency": ((0.7, 0.7), (0.95, 0.95)),
}

EXACT = {
    "default": SamplingParams(temperature=0.8, top_p=0.95),
    "greedy": SamplingParams(temperature=0),
    "pure-sampling": SamplingParams(),
    "top-n-sigma": SamplingParams(temperature=1.5, top_n_sigma=1.0),
    "config-factual": SamplingParams(temperature=0.1, top_p=0.9, repetition_penalty=1.1),
    "config-chat": SamplingParams(temperature=0.7, top_p=0.9, top_k=50, repetition_penalty=1.05),
    "config-creative": SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.15),
}

VALID = """
position: 1
title: A title
purpose: What it is for
source: a test
settings:
  temperature: 0.5
"""


def write(folder: Path, text: str, name: str = "one.yaml") -> Path:
    (folder / name).write_text(text)
    return folder


def test_every_shipped_file_loads_and_no_other_preset_exists():
    presets = load_sampling_presets()
    assert sorted(presets) == sorted([*CHEAT_SHEET, *EXACT])
    assert len(list(SAMPLING_FOLDER.iterdir())) == len(presets)


def test_default_comes_first_and_the_order_is_stable():
    assert list(load_sampling_presets())[:3] == ["default", "greedy", "pure-sampling"]
    assert list(load_sampling_presets()) == list(load_sampling_presets())


@pytest.mark.parametrize("name", CHEAT_SHEET)
def test_cheat_sheet_values_lie_in_their_range(name):
    (low_t, high_t), (low_p, high_p) = CHEAT_SHEET[name]
    settings = load_sampling_presets()[name].settings
    assert low_t <= settings.temperature <= high_t
    assert low_p <= settings.top_p <= high_p
    assert settings.min_p == (0.05 if name == "creative-writing" else 0.0)
    neutral = SamplingParams(temperature=settings.temperature, top_p=settings.top_p, min_p=settings.min_p)
    assert settings == neutral


@pytest.mark.parametrize("name", EXACT)
def test_configurations_hold_their_exact_values(name):
    assert load_sampling_presets()[name].settings == EXACT[name]


@pytest.mark.parametrize(
    ("name", "limit"), [("config-factual", 512), ("config-chat", 1024), ("greedy", None)]
)
def test_length_is_set_only_where_the_source_gives_one(name, limit):
    assert load_sampling_presets()[name].max_new_tokens == limit


def test_each_purpose_is_one_line_of_its_own():
    purposes = [preset.purpose for preset in load_sampling_presets().values()]
    assert len(set(purposes)) == len(purposes)
    assert all(0 < len(purpose) <= 110 and "\n" not in purpose for purpose in purposes)


def test_settings_not_named_are_neutral(tmp_path):
    assert load_sampling_presets(write(tmp_path, VALID))["one"].settings == SamplingParams(temperature=0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (VALID + "colour: red\n", r"one\.yaml has the unknown key 'colour'"),
        (VALID + "  top_q: 0.5\n", r"one\.yaml: settings has the unknown key 'top_q'"),
        (VALID.replace("title: A title\n", ""), r"one\.yaml lacks the key 'title'"),
        (VALID.replace("A title", "7"), r"one\.yaml: title must be one line of text, got 7"),
        (
            VALID.replace("0.5", "-1"),
            r"one\.yaml: settings: temperature must be a number between 0 and 100, got -1",
        ),
        (
            VALID.replace("0.5", ".nan"),
            r"one\.yaml: settings: temperature must be a number between 0 and 100, got nan",
        ),
        (VALID.replace("0.5", "hot"), r"one\.yaml: settings: temperature must be a number .* got 'hot'"),
        (
            VALID.replace("position: 1", "position: x"),
            r"one\.yaml: position must be a whole number from 1, got 'x'",
        ),
        (VALID + "chat: 1\n", r"one\.yaml: chat must be true or false, got 1"),
        (VALID + "max_new_tokens: 0\n", r"one\.yaml: max_new_tokens must be a whole number from 1, got 0"),
        ("- a\n- b\n", r"one\.yaml must be a mapping of keys to values"),
        ("a: [", r"one\.yaml is not YAML"),
        (VALID + "x: !!python/object/apply:os.getcwd []\n", r"one\.yaml is not YAML"),
    ],
)
def test_a_wrong_file_is_refused_with_file_and_key(tmp_path, text, message):
    with pytest.raises(PresetError, match=message):
        load_sampling_presets(write(tmp_path, text))
