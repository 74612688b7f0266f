"""From ideal terms to seconds: what engines were measured to take for each, by backend and GPU.

A step takes the sum of each term times its coefficient: 1 would be the data sheet's ideal, and a layer costs its
launches. Coefficients were fitted to half of the measured points that `aiconfigurator-core` ships, by bounded least
squares: nobody reads weights faster than memory gives them. The other half judges them. GPUs and backends without
points take the nearest: a backend's coefficients over all GPUs, then those over all backends.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Final

import msgspec

from deploy.planning.roofline import Terms

FIELDS: Final = (*Terms.__struct_fields__, "step")  # the last one: a constant of each step
FILE: Final = Path(__file__).with_name("calibration.json")


class Coefficients(msgspec.Struct, frozen=True, kw_only=True):
    """By the name of a term, each at least 0."""

    backend: str  # "": over all of them
    gpu: str
    points: int
    values: dict[str, float]


class Residual(msgspec.Struct, frozen=True, kw_only=True):
    """How much longer steps of this model took than those of the rest: a factor."""

    backend: str
    gpu: str
    model: str
    precision: str
    points: int
    factor: float


class CalibrationData(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    coefficients: tuple[Coefficients, ...]
    residuals: tuple[Residual, ...] = ()


class Calibration:
    """Coefficients for one backend, GPU, model and precision."""

    def __init__(self, data: CalibrationData, *, backend: str, gpu: str, model: str = "", precision: str = "") -> None:
        table = {(each.backend, each.gpu): each for each in data.coefficients}
        row = table.get((backend, gpu)) or table.get((backend, "")) or table["", ""]
        self._values = [row.values.get(name, 0.0) for name in FIELDS]
        self.basis = self._basis(row, backend, gpu)
        self.factor = 1.0
        for each in data.residuals:
            if (each.backend, each.gpu, each.model, each.precision) == (backend, gpu, model, precision):
                self.factor = each.factor
                self.basis += f"; {model} itself was measured at {each.points} of them"

    def parts(self, terms: Terms) -> dict[str, float]:
        """Seconds by term."""
        ideal = (*(getattr(terms, name) for name in FIELDS[:-1]), 1.0)
        return {
            name: value * coefficient * self.factor
            for name, value, coefficient in zip(FIELDS, ideal, self._values, strict=True)
        }

    def seconds(self, terms: Terms) -> float:
        return math.fsum(self.parts(terms).values())

    def prefill_seconds(self, ideal: tuple[float, float]) -> float:
        """Of a prompt's arithmetic and links."""
        both = self._values[FIELDS.index("prefill_s")], self._values[FIELDS.index("prefill_links_s")]
        return self.factor * (ideal[0] * both[0] + ideal[1] * both[1])

    @staticmethod
    def _basis(row: Coefficients, backend: str, gpu: str) -> str:
        if row.gpu:
            return f"{row.points} measured points of {backend} on {gpu}"
        whose = f"of {backend} on other GPUs" if row.backend else "of other backends and GPUs"
        return f"{row.points} measured points {whose}: none of {backend} on {gpu}"


@functools.cache
def shipped_calibration() -> CalibrationData:
    return msgspec.json.decode(FILE.read_bytes(), type=CalibrationData)
