"""Finds the machine's GPUs and chooses what the server computes on, in which environment, and says why.

NVIDIA's are found through NVML, the driver's own library, else nvidia-smi; nothing here opens CUDA itself, which would
keep the server's child processes from it. The CUDA version of the driver must be at least that of the packages: of the
installed torch, or of the one that requirements/vllm-cuda.lock names. For AMD's GPUs no package in the registries has
an engine; on Apple's machines llama.cpp's wheel computes on the GPU.

Runs on the bare standard library, because it decides which environment is made.
"""

from __future__ import annotations

import ctypes
import platform
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
CUDA_ENVIRONMENT: Final = ".venv-vllm-cuda"
COMPUTE_MIN: Final = (7, 5)  # what CUDA 13 still compiles for
QUERY: Final = "name,memory.total,memory.free,compute_cap,driver_version"
AMD: Final = "0x1002"
BY_BUILD: Final = "on the CPU, or on the GPU where its build has CUDA, which docs/models.md says how to get"

Vendor = Literal["nvidia", "amd", "apple"]


class DeviceError(Exception):
    """What is to be used is not there; the message says what to do."""


class Gpu(NamedTuple):
    """One device as its driver reports it; 0 where it does not say."""

    vendor: Vendor
    name: str
    memory_bytes: int = 0
    free_bytes: int = 0
    compute: tuple[int, int] = (0, 0)  # NVIDIA's compute capability


