"""The llama.cpp engine before its start; what it does then is in `tests/contract`."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.kv import staging as staging_module
from inference.llama.engine import _staged
from inference.llama.options import LlamaOptions


def test_llama_without_memory_for_it_keeps_kv_in_its_slots_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "MEMORY_BACKED", tmp_path / "shm")
    wanted = LlamaOptions(model_path=tmp_path / "m.gguf", disk_folder=tmp_path / "kv", redis_url="redis://r")
    options, folder = _staged(wanted)
    folder.close()
    assert (options.host_bytes_max, options.disk_folder, options.redis_url) == (0, None, "")
