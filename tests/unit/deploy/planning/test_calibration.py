"""Which coefficients are taken, and what they make of ideal times."""

from __future__ import annotations

import msgspec
import pytest

from deploy.planning.calibration import (
    FIELDS,
    Calibration,
    CalibrationData,
    Coefficients,
    Residual,
    shipped_calibration,
)
from deploy.planning.roofline import Terms

TERMS = Terms(**(dict.fromkeys(FIELDS[:-1], 0.0) | {"weights_s": 2.0}))


def row(backend: str, gpu: str, weights: float) -> Coefficients:
    return Coefficients(backend=backend, gpu=gpu, points=9, values={"weights_s": weights, "step": 0.5})


DATA = CalibrationData(
    source="test",
    coefficients=(row("", "", 1.0), row("vllm", "", 2.0), row("vllm", "h100", 3.0)),
    residuals=(Residual(backend="vllm", gpu="h100", model="m", precision="fp8", points=4, factor=2.0),),
)


@pytest.mark.parametrize(
    ("backend", "gpu", "model", "seconds"),
    [("vllm", "h100", "", 6.5), ("vllm", "l4", "", 4.5), ("sglang", "l4", "", 2.5), ("vllm", "h100", "m", 13.0)],
)
def test_the_nearest_coefficients_are_taken(backend: str, gpu: str, model: str, seconds: float) -> None:
    assert Calibration(DATA, backend=backend, gpu=gpu, model=model, precision="fp8").seconds(TERMS) == seconds


def test_what_times_rest_on_is_named() -> None:
    assert Calibration(DATA, backend="vllm", gpu="l4").basis.endswith("none of vllm on l4")


def test_the_shipped_ones_read_no_weights_faster_than_memory_gives_them() -> None:
    data = shipped_calibration()
    assert {each.backend for each in data.coefficients} == {"", "vllm", "sglang", "trtllm"}
    assert all(each.values["weights_s"] >= 1 for each in data.coefficients)
    assert all(value >= 0 for each in data.coefficients for value in each.values.values())
    assert all(0.3 < each.factor < 3 for each in msgspec.convert(data.residuals, tuple[Residual, ...]))
