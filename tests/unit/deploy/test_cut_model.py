"""A model that is cut to fewer layers: what stays is what was there, and the tokenizer is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.cut_model import CutError, cut, kept_layers
from inference.llama.gguf import read_model
from tests.support.engines.gguf_files import METADATA, gguf

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
