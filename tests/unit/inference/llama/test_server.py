"""llama-server in this process: model files, devices, and how it listens."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
import xllamacpp
from hypothesis import given
from hypothesis import strategies as st

from inference.llama.devices import ALL, Backend, find_backends, layers_on_device
from inference.llama.gguf import _read_ahead, read_ahead, read_model
from inference.llama.options import LlamaOptions
from inference.llama.server import LlamaServer, batch_tokens
from sessions.model.errors import BadInput, Unavailable
from testbed.engine_client import until
from tests.support.engines.gguf_files import METADATA, TENSORS, gguf

# -- server
OPTIONS = LlamaOptions(model_path=Path("m.gguf"), slots=3)


@pytest.mark.parametrize("gpu_layers", [0, 12])
def test_an_image_fits_into_one_computation(gpu_layers: int, tmp_path: Path) -> None:
    """llama.cpp aborts the process at an image whose tokens see each other and that does not."""
    options = LlamaOptions(model_path=Path("m.gguf"), projector=Path("mmproj.gguf"), gpu_layers=gpu_layers)
    parameters = LlamaServer(options, 512, tmp_path)._parameters
    assert (parameters.mmproj.path, parameters.mmproj_use_gpu) == ("mmproj.gguf", gpu_layers > 0)
    assert parameters.n_ubatch == parameters.n_batch
    assert not LlamaServer(OPTIONS, 512, tmp_path)._parameters.mmproj.path
    assert options.smaller(Path("s.gguf"), 1, 1, 512).projector is None


@pytest.mark.model
async def test_it_listens_in_a_private_folder_and_the_windows_of_all_slots_fit(
    model_path: Path, tmp_path: Path
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    server = LlamaServer(LlamaOptions(model_path=model_path, slots=3), 512, tmp_path)
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


async def test_a_build_that_listens_elsewhere_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class OnAPort:
        listening_address = "http://127.0.0.1:4321"

        def __init__(self, parameters: Any) -> None:
            pass

    monkeypatch.setattr(xllamacpp, "Server", OnAPort)
    server = LlamaServer(OPTIONS, 512, tmp_path)
    with pytest.raises(Unavailable, match="4321"):
        await server.start()
    assert not Path(server._parameters.hostnames[0]).parent.exists()


@pytest.mark.model
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", b'{"prompt": "a", "n_predict": 100000, "stream": true, "ignore_eos": true}'),
        ("/tokenize", b'{"content": "' + b"a" * 60_000_000 + b'"}'),
    ],
)
async def test_a_stop_ends_what_is_under_way(path: str, body: bytes, model_path: Path, tmp_path: Path) -> None:
    """The rest of a request that was sent in part never came, because llama.cpp stops with Python's lock held: the
    process stood still until llama.cpp's own time-out."""
    server = LlamaServer(LlamaOptions(model_path=model_path, slots=1), 512, tmp_path)
    http = await server.start()
    called = asyncio.create_task(http.stream(path, body))
    await until(lambda: any(exchange._transport for exchange in http._exchanges))
    await server.stop()  # also right behind the start: llama.cpp forgot the end of a loop that had not begun
    with pytest.raises(Unavailable):
        await called
    with pytest.raises(Unavailable):
        await http.call("GET", "/health")


# -- devices
CUDA = [Backend("CUDA0", "NVIDIA H200", 100)]
METAL = [Backend("Metal", "Apple M4", 100)]


@pytest.mark.parametrize(
    ("device", "layers", "backends", "expected"),
    [
        ("auto", -1, [], 0),
        ("auto", 0, CUDA, 0),
        ("auto", -1, CUDA, ALL),
        ("auto", -1, METAL, ALL),
        ("auto", 12, CUDA, 12),
        ("cuda", -1, CUDA, ALL),
        ("cpu", -1, CUDA, 0),
    ],
)
def test_layers_follow_the_setting_and_the_build(
    device: str, layers: int, backends: list[Backend], expected: int
) -> None:
    assert layers_on_device(device, layers, backends) == expected


