"""The cluster as its commands start it: real processes, Valkey, PostgreSQL.

Operators look at who has what, and an owner is killed in mid-answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from actors.directory.valkey import ValkeyDirectory
from persistence import connect_store
from sessions.model.types import LOCAL_PRINCIPAL, SessionId, SessionKey
from testbed.wire_client import WireClient, connected, text_of
from tests.support.stores.journals import NOW
from transport.cli.settings import Settings
from transport.cli.start.startup import WITHOUT_END
from transport.ops.operator_requests import SessionPage, SessionQuery, list_sessions
from transport.peer import PeerSecurity

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "postgresql://127.0.0.1:1/nothing"
OTHER_MODEL = """
import sys, app
from inference.simulated import SimulatedEngine
info = SimulatedEngine.info.fget
def other(self):
    import msgspec
    return msgspec.structs.replace(info(self), model_fingerprint="other")
SimulatedEngine.info = property(other)
sys.exit(app.main(sys.argv[1:]))
"""
pytestmark = [pytest.mark.cluster, pytest.mark.slow]


class Cluster:
    """What the starter printed: where gateways listen, and the process ids of replicas."""

    def __init__(self, lines: list[str]) -> None:
        text = "\n".join(lines)
        self.ports = [int(port) for port in re.findall(r"gateway-\d+: .*127\.0\.0\.1:(\d+)/", text)]
        self.settings = next(line.removeprefix("settings: ") for line in lines if line.startswith("settings: "))
        shared = tomllib.loads(Path(self.settings).read_text())
        self.journal, self.directory, self.token = shared["journal"], shared["directory"], shared["peer_token"]
        self.master_key = shared["master_key"]
        self.replicas = {name: int(pid) for name, pid in re.findall(r"(replica-\d+): .*\(pid (\d+)\)", text)}

    def url(self, gateway: int) -> str:
        return f"ws://127.0.0.1:{self.ports[gateway]}/v1/ws"


@pytest.fixture(scope="module")
def folder() -> Iterator[str]:
    """One that PostgreSQL may enter under an account of its own, which it needs where the tests run as root."""
    with tempfile.TemporaryDirectory(prefix="sessile-cluster-") as path:
        os.chmod(path, 0o755)
        yield path


@pytest.fixture(scope="module")
def cluster(folder: str) -> Iterator[Cluster]:
    flags = ["--engine", "sim", "--sim-tokens-per-s", "20", "--sim-answer-tokens", "0", "--log-level", "error"]
    process = subprocess.Popen(
        [sys.executable, "deploy/cluster.py", "--port", "0", "--replicas", "2", "--data", folder, "--", *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip())
            if line.startswith("The cluster is ready"):
                break
        yield Cluster(lines)
    finally:
        process.terminate()
        process.wait(timeout=60)


async def subscribed(wire: WireClient, session: str) -> None:
    await wire.command("subscribe", session=session, offset=0)


def app(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of ours, run to its end."""
    command = [sys.executable, "app.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


async def sessions(cluster: Cluster, **wanted: Any) -> SessionPage:
    return await list_sessions(
        ValkeyDirectory(cluster.directory), PeerSecurity(token=cluster.token), SessionQuery(**wanted)
    )


async def test_a_ticket_of_one_gateway_is_good_at_the_other(cluster: Cluster) -> None:
    near, far = cluster.ports
    async with httpx.AsyncClient(timeout=60) as http, asyncio.timeout(60):
        ticket = (await http.post(f"http://127.0.0.1:{near}/v1/ws/tickets")).json()["ticket"]
        path = f"/v1/ws?ticket={ticket}"
        async with connected(f"ws://127.0.0.1:{far}{path}") as wire:
            assert await wire.create()
        for port in (near, far):
            with pytest.raises(InvalidStatus, match="HTTP 401"):
                async with connected(f"ws://127.0.0.1:{port}{path}"):
                    pass


async def test_operators_see_who_has_what_and_why(cluster: Cluster) -> None:
    async with connected(cluster.url(0)) as writer:
        idle, talking = await writer.create(), await writer.create()
        answer = await writer.command("message.create", session=talking, content="Hello", max_output_tokens=2000)
        (shown,) = (await sessions(cluster, session=talking)).residents
        assert shown.replica == await owner(cluster, talking)
        assert (shown.state, shown.open, shown.readers, shown.fence) == ("turn", (answer["response_id"],), 1, 1)
        assert shown.reason.startswith("new; choice ") and shown.reason.endswith(" of 2")
        resting = await sessions(cluster, state="idle", replica=await owner(cluster, idle))
        assert SessionId(idle) in {each.key.session for each in resting.residents} and not resting.silent
        every = await sessions(cluster)
        paged: list[SessionKey] = []
        while len(paged) < every.total:
            page = await sessions(cluster, limit=1, after="/".join(paged[-1]) if paged else "")
            paged += [each.key for each in page.residents]
            assert len(page.residents) == 1 and page.has_more == (len(paged) < every.total)
        assert paged == [each.key for each in every.residents]
        said = app("sessions", "--config", cluster.settings, "--session", talking).stdout
        assert talking in said and answer["response_id"] in said and "1 of 1 sessions in memory" in said
        await writer.command("response.cancel", session=talking, response_id=answer["response_id"])


def first_wait(*arguments: str) -> dict[str, Any]:
    """What a process that starts logs when it begins to wait for something; it ends in order then."""
    command = [sys.executable, "app.py", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            entries = (json.loads(line) for line in process.stderr if line.startswith("{"))
            entry: dict[str, Any] = next(each for each in entries if each["event"] == "dependency_awaited")
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
    return entry


def test_a_replica_names_the_directory_that_it_waits_for() -> None:
    entry = first_wait("replica", "--directory", "redis://127.0.0.1:1", "--journal", NOWHERE, "--engine", "sim")
    assert entry["name"] == "directory" and "127.0.0.1:1 does not answer" in entry["error"]


def test_a_gateway_names_the_journal_that_it_waits_for(cluster: Cluster) -> None:
    entry = first_wait("gateway", "--config", cluster.settings, "--journal", NOWHERE)
    assert entry["name"] == "journal" and "PostgreSQL at 127.0.0.1:1/nothing cannot be used" in entry["error"]
    assert entry["hint"] == WITHOUT_END


def test_a_replica_with_another_model_is_refused_at_the_start(cluster: Cluster, folder: str) -> None:
    """The same name for a model with another window is fine; with other weights it is not."""
    flags = ("--config", cluster.settings)
    done = subprocess.run(
        [sys.executable, "-c", OTHER_MODEL, "replica", "--name", "stranger", *flags, "--engine", "sim"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert "stranger cannot join replica-1: both serve 'simulated', but its model is " in done.stderr
    shown = app("replicas", "--config", cluster.settings)
    assert "stranger" not in shown.stdout and "2 replicas" in shown.stdout


def test_a_certificate_that_is_not_there_is_said_by_name(cluster: Cluster) -> None:
    done = app("sessions", "--config", cluster.settings, "--peer-authority", "no-such.pem")
    assert done.returncode == 2 and "peer_authority = 'no-such.pem'" in done.stderr, done.stderr


async def test_an_operator_with_another_token_is_told(cluster: Cluster) -> None:
    stranger = PeerSecurity(token="not the token of these")
    found = await list_sessions(ValkeyDirectory(cluster.directory), stranger, SessionQuery())
    assert not found.residents and "the cluster's token is missing or wrong" in found.silent["replica-1"]


async def test_a_killed_owner_is_not_noticed_by_its_readers(cluster: Cluster) -> None:
    async with connected(cluster.url(0)) as writer, connected(cluster.url(1)) as reader:
        session = await writer.create()
        await subscribed(reader, session)
        answer = await writer.command("message.create", session=session, content="Hello", max_output_tokens=60)
        seen: list[Any] = []
        async with asyncio.timeout(60):
            while sum(frame["event"]["type"] == "response.output_text.delta" for frame in seen) < 5:
                seen.append(await reader.events.get())
            os.kill(cluster.replicas[await owner(cluster, session)], signal.SIGKILL)
            seen += await reader.until_end(answer["response_id"])
            told = await writer.until_end(answer["response_id"])
    offsets = [(frame.get("first_offset", frame["offset"]), frame["offset"]) for frame in seen]
    assert all(later[0] == earlier[1] + 1 for earlier, later in pairwise(offsets))
    assert seen[-1]["event"]["type"] in ("response.completed", "response.incomplete")
    assert text_of(seen) == text_of(told)
    migrated = [frame["event"] for frame in seen if frame["event"]["type"] == "session.migrated"]
    assert [event["cause"] for event in migrated] == ["failover"]


async def owner(cluster: Cluster, session: str) -> str:
    """The replica that was granted the session last, by the journal's word."""
    settings = Settings(journal=cluster.journal, master_key=cluster.master_key)
    async with connect_store(settings, lambda: NOW) as store:
        head = await store.journal.head(SessionKey(LOCAL_PRINCIPAL.tenant, SessionId(session)))
    assert head is not None
    return head.owner.split("/", 1)[0]
