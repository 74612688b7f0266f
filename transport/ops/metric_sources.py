"""Registers the gauges that are read at a scrape: quantities that engine, runtime, directory and gateway keep anyway.

Only takes numbers that lie ready: a scrape holds up the loop for as long as these functions take, so nothing here goes
through the sessions of a replica. Which of an engine's counters have a name of their own is decided here; the rest
are `engine_events_total{event}`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from actors.hosting.runtime import Runtime
from sessions.actor.admission import Admission
from sessions.limits import LimitsNow
from sessions.metrics import TPOT_TARGET_S, TTFT_TARGET_S, Labels, Metrics
from sessions.model.generation import EngineStats
from sessions.ports import Engine

if TYPE_CHECKING:
    from actors.limits.settlement import Settler
    from actors.routing.router import Router

TIERS: Final = ("host", "disk", "redis")
READS: Final = {"host": "restores", "disk": "disk_reads", "redis": "redis_reads"}
WRITES: Final = {"host": "spills", "disk": "disk_writes", "redis": "redis_writes"}
EVICTIONS: Final = {"host": "host_evictions", "disk": "disk_evictions", "redis": "redis_evictions"}
TOKENS: Final = {
    "prefilled_tokens": ("engine_prefilled_tokens", "Prompt tokens that the engine computed."),
    "decoded_tokens": ("engine_decoded_tokens", "Tokens that the engine decoded."),
    "reused_tokens": ("prefix_cache_hits", "Prompt tokens whose KV was there, in whichever tier."),
    "restored_tokens": ("kv_restored_tokens", "Of these, tokens whose KV came from below the device."),
    "sheds": ("engine_sheds", "Generations refused because the engine's queue was full."),
    "aborts": ("engine_aborts", "Generations that were broken off."),
    "tenant_evictions": ("kv_limit_evictions", "Snapshots and slots let go of: their tenant held more than it may."),
    "drafted_tokens": ("engine_drafted_tokens", "Tokens that speculation tried ahead (llama.cpp)."),
    "accepted_tokens": ("engine_accepted_tokens", "Of these, tokens that the model would have written."),
    "preemptions": ("num_preemptions", "Running answers that had to make room."),
}
ZERO: Final[Labels] = ()


def register_engine_metrics(measures: Metrics, engine: Engine) -> None:
    """Registers the metrics of an engine: load, counters, and the contents of its KV tiers."""
    stats = engine.stats

    def counted(name: str) -> Callable[[], Mapping[Labels, float]]:
        return lambda: {ZERO: stats().counters.get(name, 0)}

    def by_tier(names: Mapping[str, str]) -> Callable[[], Mapping[Labels, float]]:
        def read() -> Mapping[Labels, float]:
            counters = stats().counters
            return {(tier,): counters.get(name, 0) for tier, name in names.items()}

        return read

    def held(suffix: str) -> Callable[[], Mapping[Labels, float]]:
        def read() -> Mapping[Labels, float]:
            gauges = stats().gauges
            return {(tier,): gauges.get(f"{tier}{suffix}", 0) for tier in TIERS}

        return read

    def queried() -> Mapping[Labels, float]:
        counters = stats().counters
        return {ZERO: counters.get("reused_tokens", 0) + counters.get("prefilled_tokens", 0)}

    known = {*TOKENS, *READS.values(), *WRITES.values(), *EVICTIONS.values()}

    def unknown_counters() -> Mapping[Labels, float]:
        return {(name,): value for name, value in stats().counters.items() if name not in known}

    gauge = measures.gauge
    gauge("num_requests_running", "Answers that the engine is writing.", (), lambda: {ZERO: stats().running})
    gauge("num_requests_waiting", "Answers that wait for the engine.", (), lambda: {ZERO: stats().waiting})
    gauge("num_slots", "Answers that it can write at the same time.", (), lambda: {ZERO: stats().slots})
    gauge("engine_away", "1 while it is being started again.", (), lambda: {ZERO: int(stats().away is not None)})
    for name, (public, about) in TOKENS.items():
        gauge(public, about, (), counted(name), grows=True)
    gauge("prefix_cache_queries", "Prompt tokens that engines were given.", (), queried, grows=True)
    gauge("kv_cache_bytes", "KV held outside the device, by tier.", ("tier",), held("_bytes"))
    gauge("kv_cache_bytes_max", "What each tier may hold.", ("tier",), held("_bytes_max"))
    gauge("kv_cache_hits", "Snapshots read from each tier.", ("tier",), by_tier(READS), grows=True)
    gauge("kv_cache_writes", "Snapshots written to each tier.", ("tier",), by_tier(WRITES), grows=True)
    gauge("kv_cache_evictions", "Snapshots that made room in each tier.", ("tier",), by_tier(EVICTIONS), grows=True)
    gauge("engine_events", "What else the engine counts.", ("event",), unknown_counters, grows=True)
    _register_smaller_metrics(measures, stats)


def _register_smaller_metrics(measures: Metrics, stats: Callable[[], EngineStats]) -> None:
    """Registers the metrics of the smaller model, which are counted apart; without one they are empty."""

    def requests() -> Mapping[Labels, float]:
        smaller = stats().smaller
        return {} if smaller is None else {("running",): smaller.running, ("waiting",): smaller.waiting}

    def slots() -> Mapping[Labels, float]:
        smaller = stats().smaller
        return {} if smaller is None else {ZERO: smaller.slots}

    def events() -> Mapping[Labels, float]:
        smaller = stats().smaller
        return {} if smaller is None else {(name,): value for name, value in smaller.counters.items()}

    gauge = measures.gauge
    gauge("smaller_model_requests", "Answers of the smaller model, by what they do.", ("state",), requests)
    gauge("smaller_model_slots", "Answers that it can write at the same time.", (), slots)
    gauge("smaller_model_events", "What its engine counts.", ("event",), events, grows=True)


def register_runtime_metrics(measures: Metrics, runtime: Runtime) -> None:
    gauge = measures.gauge
    gauge("num_sessions", "Sessions in memory.", (), lambda: {ZERO: runtime.num_present})
    gauge("num_sessions_max", "Sessions that may be.", (), lambda: {ZERO: runtime.limits.actors_max})
    gauge("draining", "1 while sessions are moved off this replica.", (), lambda: {ZERO: int(runtime.draining)})


def register_router_metrics(measures: Metrics, router: Router) -> None:
    """Registers a gateway's metrics about replicas: how many there are, and commands sent again."""

    def replicas() -> Mapping[Labels, float]:
        counts = Counter("draining" if each.draining else "serving" for each in router.routes.view.members)
        return {(state,): counts[state] for state in ("serving", "draining")}

    gauge = measures.gauge
    gauge("router_retries", "Commands that were sent again.", (), lambda: {ZERO: router.retries}, grows=True)
    gauge("replicas", "Live replicas, by whether they take sessions.", ("state",), replicas)


