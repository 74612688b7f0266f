"""Answers that nobody reads, with gateways and replicas killed around their end: one push each, and none to who reads.

    python -m bench.clients.push_once --rounds 1000 --seed 1

Real processes on Valkey and PostgreSQL, the simulated engine, and a push service that decrypts as a device would. In
each round `--sessions` sessions are asked at once by connections that go away, and one more that a device reads; then
a member is killed (kill -9) at a random moment around the answers' end, and started again. Counted is what the device
is told: pushes by their ids, and apart from that messages that came more than once (a relay that died between the push
service's answer and its own note sends again, under the same topic and id, and the device shows one).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from bench.support import is_faultless, report, run_bench
from sessions.model.push import GRACE_MS
from tests.support.chaos.cluster import ChaosCluster, chaos_cluster, key_of
from tests.support.chaos.device import Device, device
from tests.support.doors.push_service import PushService, vapid_pem
from tests.support.doors.wire_client import SUBPROTOCOL, new_ulid

SECRET_OF_ANA: Final = "sk-ana-of-the-bench-0123456789abcdef"
USER: Final = {"authorization": f"Bearer {SECRET_OF_ANA}"}
IDS: Final = {"v", "id", "cause", "session", "response", "offset"}
SECRET: Final = "nightjar"
TOKENS: Final = 20
RATE: Final = 25
PATIENCE_S: Final = 90.0


async def command(cluster: ChaosCluster, rng: random.Random, kind: str, **fields: Any) -> dict[str, Any]:
    """Sends a command over a connection that goes away when it is answered; repeats it by its id until it is."""
    frame = {"type": kind, "id": new_ulid(), **fields}
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                url = rng.choice(cluster.urls)
                async with connect(
                    url, subprotocols=[SUBPROTOCOL], additional_headers=USER, close_timeout=0, open_timeout=5
                ) as socket:
                    await socket.send(json.dumps({"type": "hello"}))
                    await socket.send(json.dumps(frame))
                    async for data in socket:
                        read = json.loads(data)
                        for each in read if isinstance(read, list) else [read]:
                            if each.get("id") == frame["id"] and each["type"] == "ok":
                                return dict(each)
                            if each["type"] == "error" and not each["error"].get("retryable"):
                                raise RuntimeError(str(each))
            except (OSError, WebSocketException, TimeoutError, IndexError):
                await asyncio.sleep(0.1)


class PushRounds:
    def __init__(self, cluster: ChaosCluster, service: PushService, reader: Device, rng: random.Random) -> None:
        self.cluster, self.service, self.reader, self.rng = cluster, service, reader, rng
        self.doors: tuple[str, ...] = ()  # flags of gateways
        self.findings: list[str] = []
        self.unread = self.read = self.repeats = self.kills = 0
        self.late_s: list[float] = []

    async def once(self, sessions: int) -> None:
        came_before = len(self.service.pushes)
        made = [await self._session() for _ in range(sessions + 1)]
        await self.reader.read(made[-1])
        asked_at = time.monotonic()
        await asyncio.gather(*(self._ask(session) for session in made))
        name = self.rng.choice(list(self.cluster.members))
        await asyncio.sleep(max(0.0, TOKENS / RATE + self.rng.uniform(-0.5, 1.5) - (time.monotonic() - asked_at)))
        await self.cluster.members[name].kill()
        self.kills += 1
        await self.cluster.start(name, *(self.doors if name.startswith("g") else ()))
        self.reader.urls = self.cluster.urls  # a gateway comes back on another port
        ends = await self._ended(made)
        await self._told(made[:-1], came_before)
        self._judge(made, ends, came_before)

    async def _session(self) -> str:
        return str((await command(self.cluster, self.rng, "session.create"))["session"])

    async def _ask(self, session: str) -> None:
        asked = {"session": session, "content": SECRET, "max_output_tokens": TOKENS}
        await command(self.cluster, self.rng, "message.create", **asked)

    async def _ended(self, sessions: list[str]) -> dict[str, str]:
        """The response of each session, once all have ended in the journal."""
        ends: dict[str, str] = {}
        async with asyncio.timeout(PATIENCE_S):
            while len(ends) < len(sessions):
                for session in sessions:
                    for entry in await self.cluster.store.usage.of_session(key_of(session)):
                        ends[session] = entry.row.response_id
                await asyncio.sleep(0.1)
        return ends

    async def _told(self, sessions: list[str], after: int) -> None:
        """Waits until every session was told, then until a claim of whoever was killed has ended and nothing waits."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            told = {push.said["session"] for push in self.service.pushes[after:]}
            if told >= set(sessions):
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(GRACE_MS / 1000 + 2)

    def _judge(self, made: list[str], ends: dict[str, str], after: int) -> None:
        come: dict[str, Counter[str]] = {}
        for push in self.service.pushes[after:]:
            said = push.said
            come.setdefault(said["session"], Counter())[said["id"]] += 1
            if set(said) != IDS or SECRET in str(said) or ends.get(said["session"]) != said["response"]:
                self.findings.append(f"a push says {said}")
        for session in made[:-1]:
            told = come.pop(session, Counter[str]())
            self.unread += 1
            self.repeats += sum(told.values()) - len(told)
            if len(told) != 1:
                self.findings.append(f"{session}: told of {len(told)} times")
        self.read += 1
        if told := come.pop(made[-1], Counter[str]()):
            self.findings.append(f"{made[-1]} was read, and told of {sum(told.values())} times")
        if come:
            self.findings.append(f"told again of {sorted(come)}")


