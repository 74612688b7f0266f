"""Operators see a process and a deployment; the process reports on itself."""

from __future__ import annotations

import asyncio
import linecache
import os
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from actors.peer.frames import LinkedPeer
from actors.peer.links import LinkDown
from persistence.memory.store import MemoryStore
from sessions.load_history import STEP_S, LoadSample
from sessions.metrics import Metrics
from sessions.model.audit import AuditLog, public
from sessions.model.errors import Conflict, Forbidden, Limited, NotFound, Unavailable
from sessions.model.generation import EngineInfo, EngineStats
from sessions.model.types import Principal, ReplicaId, ResponseId, SessionId, SessionKey, TenantId, UnixMs
from sessions.ports import Member, View
from sessions.tracing import trace_ids
from tests.support.virtual_time import advance, virtual
from transport.ops.audit_writer import EXPORTS_PER_MINUTE, REFUSALS_EVERY_S, AuditWriter
from transport.ops.diagnosis import (
    DAY_S,
    CertificateObserved,
    DirectoryObserved,
    DiskObserved,
    GatewayObserved,
    JournalObserved,
    Observed,
    ReplicaObserved,
    StandbyObserved,
    diagnose,
)
from transport.ops.load_series import RANGE_MIN_S, series_of, times_of
from transport.ops.loop_watchdog import LoopWatchdog, running_calls
from transport.ops.metrics_server import MetricsServer
from transport.ops.opening import READY_METRICS, open_metrics, open_telemetry
from transport.ops.operator_api import ClusterOperatorApi, LocalOperatorApi
from transport.ops.otlp import OtelTracer
from transport.ops.process_tuning import COLLECT_S, LOOK_S, collect_when_idle
from transport.ops.prometheus import MetricsExposition
from transport.ops.service_manager import EXTENSION_US, ServiceManager
from transport.peer.security import PeerSecurity
from transport.tasks import Tasks

ACME = TenantId("acme")
ALICE = Principal(tenant=ACME, key_id="k1", user="alice")
NO = Forbidden("forbidden", "No.")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def opened(clock: Clock) -> AuditWriter:
    store = MemoryStore()
    await store.open()
    return AuditWriter(store.audit, now_ms=lambda: UnixMs(1), clock=clock, tasks=Tasks())


async def rows(audit: AuditLog) -> list[dict[str, object]]:
    return [public(row) for row in await audit.rows(ACME, after=0, limit=99)]


async def test_refusals_are_written_once_a_minute_with_the_number_left_out() -> None:
    clock = Clock()
    writer = await opened(clock)
    for _ in range(3):
        await writer.forbidden(ALICE, NO, "GET /x")
    await writer.forbidden(ALICE, NO, "GET /y")
    assert len(await rows(writer.audit)) == 2
    clock.now += REFUSALS_EVERY_S
    await writer.forbidden(ALICE, NO, "GET /x")
    *_, last = await rows(writer.audit)
    detail = last["detail"]
    assert isinstance(detail, dict) and detail["left_out"] == 2


async def test_a_log_that_is_away_keeps_nobody_from_being_refused() -> None:
    writer = await opened(Clock())

    async def away(*_: object) -> None:
        raise Unavailable("journal_unavailable", "Away.")

    writer.audit.record = away  # type: ignore[method-assign, assignment]
    await writer.forbidden(ALICE, NO, "GET /x")


async def test_exports_have_a_rate_for_each_key_whatever_users_it_names() -> None:
    clock = Clock()
    writer = await opened(clock)
    service = Principal(tenant=ACME, key_id="service")
    for number in range(EXPORTS_PER_MINUTE):
        writer.take_export(replace(service, user=f"u{number}"))
    with pytest.raises(Limited):
        writer.take_export(replace(service, user="another"))
    writer.take_export(Principal(tenant=ACME, key_id="other"))
    clock.now += 60
    writer.take_export(service)


