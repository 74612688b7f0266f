"""What the vLLM of this environment computes on, held against `--device`: its build decides, not the setting."""

from __future__ import annotations

from typing import Literal

import torch

from sessions.model.errors import BadInput


def check_device(device: str, build: str | None = torch.version.cuda) -> Literal["cpu", "cuda"]:
    """Returns the device that the installed vLLM computes on. `build` is the CUDA version that torch was built for,
    None for a CPU. Raises BadInput if `device` is another one."""
    mine: Literal["cpu", "cuda"] = "cuda" if build else "cpu"
    if device not in ("auto", mine):
        other = (
            ".venv-vllm-cuda, which `make serve` makes where it finds an NVIDIA GPU" if mine == "cpu" else ".venv-vllm"
        )
        raise BadInput(
            "device_unsuitable",
            f"device = {device!r}: the vLLM of this environment is built for {mine.upper()}. Run the server with the"
            f" Python of {other}, or leave --device out.",
            param="device",
        )
    return mine
