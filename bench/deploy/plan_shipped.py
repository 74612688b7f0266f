"""Writes what the tool `aiconfigurator` (0.12.0) estimates for measured points, for `bench.deploy.plan --shipped`.

    ENVIRONMENT/bin/python bench/deploy/plan_shipped.py POINTS OUT SECONDS

Runs in an environment of its own that has the package; points in a shuffled order until the time is over, a JSON object
a line. Nothing of ours is imported.
"""

from __future__ import annotations

import csv
import json
import logging
import random
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Final

CONFIGS: Final = {  # the package has their config.json under another name
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-ai/DeepSeek-R1",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
    "zhipuai/GLM-5": "zai-org/GLM-5",
}


def estimate(row: dict[str, str]) -> dict[str, Any]:
    from aiconfigurator.cli.api import cli_estimate

    try:
        found = cli_estimate(
            CONFIGS.get(row["model_path"], row["model_path"]),
            row["system"],
            backend_name=row["backend"],
            isl=int(row["isl"]),
            osl=int(row["osl"]),
            batch_size=int(row["batch_size"]),
            tp_size=int(row["tp_size"]),
            attention_dp_size=max(int(row["attention_dp_size"] or 1), 1),
            moe_tp_size=int(row["moe_tp_size"] or 0) or None,
            moe_ep_size=int(row["moe_ep_size"] or 0) or None,
            gemm_quant_mode=row["gemm_quant_mode"] or None,
            moe_quant_mode=row["moe_quant_mode"] or None,
            database_mode="HYBRID",
        )
    except Exception as error:  # noqa: BLE001 - whatever it cannot estimate is counted
        return {"id": row["id"], "error": f"{type(error).__name__}: {error}"[:200]}
    return {"id": row["id"], "tpot_ms": found.tpot, "ttft_ms": found.ttft}


def main(points: str, out: str, seconds: str) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    with Path(points).open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["mode"] == "agg" and row["batch_size"]]
    random.Random(19).shuffle(rows)
    ends = time.monotonic() + float(seconds)
    with Path(out).open("w") as lines:
        for row in rows:
            if time.monotonic() > ends:
                break
            lines.write(json.dumps(estimate(row)) + "\n")
            lines.flush()


if __name__ == "__main__":
    main(*sys.argv[1:4])
