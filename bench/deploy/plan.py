"""`./sessile plan` against measured points: fits its coefficients to half of them and predicts the other half.

    python -m bench.deploy.plan --points FILE [--shipped FILE] [--write]

The points are `systems/silicon_sample.csv` of the package `aiconfigurator-core` (0.12.0), beside its `model_configs`:
install it into an environment of its own. Halves by deployment and lengths: all concurrencies of one are on one side;
with `--strict` by deployment (model, GPU, backend, precision, spread), whatever the lengths. `--unseen` predicts each
model from the others. `--shipped` is what `bench/deploy/plan_shipped.py` wrote: estimates of the package's own tool.
`--write` puts the coefficients into deploy/planning/calibration.json. Bar, on the held-out half: TPOT within 15% at
the median and 35% at p90.

Left out: points whose concurrency or number of decode workers is not recorded, so that nobody knows their batch.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from bench.support import command_line, is_faultless, report
from deploy.planning.calibration import FIELDS, FILE, Calibration, CalibrationData, Coefficients, Residual
from deploy.planning.gpus import GPUS
from deploy.planning.model_shape import ModelShape, read_shape
from deploy.planning.roofline import (
    WEIGHT_BYTES,
    Parallelism,
    Precision,
    Terms,
    decode_terms,
    prefill_terms,
    with_prefill,
)

MEDIAN_BAR: Final = 0.15
P90_BAR: Final = 0.35
CONFIGS: Final = {  # names of points whose config.json the package has under another one
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-ai/DeepSeek-R1",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
    "zhipuai/GLM-5": "zai-org/GLM-5",
}
FORMATS: Final = {"nvfp4": "fp4", "fp8_block": "fp8", "int4_wo": "int4"}
PRIOR: Final = 3.0  # how much a GPU's coefficients are drawn to those of its backend
RESIDUAL_PRIOR: Final = 3  # so many points count for "no different"
SHARE_MIN: Final = 0.05
# No engine reads weights faster than its memory gives them; none was seen to need twice as long.
LEAST: Final = {"weights_s": 1.0, "experts_s": 1.0}
MOST: Final = {"weights_s": 1.6, "experts_s": 2.5, "attention_s": 4.0, "prefill_s": 4.0}
BOUNDS: Final = (
    [LEAST.get(name, 0.0) for name in FIELDS],
    [MOST.get(name, float("inf")) for name in FIELDS],
)
Vector = NDArray[np.float64]


class Point(NamedTuple):
    """A measured deployment at one concurrency."""

    id: str
    model: str
    gpu: str
    backend: str
    precision: str
    mode: str
    deployment: str
    lengths: str
    terms: Terms
    tpot_s: float

    def is_held_out(self, *, strict: bool = False) -> bool:
        name = self.deployment if strict else f"{self.deployment}|{self.lengths}"
        return bool(hashlib.sha256(name.encode()).digest()[0] & 1)

    @property
    def features(self) -> Vector:
        return np.array([*(getattr(self.terms, name) for name in FIELDS[:-1]), 1.0])


def read_points(path: Path) -> list[Point]:
    shapes = dict[str, ModelShape]()
    points = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            concurrency = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
            prefix = "" if row["mode"] == "agg" else "decode_"
            workers = 1 if row["mode"] == "agg" else int(row["decode_num_workers"] or 0)
            if concurrency is None or not workers:
                continue
            model = CONFIGS.get(row["model_path"], row["model_path"])
            if model not in shapes:
                config = path.parent.parent / "model_configs" / f"{model.replace('/', '--')}_config.json"
                shapes[model] = read_shape(json.loads(config.read_text()), model)
            points.append(_point(row, shapes[model], prefix, int(concurrency[1]) / workers))
    return points


def _point(row: dict[str, str], shape: ModelShape, prefix: str, batch: float) -> Point:
    gpu = row["system"].removesuffix("_sxm")
    tensor = int(row[f"{prefix}tp_size"])
    data, expert = (max(int(row[f"{prefix}{name}"] or 0), 1) for name in ("attention_dp_size", "moe_ep_size"))
    width = expert * int(row[f"{prefix}moe_tp_size"] or 0)
    if tensor > 8 or (data == tensor > 1 and width > tensor):  # GPUs in all, with attention in parallel by data
        tensor, data = 1, tensor
    written = row["gemm_quant_mode"] or row["precision"] or "bf16"
    precision = FORMATS.get(written, written)
    kv = 1.0 if precision in ("fp8", "fp4") and row["backend"] == "trtllm" else 2.0  # each backend's default
    stored = Precision(weights=WEIGHT_BYTES[precision], kv=kv)
    spread = Parallelism(tensor=tensor, data=data, expert=expert)
    prompt, answer = int(row["isl"]), int(row["osl"])
    terms = decode_terms(shape, GPUS[gpu], spread, stored, batch=batch, context=prompt + answer / 2)
    if not prefix:  # prompts share the GPUs: of each answer's tokens, one step in so many computes one
        whole = prefill_terms(shape, GPUS[gpu], spread, stored, tokens=prompt, context=0)
        terms = with_prefill(terms, batch / answer, whole)
    names = ("model_path", "system", "backend", "precision", "gemm_quant_mode", "mode")
    sizes = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    deployment = "|".join([*(row[name] for name in names), *(row[prefix + name] for name in sizes)])
    tpot_s, lengths = float(row["silicon_tpot_ms"]) / 1000, f"{prompt}|{answer}"
    return Point(
        row["id"],
        shape.name,
        gpu,
        row["backend"],
        precision,
        row["mode"],
        deployment,
        lengths,
        terms,
        tpot_s,
    )


def fit(points: Sequence[Point], prior: Vector | None = None) -> Vector:
    """Coefficients of least relative error: reweighted, so that the outer points pull less (near least absolutes)."""
    features, taken = np.array([point.features for point in points]), np.array([point.tpot_s for point in points])
    scale = np.mean(features / taken[:, None], axis=0) + 1e-12
    weights = np.ones(len(points))
    solved = np.zeros(len(FIELDS))
    for _ in range(25):
        matrix, right = features / taken[:, None] * weights[:, None], weights
        if prior is not None:
            matrix, right = np.vstack([matrix, np.diag(scale * PRIOR)]), np.concatenate([right, prior * scale * PRIOR])
        solved = lsq_linear(matrix, right, BOUNDS).x
        errors = np.abs(np.log(np.maximum(features @ solved, 1e-9) / taken))
        weights = 1 / np.sqrt(np.maximum(errors, SHARE_MIN))
    return solved


def calibrate(points: Sequence[Point], source: str) -> CalibrationData:
    """All backends, then each, then each of its GPUs, drawn to what stands before it."""
    pooled = fit(points)
    rows = [_row("", "", points, pooled)]
    by_setup = defaultdict[tuple[str, str], list[Point]](list)
    for point in points:
        by_setup[point.backend, point.gpu].append(point)
    for backend in sorted({backend for backend, _ in by_setup}):
        mine = [point for point in points if point.backend == backend]
        whole = fit(mine, pooled)
        rows.append(_row(backend, "", mine, whole))
        rows += [
            _row(backend, gpu, some, fit(some, whole))
            for (name, gpu), some in sorted(by_setup.items())
            if name == backend and len(some) > 5
        ]
    data = CalibrationData(source=source, coefficients=tuple(rows))
    return msgspec.structs.replace(data, residuals=tuple(_residuals(points, data)))


def _row(backend: str, gpu: str, points: Sequence[Point], values: Vector) -> Coefficients:
    rounded = {name: float(f"{value:.4g}") for name, value in zip(FIELDS, values, strict=True) if value}
    return Coefficients(backend=backend, gpu=gpu, points=len(points), values=rounded)


def _residuals(points: Sequence[Point], data: CalibrationData) -> Iterable[Residual]:
    ratios = defaultdict[tuple[str, str, str, str], list[float]](list)
    for point in points:
        calibration = Calibration(data, backend=point.backend, gpu=point.gpu)
        key = (point.backend, point.gpu, point.model, point.precision)
        ratios[key].append(float(np.log(point.tpot_s / calibration.seconds(point.terms))))
    for (backend, gpu, model, precision), logs in sorted(ratios.items()):
        factor = float(np.exp(np.median(logs) * len(logs) / (len(logs) + RESIDUAL_PRIOR)))
        yield Residual(
            backend=backend, gpu=gpu, model=model, precision=precision, points=len(logs), factor=round(factor, 4)
        )


def predicted_s(data: CalibrationData, point: Point) -> float:
    calibration = Calibration(data, backend=point.backend, gpu=point.gpu, model=point.model, precision=point.precision)
    return calibration.seconds(point.terms)


def error_figures(points: Sequence[Point], predict: Callable[[Point], float]) -> tuple[float, float]:
    """Median and p90 of the relative error."""
    errors = np.array([abs(predict(point) / point.tpot_s - 1) for point in points])
    return float(np.median(errors)), float(np.quantile(errors, 0.9))


def unseen_model_errors(points: Sequence[Point], source: str) -> tuple[float, float]:
    """Each model predicted from the points of the others only."""
    errors = []
    for model in sorted({point.model for point in points}):
        data = calibrate([point for point in points if point.model != model], source)
        mine = [point for point in points if point.model == model]
        errors += [abs(predicted_s(data, point) / point.tpot_s - 1) for point in mine]
    return float(np.median(errors)), float(np.quantile(errors, 0.9))


def shipped_estimates(path: Path) -> dict[str, float]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["id"]: line["tpot_ms"] / 1000 for line in lines if "tpot_ms" in line}


def main() -> int:
    arguments = command_line(__doc__, points="", shipped="", write=False, unseen=False, strict=False)
    if not arguments.points:
        raise SystemExit("--points: the path of aiconfigurator_core/systems/silicon_sample.csv")
    points = read_points(Path(arguments.points))
    sides = [(point, point.is_held_out(strict=arguments.strict)) for point in points]
    held, rest = [point for point, out in sides if out], [point for point, out in sides if not out]
    source = f"aiconfigurator-core 0.12.0, silicon_sample.csv, {len(rest)} points"
    data = calibrate(rest, source)
    if arguments.write:
        FILE.write_bytes(msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n")
    median, p90 = error_figures(held, lambda point: predicted_s(data, point))
    figures = {"fitted to": len(rest), "held out": len(held), "median error": median, "p90 error": p90}
    for backend in ("vllm", "sglang", "trtllm"):
        some = [point for point in held if point.backend == backend]
        both = error_figures(some, lambda point: predicted_s(data, point))
        figures |= {f"{backend}, {len(some)} points, median": both[0], f"{backend}, p90": both[1]}
    if arguments.shipped:
        tool = shipped_estimates(Path(arguments.shipped))
        shared = [point for point in held if point.id in tool]
        figures["held out, with the tool's estimate"] = len(shared)
        ours = error_figures(shared, lambda point: predicted_s(data, point))
        theirs = error_figures(shared, lambda point: tool[point.id])
        figures |= {"there median": ours[0], "there p90": ours[1]}
        figures |= {"the tool's median": theirs[0], "the tool's p90": theirs[1]}
    if arguments.unseen:
        unseen = unseen_model_errors(points, source)
        figures |= {"a model never seen, median": unseen[0], "a model never seen, p90": unseen[1]}
    report("plan against measured points", figures)
    faults = [f"median {median:.1%} above {MEDIAN_BAR:.0%}"] if median > MEDIAN_BAR else []
    faults += [f"p90 {p90:.1%} above {P90_BAR:.0%}"] if p90 > P90_BAR else []
    return 0 if is_faultless(faults) else 1


if __name__ == "__main__":
    raise SystemExit(main())