ENGINE = EngineInfo(
    model="m", build="1", model_fingerprint="w", context_window=4096, slots=4, sampling=frozenset({"seed"})
)
MEMBER = Member(
    replica=ReplicaId("r1"), incarnation="i", address="10.0.0.1:7400", model="m", fingerprint="w/t", engine=ENGINE
)
R1 = ReplicaObserved(member=MEMBER, answered_s=0.01)
R2 = ReplicaObserved(member=msgspec.structs.replace(MEMBER, replica=ReplicaId("r2")), answered_s=0.01)
STANDBY = StandbyObserved(name="s1", behind_bytes=1000, behind_s=0.1, synchronous=True)
JOURNAL = JournalObserved(schema_version=12, schema_required=12, schema_known=12, standbys=(STANDBY,))
WELL = Observed(
    directory=DirectoryObserved(where="valkey:6379"),
    replicas=(R1, R2),
    journal=JOURNAL,
    certificates=(CertificateObserved(setting="peer_certificate", path="tls.crt", ends_in_s=60 * DAY_S),),
    disk=DiskObserved(path="/data", free_bytes=50, total_bytes=100),
    gateways=(GatewayObserved(url="http://g1:8080"),),
)


def other(**changes: object) -> ReplicaObserved:
    """The second replica, as it might be."""
    return ReplicaObserved(member=msgspec.structs.replace(R2.member, **changes), answered_s=0.01)


def with_engine(**changes: object) -> ReplicaObserved:
    return other(engine=msgspec.structs.replace(ENGINE, **changes))


def journal(**changes: object) -> Observed:
    return msgspec.structs.replace(WELL, journal=msgspec.structs.replace(JOURNAL, **changes))


def seen(**changes: object) -> Observed:
    return msgspec.structs.replace(WELL, **changes)


def directory(**about: Any) -> Observed:
    return seen(directory=DirectoryObserved(where="v", **about))


def gateway(**about: Any) -> Observed:
    return seen(gateways=(GatewayObserved(url="u", **about),))


def certificate(**about: Any) -> Observed:
    return seen(certificates=(CertificateObserved(setting="tls_certificate", path="p", **about),))


def standby(**changes: Any) -> Observed:
    return journal(standbys=(msgspec.structs.replace(STANDBY, **changes),))


def test_nothing_is_wrong_with_what_is_well() -> None:
    findings = diagnose(WELL)
    assert {each.level for each in findings} == {"ok"} and not any(each.advice for each in findings)
    expected = {"directory", "replica r1", "replica r2", "versions", "journal", "peer_certificate", "disk"}
    assert {each.part for each in findings} == expected | {"gateway http://g1:8080"}
    assert diagnose(Observed()) == [], "what was not looked at is not judged"


