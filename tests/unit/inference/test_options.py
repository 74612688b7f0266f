"""Options of every engine: what is out of range, or set in two places, is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inference.llama.options import LlamaOptions
from inference.remote.options import RemoteOptions
from inference.simulated import SimulatedOptions
from inference.vllm.options import VllmOptions
from sessions.model.errors import BadInput

LLAMA = {
    **dict.fromkeys(("slots", "threads", "spill_tokens_min"), 0),
    **dict.fromkeys(("waiting_max", "batch_tokens", "gpu_layers", "host_bytes_max", "redis_bytes_max"), -1),
    "context_window": 255,
}
VLLM = {"slots": 0, "context_window": 10, "disk_bytes_max": -1}
SIMULATED = {"slots": 0, "step_base_s": 0.0, "prefill_tokens_per_s": 0.0, "kv_tokens_max": 10}


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        *((LlamaOptions, *each) for each in LLAMA.items()),
        *((VllmOptions, *each) for each in VLLM.items()),
        *((SimulatedOptions, *each) for each in SIMULATED.items()),
        (SimulatedOptions, "step_base_s", -1.0),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(options: Any, name: str, value: float) -> None:
    model = {} if options is SimulatedOptions else {"model_path": Path("m.gguf")}
    with pytest.raises(BadInput) as refused:
        options(**model, **{name: value})
    assert refused.value.param == name and name in refused.value.public_message


def test_what_vllm_is_told_twice_is_refused() -> None:
    with pytest.raises(BadInput) as refused:
        VllmOptions(model_path=Path("m"), engine_args={"max_num_seqs": 3})
    assert "max_num_seqs" in refused.value.public_message


def test_a_smaller_model_shares_the_machine_and_spills_nothing() -> None:
    options = LlamaOptions(model_path=Path("m.gguf"), slots=8, threads=6, disk_folder=Path("kv"), redis_url="redis://r")
    smaller = options.smaller(Path("s.gguf"), 2, 1, 4096)
    assert (smaller.model_path, smaller.slots, smaller.threads, smaller.context_window) == (Path("s.gguf"), 2, 1, 4096)
    assert (smaller.host_bytes_max, smaller.disk_folder, smaller.redis_url) == (0, None, "")
    assert options.disk_folder == Path("kv"), "the model's own options are as they were"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1",
        "127.0.0.1:8000",
        "http://:80",
        "http://h:99999",
        "http://h:0",
        "http://h:x",
        "http://[::1",
        "http://a b",
        "http://h/\r\nx",
        "http://h/#x",
        "http://h/?x",
        "http://me@h",
    ],
)
def test_what_is_no_address_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="engine_url"):
        RemoteOptions(urls=("http://127.0.0.1:8000", url))
