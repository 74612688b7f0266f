"""llama-server in this process: its step size, and signal handlers that survive its start."""

from __future__ import annotations

import asyncio
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
import xllamacpp

from inference.llama.options import LlamaOptions
from inference.llama.server import LlamaServer, batch_tokens, make_budget
from sessions.model.errors import Unavailable

OPTIONS = LlamaOptions(model_path=Path("m.gguf"), slots=3)


@pytest.mark.parametrize(("set_to", "gpu_layers", "expected"), [(0, 0, 512), (0, 99, 2048), (200, 0, 200)])
def test_a_step_computes_fewer_tokens_on_a_cpu_than_on_a_gpu(set_to: int, gpu_layers: int, expected: int) -> None:
    options = LlamaOptions(model_path=Path("m.gguf"), batch_tokens=set_to, gpu_layers=gpu_layers)
    assert batch_tokens(options) == expected


@pytest.mark.parametrize(
    ("target_ms", "gpu_layers", "expected"), [(0, 0, 192), (0, 99, 50), (500, 0, 448), (500, 99, 448)]
)
def test_a_step_is_what_is_computed_in_the_target_time(target_ms: int, gpu_layers: int, expected: int) -> None:
    options = LlamaOptions(model_path=Path("m.gguf"), step_target_ms=target_ms, gpu_layers=gpu_layers)
    budget = make_budget(options)
    budget.measured(100, 0.1)
    assert budget.tokens(decoding=True) == expected


@pytest.mark.parametrize("gpu_layers", [0, 12])
def test_without_a_layer_on_the_gpu_nothing_is_computed_there(gpu_layers: int, tmp_path: Path) -> None:
    options = LlamaOptions(model_path=Path("m.gguf"), gpu_layers=gpu_layers)
    parameters = LlamaServer(options, 512, tmp_path)._parameters
    assert (parameters.n_gpu_layers, parameters.no_op_offload) == (gpu_layers, gpu_layers == 0)


@pytest.mark.parametrize("gpu_layers", [0, 12])
def test_an_image_fits_into_one_computation(gpu_layers: int, tmp_path: Path) -> None:
    """llama.cpp aborts the process at an image whose tokens see each other and that does not."""
    options = LlamaOptions(model_path=Path("m.gguf"), projector=Path("mmproj.gguf"), gpu_layers=gpu_layers)
    parameters = LlamaServer(options, 512, tmp_path)._parameters
    assert (parameters.mmproj.path, parameters.mmproj_use_gpu) == ("mmproj.gguf", gpu_layers > 0)
    assert parameters.n_ubatch == parameters.n_batch
    assert not LlamaServer(OPTIONS, 512, tmp_path)._parameters.mmproj.path
    assert options.smaller(Path("s.gguf"), 1, 1, 512).projector is None


def test_speculation_looks_at_the_slots_own_text_alone_and_8_bits_are_for_keys_and_values(tmp_path: Path) -> None:
    plain = LlamaServer(OPTIONS, 512, tmp_path)._parameters
    assert [each.name for each in plain.speculative.types] == ["COMMON_SPECULATIVE_TYPE_NONE"]
    options = LlamaOptions(model_path=Path("m.gguf"), speculation="ngram", kv_dtype="8bit")
    parameters = LlamaServer(options, 512, tmp_path)._parameters
    assert [each.name for each in parameters.speculative.types] == ["COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE"]
    q8_0 = xllamacpp.ggml_type.GGML_TYPE_Q8_0
    assert parameters.cache_type_k == parameters.cache_type_v == q8_0 != plain.cache_type_k


class FakeServer:
    """Takes the handlers of signals over, as llama.cpp does, and listens."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = parameters
        self.listening_address = f"unix://{parameters.hostnames[0]}"


async def test_it_listens_in_a_private_folder_and_the_windows_of_all_slots_fit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(xllamacpp, "Server", FakeServer)
    before = signal.getsignal(signal.SIGTERM)
    server = LlamaServer(OPTIONS, 512, tmp_path)
    http = await server.start()
    (path,) = server._parameters.hostnames
    folder = Path(path).parent
    assert http.socket_path == path and stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert server._parameters.cors_origins == ""
    assert signal.getsignal(signal.SIGTERM) is before
    assert server._parameters.n_ctx == 3 * 512 and not server._parameters.ctx_shift
    await server.stop()
    await server.stop()
    assert not folder.exists()


async def test_a_model_that_llama_cpp_refuses_is_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(parameters: Any) -> None:
        raise RuntimeError("unknown architecture")

    monkeypatch.setattr(xllamacpp, "Server", refuse)
    with pytest.raises(Unavailable) as refused:
        await asyncio.wait_for(LlamaServer(OPTIONS, 512, tmp_path).start(), 60)
    assert refused.value.code == "model_not_loaded"


async def test_a_build_that_listens_elsewhere_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class OnAPort(FakeServer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters)
            self.listening_address = "http://127.0.0.1:4321"

    monkeypatch.setattr(xllamacpp, "Server", OnAPort)
    server = LlamaServer(OPTIONS, 512, tmp_path)
    with pytest.raises(Unavailable, match="4321"):
        await server.start()
    assert not Path(server._parameters.hostnames[0]).parent.exists()