@pytest.mark.parametrize(
    ("observed", "level", "part", "text"),
    [
        (directory(failure="v does not answer."), "error", "directory", "does not answer"),
        (directory(ahead_s=-3.0), "warning", "directory", "3.0 s behind"),
        (directory(ahead_s=31.0), "error", "directory", "31.0 s ahead of"),
        (seen(replicas=()), "error", "replicas", "none of 0 takes sessions"),
        (seen(replicas=(R1, ReplicaObserved(member=R2.member, silence="refused"))), "error", "replica r2", "refused"),
        (seen(replicas=(R1, other(draining=True))), "warning", "replica r2", "is draining"),
        (seen(replicas=(R1, other(load=1.5))), "warning", "replica r2", "answers wait: load 1.50"),
        (seen(replicas=(ReplicaObserved(member=MEMBER, answered_s=2),)), "warning", "replica r1", "after 2.0 s"),
        (seen(replicas=(R1, other(fingerprint="x/t"))), "error", "replicas r1 and r2", "its model is w"),
        (seen(replicas=(R1, other(protocol=9))), "error", "replicas r1 and r2", "peer protocol"),
        (seen(replicas=(R1, with_engine(build="2"))), "warning", "replicas r1 and r2", "build differs: 1 and 2"),
        (seen(replicas=(R1, with_engine(slots=8))), "warning", "replicas r1 and r2", "slots differs: 4 and 8"),
        (journal(failure="refused"), "error", "journal", "does not answer (refused)"),
        (journal(standby=True), "error", "journal", "takes no writes"),
        (journal(schema_version=14, schema_required=13), "error", "journal", "has schema 14, this program knows 12"),
        (journal(schema_version=13), "warning", "journal", "has schema 13 of a newer version, which this program can"),
        (journal(schema_version=11), "warning", "journal", "would bring it to 12"),
        (journal(schema_version=0), "warning", "journal", "has no tables yet"),
        (journal(fsync=False), "error", "journal", "runs without fsync"),
        (journal(archive_fails=True), "error", "journal", "is not archived"),
        (journal(ahead_s=60.0), "error", "journal", "60.0 s ahead of"),
        (standby(behind_s=90.0, synchronous=False), "warning", "journal", "standby s1 is 0 MiB and 90 s behind"),
        (gateway(failure="refused"), "error", "gateway u", "refused"),
        (gateway(replication_lag_s=70.0), "error", "gateway u", "has everything up to 70 s ago"),
        (gateway(unready="no replica"), "error", "gateway u", "is not ready: no replica"),
        (certificate(ends_in_s=3 * DAY_S), "warning", "tls_certificate", "p ends in 3 days"),
        (certificate(ends_in_s=-2 * DAY_S), "error", "tls_certificate", "p ended 2 days ago"),
        (certificate(failure="no such file"), "error", "tls_certificate", "p: no such file"),
        (seen(disk=DiskObserved(path="/d", free_bytes=9, total_bytes=100)), "warning", "disk", "/d has"),
    ],
)
def test_each_thing_that_is_wrong_is_found_once_with_what_to_do(
    observed: Observed, level: str, part: str, text: str
) -> None:
    (found,) = (each for each in diagnose(observed) if each.level != "ok" and each.part == part)
    assert found.level == level and text in found.text and found.advice


def test_a_drain_that_was_not_meant_can_be_taken_back() -> None:
    (found,) = (each for each in diagnose(seen(replicas=(R1, other(draining=True)))) if each.level == "warning")
    assert "`./sessile undrain r2`" in found.advice


def test_replicas_of_different_models_need_not_be_alike() -> None:
    different = other(model="n", fingerprint="x/y", engine=msgspec.structs.replace(ENGINE, model="n", slots=9))
    assert {each.level for each in diagnose(seen(replicas=(R1, different)))} == {"ok"}


def test_two_releases_side_by_side_are_named_with_who_runs_which() -> None:
    older = msgspec.structs.replace(R1, peers=(LinkedPeer("gateway", "g1", 1), LinkedPeer("replica", "r2", 2, "0.3.0")))
    newer = msgspec.structs.replace(other(version="0.3.0", protocols=(1, 2)), peers=(LinkedPeer("gateway", "g1", 1),))
    (mixed,) = [each for each in diagnose(seen(replicas=(older, newer))) if each.part == "versions"]
    assert mixed.level == "warning" and "docs/upgrading.md" in mixed.advice
    assert mixed.text == (
        "two releases are mixed: replica r2 run 0.3.0 (peer protocol 2);"
        " gateway g1, replica r1 run a version before they were named (peer protocol 1)"
    )


def test_one_that_is_too_far_away_is_an_error() -> None:
    (apart,) = [each for each in diagnose(seen(replicas=(other(protocols=(8, 9)),))) if each.part == "versions"][:1]
    assert apart.level == "error" and "replica r2 speaks peer protocols 8 to 9, this program speaks" in apart.text


NOW_S = 1_000_000_003


def sample(at: int, ttft_s: float | None = None, kv: dict[str, float] | None = None) -> LoadSample:
    metrics = Metrics()
    if ttft_s is not None:
        metrics.ttft_s.observe(ttft_s)
    return LoadSample(at, 10.0, tuple(metrics.ttft_s.counts), 30.0, 20.0, 1.0, 0.0, 2.0, 1, 2, 4, 5, kv or {})


