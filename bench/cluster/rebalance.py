"""Throughput of two replicas when every session's hash names one of them, against sessions that hash evenly.

    python -m bench.cluster.rebalance [--sessions 64] [--seconds 20] [--think-s 1]

A whole cluster in one process under virtual time, so that no load of this machine shows: the real gateway, links,
placement and rebalancing, and simulated engines whose step costs 40 ms and 1 ms for each stream in the batch, as
batched decoding does. People speak, wait for the answer (100 tokens), think, and speak again. Runs: hashes that are
even; hashes that all name one replica; and everybody talking on one replica before the other joins. What is counted is
tokens that readers were told, from `--settle-s` after the beginning (or the joining).
"""

from __future__ import annotations

import argparse
import asyncio
import random

from actors.cluster.rendezvous import ranking
from actors.routing.router import Router
from bench.support import report, run_bench
from inference.simulated import SimulatedOptions
from sessions.model.events import OutputTextDelta
from sessions.model.types import ReplicaId, SessionId, SessionKey
from sessions.ports import Member, Published
from tests.support.cluster.harness import cluster
from tests.support.cluster.real import ALICE, Story, create, say
from tests.support.virtual_time import run

TOKENS = 100
ENGINE = SimulatedOptions(
    step_base_s=0.04, step_per_stream_s=0.001, answer_tokens_mean=0, slots=32, prefill_tokens_per_s=5_000.0
)


def named(count: int, first: tuple[str, ...]) -> list[str]:
    """Sessions whose hashes name these replicas first, in turn."""
    members = [
        Member(replica=ReplicaId(name), incarnation="", address="", model="", fingerprint="") for name in ("r1", "r2")
    ]
    found: list[str] = []
    number = 0
    while len(found) < count:
        name = f"s{number}"
        number += 1
        if ranking(SessionKey(ALICE.tenant, SessionId(name)), members)[0] == first[len(found) % len(first)]:
            found.append(name)
    return found


class TokenCounter:
    def __init__(self) -> None:
        self.tokens = 0

    def sink(self, published: Published) -> None:
        # The simulated engine's tokens are words; readers are not told token ids.
        self.tokens += sum(
            len(record.event.delta.split()) for record in published.records if isinstance(record.event, OutputTextDelta)
        )


async def person(router: Router, name: str, counter: TokenCounter, rng: random.Random, think_s: float) -> None:
    key = await create(router, name)
    story = Story(router, key)
    router.watch(key, counter.sink)
    while True:
        await asyncio.sleep(think_s * 2 * rng.random())
        await story.ends(await say(router, key, tokens=TOKENS), 300.0)


async def throughput(sessions: list[str], given: argparse.Namespace, *, late: bool) -> tuple[float, int]:
    """Tokens a second, and how many sessions were moved. `late`: the second replica joins when everybody talks."""
    counter, rng = TokenCounter(), random.Random(7)
    async with cluster(replicas=1 if late else 2, engine_options=ENGINE) as made:
        router = made.gateways["g1"].router
        talks = [asyncio.create_task(person(router, name, counter, rng, given.think_s)) for name in sessions]
        if late:
            await asyncio.sleep(5.0)
            await made.add_replica("r2")
        await asyncio.sleep(given.settle_s)
        before = counter.tokens
        await asyncio.sleep(given.seconds)
        rate = (counter.tokens - before) / given.seconds
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        return rate, sum(each.replica.rebalancer.moved for each in made.replicas.values())


def measured(given: argparse.Namespace) -> None:
    both, one = named(given.sessions, ("r1", "r2")), named(given.sessions, ("r1",))
    even, _ = run(throughput(both, given, late=False))
    skewed, skewed_moves = run(throughput(one, given, late=False))
    joined, joined_moves = run(throughput(both, given, late=True))
    report(
        "cluster_rebalance",
        {
            "sessions": given.sessions,
            "think_s": given.think_s,
            "even_per_s": even,
            "skewed_per_s": skewed,
            "skewed_share": skewed / even,
            "skewed_moves": skewed_moves,
            "joined_per_s": joined,
            "joined_share": joined / even,
            "joined_moves": joined_moves,
        },
    )


if __name__ == "__main__":
    run_bench(measured, __doc__, sessions=64, seconds=20.0, settle_s=15.0, think_s=1.0)