class Devices(NamedTuple):
    """The GPUs that were found."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: tuple[int, int] | None = None  # the newest CUDA that the driver runs
    trouble: str = ""  # signs of a GPU that no driver answers for

    def __str__(self) -> str:
        if not self.gpus:
            return f"no GPU found{f' ({self.trouble})' if self.trouble else ''}"
        counts: dict[str, int] = {}
        for gpu in self.gpus:
            memory = f" with {gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else ""
            counts[gpu.name + memory] = counts.get(gpu.name + memory, 0) + 1
        driver = f", driver {self.driver}" if self.driver else ""
        cuda = f", CUDA {self.cuda[0]}.{self.cuda[1]}" if self.cuda else ""
        return "; ".join(f"{count} × {name}" for name, count in counts.items()) + driver + cuda


class Choice(NamedTuple):
    """What to compute on."""

    engine: Literal["vllm", "llama"]
    device: Literal["cuda", "metal", "cpu"]
    why: str

    @property
    def environment(self) -> str:
        if self.engine == "llama":
            return ".venv"
        return CUDA_ENVIRONMENT if self.device == "cuda" else ".venv-vllm"


# -- finding -----------------------------------------------------------------------------------------------------------


def find_devices(
    *,
    load: Callable[[str], Any] = ctypes.CDLL,
    run: Callable[[Sequence[str]], str] | None = None,
    root: Path = Path("/"),
    system: tuple[str, str] | None = None,
) -> Devices:
    """The machine's GPUs. Never raises: what does not answer is not there."""
    name, processor = system or (platform.system(), platform.machine())
    run = run or _output
    if name == "Darwin":
        memory = run(("sysctl", "-n", "hw.memsize")).strip()
        chip = run(("sysctl", "-n", "machdep.cpu.brand_string")).strip() or "Apple GPU"
        size = int(memory) if memory.isdigit() else 0
        return Devices((Gpu("apple", chip, size, size),)) if processor == "arm64" else Devices()
    machine = _from_nvml(load) or _from_nvidia_smi(run)
    if machine is not None:
        return machine
    amd = tuple(_amd_gpus(root))
    if amd:
        return Devices(amd)
    if (root / "dev" / "nvidia0").exists() or (root / "proc" / "driver" / "nvidia").exists():
        return Devices(
            trouble="there is an NVIDIA device, but no driver library answers for it: is it in the container?"
        )
    return Devices()


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _from_nvml(load: Callable[[str], Any]) -> Devices | None:
    """None where the library is missing, or answers nothing."""
    try:
        nvml = load("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2():
            return None
    except (OSError, AttributeError):
        return None
    try:
        count, version, text = ctypes.c_uint(), ctypes.c_int(), ctypes.create_string_buffer(96)
        nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(version))
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        nvml.nvmlSystemGetDriverVersion(text, 96)
        driver, gpus = text.value.decode(errors="replace"), []
        for index in range(count.value):
            handle, memory = ctypes.c_void_p(), _Memory()
            major, minor = ctypes.c_int(), ctypes.c_int()
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
                continue
            nvml.nvmlDeviceGetName(handle, text, 96)
            nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
            nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
            name = text.value.decode(errors="replace")
            gpus.append(Gpu("nvidia", name, memory.total, memory.free, (major.value, minor.value)))
        cuda = (version.value // 1000, version.value % 1000 // 10) if version.value else None
        return Devices(tuple(gpus), driver, cuda) if gpus else None
    except AttributeError:
        return None  # an older library: nvidia-smi may do
    finally:
        nvml.nvmlShutdown()


def _from_nvidia_smi(run: Callable[[Sequence[str]], str]) -> Devices | None:
    rows = run(("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"))
    gpus, driver = [], ""
    for row in rows.splitlines():
        cells = [cell.strip() for cell in row.split(",")]
        if len(cells) == 5:
            name, total, free, compute, driver = cells
            major, _, minor = compute.partition(".")
            numbers = [int(each) if each.isdigit() else 0 for each in (total, free, major, minor)]
            gpus.append(Gpu("nvidia", name, numbers[0] << 20, numbers[1] << 20, (numbers[2], numbers[3])))
    if not gpus:
        return None
    version = re.search(r"CUDA Version:\s*(\d+)\.(\d+)", run(("nvidia-smi",)))
    return Devices(tuple(gpus), driver, (int(version[1]), int(version[2])) if version else None)


def _amd_gpus(root: Path) -> list[Gpu]:
    gpus = []
    for vendor in sorted((root / "sys" / "class" / "drm").glob("card[0-9]*/device/vendor")):
        try:
            if vendor.read_text().strip() != AMD or not (root / "dev" / "kfd").exists():
                continue
            total = int((vendor.parent / "mem_info_vram_total").read_text())
        except (OSError, ValueError):
            continue
        gpus.append(Gpu("amd", "AMD GPU", total, total))
    return gpus


# -- choosing ----------------------------------------------------------------------------------------------------------


def packages_cuda(root: Path = ROOT) -> tuple[int, int] | None:
    """The CUDA of the torch in vLLM's environment for GPUs; of the lock's, where it is not installed yet."""
    for version in sorted((root / CUDA_ENVIRONMENT).glob("lib/python*/site-packages/torch/version.py")):
        if installed := re.search(r"^cuda(?::[^=]*)? = '(\d+)\.(\d+)'", version.read_text(), re.MULTILINE):
            return int(installed[1]), int(installed[2])
    lock = root / "requirements" / "vllm-cuda.lock"
    pinned = re.search(r"^nvidia-cuda-runtime==(\d+)\.(\d+)", lock.read_text(), re.MULTILINE) if lock.exists() else None
    return (int(pinned[1]), int(pinned[2])) if pinned else None


def choose(
    machine: Devices,
    *,
    device: str = "auto",
    engine: str = "",
    cuda: tuple[int, int] | None = None,
    named: str = "",
) -> Choice:
    """What to compute on. `device` and `engine`: what a person has set, `named` by what else than --engine; `cuda`: of
    the packages. Raises DeviceError for `cuda` where that cannot be."""
    on_cpu: Literal["vllm", "llama"] = "vllm" if engine == "vllm" else "llama"
    if device == "cpu":
        return Choice(on_cpu, "cpu", "the CPU, as --device cpu says")
    nvidia = [gpu for gpu in machine.gpus if gpu.vendor == "nvidia"]
    if engine == "llama" and nvidia:
        return Choice("llama", "cpu", f"llama.cpp, {named or 'as --engine llama says'}: {BY_BUILD}")
    against = _against_cuda(machine, nvidia, cuda)
    if not against:
        return Choice("vllm", "cuda", f"vLLM on {nvidia[0].name}")
    if device == "cuda" and (named or engine in ("", "vllm")):
        raise DeviceError(f"--device cuda: {against}")
    if on_cpu == "vllm":
        return Choice("vllm", "cpu", f"vLLM on the CPU, because {against}")
    if machine.gpus and machine.gpus[0].vendor == "apple":
        return Choice("llama", "metal", "llama.cpp with all layers on Apple's GPU")
    if machine.gpus and machine.gpus[0].vendor == "amd":
        against = "no package in the registries has an engine for AMD's GPUs"
    return Choice("llama", "cpu", f"llama.cpp on the CPU, because {against}")


def _against_cuda(machine: Devices, nvidia: Sequence[Gpu], cuda: tuple[int, int] | None) -> str:
    """Why vLLM cannot compute on it; "" where it can."""
    if not nvidia:
        return machine.trouble or "no NVIDIA GPU was found"
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return "vLLM's packages for GPUs are locked for Linux on x86-64"
    if nvidia[0].compute != (0, 0) and nvidia[0].compute < COMPUTE_MIN:
        major, minor = nvidia[0].compute
        return f"{nvidia[0].name} has compute capability {major}.{minor}, and the packages need 7.5"
    if cuda is not None and machine.cuda is not None and machine.cuda[0] < cuda[0]:
        have, need = f"{machine.cuda[0]}.{machine.cuda[1]}", f"{cuda[0]}.{cuda[1]}"
        return (
            f"its driver {machine.driver} runs CUDA {have} at most, and the packages are built for CUDA {need}: update"
            " the driver"
        )
    return ""