def test_columns_have_a_value_per_time_and_null_where_nobody_was() -> None:
    times = times_of(NOW_S, RANGE_MIN_S)
    at = times[-1]
    series = series_of(times, [sample(at, ttft_s=0.3, kv={"disk": 1.0}), sample(at, ttft_s=0.3), sample(at - STEP_S)])
    assert {len(column) for column in (series["at"], series["sessions"], *series["ttft_s"].values())} == {len(times)}
    assert series["ttft_s"]["p95"][-3:] == [None, None, 0.375]
    assert series["tokens_per_s"] == {
        "decoded": [None] * (len(times) - 2) + [2.0, 4.0],
        "prefilled": [None] * (len(times) - 2) + [3.0, 6.0],
    }
    assert series["requests"]["waiting"][-2:] == [2, 4]
    assert series["kv_bytes"] == {"disk": [None] * (len(times) - 2) + [0.0, 1.0]}
    assert series["events"]["failovers"][-2:] == [1.0, 2.0]


def test_where_no_engine_counts_kv_there_is_no_column_of_it() -> None:
    assert series_of(times_of(NOW_S, RANGE_MIN_S), [])["kv_bytes"] == {}


def hold_the_loop(until: threading.Event) -> None:
    until.wait(10)


async def test_a_stall_is_reported_while_it_lasts_with_what_runs() -> None:
    metrics, reports, reported = Metrics(), list[dict[str, Any]](), threading.Event()

    def report(**what: Any) -> None:
        reports.append(what)
        reported.set()

    async with LoopWatchdog(metrics, stall_ms=40, report=report):
        hold_the_loop(reported)  # ends when the watchdog has seen it
        while not metrics.loop_delay_s.count:  # noqa: ASYNC110 - the beat has waited: it is next
            await asyncio.sleep(0)
    assert metrics.loop_stalls.total == 1 and len(reports) == 1
    assert "hold_the_loop" in reports[0]["running"] and "\n" not in reports[0]["running"]


async def test_a_stall_that_the_thread_could_not_see_is_reported_by_the_loop() -> None:
    metrics, reports = Metrics(), list[dict[str, Any]]()
    async with LoopWatchdog(metrics, stall_ms=10_000, report=lambda **what: reports.append(what)) as watchdog:
        watchdog._due -= 30  # the thread looks again in five seconds
        watchdog._beat(asyncio.get_running_loop())
    assert metrics.loop_stalls.total == 1
    assert [each["running"] for each in reports] == ["code that held the interpreter's lock"]


async def test_a_loop_that_runs_is_measured_and_not_reported() -> None:
    metrics, reports = Metrics(), list[dict[str, Any]]()
    async with LoopWatchdog(metrics, stall_ms=10_000, report=lambda **what: reports.append(what)) as watchdog:
        watchdog._beat(asyncio.get_running_loop())
    assert metrics.loop_delay_s.count == 1 and not metrics.loop_stalls.total and not reports


async def test_nothing_is_watched_without_a_bound() -> None:
    before = threading.active_count()
    async with LoopWatchdog(Metrics(), stall_ms=0):
        assert threading.active_count() == before


def test_a_thread_that_has_ended_runs_nothing() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert thread.ident is not None and running_calls(thread.ident) == "the thread has ended"


def test_naming_the_running_calls_keeps_no_source_in_memory() -> None:
    linecache.clearcache()
    assert "test_naming_the_running_calls" in running_calls(threading.get_ident())
    assert not linecache.cache


async def test_it_serves_metrics_and_health_without_keys_under_loopback_s_names_only() -> None:
    """A web page that points a name of its own at this machine reads nothing."""
    exposition = MetricsExposition(Metrics(), version="1", role="test")
    reasons: list[str] = []
    server = MetricsServer(exposition, host="127.0.0.1", port=0, readiness=lambda: reasons[-1] if reasons else None)
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            assert "sessile_build_info" in (await client.get("/metrics")).text
            assert (await client.get("/healthz")).text == (await client.get("/readyz")).text == "ok\n"
            for host, status in (("localhost:9", 200), ("127.0.0.1", 200), ("[::1]:9", 200), ("evil.example", 403)):
                for path in ("/metrics", "/healthz", "/readyz"):
                    assert (await client.get(path, headers={"host": host})).status_code == status
            reasons.append("draining")
            unready = await client.get("/readyz")
            assert (unready.status_code, unready.text) == (503, "draining\n")
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/v1/sessions")).status_code == 404
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(Unavailable):
            await MetricsServer(exposition, host="127.0.0.1", port=port).start()
    finally:
        await server.stop()
        await server.stop()


