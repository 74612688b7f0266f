"""One tenant with one service key does its worst within its limits, in 20 ways: what the others notice of it.

    python -m bench.limits.worst_tenant --seconds 20
    python -m bench.limits.worst_tenant --seconds 3 --only search

Another tenant streams short chats and lists its sessions, one after the other, alone and then beside each way. Each way
comes from a process of its own, which waits where it is refused, to a fresh server with its default limits and the
simulated engine. Of each way: the other's time to the first token and time of a list, p95, against alone; how many of
its requests were refused; what became of the tenant's own.

Bar: both at most 1.5 times what they are alone, and nothing of the other's refused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import httpx

from bench.doors.hostile import BODIES, CHAT, GOOD, RESPONSES, Kind, Stranger, body, frame, http, upgrade
from bench.support import Option, is_faultless, report, run_bench, spread
from tests.support.doors.server_process import ServerProcess
from tests.support.listening_sockets import free_ports
from transport.auth.authenticator import key_digest

OTHER: Final = "sk-of-another"
AT_ONCE: Final = 32
RATIO_MAX: Final = 1.5
PAUSE_S: Final = 0.02
WARM_S: Final = 2.0
BACKOFF_S: Final = 0.5
START_S: Final = 4.0  # until the tenant's process is at it
USER: Final = "x-sessile-user: uNUMBER"
STREAM: Final = body(stream=True, max_tokens=400, ignore_eos=True)
WAYS: Final = (
    Kind("long answers", http(CHAT, STREAM)),
    Kind("long answers of made-up users", http(CHAT, STREAM, USER)),
    Kind("answers that nobody reads", http(CHAT, STREAM, leave="unread")),
    Kind("answers that are left", http(CHAT, STREAM, leave="cut")),
    Kind("16 choices", http(CHAT, body(n=16, temperature=1, max_tokens=100))),
    Kind("long prompts", http(CHAT, body(messages=[{"role": "user", "content": "word " * 6_000}], max_tokens=1))),
    Kind("background", http(RESPONSES, b'{"model": "simulated", "input": "x", "background": true}', USER)),
    Kind("sessions made", http("POST /v1/conversations", b"{}", USER)),
    Kind(
        "items laid",
        http("POST /v1/conversations", json.dumps({"items": [json.loads(body())["messages"][0]] * 20}).encode()),
    ),
    Kind("lists", http("GET /v1/sessions?limit=100")),
    Kind("lists of made-up users", http("GET /v1/sessions?limit=100", b"", USER)),
    Kind("search", http("GET /v1/sessions/search?q=word")),
    Kind("search of made-up users", http("GET /v1/sessions/search?q=wordNUMBER", b"", USER)),
    Kind("logs that are followed", http("GET /v1/sessions/sNUMBER/events")),
    Kind("deep bodies", http(CHAT, BODIES["deep schema"])),
    Kind("wide bodies", http(CHAT, BODIES["many parts"])),
    Kind(
        "wrong bodies", http(RESPONSES, json.dumps({"input": [{"role": "user", "content": [1] * 200}] * 300}).encode())
    ),
    Kind("tokens counted", http("POST /tokenize", json.dumps({"prompt": "word " * 50_000}).encode())),
    Kind("sockets opened", upgrade(frame(b'{"type": "hello"}'))),
    Kind("pings", upgrade(*[frame(b"x", 0x89)] * 500)),
)


class Bystander:
    """Another tenant's client: chats and lists, one after the other."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.ttft_s: list[float] = []
        self.list_s: list[float] = []
        self.refused = 0

    async def stand_by(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        headers = {"authorization": f"Bearer {OTHER}"}
        async with httpx.AsyncClient(base_url=self._url, headers=headers, timeout=60) as client:
            while time.monotonic() < until:
                await self._chat(client)
                began = time.monotonic()
                self.refused += (await client.get("/v1/sessions?limit=20")).status_code != 200
                self.list_s.append(time.monotonic() - began)
                await asyncio.sleep(PAUSE_S)

    async def _chat(self, client: httpx.AsyncClient) -> None:
        began, sent = time.monotonic(), json.loads(body(stream=True, max_tokens=8))
        async with client.stream("POST", "/v1/chat/completions", json=sent) as answer:
            self.refused += answer.status_code != 200
            async for line in answer.aiter_lines():
                if '"content":"' in line and '"content":""' not in line:
                    self.ttft_s.append(time.monotonic() - began)
                    return


def flood(port: int, grpc_port: int, name: str, seconds: float, results: Any) -> None:
    """A process of the tenant: sends what became of its requests."""
    (way,) = (each for each in WAYS if each.name == name)

    async def send() -> Counter[str]:
        outcomes, until, numbers = Counter[str](), time.monotonic() + seconds, iter(range(10**9))
        stranger = Stranger(port, grpc_port)

        async def one() -> None:
            while time.monotonic() < until:
                outcome = await stranger.send(way, next(numbers))
                outcomes[outcome] += 1
                if outcome in ("429", "503"):  # beyond its limits it is as those who are refused should be
                    await asyncio.sleep(BACKOFF_S)

        await asyncio.gather(*(one() for _ in range(AT_ONCE)))
        await stranger.close()
        return outcomes

    results.send(dict(asyncio.run(send())))


async def beside(keys: Path, way: Kind | None, seconds: float) -> dict[str, Any]:
    """Measures the other tenant beside one way of the tenant's, or alone."""
    (grpc_port,) = free_ports(1)
    context, outcomes = multiprocessing.get_context("spawn"), dict[str, int]()
    results, sending = context.Pipe(duplex=False)
    with ServerProcess("--engine", "sim", "--keys", str(keys), "--grpc-port", str(grpc_port)) as server:
        other = Bystander(f"http://127.0.0.1:{server.port}")
        await other.stand_by(WARM_S)
        other.ttft_s.clear()
        other.list_s.clear()
        if way is not None:
            process = context.Process(target=flood, args=(server.port, grpc_port, way.name, seconds + START_S, sending))
            process.start()
            await asyncio.sleep(START_S)
        await other.stand_by(seconds)
        if way is not None:
            outcomes = await asyncio.to_thread(results.recv)
            await asyncio.to_thread(process.join)
    return {
        **spread("ttft_ms_{}", other.ttft_s, "p50 p95", times=1000),
        **spread("list_ms_{}", other.list_s, "p50 p95", times=1000),
        "refused": other.refused,
        "of_the_tenant": outcomes,
    }


async def main(options: argparse.Namespace) -> bool:
    ways = [way for way in WAYS if options.only in way.name]
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.toml"
        lines = "".join(
            f'[[keys]]\nid = "{tenant}"\ntenant = "{tenant}"\nrole = "service"\nsha256 = "{key_digest(key)}"\n'
            for tenant, key in (("worst", GOOD), ("other", OTHER))
        )
        keys.write_text(lines)
        alone = await beside(keys, None, options.seconds)
        rows = {"alone": alone}
        for way in ways:
            row = rows[way.name] = await beside(keys, way, options.seconds)
            for what in ("ttft_ms_p95", "list_ms_p95"):
                ratio = row[f"{what}_ratio"] = row[what] / alone[what]
                if ratio > RATIO_MAX:
                    faults.append(f"{way.name}: {what} {ratio:.2f} x")
            if row["refused"]:
                faults.append(f"{way.name}: {row['refused']} of the other's requests refused")
    report("worst_tenant", {"ways": len(ways), **rows, "verdict": "met" if not faults else "NOT MET"})
    return is_faultless(faults)


if __name__ == "__main__":
    run_bench(main, __doc__, seconds=Option(20.0, "of each way"), only=Option("", "ways with this in their names"))