@pytest.mark.parametrize(
    ("device", "layers", "backends", "sentence"),
    [
        ("cuda", -1, [], "has no CUDA"),
        ("cuda", -1, METAL, "has no CUDA"),
        ("auto", 12, [], "--gpu-layers 12"),
        ("cpu", 12, CUDA, "contradict"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(device: str, layers: int, backends: list[Backend], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        layers_on_device(device, layers, backends)


def test_the_processor_is_no_gpu() -> None:
    assert all("CPU" not in each.name for each in find_backends())


# -- gguf
GOOD = gguf(METADATA, TENSORS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "model.gguf"
    made.write_bytes(GOOD)
    return made


def refused(path: Path) -> str:
    with pytest.raises(BadInput) as error:
        read_model(path)
    assert str(path) in error.value.public_message and error.value.param == "model"
    return error.value.public_message


def test_missing_empty_and_foreign_files_are_refused(tmp_path: Path, path: Path) -> None:
    assert "models list" in refused(tmp_path / "nowhere.gguf")
    assert "folder" in refused(tmp_path)
    for data, hint in ((b"", "read"), (b"PK\x03\x04" + bytes(100), "not a GGUF"), (b"GG", "not a GGUF")):
        path.write_bytes(data)
        assert hint in refused(path)
    path.write_bytes(gguf(METADATA, version=1))
    assert "version 1" in refused(path)


@given(st.integers(0, len(GOOD) - 1))
def test_a_file_cut_anywhere_is_refused(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "model.gguf"
    path.write_bytes(GOOD[:length])
    padding = 28  # the last tensor is 68 bytes in a file that is padded to 32
    if length < len(GOOD) - padding:
        refused(path)


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_a_damaged_head_is_refused_or_read_but_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: int
) -> None:
    path = tmp_path_factory.mktemp("bad") / "model.gguf"
    path.write_bytes(GOOD[:at] + bytes([value]) + GOOD[at + 1 :])
    try:
        read_model(path)
    except BadInput:
        refused(path)


def test_the_fingerprint_is_of_head_and_weights(path: Path) -> None:
    first = read_model(path).fingerprint
    assert read_model(path).fingerprint == first
    for changed in (
        gguf({**METADATA, "llama.context_length": 4096}, TENSORS),
        gguf(METADATA, {**TENSORS, "w": (0, (8, 4), bytes(128))}),
    ):
        path.write_bytes(changed)
        assert read_model(path).fingerprint != first


def test_what_was_read_ahead_is_used_once_and_not_for_another_file(path: Path) -> None:
    read_ahead(path)
    first = read_model(path)
    assert read_model(path) is not first
    read_ahead(path)
    path.write_bytes(gguf({**METADATA, "llama.context_length": 4096}, TENSORS))
    os.utime(path, ns=(1, 1))
    assert read_model(path).fingerprint != first.fingerprint
    assert path not in _read_ahead


def test_the_fingerprint_of_a_large_file_samples_it(path: Path) -> None:
    head = gguf(METADATA, {"w": (0, (8, 4), bytes(128))})
    with path.open("wb") as file:  # sparse: 200 MiB that take no room
        file.write(head)
        file.truncate(200 << 20)
    first = read_model(path).fingerprint
    with path.open("r+b") as file:
        file.seek(-10, 2)
        file.write(b"x")
    assert read_model(path).fingerprint != first


@pytest.mark.parametrize(("set_to", "gpu_layers", "expected"), [(0, 0, 512), (0, 99, 2048), (200, 0, 200)])
def test_a_step_computes_fewer_tokens_on_a_cpu_than_on_a_gpu(set_to: int, gpu_layers: int, expected: int) -> None:
    options = LlamaOptions(model_path=Path("m.gguf"), batch_tokens=set_to, gpu_layers=gpu_layers)
    assert batch_tokens(options) == expected