@asynccontextmanager
async def opened(rng: random.Random) -> AsyncIterator[PushRounds]:
    with tempfile.TemporaryDirectory(prefix="sessile-bench-") as folder:
        key = Path(folder) / "push.pem"
        key.write_bytes(vapid_pem())
        key.chmod(0o600)
        keys, digest = Path(folder) / "keys.toml", hashlib.sha256(SECRET_OF_ANA.encode()).hexdigest()
        keys.write_text(f'[[keys]]\nid = "ana"\ntenant = "local"\nuser = "ana"\nrole = "user"\nsha256 = "{digest}"\n')
        keys.chmod(0o600)
        push = ("--push-key", str(key), "--push-contact", "mailto:us@example.org", "--push-networks", "127.0.0.0/8")
        engine = ("--engine", "sim", "--sim-answer-tokens", "0", "--sim-tokens-per-s", str(RATE), "--slots", "64")
        async with (
            PushService() as service,
            chaos_cluster(*engine, *push, names=("r1", "r2")) as cluster,
        ):
            doors = ("--keys", str(keys))
            for name in ("g1", "g2"):
                await cluster.start(name, *doors)
            base = cluster.urls[0].replace("ws", "http", 1).removesuffix("/v1/ws")
            async with httpx.AsyncClient(base_url=base) as http:
                said = service.device("phone")
                (await http.post("/v1/push/subscriptions", json=said, headers=USER)).raise_for_status()
            async with device(*cluster.urls, key=SECRET_OF_ANA) as reader:
                rounds = PushRounds(cluster, service, reader, rng)
                rounds.doors = doors
                yield rounds


async def main(arguments: argparse.Namespace) -> bool:
    started = time.monotonic()
    async with opened(random.Random(arguments.seed)) as rounds:
        for number in range(arguments.rounds):
            await rounds.once(arguments.sessions)
            print(f"{number}: {rounds.unread} unread, {len(rounds.findings)} findings", flush=True)
    report(
        "push_once",
        {
            "kills": rounds.kills,
            "answers that nobody reads": rounds.unread,
            "answers that a device reads": rounds.read,
            "not told of exactly once, or told while read": len(rounds.findings),
            "messages sent twice under one id": rounds.repeats,
            "seconds": round(time.monotonic() - started),
        },
    )
    return is_faultless(rounds.findings)


if __name__ == "__main__":
    run_bench(main, __doc__, rounds=1000, seed=1, sessions=5)
