"""Options of the llama.cpp engine: out of range is refused by name, and a smaller model keeps KV in its slots alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.llama.options import LlamaOptions
from sessions.model.errors import BadInput


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 0) for name in ("slots", "threads", "spill_tokens_min")),
        *((name, -1) for name in ("waiting_max", "batch_tokens", "gpu_layers", "host_bytes_max", "redis_bytes_max")),
        ("context_window", 255),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(BadInput) as refused:
        LlamaOptions(model_path=Path("m.gguf"), **{name: value})  # type: ignore[arg-type]
    assert refused.value.param == name and name in refused.value.public_message


def test_a_smaller_model_shares_the_machine_and_spills_nothing() -> None:
    options = LlamaOptions(
        model_path=Path("m.gguf"), model_name="m", slots=8, threads=6, disk_folder=Path("kv"), redis_url="redis://r"
    )
    smaller = options.smaller(Path("s.gguf"), 2, 1, 4096)
    assert (smaller.model_path, smaller.model_name, smaller.slots) == (Path("s.gguf"), None, 2)
    assert (smaller.threads, smaller.context_window) == (1, 4096)
    assert (smaller.host_bytes_max, smaller.disk_folder, smaller.redis_url) == (0, None, "")
    assert options.disk_folder == Path("kv"), "the model's own options are as they were"
