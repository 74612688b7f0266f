"""vLLM computes on what its build is for; another device that was set is refused with where to go."""

from __future__ import annotations

import pytest

from inference.vllm.device import check_device
from sessions.model.errors import BadInput

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize(
    ("device", "build", "expected"),
    [("auto", None, "cpu"), ("auto", "13.0", "cuda"), ("cpu", None, "cpu"), ("cuda", "13.0", "cuda")],
)
def test_the_build_decides(device: str, build: str | None, expected: str) -> None:
    assert check_device(device, build) == expected


@pytest.mark.parametrize(
    ("device", "build", "sentence"),
    [("cuda", None, "built for CPU.*make serve"), ("cpu", "13.0", "built for CUDA.*venv")],
)
def test_another_device_is_refused(device: str, build: str | None, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        check_device(device, build)
