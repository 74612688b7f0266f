"""llama-server in this process: its step size, and signal handlers that survive its start."""

from __future__ import annotations

import signal
import stat
from pathlib import Path
from typing import Any

import pytest
import xllamacpp

from inference.llama.options import LlamaOptions
from inference.llama.server import LlamaServer
from sessions.model.errors import Unavailable

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
