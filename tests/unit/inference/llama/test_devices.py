"""How many layers go to a GPU: what was set, held against what the build can use."""

from __future__ import annotations

import pytest

from inference.llama.devices import ALL, Backend, find_backends, layers_on_device
from sessions.model.errors import BadInput

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
