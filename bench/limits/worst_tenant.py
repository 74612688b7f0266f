"""One tenant with one service key does its worst within its limits, in 20 ways: what the others notice of it.

    python -m bench.limits.worst_tenant --seconds 20
    python -m bench.limits.worst_tenant --seconds 5 --only search

Another tenant streams short chats and lists its sessions, one after the other: first without the worst one, then beside
one way. In both halves a third tenant has one answer written after the other, so that the engine is at work: who comes
to an idle engine has a step begun for it, who comes to any other waits for the end of the one under way, and that is
no tenant's doing. Each way has a fresh server with its default limits and the simulated engine, so that alone and
beside are two halves of one run. The tenant is a process of its own, which begins 32 requests at a time and waits
`BACKOFF_S` where it is refused: answers that it leaves or does not read on it leaves once their status has come,
because who goes on where he was refused is not within his limits.

Server, tenant and the other have cores of their own, as far as there are enough: the server has the first to itself,
and the tenant is niced, so that what is measured is what the server does, and not which client the machine runs first.

Figures of each way: the other's time to the first token and time of a list, p50 and p95, alone and beside; how many of
its requests were refused; what became of the tenant's own.

Bar: both p95 at most 1.5 times what they are alone, and nothing of the other's refused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

from bench.doors.hostile import BODIES, CHAT, GOOD, RESPONSES, Kind, Stranger, body, frame, http, upgrade
from bench.support import Option, is_faultless, report, run_bench, spread
from deploy.cluster import free_port
from testbed.server_process import ServerProcess
from transport.auth.authenticator import key_digest

OTHER: Final = "sk-of-another"
THIRD: Final = "sk-of-a-third"
AT_ONCE: Final = 32
RATIO_MAX: Final = 1.5
PAUSE_S: Final = 0.02
WARM_S: Final = 2.0
BACKOFF_S: Final = 0.5
USER: Final = "x-sessile-user: uNUMBER"
STREAM: Final = body(stream=True, max_tokens=400, ignore_eos=True)
WAYS: Final = (
    Kind("long answers", http(CHAT, STREAM)),
    Kind("long answers of made-up users", http(CHAT, STREAM, USER)),
    Kind("answers that nobody reads", http(CHAT, STREAM, leave="unread_on")),
    Kind("answers that are left", http(CHAT, STREAM, leave="cut_on")),
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


class Times(NamedTuple):
    """The times in seconds that a tenant's client waited."""

    ttft_s: list[float]
    list_s: list[float]
    refused: int


