"""The Python client through a network that cuts, delays and goes silent, and over kills of the server.

A round is one client behind a proxy of its own (`testbed.chaos.proxy`) that has a conversation of two turns while
the proxy does its worst; one in eight uses the client without async. What the program was shown is then held against
the log, which is read past the client: from the journal itself, or from offset 0 over a connection without faults.

Wrong is: a text that differs from the log's, an offset that was shown twice, never or out of order, a message that
stands in the log more than once, a turn that does not end.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from sessile_client import Client, Event, Limits, Lost, Session, sync

from inference.simulated import SimulatedOptions
from sessions.model.types import SessionId, SessionKey, TenantId
from testbed.chaos.proxy import Flow, Proxy
from testbed.server_process import ServerProcess
from testbed.wire_client import connected
from tests.support.doors.assembly import Assembly, assembled
from transport.http_api.server import ServerLimits
from transport.protocol.connection import ConnectionLimits, ConnectionTiming

TURNS = 2
QUICK = Limits(backoff_first_s=0.02, backoff_max_s=0.2, dial_timeout_s=1.0, ready_timeout_s=1.0, command_timeout_s=None)
SHORT = ServerLimits(connection=ConnectionLimits(timing=ConnectionTiming(heartbeat_s=0.4, silence_s=0.6)))
ENGINE = SimulatedOptions(step_base_s=0.004, answer_tokens_mean=40)
ROUND_S = 60.0
FAULTS = ("cut", "cut", "cut", "delay", "hole_up", "hole_down", "half_open", "reset", "stall", "rate")


class Shown(NamedTuple):
    """What one program saw: its answers, and every offset that it was told of, in order."""

    session: str
    answers: list[str]
    offsets: list[int]


class Logged(NamedTuple):
    """What the log says: the answers in order of their beginning, its top, the messages of the user, and how often an
    answer went on under another activation."""

    answers: list[str]
    top: int
    messages: int
    migrations: int = 0


def faults_of(shown: Shown, logged: Logged) -> list[str]:
    """Everything that is wrong with a round; empty when the text equals the log."""
    found = []
    if shown.answers != logged.answers:
        found.append(f"shown {shown.answers!r}, logged {logged.answers!r}")
    if shown.offsets and shown.offsets != list(range(shown.offsets[0], logged.top + 1)):
        found.append(f"offsets {shown.offsets} of {logged.top}")
    if logged.messages != len(shown.answers):
        found.append(f"{logged.messages} messages for {len(shown.answers)} turns")
    return found


def logged_of(events: Sequence[dict[str, Any]], top: int) -> Logged:
    answers: dict[str, str] = {}
    messages = migrations = 0
    for event in events:
        if event["type"] == "response.created":
            answers[event["response_id"]] = ""
        elif event["type"] == "response.output_text.delta":
            answers[event["response_id"]] += event["delta"]
        elif event["type"] == "item.created" and event["item"]["role"] == "user":
            messages += 1
        elif event["type"] == "session.migrated":
            migrations += 1
    return Logged(list(answers.values()), top, messages, migrations)


# -- what the network does ---------------------------------------------------------------------------------------------


async def misbehave(proxy: Proxy, rng: random.Random, done: Counter[str]) -> None:
    """Up to three faults at random moments, then a good network. Cancelled when the round ends before that.

    A connection that lost bytes in a hole is reset before the hole closes: TCP never goes on behind lost bytes."""
    for _ in range(rng.randint(1, 3)):
        await asyncio.sleep(rng.uniform(0.0, 0.3))
        fault = rng.choice(FAULTS)
        done[fault] += 1
        match fault:
            case "cut":
                within = rng.choice((40, 400, 4000))
                flow = Flow(cut_within_bytes=within, cut_by=rng.choice(("reset", "close")))
                proxy.set(down=flow) if rng.random() < 0.7 else proxy.set(up=flow)
            case "delay":
                proxy.set(up=Flow(delay_s=0.03, jitter_s=0.05), down=Flow(delay_s=0.03, jitter_s=0.1))
            case "hole_up":
                proxy.set(up=Flow(hole=True))
            case "hole_down":
                proxy.set(down=Flow(hole=True))
            case "half_open":
                proxy.half_open(rng.choice(("client", "target")))
            case "reset":
                proxy.reset()
            case "stall":
                proxy.set(down=Flow(stalled=True))
            case "rate":
                proxy.set(down=Flow(rate_bytes_s=20_000))
        await asyncio.sleep(rng.uniform(0.05, 0.9))
        if fault in ("hole_up", "hole_down"):
            proxy.reset()
        proxy.heal()


# -- the programs ------------------------------------------------------------------------------------------------------


async def converse(url: str, rng: random.Random, turns: int = TURNS, **sampling: Any) -> Shown:
    """A program with asyncio: the answers piece by piece, and beside them every event."""
    offsets: list[int] = []

    async def follow(session: Session) -> None:
        async for entry in session.events():
            if isinstance(entry, Event):
                offsets.extend(range(entry.first_offset, entry.offset + 1))

    encoding: Any = rng.choice(("json", "msgpack"))
    async with Client(url, encoding=encoding, limits=QUICK, rng=random.Random(rng.random())) as client:
        session = await client.create_session(title="Through a tunnel")
        following = asyncio.create_task(follow(session))
        answers = [
            "".join([piece async for piece in session.send(f"Turn {turn}", **sampling)]) for turn in range(turns)
        ]
        await session.cancel()  # nothing is open: its answer stands behind every event
    await following
    return Shown(session.id, answers, offsets)


def converse_sync(url: str, rng: random.Random, turns: int = TURNS, **sampling: Any) -> Shown:
    """A program without it, in a thread of its own."""
    encoding: Any = rng.choice(("json", "msgpack"))
    with sync.Client(url, encoding=encoding, limits=QUICK, rng=random.Random(rng.random())) as client:
        overdue = threading.Timer(ROUND_S, client.close)  # a thread cannot be cancelled
        overdue.daemon = True
        overdue.start()
        session = client.create_session(title="Through a tunnel")
        try:
            answers = ["".join(session.send(f"Turn {turn}", **sampling)) for turn in range(turns)]
        finally:
            overdue.cancel()
        return Shown(session.id, answers, [])


# -- rounds through the network ----------------------------------------------------------------------------------------


async def log_of(assembly: Assembly, session: str) -> Logged:
    """The log as the journal has it."""
    key = SessionKey(TenantId("local"), SessionId(session))
    events: list[dict[str, Any]] = []
    after = 0
    while True:
        page = await assembly.journal.read(key, after=after, limit=1000, bytes_max=1 << 20)
        assert page is not None
        if not page.records:
            return logged_of(events, after)
        events += [msgspec.to_builtins(record.event) for record in page.records]
        after = page.records[-1].offset


async def round_of(assembly: Assembly, seed: str, number: int, done: Counter[str]) -> tuple[list[str], float]:
    rng = random.Random(f"{seed}/{number}")
    started = time.monotonic()
    async with Proxy(("127.0.0.1", assembly.server.port), seed=rng.randrange(1 << 30)) as proxy:
        url = f"ws://127.0.0.1:{proxy.port}/v1/ws"
        misbehaving = asyncio.create_task(misbehave(proxy, rng, done))
        try:
            async with asyncio.timeout(ROUND_S):
                if number % 8:
                    shown = await converse(url, rng)
                else:
                    shown = await asyncio.to_thread(converse_sync, url, rng)
        except (TimeoutError, Lost):
            return [f"round {number}: not over within {ROUND_S:g} s"], time.monotonic() - started
        finally:
            misbehaving.cancel()
            await asyncio.gather(misbehaving, return_exceptions=True)
        done["connections"] += proxy.counts.connections
        done["cut_by_bytes"] += proxy.counts.cuts
        done["swallowed"] += proxy.counts.swallowed
    found = faults_of(shown, await log_of(assembly, shown.session))
    return [f"round {number}: {fault}" for fault in found], time.monotonic() - started


async def rounds(count: int, seed: str, at_once: int = 12) -> dict[str, Any]:
    """So many rounds; what was wrong stands under `faults`."""
    faults: list[str] = []
    seconds: list[float] = []
    done: Counter[str] = Counter()
    numbers = iter(range(count))

    async def work(assembly: Assembly) -> None:
        for number in numbers:
            found, took = await round_of(assembly, seed, number, done)
            faults.extend(found)
            seconds.append(took)

    started = time.monotonic()
    async with assembled(engine=ENGINE, limits=SHORT) as assembly, asyncio.TaskGroup() as workers:
        for _ in range(at_once):
            workers.create_task(work(assembly))
    return {
        "rounds": len(seconds),
        "faults": faults,
        "seconds": time.monotonic() - started,
        "round_s_p50": statistics.median(seconds),
        "round_s_max": max(seconds),
        **dict(sorted(done.items())),
    }


# -- kills -------------------------------------------------------------------------------------------------------------


async def log_over_the_wire(url: str, session: str) -> Logged:
    """The log as a device sees it that comes for the first time, over a good connection."""
    async with connected(url) as wire:
        await wire.command("subscribe", session=session, offset=0)
        while (await wire.others.get())["type"] != "caught_up":
            pass
        frames = [wire.events.get_nowait() for _ in range(wire.events.qsize())]
    offset = 0
    for frame in frames:
        assert frame.get("first_offset", frame["offset"]) == offset + 1, "the replay has a hole"
        offset = frame["offset"]
    return logged_of([frame["event"] for frame in frames], offset)


async def kills(count: int, seed: str) -> dict[str, Any]:
    """So many kills of a real server in mid-answer, with a program of either kind reading."""
    rng = random.Random(seed)
    faults: list[str] = []
    done: Counter[str] = Counter()
    back: list[float] = []
    flags = ("--engine", "sim", "--sim-tokens-per-s", "100", "--sim-answer-tokens", "0")
    server = ServerProcess(*flags)
    try:
        await asyncio.to_thread(server.start)
        for number in range(count):
            async with Proxy(("127.0.0.1", server.port), seed=number) as proxy:
                url = f"ws://127.0.0.1:{proxy.port}/v1/ws"
                options = {"turns": 1, "max_output_tokens": 150}
                programs = [
                    asyncio.create_task(converse(url, rng, **options)),
                    asyncio.create_task(asyncio.to_thread(converse_sync, url, rng, **options)),
                ]
                await bytes_beyond(proxy, rng.randint(2_000, 12_000))
                server.kill()
                proxy.set(down=Flow(delay_s=0.02, jitter_s=0.1))
                back.append(await asyncio.to_thread(server.start))
                async with asyncio.timeout(ROUND_S):
                    shown = await asyncio.gather(*programs)
                done["connections"] += proxy.counts.connections
            for each in shown:
                logged = await log_over_the_wire(server.url, each.session)
                found = faults_of(each, logged)
                done["went_on_after_the_kill"] += logged.migrations > 0
                faults.extend(f"kill {number}: {fault}" for fault in found)
                done["answers"] += len(each.answers)
                done["characters"] += sum(map(len, each.answers))
    finally:
        server.__exit__()
    return {"kills": count, "faults": faults, "restart_s_p50": statistics.median(back), **done}


async def bytes_beyond(proxy: Proxy, amount: int) -> None:
    """Until so many bytes have come down: both programs are in the middle of their answers then."""
    async with asyncio.timeout(ROUND_S):
        while proxy.counts.bytes_down < amount:  # noqa: ASYNC110 - a proxy tells of no byte
            await asyncio.sleep(0.005)