def settings(metrics_port: int) -> SimpleNamespace:
    return SimpleNamespace(otlp="", metrics_host="127.0.0.1", metrics_port=metrics_port)


async def test_metrics_and_health_stand_on_the_port_while_the_block_runs(capsys: pytest.CaptureFixture[str]) -> None:
    away: list[str | None] = ["starting"]
    async with (
        open_metrics(settings(0), "replica", "r1", "1.0") as measures,
        open_telemetry(settings(0), measures, "replica", "1.0", lambda: away[0]) as exposition,
        httpx.AsyncClient(timeout=60) as http,
    ):
        url = capsys.readouterr().out.removeprefix(READY_METRICS).strip()
        shown = (await http.get(url)).text
        assert 'role="replica"' in shown and 'version="1.0"' in shown and exposition is not None
        assert (await http.get(url.replace("/metrics", "/readyz"))).status_code == 503
        away[0] = None
        assert (await http.get(url.replace("/metrics", "/readyz"))).status_code == 200
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", int(url.rsplit(":", 1)[1].split("/")[0])))


async def test_without_a_port_nothing_listens_and_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    async with (
        open_metrics(settings(-1), "serve", "local", "1.0") as measures,
        open_telemetry(settings(-1), measures, "serve", "1.0", lambda: None),
    ):
        assert capsys.readouterr().out == ""


HERE = msgspec.structs.replace(MEMBER, address="127.0.0.1:1")
KEY = SessionKey(TenantId("acme"), SessionId("s"))


class Engine:
    def stats(self) -> EngineStats:
        return EngineStats(slots=4, running=1, waiting=1, counters={})


async def test_one_process_shows_its_load_and_has_nowhere_to_go() -> None:
    surveyor: Any = None
    engine: Any = Engine()
    api = LocalOperatorApi(lambda: HERE, surveyor, engine)
    (shown,) = await api.replicas()
    assert (shown["replica"], shown["load"], shown["slots"]) == ("r1", 0.5, 4)
    with pytest.raises(NotFound):
        await api.measure("r2")
    for action in (api.drain("r1"), api.hand_off("r1", KEY, "")):
        with pytest.raises(Conflict):
            await action


async def test_a_replica_that_is_away_is_named_with_the_reason() -> None:
    api = ClusterOperatorApi(lambda: View(1, (HERE,)), PeerSecurity(), Tasks())
    held = await api.kv_of(KEY.tenant)
    assert held.bytes_of == {} and set(held.silent) == {"r1"}
    measured = await api.measure(after=1, step_s=10)
    assert list(measured) == ["r1"] and isinstance(measured["r1"], LinkDown)
    for action in (api.drain("r2"), api.measure("r2")):
        with pytest.raises(NotFound):
            await action


sdk = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
RESPONSE = ResponseId("resp_1")


def test_a_root_span_has_the_ids_of_its_response_and_the_rest_are_below_it() -> None:
    exporter = memory.InMemorySpanExporter()
    tracer = OtelTracer(sdk.SimpleSpanProcessor(exporter), role="serve", name="local", version="1")
    tracer.span("prefill", ACME, RESPONSE, begun_at=1.0, ended_at=2.0, attributes={"tokens": 3})
    tracer.span("response", ACME, RESPONSE, begun_at=1.0, ended_at=0.5, attributes={}, failed="lost", root=True)
    tracer.close()
    below, root = exporter.get_finished_spans()
    trace_id, span_id = trace_ids(ACME, RESPONSE)
    assert (root.context.trace_id, root.context.span_id) == (trace_id, span_id) and root.parent is None
    assert below.context.trace_id == trace_id and below.parent.span_id == span_id
    assert below.attributes["tokens"] == 3 and below.attributes["sessile.tenant"] == "acme"
    assert root.end_time == root.start_time and root.status.description == "lost"


