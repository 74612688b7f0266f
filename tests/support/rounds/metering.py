"""Rounds of kill -9 at random moments: is every token billed, once, and does the usage stream have it?

Each round: a handful of clients ask, each in a session of its own, some cancel; the server (simulated engine, SQLite,
prices, a usage stream on a real Valkey, or with `--kafka` a topic of librdkafka's mock cluster) is killed at a random
moment, among others while it relays rows, and started again on the same data. Commands without an answer are repeated
by their ids. A consumer reads the stream all the while. At the end every answer is waited for; then the rows are read
over the API, the server stops, and `app.py usage reconcile` holds them against the logs.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import redis.asyncio as redis

from deploy.cluster import valkey
from testbed.server_process import ROOT, ServerProcess
from testbed.wire_client import connected, new_ulid
from tests.support.stores.kafka_broker import KafkaBroker, KafkaConsumer
from tests.support.stores.usage_rows import UsageRows

PRICES = """
currency = "USD"

[[prices]]
model = "*"
input = 0.15
cached = 0.05
output = 0.600001
"""
STREAM = "bills"
QUIET_S = 90.0


class ValkeyConsumer(UsageRows):
    """Reads the stream from its beginning."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._client = redis.Redis.from_url(url)

    async def run(self) -> None:
        last = b"0"
        while not self._stopped:  # and not by cancelling it, which redis-py has swallowed
            entries: list[tuple[bytes, dict[bytes, bytes]]]
            streams: Any = await self._client.xread({STREAM: last}, count=500, block=200)
            for _, entries in streams:
                last = entries[-1][0]
                for _, fields in entries:
                    self.take(msgspec.json.decode(fields[b"row"]))

    async def close(self) -> None:
        await self._client.aclose()


async def one_client(server: ServerProcess, session: str, asks: list[dict[str, Any]], chance: random.Random) -> None:
    """Repeats what was asked before and may have had no answer, asks one thing more, perhaps cancels it; ends with the
    server."""
    with contextlib.suppress(Exception):
        async with connected(server.url) as wire:
            for ask in asks[-2:]:
                answer = await wire.command("message.create", **ask)
            if chance.random() < 0.25:
                await asyncio.sleep(chance.uniform(0, 0.4))
                cancel = {"session": session, "response_id": answer["response_id"]}
                await wire.command("response.cancel", **cancel)
            await wire.socket.wait_closed()


async def one_round(
    server: ServerProcess, sessions: dict[str, list[dict[str, Any]]], chance: random.Random, kill_within_s: float
) -> None:
    """Asks in every session, kills the server, starts it again."""
    for session, asks in sessions.items():
        content = f"Tell me number {len(asks)}. " + "more " * chance.randrange(20)
        fields = {"session": session, "content": content, "queue": True, "max_output_tokens": chance.randrange(1, 60)}
        asks.append({"id": new_ulid(), **fields})
    clients = [asyncio.create_task(one_client(server, session, asks, chance)) for session, asks in sessions.items()]
    await asyncio.sleep(chance.uniform(0.02, kill_within_s))
    server.kill()
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    await asyncio.to_thread(server.start)


async def settled(server: ServerProcess) -> None:
    """Repeats nothing any more; waits until no answer is open."""
    base = server.url.replace("ws://", "http://").removesuffix("/v1/ws")
    async with httpx.AsyncClient(base_url=base, timeout=60) as http, asyncio.timeout(QUIET_S):
        while True:
            listed = (await http.get("/v1/sessions", params={"limit": 100})).json()
            if not any(session["open"] for session in listed["data"]):
                return
            await asyncio.sleep(0.2)


