"""Carries out `./sessile plan`: reads model and trace, plans, prints a table or JSON.

Part of the entry point. Everything that decides is in `deploy.planning`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from deploy.planning.calibration import shipped_calibration
from deploy.planning.gpus import GPUS, GpuKind
from deploy.planning.model_shape import BadModel
from deploy.planning.models import find_shape
from deploy.planning.planner import CapacityPlan, PlanOption, PlanRequest, make_plan
from deploy.planning.replica import Targets, TierSizes
from deploy.planning.workload import BadChatDemand, ChatDemand, from_distribution, from_trace
from transport.cli.plain_text import plain
from transport.cli.plan import PlanCluster
from transport.cli.settings import BadSetting

ROWS: Final = 12
KV_BYTES: Final = {"bf16": 2.0, "fp8": 1.0}


def run_plan(options: PlanCluster) -> int:
    """Returns the status to exit with. Raises BadSetting."""
    try:
        plan = make_plan(plan_request(options), shipped_calibration())
    except (BadModel, BadChatDemand) as error:
        raise BadSetting(str(error)) from error
    print(plan_json(plan) if options.as_json else format_plan(plan))
    return 0 if plan.best is not None else 1


def plan_request(options: PlanCluster) -> PlanRequest:
    """Raises BadSetting, BadModel, BadChatDemand."""
    return PlanRequest(
        shape=find_shape(options.of),
        gpus=_gpus(options),
        precision=options.precision,
        kv_bytes=KV_BYTES[options.kv_precision],
        backend=options.backend,
        workload=_workload(options),
        targets=Targets(ttft_ms=options.ttft_ms, tpot_ms=options.tpot_ms),
        tiers=TierSizes(host=options.host_gb * 1e9, disk=options.disk_gb * 1e9),
        spare=options.spare,
    )


def _gpus(options: PlanCluster) -> tuple[GpuKind, ...]:
    names = [name.strip().lower() for name in options.gpu.split(",") if name.strip()]
    if unknown := [name for name in names if name not in GPUS] or ([] if names else [options.gpu]):
        raise BadSetting(f"gpu: {unknown[0]!r} is not known; expected one or more of {', '.join(GPUS)}")
    chosen = [GPUS[name] for name in dict.fromkeys(names)]
    if options.gpu_hour:
        chosen = [msgspec.structs.replace(gpu, hour=options.gpu_hour) for gpu in chosen]
    return tuple(chosen)


def _workload(options: PlanCluster) -> ChatDemand:
    if not options.trace:
        return from_distribution(
            sessions=options.sessions,
            opening=options.opening_tokens,
            prompt=options.prompt_tokens,
            answer=options.answer_tokens,
            turns=options.turns,
            think_s=options.think_s,
            think_sigma=options.think_sigma,
        )
    try:
        with Path(options.trace).open("rb") as lines:
            return from_trace(lines, sessions=options.sessions, opening=options.opening_tokens)
    except OSError as error:
        raise BadSetting(f"trace = {options.trace!r}: {error.strerror}") from error


def plan_json(plan: CapacityPlan) -> str:
    body: dict[str, Any] = msgspec.to_builtins(plan)
    body["fits"] = plan.best is not None
    return msgspec.json.encode(body).decode()


def format_plan(plan: CapacityPlan) -> str:
    lines = [
        f"{plan.model}: {plan.parameters / 1e9:.1f}B parameters, {plan.active_parameters / 1e9:.1f}B a token",
        f"{plan.precision}, {plan.attention}, {plan.backend}, {plan.sessions:,} sessions",
        f"KV: {plan.kv_bytes_token / 1e3:.1f} kB a token, {plan.kv_session_gb:.2f} GB a session",
    ]
    best = plan.best
    if best is not None:
        lines += ["", *_answer(best)]
    lines += [
        "",
        f"{'GPU':<13}{'spread':<14}{'GPUs':>6}{'replicas':>10}{'cost/month':>13}{'per M out':>11}  limit: why",
    ]
    for each in plan.options[:ROWS]:
        if each.fits:
            numbers = f"{each.gpus:>6}{each.replicas:>10}{each.cost_month:>13,.0f}{each.cost_per_million_answer:>11.2f}"
        else:
            numbers = f"{'-':>6}{'-':>10}{'-':>13}{'-':>11}"
        lines.append(f"{each.gpu:<13}{each.layout:<14}{numbers}  {each.limit or 'none'}: {each.why}")
    if len(plan.options) > ROWS:
        lines.append(f"{len(plan.options) - ROWS} more with --json")
    lines += ["", *(f"Note: {note}" for note in plan.notes)]
    return "\n".join(plain(line) for line in lines).rstrip()


def _answer(best: PlanOption) -> list[str]:
    load = best.load
    whole = f"{best.gpus} x {best.gpu}: {best.replicas} replicas of {best.layout}"
    cost = f"cost: {best.cost_month:,.0f} a month, {best.cost_per_million_answer:.2f} per million tokens written"
    lines = [
        f"{whole}, {best.sessions_per_replica:,} sessions each at most",
        f"{cost}, {best.cost_per_million_all:.2f} with those read",
    ]
    if load is not None:
        lines.append(
            f"TTFT p50 {load.ttft_p50_ms:,.0f} ms, p95 {load.ttft_p95_ms:,.0f} ms; TPOT {load.tpot_ms:.1f} ms;"
            f" {load.running:.1f} answers at once and {load.turns_s:.2f} turns/s a replica"
        )
    lines += [
        f"KV in {each.tier}: {each.size_gb:,.0f} GB, {each.sessions:,.0f} sessions; {each.hit_rate:.0%} of turns"
        for each in best.tiers
        if each.size_gb
    ]
    if load is not None:
        lines.append(f"computed anew: {load.hits.computed:.0%} of turns")
    lines.append(f"limit: {best.limit or 'none'}: {best.why}")
    lines.append(f"times: {best.basis}")
    return lines
