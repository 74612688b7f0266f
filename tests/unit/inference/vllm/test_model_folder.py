"""A model folder for vLLM, read before vLLM is: what is wrong with it is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.vllm.model_folder import read_vllm_model
from sessions.model.errors import BadInput


def model_folder(folder: Path, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 8192} | config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def adapter_folder(folder: Path, rank: object = 8, weights: bytes = b"low rank") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


@pytest.mark.parametrize("config", [{"max_position_embeddings": None}, {"text_config": 3}])
def test_a_model_with_a_strange_context_window_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    folder = model_folder(tmp_path / "m", **config)
    with pytest.raises(BadInput) as refused:
        read_vllm_model(folder).context_window  # noqa: B018
    assert refused.value.code == "bad_model_file"
    assert str(folder) in refused.value.public_message and "config.json" in refused.value.public_message
