"""How many of a model's layers llama.cpp puts on a GPU: what was set, held against what this build can use.

Whether a build has CUDA, Metal or Vulkan is the wheel's business: the one in the registries is for CPUs on Linux, and
for Apple's GPUs on macOS. Layers that a build cannot place are refused, not quietly computed on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import xllamacpp

from sessions.model.errors import BadInput

ALL: Final = 999  # more than any model has: llama.cpp takes those that there are


class Backend(NamedTuple):
    """A GPU as llama.cpp reports it."""

    name: str
    description: str
    free_bytes: int


def find_backends() -> list[Backend]:
    """Returns the GPUs that this build of llama.cpp can use."""
    cpu = xllamacpp.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_CPU
    accelerators = {cpu, xllamacpp.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_ACCEL}
    return [
        Backend(str(each["name"]), str(each["description"]), int(each["memory_free"]))
        for each in xllamacpp.get_device_info()
        if each["type"] not in accelerators
    ]


def layers_on_device(device: str, layers: int, backends: Sequence[Backend]) -> int:
    """Returns how many layers llama.cpp puts on the GPU. `layers` -1: all. Raises BadInput for a GPU that is not
    there."""
    if device == "cpu":
        if layers > 0:
            raise _unsuitable(f"--gpu-layers {layers} and --device cpu contradict each other: leave one out")
        return 0
    cuda = [backend for backend in backends if backend.name.upper().startswith("CUDA")]
    if device == "cuda" and not cuda:
        raise _unsuitable(
            "this build of llama.cpp has no CUDA: install one that has in this environment (docs/models.md says how),"
            " or serve with vLLM, which `make serve` does where it finds an NVIDIA GPU that its packages fit"
        )
    if layers > 0 and not backends:
        raise _unsuitable(
            f"--gpu-layers {layers}: this build of llama.cpp computes on the CPU alone. Leave it out, or install a"
            " build of xllamacpp for your GPU in this environment"
        )
    if not backends:
        return 0
    return ALL if layers < 0 else layers


def _unsuitable(why: str) -> BadInput:
    return BadInput("device_unsuitable", f"device: {why}.", param="device")
