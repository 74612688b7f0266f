"""How long a history is looked up among a million stored messages, and that nobody gets another's.

    python -m bench.openai.history_lookup --messages 1000000 --collisions 100000

Three look-ups, each of histories of which half are known: the index of one process, that of a cluster's gateways in
Valkey (which stores `--valkey-messages`), and the snapshots of one caller, sought by tokens. Bar: p99 ≤ 2 ms. Then
histories and prompts word for word those of another are sought under other tenants, keys, users, end users, models, and
with the parts of a name moved about between them (`a/b` and `c`, `a` and `b/c`). Bar: 0 found. Exits with 1 when a bar
is missed.
"""

from __future__ import annotations

import argparse
import array
import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from bench.support import report, run_bench, spread
from inference.kv.index import Blob, SnapshotIndex
from sessions.model import commands as cm
from sessions.model.generation import cache_scope_of
from sessions.model.types import ItemId, Principal, SessionId, SessionKey, TenantId
from tests.support.cluster.directories import Server
from transport.gateway_store.valkey import ValkeyGatewayStore, ValkeyHistory
from transport.openai.history import (
    HistoryIndex,
    HistoryPlace,
    MemoryHistory,
    Unit,
    caller_of,
    chain_root,
    extend_chain_all,
    find_history,
    look_up,
    opening_of,
)
from transport.ops.process_tuning import tune_process

P99_MAX_MS: Final = 2.0
EXCHANGES: Final = 5  # of a conversation: ten messages
SOUGHT: Final = 5_000
TOKENS: Final = 40  # of a message, for the index of snapshots
CALLER: Final = Principal(tenant=TenantId("t"), key_id="k", user="u")
STATELESS: Final = {"store": False}
SECRET: Final = bytes(32)


def units_of(number: int) -> list[Unit]:
    """The messages of a conversation."""
    units = []
    for turn in range(EXCHANGES):
        units.append(Unit((cm.NewMessage(content=f"question {turn} of conversation {number}"),)))
        units.append(Unit((cm.NewMessage(role="assistant", content=f"answer {turn} of {number}"),), answer=True))
    return units


def changed(units: Sequence[Unit], rng: random.Random) -> list[Unit]:
    """With another text in one place, and one more question."""
    at = rng.randrange(len(units))
    other = Unit((cm.NewMessage(content=f"other words {rng.random()}"),), answer=units[at].answer)
    return [*units[:at], other, *units[at + 1 :], Unit((cm.NewMessage(content="and then?"),))]


async def filled(index: HistoryIndex, messages: int, principal: Principal = CALLER) -> int:
    """Puts that many messages there; returns how many conversations they are."""
    conversations = messages // (2 * EXCHANGES)
    for number in range(conversations):
        root = chain_root(principal, None, "m", (), None)
        session = SessionId(f"ses_{number}")
        behind = extend_chain_all(root, units_of(number))
        puts = (index.put(chain, HistoryPlace(session, ItemId(f"msg_{at}"))) for at, chain in enumerate(behind))
        opening = opening_of(caller_of(principal, None, "m"), None, root, behind)
        await asyncio.gather(*puts, index.mark(*opening, session))
    return conversations


async def looked_up(index: HistoryIndex, conversations: int, rng: random.Random) -> list[float]:
    """The seconds that each look-up took, its hashes included."""
    seconds = []
    for _ in range(SOUGHT):
        units = changed(units_of(rng.randrange(2 * conversations)), rng)
        begun = time.perf_counter()
        root = chain_root(CALLER, None, "m", (), None)
        behind = extend_chain_all(root, units)
        if index.shared:
            await look_up(index, opening_of(caller_of(CALLER, None, "m"), None, root, behind), behind, units)
        else:
            await find_history(index, behind, units)
        seconds.append(time.perf_counter() - begun)
    return seconds


@dataclass(frozen=True, eq=False, slots=True)
class IndexedKv:
    """A snapshot, as the index of a tier sees one."""

    key: SessionKey
    tokens: array.array[int]
    scope: Blob
    bytes: int = 1 << 20


def tokens_of(number: int, rng: random.Random) -> array.array[int]:
    """All conversations begin with the same message."""
    same = range(TOKENS)
    return array.array("I", itertools.chain(same, rng.choices(range(49_152), k=TOKENS * (2 * EXCHANGES - 1))))


