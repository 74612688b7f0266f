"""The cluster as its commands start it: real processes, Valkey, PostgreSQL; an owner is killed in mid-answer."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from bench.support import Wire, connected, text_of
from persistence import open_journal
from sessions.types import LOCAL_PRINCIPAL, SessionId, SessionKey

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.cluster


class Cluster:
    """What the starter printed: where gateways listen, and the process ids of replicas."""

    def __init__(self, lines: list[str]) -> None:
        text = "\n".join(lines)
        self.ports = [int(port) for port in re.findall(r"gateway-\d+: .*127\.0\.0\.1:(\d+)/", text)]
        self.journal = next(line.removeprefix("journal: ") for line in lines if line.startswith("journal: "))
        self.replicas = {name: int(pid) for name, pid in re.findall(r"(replica-\d+): .*\(pid (\d+)\)", text)}

    def url(self, gateway: int) -> str:
        return f"ws://127.0.0.1:{self.ports[gateway]}/v1/ws"


@pytest.fixture
def folder() -> Iterator[str]:
    """One that PostgreSQL may enter under an account of its own, which it needs where the tests run as root."""
    with tempfile.TemporaryDirectory(prefix="sessile-cluster-") as path:
        os.chmod(path, 0o755)
        yield path


@pytest.fixture
def cluster(folder: str) -> Iterator[Cluster]:
    flags = ["--engine", "sim", "--sim-tokens-per-s", "20", "--log-level", "error"]
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


async def subscribed(wire: Wire, session: str) -> None:
    await wire.command("subscribe", session=session, offset=0)


async def test_a_killed_owner_is_not_noticed_by_its_readers(cluster: Cluster) -> None:
    async with connected(cluster.url(0)) as writer, connected(cluster.url(1)) as reader:
        session = await writer.create()
        await subscribed(reader, session)
        answer = await writer.command("message.create", session=session, content="Hello", max_output_tokens=60)
        seen = []
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
    journal = open_journal(cluster.journal, folder=None)
    await journal.open()
    try:
        head = await journal.head(SessionKey(LOCAL_PRINCIPAL.tenant, SessionId(session)))
    finally:
        await journal.close()
    assert head is not None
    return head.owner.split("/", 1)[0]
