"""A simulated fleet: what its sessions cost, and what becomes of them when something happens to it.

    python -m bench.cluster.fleet rack --sessions 10000000 --replicas 10000 --page fleet.html
    python -m bench.cluster.fleet flat --replicas 10000

The product's own rules (directory, placement, admission, buckets, rebalancing, retention and costs of KV) on arrays of
sessions, in virtual time: see docs/fleet.md. `rack`, `silent`, `region`, `hot` and `upgrade` are an hour in which that
happens, `day` is a whole one, `flat` the same hour at three sizes up to 1,000 sessions for each of `--replicas`.

Bars of `rack`: 10 minutes, 4 GB; the answers that the rack cut short go on within a second beyond their prefill; no
survivor has answers that wait. Of `flat`: what a turn costs is within 10% of what it costs in the smallest fleet.
"""

from __future__ import annotations

import argparse
import resource
import time
from html import escape
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from actors.cluster.membership import RENEW_S
from bench.kv.retention import Lineage, TracedRequest
from bench.plots import STYLE, Series, plot
from bench.support import report, run_bench, where
from tests.support.fleet.fleet import Fleet
from tests.support.fleet.measured import Row
from tests.support.fleet.placed import member_bytes
from tests.support.fleet.scenario import DAY_S, FleetEvent, Scenario, Workload

EVENTS: Final[dict[str, tuple[FleetEvent, ...]]] = {
    "rack": (FleetEvent("rack_killed", 900, 0.004),),
    "silent": (FleetEvent("rack_silent", 900, 0.004),),
    "region": (FleetEvent("region_drained", 600, 0.25),),
    "hot": (FleetEvent("hot_tenant", 900, 20),),
    "upgrade": (FleetEvent("rolling_upgrade", 60, 1),),
    "day": (),
    "flat": (),
}
Figures = dict[str, object]


def workload_of(scenario: Scenario, trace: str) -> Workload | None:
    """From a trace in Mooncake's format, which sessions go on with which by their common blocks."""
    if not trace:
        return None
    with Path(trace).open("rb") as file:
        requests = [msgspec.json.decode(line, type=TracedRequest) for line in file]
    lineage = Lineage(requests)
    follow_ups = [(number, last) for number, last in enumerate(lineage.before) if last is not None]
    rng = np.random.default_rng(scenario.seed)
    answered = [(requests[number], requests[last]) for number, last in follow_ups]
    return Workload(
        scenario,
        rng,
        silences_s=[max(1.0, now.at_s - last.at_s) for now, last in answered],
        prompts=[max(8, now.input_length - last.input_length - last.output_length) for now, last in answered],
        answers=[each.output_length for each in requests],
    )


def simulated(scenario: Scenario, trace: str) -> tuple[Fleet, Figures]:
    started, cpu = time.perf_counter(), time.process_time()
    fleet = Fleet(scenario, workload_of(scenario, trace))
    began = time.process_time()
    measured = fleet.run()
    took, run_cpu = time.perf_counter() - started, time.process_time() - began
    counts, operations = measured.counts, fleet.placed.operations
    turns = max(1, counts["turns"])
    view = member_bytes(fleet.placed.members[0]) * scenario.replicas
    renewals = scenario.replicas / RENEW_S * scenario.seconds
    return fleet, {
        "sessions": scenario.sessions,
        "replicas": scenario.replicas,
        "simulated_s": scenario.seconds,
        "wall_s": took,
        "cpu_s": time.process_time() - cpu,
        "simulation_us_per_turn": run_cpu / turns * 1e6,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "turns": turns,
        "directory_operations_per_turn": sum(operations.values()) / turns,
        "directory_entries_per_session": fleet.placed.directory.entry_count / scenario.sessions,
        "kv_bytes_moved_per_turn": counts["kv_bytes_moved"] / turns,
        "renewals_per_turn": renewals / turns,
        "renewal_bytes_per_turn": renewals * view / turns,
        "cached_share": counts["cached_tokens"] / max(1, counts["prompt_tokens"]),
        "ttft_p50_ms": 1000 * measured.ttft_s(0.5),
        "ttft_p99_ms": 1000 * measured.ttft_s(0.99),
        "refused_share": counts["refused"] / turns,
        "limited": counts["limited"],
        "handed_off": counts["handed_off"],
        "load_max": max(row.load_max for row in measured.rows),
        "interrupted": counts["interrupted"],
    }