class Process:
    """Uses `share` of a core, and counts its collections."""

    def __init__(self) -> None:
        self.share = 0.0
        self.collections = 0
        self._used_s = self._until = 0.0

    def cpu_s(self) -> float:
        before, self._until = self._until, asyncio.get_running_loop().time()
        self._used_s += self.share * (self._until - before)
        return self._used_s

    def collect(self) -> None:
        self.collections += 1


@virtual
async def test_a_process_collects_once_after_it_was_busy() -> None:
    process = Process()
    task = asyncio.create_task(collect_when_idle(process.cpu_s, process.collect))
    await advance(20 * LOOK_S)
    assert process.collections == 0, "nothing was done"
    process.share = 0.9
    await advance(3 * LOOK_S)
    assert process.collections == 0, "it is busy"
    process.share = 0.0
    await advance(20 * LOOK_S)
    assert process.collections == 1
    task.cancel()


@virtual
@pytest.mark.parametrize(("share", "collections"), [(0.03, 3), (0.001, 0), (0.9, 3)])
async def test_a_process_that_is_never_or_always_busy_collects_now_and_then(share: float, collections: int) -> None:
    """It kept its garbage for ever: while workers read documents, it uses too little at a time to be busy."""
    process = Process()
    process.share = share
    task = asyncio.create_task(collect_when_idle(process.cpu_s, process.collect))
    await advance(COLLECT_S - LOOK_S)
    assert process.collections == 0, "the loop stands still meanwhile, so not at once"
    await advance(2 * COLLECT_S + 2 * LOOK_S)
    assert process.collections == collections
    task.cancel()


async def scraped(measures: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    body, media_type = await MetricsExposition(measures, version="1", role="test").text()
    assert media_type.startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


async def test_a_quantity_that_cannot_be_read_leaves_the_others() -> None:
    measures = Metrics()
    measures.gauge("broken", "raises", (), lambda: {(): 1 / 0})
    measures.commands.add()
    found = await scraped(measures)
    assert found["sessile_commands_total", ()] == 1
    assert not any(name == "sessile_broken" for name, _ in found)


class Systemd:
    """The other end of the socket."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.setblocking(False)

    def received(self) -> list[list[str]]:
        datagrams = []
        while True:
            try:
                datagrams.append(self._socket.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return datagrams


EXTENDED = f"EXTEND_TIMEOUT_USEC={EXTENSION_US}"


@virtual
async def test_a_start_is_prolonged_and_the_watchdog_fed(tmp_path: Path) -> None:
    systemd, reasons = Systemd(tmp_path), ["waiting for the journal"]
    environment = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}
    async with ServiceManager(environment, lambda: reasons[-1] if reasons else None) as manager:
        assert systemd.received() == [["STATUS=waiting for the journal", EXTENDED]]
        await advance(2.5)
        assert systemd.received() == [[EXTENDED]] * 2, "three times in the watchdog's time"
        reasons.clear()
        manager.ready()
        assert systemd.received() == [["READY=1", "STATUS=ready"]]
        await advance(1)
        assert systemd.received() == [["WATCHDOG=1"]]
        reasons.append("no replica is reachable")
        await advance(1)
        assert systemd.received() == [["STATUS=no replica is reachable", "WATCHDOG=1"]]
        manager.stopping()
        await advance(1)
        assert systemd.received() == [["STOPPING=1", "STATUS=draining", EXTENDED], [EXTENDED, "WATCHDOG=1"]]
    assert systemd.received() == [["STOPPING=1", "STATUS=ended"]]
    await advance(10)
    assert systemd.received() == []


@pytest.mark.parametrize("environment", [{}, {"WATCHDOG_USEC": "1000000"}, {"NOTIFY_SOCKET": "/nowhere/notify"}])
@virtual
async def test_without_a_service_manager_nothing_happens(environment: dict[str, str]) -> None:
    async with ServiceManager(environment, lambda: None) as manager:
        manager.ready()
        await advance(20)


@virtual
async def test_the_watchdog_of_another_process_is_not_fed(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    environment = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}
    async with ServiceManager(environment, lambda: None) as manager:
        manager.ready()
        systemd.received()
        await advance(30)
        assert systemd.received() == []