def register_connection_metrics(measures: Metrics, counters: Counter[str]) -> None:
    """Registers a gateway's connection metrics. The end of a counter's name, as in `closed_4408`, becomes a label."""

    def ending(prefix: str) -> Callable[[], Mapping[Labels, float]]:
        return lambda: {
            (name.removeprefix(prefix),): count for name, count in counters.items() if name.startswith(prefix)
        }

    def plain(name: str) -> Callable[[], Mapping[Labels, float]]:
        return lambda: {ZERO: counters[name]}

    gauge = measures.gauge
    gauge("connections", "WebSockets that were opened.", (), plain("connections"), grows=True)
    gauge("connections_refused", "WebSockets that found no room.", (), plain("connections_refused"), grows=True)
    gauge("connections_closed", "WebSockets that we closed, by code.", ("code",), ending("closed_"), grows=True)
    gauge("slow_readers", "Readers that left a full window unread.", (), plain("closed_4408"), grows=True)
    about = "WebSockets that were refused with a time to come again."
    gauge("connections_paced", about, (), plain("connections_paced"), grows=True)
    gauge("resumes", "Readers that came, by how they caught up.", ("mode",), ending("resumed_"), grows=True)
    gauge("limits_refused", "Requests beyond a limit, by which.", ("limit",), ending("limited_"), grows=True)
    gauge("grpc_calls", "Calls on the gRPC door.", (), plain("grpc_calls"), grows=True)


def register_limit_metrics(measures: Metrics, settler: Settler, admission: Admission) -> None:
    """Registers a replica's metrics about limits and brownout."""
    about = "Reservations that ended and could not be settled."
    measures.gauge("limits_not_settled", about, (), lambda: {ZERO: settler.given_up}, grows=True)
    measures.gauge("brownout_level", "How far brownout goes.", (), lambda: {ZERO: admission.level})


def latency_targets(limits: LimitsNow) -> Callable[[int], tuple[float, float]]:
    """Returns a function from priority to (TTFT, TPOT) targets in seconds: those of the limits file, else those of
    `Metrics`."""

    def targets_s(priority: int) -> tuple[float, float]:
        target = limits().target(priority)
        return (TTFT_TARGET_S, TPOT_TARGET_S) if target is None else (target.ttft_ms / 1000, target.tpot_ms / 1000)

    return targets_s