class Bystander:
    """Another tenant's client: chats and lists, one after the other."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def stand_by(self, seconds: float) -> Times:
        ttft_s, list_s, refused = list[float](), list[float](), 0
        until = time.monotonic() + seconds
        headers = {"authorization": f"Bearer {OTHER}"}
        async with httpx.AsyncClient(base_url=self._url, headers=headers, timeout=60) as client:
            while time.monotonic() < until:
                first_s = await self._chat(client)
                began = time.monotonic()
                refused += (await client.get("/v1/sessions?limit=20")).status_code != 200
                list_s.append(time.monotonic() - began)
                refused += first_s is None
                ttft_s += [] if first_s is None else [first_s]
                await asyncio.sleep(PAUSE_S)
        return Times(ttft_s, list_s, refused)

    async def _chat(self, client: httpx.AsyncClient) -> float | None:
        """Returns the seconds to the first token; None: it was refused, or never came."""
        began, sent = time.monotonic(), json.loads(body(stream=True, max_tokens=8))
        async with client.stream("POST", "/v1/chat/completions", json=sent) as answer:
            async for line in answer.aiter_lines():
                if '"content":"' in line and '"content":""' not in line:
                    return time.monotonic() - began
        return None


async def keep_writing(url: str) -> None:
    """Has answers of the third tenant written, one after the other, until it is cancelled."""
    async with httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {THIRD}"}, timeout=60) as client:
        while True:
            (await client.post("/v1/chat/completions", json=json.loads(STREAM))).raise_for_status()


def flood(port: int, grpc_port: int, name: str, cores: set[int], pipe: Any) -> None:
    """A process of the tenant: says when it has begun, goes on until it is told to end, sends what became of it."""
    os.sched_setaffinity(0, cores)
    os.nice(19)
    (way,) = (each for each in WAYS if each.name == name)

    async def send() -> Counter[str]:
        outcomes, numbers, end = Counter[str](), iter(range(10**9)), asyncio.Event()
        stranger = Stranger(port, grpc_port)
        asyncio.get_running_loop().add_reader(pipe.fileno(), end.set)

        async def one() -> None:
            while not end.is_set():
                outcome = await stranger.send(way, next(numbers))
                outcomes[outcome] += 1
                if outcome in ("429", "503"):  # beyond its limits it is as those who are refused should be
                    await asyncio.sleep(BACKOFF_S)

        pipe.send("begun")
        workers = [asyncio.create_task(one()) for _ in range(AT_ONCE)]
        await end.wait()
        await asyncio.wait(workers, timeout=BACKOFF_S)
        for worker in workers:
            worker.cancel()
        await stranger.close()
        return outcomes

    pipe.send(dict(asyncio.run(send())))


async def beside(keys: Path, way: Kind, seconds: float) -> dict[str, Any]:
    """Measures the other tenant alone, and then beside one way of the tenant's."""
    grpc_port = free_port()
    context, cores = multiprocessing.get_context("spawn"), sorted(os.sched_getaffinity(0))
    ours, theirs = context.Pipe()
    server = ServerProcess("--engine", "sim", "--keys", str(keys), "--grpc-port", str(grpc_port))
    os.sched_setaffinity(0, cores[:1])  # the server and its threads have it from us
    try:
        with server:
            os.sched_setaffinity(0, cores[1:2] or cores)
            url = f"http://127.0.0.1:{server.port}"
            tenants_own = set(cores[2:] or cores[1:] or cores)
            process = context.Process(target=flood, args=(server.port, grpc_port, way.name, tenants_own, theirs))
            other = Bystander(url)
            async with asyncio.TaskGroup() as tasks:  # what ends the third one ends the measurement
                third = tasks.create_task(keep_writing(url))
                await other.stand_by(WARM_S)
                alone = await other.stand_by(seconds)
                process.start()
                await asyncio.to_thread(ours.recv)
                watched = await other.stand_by(seconds)
                third.cancel()
            ours.send("end")
            outcomes = await asyncio.to_thread(ours.recv)
            await asyncio.to_thread(process.join)
    finally:
        os.sched_setaffinity(0, cores)
    row: dict[str, Any] = {"samples": len(watched.ttft_s)}
    for when, times in (("alone", alone), ("beside", watched)):
        row |= spread(f"ttft_ms_{{}}_{when}", times.ttft_s, "p50 p95", times=1000)
        row |= spread(f"list_ms_{{}}_{when}", times.list_s, "p50 p95", times=1000)
    return {**row, "refused": alone.refused + watched.refused, "of_the_tenant": outcomes}


async def main(options: argparse.Namespace) -> bool:
    ways = [way for way in WAYS if options.only in way.name]
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.toml"
        lines = "".join(
            f'[[keys]]\nid = "{tenant}"\ntenant = "{tenant}"\nrole = "service"\nsha256 = "{key_digest(key)}"\n'
            for tenant, key in (("worst", GOOD), ("other", OTHER), ("third", THIRD))
        )
        keys.write_text(lines)
        rows: dict[str, Any] = {}
        for way in ways:
            row = rows[way.name] = await beside(keys, way, options.seconds)
            for what in ("ttft_ms_p95", "list_ms_p95"):
                ratio = row[f"{what}_ratio"] = row[f"{what}_beside"] / row[f"{what}_alone"]
                if ratio > RATIO_MAX:
                    faults.append(f"{way.name}: {what} {ratio:.2f} x")
            if row["refused"]:
                faults.append(f"{way.name}: {row['refused']} of the other's requests refused")
            shown = {key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}
            print(f"{way.name}: {shown}", flush=True)
    report("worst_tenant", {"ways": len(ways), **rows, "verdict": "met" if not faults else "NOT MET"})
    return is_faultless(faults)


if __name__ == "__main__":
    only = Option("", "ways with this in their names")
    run_bench(main, __doc__, seconds=Option(20.0, "alone, and beside each way"), only=only)