def snapshots_looked_up(conversations: int, rng: random.Random) -> list[float]:
    index, scope = SnapshotIndex[IndexedKv](), cache_scope_of(CALLER, STATELESS)
    held = []
    for number in range(conversations):
        held.append(tokens_of(number, rng))
        index.add(IndexedKv(SessionKey(CALLER.tenant, SessionId(f"ses_{number}")), held[-1], scope))
    seconds = []
    for _ in range(SOUGHT):
        prompt = rng.choice(held)[: rng.randrange(TOKENS, 2 * EXCHANGES * TOKENS)]
        prompt.extend(rng.choices(range(49_152), k=TOKENS))
        begun = time.perf_counter()
        _, shared = index.nearest(CALLER.tenant, scope, prompt)
        seconds.append(time.perf_counter() - begun)
        assert shared >= TOKENS
    return seconds


class NamedCaller(NamedTuple):
    """A caller, and what it says of itself."""

    principal: Principal
    end_user: str | None
    model: str


def strangers(count: int, rng: random.Random) -> list[NamedCaller]:
    """Callers whose names are made of the same few parts, put together in other ways; none is `CALLER`'s."""
    parts = ["t", "k", "u", "k/u", "u/k", "", "\0", "k\0u", "t\0k", "null", "None", "[]"]
    made = list[NamedCaller]()
    while len(made) < count:
        tenant, key, user, end_user, model = (rng.choice(parts) + rng.choice(["", "/", "x"]) for _ in range(5))
        who = NamedCaller(
            Principal(tenant=TenantId(tenant), key_id=key, user=rng.choice([user, None])),
            rng.choice([end_user, None]),
            rng.choice([model, "m"]),
        )
        if (who.principal.tenant, who.principal.key_id, who.principal.user) != ("t", "k", "u"):
            made.append(who)
    return made


async def crossings(index: HistoryIndex, conversations: int, count: int, rng: random.Random) -> int:
    """How often another caller finds what `CALLER` has stored, by history, by opening or by tokens."""
    shelf, scope = SnapshotIndex[IndexedKv](), cache_scope_of(CALLER, STATELESS)
    prompt = tokens_of(0, rng)
    shelf.add(IndexedKv(SessionKey(CALLER.tenant, SessionId("ses_0")), prompt, scope))
    found = 0
    for who in strangers(count, rng):
        units = units_of(rng.randrange(conversations))
        root = chain_root(who.principal, who.end_user, who.model, (), None)
        behind = extend_chain_all(root, units)
        found += await find_history(index, behind, units) is not None
        opening = opening_of(caller_of(who.principal, who.end_user, who.model), None, root, behind)
        found += await index.nearest(*opening) is not None
        request = STATELESS | ({} if who.end_user is None else {"user": who.end_user})
        theirs = cache_scope_of(who.principal, request)
        found += shelf.nearest(who.principal.tenant, theirs, prompt)[1] > 0
        found += shelf.nearest(CALLER.tenant, theirs, prompt)[1] > 0
    return found


async def measured(name: str, look_up: Callable[[], Awaitable[list[float]]]) -> dict[str, float]:
    return spread(f"{name} {{}} ms", await look_up(), "p50 p99 max", times=1000)


async def in_memory(messages: int, collisions: int, rng: random.Random) -> dict[str, Any]:
    index = MemoryHistory(time.monotonic, places_max=messages)
    conversations = await filled(index, messages)
    figures: dict[str, Any] = await measured("one process:", lambda: looked_up(index, conversations, rng))
    foreign = await crossings(index, conversations, collisions, rng)
    return figures | {"found by others (bar 0)": foreign, "tried": collisions}


async def main(given: argparse.Namespace) -> bool:
    rng = random.Random(given.seed)
    figures: dict[str, Any] = {"messages": given.messages, "messages in Valkey": given.valkey_messages}
    figures |= await in_memory(given.messages, given.collisions, rng)
    conversations = given.messages // (2 * EXCHANGES)
    tune_process()  # as a gateway is
    server = Server()
    server.start()
    store = ValkeyGatewayStore(server.unix_url, clock=time.monotonic, timeout_s=30)
    try:
        shared = ValkeyHistory(store, SECRET)
        there = await filled(shared, given.valkey_messages)
        figures |= await measured("Valkey:", lambda: looked_up(shared, there, rng))
        figures["found by others in Valkey (bar 0)"] = await crossings(shared, there, given.collisions // 10, rng)
    finally:
        await store.close()
        server.stop()
    figures |= spread("snapshots: {} ms", snapshots_looked_up(conversations, rng), "p50 p99 max", times=1000)
    report("history_lookup", figures)
    late = [name for name, value in figures.items() if name.endswith("p99 ms") and value > P99_MAX_MS]
    return not (late or figures["found by others (bar 0)"] or figures["found by others in Valkey (bar 0)"])


if __name__ == "__main__":
    run_bench(main, __doc__, messages=1_000_000, valkey_messages=1_000_000, collisions=100_000, seed=1)
