"""Processes that start before their Valkey and their PostgreSQL: real ones, and real servers."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from testbed.postgres_server import PostgresServer
from testbed.valkey_server import Server, free_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 60.0


class Started:
    """A process of ours; `line` and `log` wait for what it prints and logs."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def line(self, begin: str) -> str:
        """The rest of the next line that begins so."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while text := (await self.process.stdout.readline()).decode():
                if text.startswith(begin):
                    return text.removeprefix(begin).strip()
        raise AssertionError(f"it ended without {begin!r}")

    async def awaited(self, name: str) -> dict[str, object]:
        """The next log line that says so of a dependency."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            while text := await self.process.stderr.readline():
                entry = json.loads(text) if text.startswith(b"{") else {}
                if entry.get("event") == "dependency_awaited" and entry.get("name") == name:
                    return entry
        raise AssertionError(f"it ended without waiting for the {name}")


@asynccontextmanager
async def started(role: str, *flags: str, **settings: str) -> AsyncIterator[Started]:
    variables = {f"SESSILE_{name.upper()}": value for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "app.py", role, "--metrics-port", "0", *flags),
        cwd=ROOT,
        env=os.environ | variables,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        yield Started(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def answer(client: httpx.AsyncClient, url: str) -> tuple[int, str]:
    response = await client.get(url)
    return response.status_code, response.text


async def doctor(*flags: str, **settings: str) -> tuple[int, dict[str, dict[str, str]]]:
    """The status of `./sessile doctor`, and its findings by part."""
    variables = {f"SESSILE_{name.upper()}": value for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "app.py", "doctor", "--json", *flags), cwd=ROOT, env=os.environ | variables, stdout=PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, {each["part"]: each for each in json.loads(output)}


@pytest.mark.timeout(180)
async def test_they_wait_alive_and_not_ready_and_start_when_it_comes(tmp_path: Path) -> None:
    valkey, postgres, port = Server(port=free_port()), PostgresServer(), free_port()
    shared = {"directory": valkey.url, "journal": postgres.dsn, "peer_token": secrets.token_hex(16)}
    try:
        async with (
            started("gateway", "--port", str(port), **shared) as gateway,
            started("replica", "--engine", "sim", "--data", str(tmp_path), **shared) as replica,
            httpx.AsyncClient(timeout=60) as client,
        ):
            door = f"http://127.0.0.1:{port}"
            inner = (await gateway.line("Metrics are ready: ")).removesuffix("/metrics")
            await gateway.awaited("journal")
            assert (await answer(client, f"{door}/healthz"))[0] == 200
            assert await answer(client, f"{inner}/healthz") == (200, "ok\n")
            status, text = await answer(client, f"{door}/readyz")
            assert (status, json.loads(text)["reason"]) == (503, "waiting for the journal")
            assert await answer(client, f"{inner}/readyz") == (503, "waiting for the journal\n")
            refused = await client.post(f"{door}/v1/chat/completions", json={})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "starting")

            own = (await replica.line("Metrics are ready: ")).removesuffix("/metrics")
            await replica.awaited("directory")
            assert await answer(client, f"{own}/healthz") == (200, "ok\n")
            assert await answer(client, f"{own}/readyz") == (503, "waiting for the directory\n")

            postgres.start()
            entry = await gateway.awaited("directory")
            assert str(valkey.port) in str(entry["error"]) and isinstance(entry["next_try_s"], float)
            valkey.start()
            await replica.line("Replica is ready: ")
            await gateway.line("Sessile is ready: ")
            assert await answer(client, f"{own}/readyz") == (200, "ok\n")
            async with asyncio.timeout(PATIENCE_S):
                while (await answer(client, f"{door}/readyz"))[0] != 200:
                    pass  # until it has looked for replicas again
            assert await answer(client, f"{inner}/readyz") == (200, "ok\n")

            code, findings = await doctor("--gateways", door, "--data", str(tmp_path), **shared)
            assert code == 0 and findings.keys() >= {"directory", "journal", "disk", f"gateway {door}"}
            assert {each["level"] for each in findings.values()} == {"ok"}

            replica.process.send_signal(signal.SIGTERM)
            await replica.process.wait()
            async with asyncio.timeout(PATIENCE_S):
                while (found := await answer(client, f"{door}/readyz"))[0] == 200:
                    pass
            assert json.loads(found[1])["reason"] == "no replica is reachable"
            postgres.stop()
            code, findings = await doctor("--gateways", door, **shared)
            assert code == 1 and findings["directory"]["level"] == "ok"
            assert findings[f"gateway {door}"]["text"] == "is not ready: no replica is reachable"
            assert {findings[part]["level"] for part in ("journal", "replicas")} == {"error"}
    finally:
        valkey.stop()
        postgres.remove()


@pytest.mark.timeout(120)
async def test_a_server_without_a_cluster_says_that_it_waits_for_its_journal(tmp_path: Path) -> None:
    journal = f"postgresql://user@127.0.0.1:{free_port()}/none"
    flags = ("--engine", "sim", "--port", "0", "--data", str(tmp_path))
    async with started("serve", *flags, journal=journal) as server, httpx.AsyncClient(timeout=60) as client:
        await server.awaited("journal")
        own = (await server.line("Metrics are ready: ")).removesuffix("/metrics")
        assert await answer(client, f"{own}/healthz") == (200, "ok\n")
        assert await answer(client, f"{own}/readyz") == (503, "waiting for the journal\n")
        server.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(server.process.wait(), PATIENCE_S) == 0


@pytest.mark.timeout(120)
async def test_a_stop_signal_ends_a_start_that_waits(tmp_path: Path) -> None:
    nowhere = {"directory": f"redis://127.0.0.1:{free_port()}", "peer_token": secrets.token_hex(16)}
    journal = f"postgresql://user@127.0.0.1:{free_port()}/none"
    async with started("replica", "--engine", "sim", "--data", str(tmp_path), journal=journal, **nowhere) as replica:
        await replica.awaited("directory")
        replica.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(replica.process.wait(), PATIENCE_S) == 0
