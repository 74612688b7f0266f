"""Backups as an operator meets them: a server that ships, that is killed, and a restore that readers hear of."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import websockets

ROOT = Path(__file__).resolve().parents[3]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "app.py", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, env=dict(os.environ)
    )


@contextmanager
def serving(data: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    words = ["serve", "--engine", "sim", "--port", "0", "--data", str(data), "--sim-tokens-per-s", "500", *flags]
    with subprocess.Popen(
        [sys.executable, "app.py", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None
            ready = re.search(r"ready: (\S+)/", server.stdout.readline())
            assert ready
            yield server, ready[1]
        finally:
            server.kill()


class Client:
    """A WebSocket that sends commands and collects what it hears."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    async def until(self, matches: Any) -> dict[str, Any]:
        while True:
            frames = json.loads(await asyncio.wait_for(self._socket.recv(), 60))
            for frame in frames if isinstance(frames, list) else [frames]:
                if matches(frame):
                    return dict(frame)

    async def send(self, **frame: Any) -> None:
        await self._socket.send(json.dumps(frame))


async def a_turn(url: str) -> tuple[str, str, int]:
    """(session, epoch, offset) after one answer."""
    async with websockets.connect(url.replace("http", "ws") + "/v1/ws", subprotocols=["sessile.v1+json"]) as socket:  # type: ignore[list-item]
        client = Client(socket)
        await client.send(type="hello")
        await client.until(lambda frame: frame["type"] == "ready")
        await client.send(type="session.create", id="01J00000000000000000000001")
        made = await client.until(lambda frame: frame["type"] == "ok")
        session = made["session"]
        await client.send(type="subscribe", id="01J00000000000000000000002", session=session, offset=0)
        await client.send(type="message.create", id="01J00000000000000000000003", session=session, content="Hello")
        done = await client.until(
            lambda frame: frame["type"] == "event" and frame["event"]["type"] == "response.completed"
        )
        return session, done["epoch"], done["offset"]


async def test_a_killed_server_is_restored_and_its_readers_are_reset(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    flags = ("--backup", str(backup), "--backup-interval-s", "0.1")
    with serving(data, *flags) as (server, url):
        session, epoch, offset = await a_turn(url)
        server.send_signal(signal.SIGTERM)  # it ships the rest before it ends
        server.wait(20)
    verified = run("backup", "verify", "--backup", str(backup), "--data", str(data), "--json")
    assert verified.returncode == 0 and json.loads(verified.stdout)["findings"] == [], verified.stderr
    refused = run("backup", "restore", "--backup", str(backup), "--data", str(data))
    assert refused.returncode == 2 and "has a journal already" in refused.stderr
    other = tmp_path / "other"
    other.mkdir()
    locked = run("backup", "restore", "--backup", str(backup), "--data", str(other))
    assert locked.returncode == 2 and "master" in locked.stderr
    restored = run(
        "backup", "restore", "--backup", str(backup), "--data", str(other), "--master-key", str(data / "master.key")
    )
    assert restored.returncode == 0 and "1 sessions" in restored.stdout, restored.stderr
    with serving(other, "--master-key", str(data / "master.key"), "--backup", str(backup)) as (server, url):
        async with websockets.connect(url.replace("http", "ws") + "/v1/ws", subprotocols=["sessile.v1+json"]) as socket:  # type: ignore[list-item]
            client = Client(socket)
            resume = [{"session": session, "epoch": epoch, "offset": offset}]
            await client.send(type="hello", resume=resume)
            resumed = await client.until(lambda frame: frame["type"] == "resumed")
            assert (resumed["mode"], resumed["reason"]) == ("reset", "journal_restored")
            assert len(resumed["state"]["items"]) == 2
            await client.send(type="message.create", id="01J00000000000000000000009", session=session, content="Go on")
            assert (await client.until(lambda frame: frame["type"] in ("ok", "error")))["type"] == "ok"
    shown = run(
        "backup",
        "run",
        "--backup",
        str(backup),
        "--data",
        str(other),
        "--json",
        "--master-key",
        str(data / "master.key"),
    )
    assert shown.returncode == 0 and json.loads(shown.stdout)["segment"] > 0, shown.stderr


def test_what_is_wrong_is_a_sentence(tmp_path: Path) -> None:
    for words, expected in (
        (("backup", "verify"), "--backup"),
        (("backup", "restore", "--backup", str(tmp_path), "--at", "yesterday"), "2026-"),
        (("backup", "restore", "--backup", str(tmp_path), "--session", "s"), "--tenant"),
        (
            ("serve", "--engine", "sim", "--port", "0", "--journal", "memory", "--backup", str(tmp_path)),
            "--journal sqlite",
        ),
        (("backup", "run", "--backup", "ftp://host/x", "--data", str(tmp_path)), "folder"),
    ):
        done = run(*words)
        assert done.returncode == 2 and expected in done.stderr, done.stderr