def recovery(fleet: Fleet) -> Figures:
    """Of the answers that a loss cut short, and of those that survived it."""
    excesses = fleet.measured.excesses_s
    if not len(excesses):
        return {}
    lost_at = next(event.at_s for event in fleet.scenario.events)
    before = [row for row in fleet.measured.rows if lost_at - 300 <= row.at_s < lost_at]
    after = [row for row in fleet.measured.rows if lost_at < row.at_s <= lost_at + 300]
    return {
        "recovered": len(excesses),
        "beyond_prefill_p50_s": float(np.percentile(excesses, 50)),
        "beyond_prefill_p99_s": float(np.percentile(excesses, 99)),
        "beyond_prefill_max_s": float(excesses.max()),
        "recoveries_at_one_survivor_max": max(fleet.measured.recoveries.values()),
        "load_max_before": max(row.load_max for row in before),
        "load_max_after": max(row.load_max for row in after),
        "crowded_share_after": max(row.crowded for row in after),
    }


PLOTS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("turns a second", ("turns_s",)),
    ("time to first token, s", ("ttft_p50_s", "ttft_p95_s")),
    ("load of replicas (1: every slot taken)", ("load_mean", "load_max")),
    ("directory operations a second", ("operations_s",)),
    ("hand-offs a second", ("handed_off_s",)),
    ("refused and limited a second", ("refused_s",)),
)


def page(title: str, rows: list[Row], figures: Figures) -> str:
    """One file, without scripts."""
    facts = {**figures, **where()}
    lines = "".join(
        f"<tr><td>{escape(name)}</td><td>{value:.4g}</td></tr>"
        if isinstance(value, float)
        else f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    pictures = ""
    for name, fields in PLOTS:
        series = [Series(field, [(row.at_s / 60, getattr(row, field)) for row in rows], line=True) for field in fields]
        pictures += f"<h2>{escape(name)}</h2>{plot(series, 'minutes', name)}"
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f"<!doctype html>{head}<h1>{escape(title)}</h1><table>{lines}</table>{pictures}"


def main(arguments: argparse.Namespace) -> bool:
    kind, replicas = arguments.kind, arguments.replicas
    seconds = arguments.seconds or (DAY_S if kind == "day" else 3_600)
    scenario = Scenario(
        sessions=arguments.sessions,
        replicas=replicas,
        seconds=seconds,
        starts_at_s=0 if kind == "day" else 10 * 3_600,
        seed=arguments.seed,
        events=EVENTS[kind],
    )
    if kind == "flat":
        return flat(scenario, arguments.trace)
    fleet, figures = simulated(scenario, arguments.trace)
    figures |= recovery(fleet)
    report(f"fleet_{kind}", figures)
    if arguments.page:
        Path(arguments.page).write_text(page(f"A fleet: {kind}", fleet.measured.rows, figures))
    if kind not in {"rack", "silent"}:
        return True
    return all(
        (
            float(str(figures["wall_s"])) <= 600,
            float(str(figures["peak_gb"])) <= 4,
            float(str(figures.get("beyond_prefill_max_s", "inf"))) <= 1,
            float(str(figures.get("load_max_after", "inf"))) <= 1,
        )
    )


def flat(scenario: Scenario, trace: str) -> bool:
    """The same hour at a hundredth, a tenth and the whole of the size."""
    fields = ("directory_operations_per_turn", "renewals_per_turn", "simulation_us_per_turn", "renewal_bytes_per_turn")
    seen: list[Figures] = []
    for part in (100, 10, 1):
        replicas = max(1, scenario.replicas // part)
        smaller = msgspec.structs.replace(scenario, replicas=replicas, sessions=replicas * 1_000)
        seen.append(simulated(smaller, trace)[1])
    figures: Figures = {"replicas": [each["replicas"] for each in seen]}
    for field in fields:
        figures[field] = [round(float(str(each[field])), 4) for each in seen]
    report("fleet_flat", figures)
    return all(
        abs(float(str(each[field])) / float(str(seen[0][field])) - 1) <= 0.1 for each in seen for field in fields[:2]
    )


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        ("kind", *EVENTS),
        sessions=100_000,
        replicas=100,
        seconds=0,
        seed=1,
        trace="",
        page="",
    )
