"""Whether a model fits is said before it is loaded, with what would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.models.memory import (
    Footprint,
    available_bytes,
    check_fits,
    check_window,
    default_window,
    folder_footprint,
    gguf_kv_bytes_per_token,
)
from sessions.model.errors import BadInput

QWEN = {
    "general.architecture": "qwen2",
    "qwen2.block_count": 28,
    "qwen2.embedding_length": 1536,
    "qwen2.attention.head_count": 12,
    "qwen2.attention.head_count_kv": 2,
}
GB = 10**9


def refused(need: Footprint, available: int) -> str:
    with pytest.raises(BadInput) as error:
        check_fits(Path("m.gguf"), need, available)
    assert error.value.code == "memory_too_small"
    return error.value.public_message


def test_the_kv_of_a_token_is_in_the_head() -> None:
    assert gguf_kv_bytes_per_token(QWEN) == 28 * 2 * 2 * 128 * 2
    named = {**QWEN, "qwen2.attention.key_length": 256, "qwen2.attention.value_length": 64}
    assert gguf_kv_bytes_per_token(named) == 28 * 2 * (256 + 64) * 2
    assert gguf_kv_bytes_per_token({**QWEN, "qwen2.attention.head_count_kv": (2, 4)}) == 2 * 28 * 2 * 128 * 4
    assert gguf_kv_bytes_per_token({"general.architecture": "mamba", "mamba.block_count": 2}) == 0


def test_a_smaller_window_or_fewer_slots_are_advised() -> None:
    message = refused(Footprint(GB, 28_672, 32_768, 4), 4 * GB)
    assert "needs about 5.1 GB (1.0 GB of weights, 4 × 32768 tokens of KV) and 4.0 GB of memory are free" in message
    assert "--context 21504 with 4 slots, or --slots 2 with the window of 32768" in message
    small = Footprint(GB, 28_672, 21_504, 4)
    check_fits(Path("m.gguf"), small, 4 * GB)
    check_fits(Path("m.gguf"), Footprint(GB, 28_672, 32_768, 2), 4 * GB)


def test_one_slot_is_the_last_advice_and_then_a_smaller_model() -> None:
    assert "--slots 1 --context" in refused(Footprint(GB, 100_000, 32_768, 64), int(1.9 * GB))
    assert "take a smaller model" in refused(Footprint(40 * GB, 100_000, 32_768, 4), 24 * GB)
    assert "take a smaller model" in refused(Footprint(4 * GB, 0, 1, 1), GB)


def test_a_container_bounds_what_the_machine_has(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) == 0
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    1000000 kB\n")
    assert available_bytes(tmp_path) == 1_024_000_000
    group = tmp_path / "sys" / "fs" / "cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path) == 1_024_000_000
    (group / "memory.max").write_text("500000000\n")
    (group / "memory.current").write_text("300000000\n")
    (group / "memory.stat").write_text("anon 5\nfile 200000000\n")
    assert available_bytes(tmp_path) == 400_000_000


def test_a_folder_counts_its_weights_and_one_session(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(bytes(1000))
    (tmp_path / "b.safetensors").write_bytes(bytes(24))
    assert folder_footprint(tmp_path, 512) == Footprint(1024, 0, 512, 1)
    config = {"num_attention_heads": 4, "hidden_size": 256, "num_hidden_layers": 2, "max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 1}))
    assert folder_footprint(tmp_path, 0) == Footprint(1024, 4 * 2 * 1 * 64, 4096, 1)
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {**config, "head_dim": 32}}))
    assert folder_footprint(tmp_path, 512) == Footprint(1024, 4 * 2 * 4 * 32, 512, 1)


def test_the_default_window_is_the_models_own_where_memory_allows() -> None:
    own = Footprint(GB, 28_672, 32_768, 4)
    assert default_window(own, 16 * GB) == default_window(own, 0) == 32_768
    cut = default_window(own, 6 * GB)
    assert 8192 < cut < 32_768 and cut % 256 == 0
    check_fits(Path("m.gguf"), own._replace(window=cut), 4 * GB)  # half of what is free beside the weights
    assert default_window(own, GB) == 2048  # which is then refused with what would fit
    assert default_window(own._replace(kv_bytes_per_token=0), GB) == 32_768


def test_a_window_beyond_the_models_is_refused_by_its_flag() -> None:
    check_window("m", 32_768, 32_768)
    check_window("m", 1 << 20, 0)
    with pytest.raises(BadInput, match="--context 32768 or less") as refused_window:
        check_window("m", 100_000_000, 32_768)
    assert refused_window.value.param == "context"
