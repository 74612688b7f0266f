"""The options of `./sessile plan`, with their bounds; what it computes is `deploy.planning`'s."""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal

import msgspec
from cyclopts import Parameter

from transport.cli.settings import BadSetting
from transport.cli.shared_flags import Json, text

BOUNDS: Final = {
    "ttft_ms": 1e7,
    "tpot_ms": 1e6,
    "host_gb": 1e6,
    "disk_gb": 1e7,
    "gpu_hour": 1e4,
}


class PlanCluster(msgspec.Struct, frozen=True, kw_only=True):
    """Computes how many GPUs a workload needs: TP, PP, EP, replicas, KV, hit rates, cost, and what limits.

    Needs no GPU and no server. Ends with status 1 where nothing serves the workload within the targets.
    """

    of: Annotated[str, text("MODEL", "a config.json, its folder, or a name [default: llama-3.1-405b]")] = (
        "llama-3.1-405b"
    )
    gpu: Annotated[str, text("KIND,...", "kinds to choose from [default: h100,h200,b200]")] = "h100,h200,b200"
    precision: Annotated[Literal["bf16", "fp8", "fp4", "int4"], Parameter(help="of the weights")] = "bf16"
    kv_precision: Annotated[Literal["bf16", "fp8"], Parameter(help="of the KV")] = "bf16"
    backend: Annotated[Literal["vllm", "sglang", "trtllm"], Parameter(help="whose measured times are taken")] = "vllm"
    sessions: Annotated[int, text("N", "conversations open at once [default: 1000]")] = 1000
    opening_tokens: Annotated[int, text("N", "that all conversations begin with [default: 500]")] = 500
    prompt_tokens: Annotated[int, text("N", "of a user's message [default: 150]")] = 150
    answer_tokens: Annotated[int, text("N", "[default: 300]")] = 300
    turns: Annotated[int, text("N", "of a conversation [default: 10]")] = 10
    think_s: Annotated[float, text("S", "median time between an answer and the next message [default: 30]")] = 30.0
    think_sigma: Annotated[float, text("SIGMA", "its spread, log-normal; 0: all alike [default: 1]")] = 1.0
    trace: Annotated[str, text("FILE", "JSON Lines of conversations, in place of lengths and times")] = ""
    ttft_ms: Annotated[float, text("MS", "target at p95; 0: none [default: 2000]")] = 2000.0
    tpot_ms: Annotated[float, text("MS", "target; 0: none [default: 60]")] = 60.0
    host_gb: Annotated[float, text("GB", "memory of a node for KV [default: 0]")] = 0.0
    disk_gb: Annotated[float, text("GB", "disk of a node for KV [default: 0]")] = 0.0
    spare: Annotated[int, text("N", "replicas that may fail [default: 1]")] = 1
    gpu_hour: Annotated[float, text("PRICE", "of a GPU-hour, of every kind; 0: list prices")] = 0.0
    as_json: Json = False

    def __post_init__(self) -> None:
        """Raises BadSetting for options that are not allowed."""
        for name, most in BOUNDS.items():
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 <= value <= most):
                raise BadSetting(f"{name.replace('_', '-')}: {value:g}, expected 0 to {most:g}")
        if not 0 <= self.spare <= 1000:
            raise BadSetting(f"spare: {self.spare}, expected 0 to 1000 replicas")
