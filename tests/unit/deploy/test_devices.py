"""What is found of made-up machines, and what is chosen on them, with a sentence that says why."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deploy.devices import Choice, DeviceError, Devices, Gpu, choose, find_devices, packages_cuda

H200 = Gpu("nvidia", "NVIDIA H200", 140 << 30, 139 << 30, (9, 0))
NEW = Devices((H200,), "580.95", (13, 0))
SMI = "NVIDIA A10, 23028, 22000, 8.6, 550.54\nNVIDIA A10, 23028, 100, 8.6, 550.54\n"


class Nvml:
    """The driver's library with one GPU."""

    def __init__(self, count: int = 1, status: int = 0) -> None:
        self.count, self.status, self.open = count, status, 0

    def nvmlInit_v2(self) -> int:
        self.open += not self.status
        return self.status

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> int:
        version._obj.value = 13_000
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, size: int) -> int:
        text.value = b"580.95"
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = self.count
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        return 0

    def nvmlDeviceGetName(self, handle: ctypes.c_void_p, text: Any, size: int) -> int:
        text.value = b"NVIDIA H200"
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: ctypes.c_void_p, memory: Any) -> int:
        memory._obj.total, memory._obj.free = 140 << 30, 139 << 30
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle: ctypes.c_void_p, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 9, 0
        return 0


def no_library(name: str) -> Any:
    raise OSError(name)


def no_program(command: Sequence[str]) -> str:
    return ""


def found(root: Path, **known: Any) -> Devices:
    return find_devices(**{"load": no_library, "run": no_program, "root": root, "system": ("Linux", "x86_64"), **known})


def test_the_drivers_library_is_read_and_closed(tmp_path: Path) -> None:
    nvml = Nvml()
    assert found(tmp_path, load=lambda _: nvml) == NEW and nvml.open == 0
    assert str(NEW) == "1 × NVIDIA H200 with 140 GiB, driver 580.95, CUDA 13.0"


@pytest.mark.parametrize("load", [no_library, lambda _: Nvml(status=9), lambda _: Nvml(count=0), lambda _: object()])
def test_where_it_answers_nothing_nvidia_smi_is_read(tmp_path: Path, load: Any) -> None:
    def run(command: Sequence[str]) -> str:
        return SMI if len(command) > 1 else "| NVIDIA-SMI 550.54   CUDA Version: 12.4 |"

    machine = found(tmp_path, load=load, run=run)
    assert (len(machine.gpus), machine.driver, machine.cuda) == (2, "550.54", (12, 4))
    assert machine.gpus[0] == Gpu("nvidia", "NVIDIA A10", 23028 << 20, 22000 << 20, (8, 6))
    assert str(machine).startswith("2 × NVIDIA A10 with 22 GiB")


def test_a_machine_without_a_gpu_has_none(tmp_path: Path) -> None:
    assert found(tmp_path) == Devices() and str(Devices()) == "no GPU found"
    assert choose(Devices()) == Choice("llama", "cpu", "llama.cpp on the CPU, because no NVIDIA GPU was found")


def test_a_device_that_no_driver_answers_for_is_mentioned(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    machine = found(tmp_path)
    assert not machine.gpus and "is it in the container?" in choose(machine).why


def test_amd_and_apple(tmp_path: Path) -> None:
    card = tmp_path / "sys" / "class" / "drm" / "card0" / "device"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x1002\n")
    (card / "mem_info_vram_total").write_text(str(24 << 30))
    assert not found(tmp_path).gpus, "no compute driver"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    amd = found(tmp_path)
    assert amd.gpus[0].memory_bytes == 24 << 30
    assert choose(amd).device == "cpu" and "AMD" in choose(amd).why
    apple = found(tmp_path, system=("Darwin", "arm64"), run=lambda command: str(32 << 30))
    assert choose(apple)[:2] == ("llama", "metal")
    assert not found(tmp_path, system=("Darwin", "x86_64")).gpus


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.mark.usefixtures("linux")
def test_a_gpu_is_used_where_its_driver_runs_the_packages_cuda() -> None:
    chosen = choose(NEW, cuda=(13, 0))
    assert chosen[:2] == ("vllm", "cuda") and chosen.environment == ".venv-vllm-cuda"
    assert choose(NEW._replace(cuda=(13, 9)), cuda=(13, 0)).device == "cuda"
    assert choose(NEW._replace(cuda=(13, 0)), cuda=(13, 3)).device == "cuda", "within a major version they fit"
    assert choose(NEW, device="cpu", cuda=(13, 0))[:2] == ("llama", "cpu")
    assert choose(NEW, engine="llama", cuda=(13, 0)).engine == "llama"


@pytest.mark.usefixtures("linux")
@pytest.mark.parametrize(
    ("machine", "sentence"),
    [
        (NEW._replace(cuda=(12, 8), driver="570.1"), "570.1 runs CUDA 12.8 at most.*CUDA 13.0: update the driver"),
        (Devices((H200._replace(name="V100", compute=(7, 0)),), "580", (13, 0)), "V100 has compute capability 7.0"),
        (Devices(), "no NVIDIA GPU was found"),
    ],
)
def test_one_that_does_not_fit_is_left_with_a_reason_and_refused_where_it_was_named(
    machine: Devices, sentence: str
) -> None:
    chosen = choose(machine, cuda=(13, 0))
    assert chosen[:2] == ("llama", "cpu")
    with pytest.raises(DeviceError, match=sentence):
        choose(machine, device="cuda", cuda=(13, 0))


def test_the_installed_torch_decides_over_the_lock(tmp_path: Path) -> None:
    assert packages_cuda(tmp_path) is None
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "vllm-cuda.lock").write_text("numpy==2\nnvidia-cuda-runtime==13.0.96 \\\n")
    assert packages_cuda(tmp_path) == (13, 0)
    torch = tmp_path / ".venv-vllm-cuda" / "lib" / "python3.11" / "site-packages" / "torch"
    torch.mkdir(parents=True)
    (torch / "version.py").write_text("__version__ = '2.13.0+cu129'\ncuda: Optional[str] = '12.9'\n")
    assert packages_cuda(tmp_path) == (12, 9)
