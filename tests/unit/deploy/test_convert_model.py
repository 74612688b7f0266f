"""A GGUF as vLLM's folder: its configuration, and a conversion that is not made twice."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from deploy.convert_model import ConvertError, config_of, convert, target_of

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
