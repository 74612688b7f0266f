"""Claims and locates a second on the directory, against bare script calls of the same client in the same run.

    python -m bench.directory [--seconds 5] [--at-once 1 16 64] [--rounds 50] [--url redis://…]

A bare call is one EVALSHA of a script that does one HGET and one HSET on two keys, sent through a redis-py client of
its own (`redis.asyncio`, one connection per call under way, as its pool does by itself): what the same server and
language give without leases, views, error translation or protection against cancellation. The rounds are short
and take turns, so that what else the machine does meets both alike; the lease is kept meanwhile.
Bar: claims >= 0.7 x bare.

Without `--url` it starts a server of its own on a unix socket. That server and this client share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from actors.cluster.membership import Membership
from actors.directory.address import connect
from actors.directory.valkey import ValkeyDirectory
from bench.support import Option, lower_bound, report, run_bench, spread
from sessions.model.types import ActivationId, ReplicaId, SessionId, SessionKey, TenantId
from sessions.ports import Member, Owner
from tests.support.cluster.directories import running
from tests.support.percentiles import percentile

BARE: Final = "redis.call('HGET', KEYS[1], ARGV[1]) redis.call('HSET', KEYS[2], ARGV[1], ARGV[2]) return 1"
SESSIONS: Final = 4096
MEMBER: Final = Member(replica=ReplicaId("r1"), incarnation="i1", address="h:1", model="m", fingerprint="f")
OWNER: Final = Owner(ReplicaId("r1"), "i1", ActivationId("a1"))
RIVAL: Final = Owner(ReplicaId("r1"), "i1", ActivationId("a2"))

Call = Callable[[int], Awaitable[Any]]


async def rate(call: Call, at_once: int, seconds: float) -> tuple[float, list[float]]:
    """Calls a second with `at_once` under way, and how long each took."""
    loop = asyncio.get_running_loop()
    took_s: list[float] = []
    began_s = loop.time()
    end_s = began_s + seconds

    async def worker(first: int) -> None:
        number = first
        while (start_s := loop.time()) < end_s:
            await call(number)
            took_s.append(loop.time() - start_s)
            number += at_once

    async with asyncio.TaskGroup() as workers:
        for first in range(at_once):
            workers.create_task(worker(first))
    return len(took_s) / (loop.time() - began_s), took_s


async def measure(url: str, arguments: argparse.Namespace) -> None:
    directory = ValkeyDirectory(url)
    await directory.open()
    bare = connect(url)
    membership = Membership(directory, MEMBER)
    await membership.start()
    keeping = asyncio.create_task(membership.run())
    try:
        keys = [SessionKey(TenantId("t"), SessionId(f"ses_{number:08}")) for number in range(SESSIONS)]
        sha = await bare.script_load(BARE)

        async def claim(number: int) -> None:
            claim = await directory.claim(keys[number % SESSIONS], OWNER)
            assert claim.won

        async def lose(number: int) -> None:
            claim = await directory.claim(keys[number % SESSIONS], RIVAL)
            assert not claim.won

        async def locate(number: int) -> None:
            assert await directory.locate(keys[number % SESSIONS]) == OWNER

        async def bare_call(number: int) -> None:
            partition = number % 64
            await bare.evalsha(
                sha, 2, f"{{b:{partition}}}:1", f"{{b:{partition}}}:2", f"ses_{number % SESSIONS:08}", "value"
            )

        for number in range(SESSIONS):
            await claim(number)
        for at_once in arguments.at_once:
            calls: dict[str, Call] = {"bare": bare_call, "claim": claim, "lost claim": lose, "locate": locate}
            rates: dict[str, list[float]] = {name: [] for name in calls}
            took_s: dict[str, list[float]] = {name: [] for name in calls}
            for _ in range(arguments.rounds):
                for name, call in calls.items():
                    per_second, took = await rate(call, at_once, arguments.seconds / arguments.rounds)
                    rates[name].append(per_second)
                    took_s[name] += took
            figures: dict[str, Any] = {"at once": at_once, "rounds": arguments.rounds}
            for name, values in rates.items():
                figures[f"{name}s/s"] = sum(values) / len(values)
                figures |= spread(name + " {} ms", took_s[name], times=1e3)
            pairs = [mine / theirs for mine, theirs in zip(rates["claim"], rates["bare"], strict=True)]
            figures["claims against bare, median"] = percentile(pairs, 0.5)
            figures["claims against bare, 95% lower bound"] = lower_bound(pairs)
            report("directory", figures)
        loop = asyncio.get_running_loop()
        announcements_s = []
        for _ in range(50):
            began_s = loop.time()
            await directory.announce(MEMBER)
            announcements_s.append(loop.time() - began_s)
        report("directory announcement", {"p50 ms": percentile(announcements_s, 0.5) * 1e3})
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await bare.aclose()
        await directory.close()


async def main(arguments: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        url = arguments.url or stack.enter_context(running()).unix_url
        await measure(url, arguments)


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        seconds=Option(5.0, "of measuring each kind of call at each concurrency"),
        rounds=50,
        at_once=Option([1, 16, 64], "calls under way"),
        url=Option("", "a server to measure; it gets keys of the bench"),
    )