async def table_of(server: ServerProcess) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Every row, over the API, page by page."""
    base = server.url.replace("ws://", "http://").removesuffix("/v1/ws")
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    async with httpx.AsyncClient(base_url=base, timeout=60) as http:
        after = 0
        while True:
            page = (await http.get("/v1/usage/responses", params={"limit": 500, "after": after})).json()
            rows |= {(row["tenant"], row["session"], row["response_id"]): row for row in page["data"]}
            if not page["has_more"]:
                return rows
            after = page["last_id"]


def reconciled(data: str) -> dict[str, Any]:
    """What `app.py usage reconcile` says of a folder that no server uses."""
    command = [sys.executable, "app.py", "usage", "reconcile", "--json", "--data", data, "--log-level", "error"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if not ran.stdout:
        raise RuntimeError(ran.stderr)
    found: dict[str, Any] = msgspec.json.decode(ran.stdout)
    return found


def stream_of(kafka: bool, folder: Path, stack: contextlib.ExitStack) -> tuple[str, ValkeyConsumer | KafkaConsumer]:
    """A stream that runs, as `--usage-stream` names it, and who reads it."""
    if kafka:
        broker = KafkaBroker(STREAM)
        stack.callback(broker.kill)
        address = broker.start()
        return f"kafka://{address}/{STREAM}", KafkaConsumer(address, STREAM)
    url = valkey(folder / "valkey", stack)
    return f"{url}?stream={STREAM}", ValkeyConsumer(url)


async def rounds(
    number: int, *, seed: int, clients: int = 6, kill_within_s: float = 1.2, kafka: bool = False
) -> dict[str, Any]:
    """The figures; `faults` is empty where the bar is met."""
    chance = random.Random(seed)
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sessile-metering-")))
        (folder / "prices.toml").write_text(PRICES)
        stream, consumer = stream_of(kafka, folder, stack)
        flags = ["--engine", "sim", "--slots", "8", "--sim-tokens-per-s", "100", "--sim-answer-tokens", "40"]
        (folder / "usage-stream").write_text(stream)  # its password is for no command line
        flags += ["--prices", str(folder / "prices.toml"), "--usage-stream-file", str(folder / "usage-stream")]
        server = ServerProcess(*flags, data=str(folder / "data"))
        server.start()
        consuming = asyncio.create_task(consumer.run())
        try:
            async with connected(server.url) as wire:
                sessions: dict[str, list[dict[str, Any]]] = {
                    str((await wire.command("session.create"))["session"]): [] for _ in range(clients)
                }
            for _ in range(number):
                await one_round(server, sessions, chance, kill_within_s)
            await settled(server)
            rows = await table_of(server)
            async with asyncio.timeout(QUIET_S):
                await consumer.has(len(rows))
            server.stop()
        finally:
            consumer.stop()
            await asyncio.wait([consuming])
            await consumer.close()
            if server.process is not None and server.process.poll() is None:
                server.kill()
        found = await asyncio.to_thread(reconciled, server.data)
    billed, logged = found["billed"], found["logged"]
    faults = consumer.faults + [str(each) for each in found["differences"]]
    if consumer.rows != rows:
        faults.append(f"the consumer has {len(consumer.rows)} rows, the table {len(rows)}")
    if billed != logged:
        faults.append(f"billed {billed}, in the logs {logged}")
    if logged["output_tokens"] != logged["ledger_tokens"]:
        faults.append(f"{logged['output_tokens']} output tokens, {logged['ledger_tokens']} token ids in the logs")
    if len(rows) != billed["responses"] or not rows:
        faults.append(f"{len(rows)} rows over the API, {billed['responses']} in the table")
    return {
        "stream": "Kafka (mock cluster)" if kafka else "Valkey",
        "seed": seed,
        "rounds": number,
        "responses": billed["responses"],
        "input tokens billed": billed["input_tokens"],
        "input tokens in the logs": logged["input_tokens"],
        "output tokens billed": billed["output_tokens"],
        "token ids in the logs": logged["ledger_tokens"],
        "cost billed (picos)": billed["cost"],
        "cost in the logs (picos)": logged["cost"],
        "retried tokens": sum(row["retried_tokens"] for row in rows.values()),
        "ended by": dict(collections.Counter(row["status"] for row in rows.values())),
        "rows the consumer saw": consumer.seen.total(),
        "of these repeated": consumer.seen.total() - len(consumer.rows),
        "seconds": round(time.monotonic() - begun),
        "faults": faults,
    }
