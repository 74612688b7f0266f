"""The cache of answers: whose they are, where they lie, what is kept."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any, NamedTuple

import pytest
from redis.exceptions import ResponseError

from actors.directory.pipelined_connection import NotSent, ReplyLost
from actors.results.cache import ProcessKeys, TenantResultCache, make_results
from actors.results.store import ENTRY_OVERHEAD_BYTES, MemoryResultStore, StoredResult
from actors.results.valkey import ValkeyResultStore
from sessions.limits import Limits, LimitsNow, TenantLimits
from sessions.metrics import Metrics
from sessions.model.errors import OutcomeUnknown, Unavailable
from sessions.model.generation import Chunk
from sessions.model.types import Principal, SessionId, SessionKey, TenantId
from sessions.turn.ledger import PromptPlan
from sessions.turn.result_cache import ResultLookup
from tests.support.cluster.scripted_servers import ScriptedServers

ON = TenantLimits(result_cache_s=60, result_cache_bytes=5_000)
PLAN = PromptPlan(array("I", [1]), array("I"), 0, 10, 0, None)
TEXT = "Paris, of course."


class Key:
    def __init__(self, id: str, secret: bytes) -> None:
        self.id, self.secret = id, secret


class Keys:
    """One key a tenant, until it is made anew."""

    def __init__(self) -> None:
        self.made: dict[str, Key] = {}
        self.away = False

    async def writing(self, tenant: TenantId) -> Key:
        if self.away:
            raise Unavailable("keys_unavailable", "The keys are away.")
        return self.made.setdefault(tenant, Key("k1", tenant.encode().ljust(32, b"x")))


class Personal:
    def __init__(self) -> None:
        self.gate: asyncio.Event | None = None

    async def is_personal(self, principal: Principal, text: str) -> bool:
        if "unreadable" in text:
            raise RuntimeError("no scanner takes this")
        if self.gate is not None:
            await self.gate.wait()
        return "@" in text


class Made:
    def __init__(self, **tenants: TenantLimits) -> None:
        self.keys, self.personal, self.metrics = Keys(), Personal(), Metrics()
        self.store = MemoryResultStore(1 << 20, lambda: 0.0)
        limits = Limits(tenants=dict(tenants))
        self.cache = TenantResultCache(self.store, self.keys, lambda: limits, self.personal, self.metrics)

    async def find(self, request: bytes = b"q", *, tenant: str = "acme", session: str = "s") -> ResultLookup:
        return await self.cache.find(SessionKey(TenantId(tenant), SessionId(session)), request, PLAN)

    async def keep(self, lookup: ResultLookup, *texts: str, text: str = TEXT) -> None:
        lookup.record(Chunk((1, 2), text))
        lookup.close()
        await self.cache.store(lookup, Principal(tenant=lookup.key.tenant, key_id="k"), [*texts, text])

    @property
    def outcomes(self) -> dict[Any, float]:
        return dict(self.metrics.counter("result_cache_stores", "", "outcome").values)


async def test_what_lies_in_the_store_opens_in_its_own_place_only_and_under_its_own_key() -> None:
    made = Made(acme=ON, other=ON)
    await made.keep(await made.find())
    await made.keep(await made.find(b"q2"), text="Rome.")
    sealed = next(iter(made.store._entries[TenantId("acme")].values()))[0].body
    assert TEXT.encode() not in sealed
    other_name = (await made.find(b"q2")).name
    for tenant, place in (("acme", other_name), ("other", (await made.find(tenant="other")).name)):
        await made.store.put(TenantId(tenant), StoredResult(place, b"m", sealed), ttl_s=60, bytes_max=5_000)
    assert (await made.find(b"q2")).answer is None
    assert (await made.find(tenant="other")).answer is None
    made.keys.made["acme"] = Key("k2", b"y" * 32)  # the old one was destroyed
    assert (await made.find()).answer is None
    for body in (b"", b"short", sealed[:-1] + bytes([sealed[-1] ^ 1])):
        lookup = await made.find()
        await made.store.put(TenantId("acme"), StoredResult(lookup.name, b"m", body), ttl_s=60, bytes_max=5_000)
        assert (await made.find()).answer is None


async def test_personal_and_long_answers_are_left_out() -> None:
    made = Made(acme=ON)
    await made.keep(await made.find(), "mail me at a@b.example")
    await made.keep(await made.find(), text="x" * 6_000)
    assert (await made.find()).answer is None
    assert made.outcomes == {("personal",): 1, ("too_large",): 1}


async def test_a_text_that_cannot_be_judged_costs_its_place_and_nothing_else() -> None:
    made = Made(acme=ON)
    await made.keep(await made.find(), "unreadable")
    assert (await made.find()).answer is None and made.outcomes == {("unavailable",): 1}


async def test_nothing_is_stored_once_its_session_or_tenant_was_forgotten() -> None:
    made = Made(acme=ON)
    for forgets_tenant in (True, False):
        lookup = await made.find()
        if forgets_tenant:
            await made.cache.forget_tenant(TenantId("acme"))
        else:
            await made.cache.forget_session(SessionKey(TenantId("acme"), SessionId("s")))
        await made.keep(lookup)
        assert (await made.find()).answer is None
    lookup, kept = await made.find(session="a"), await made.find(b"q2", session="b")
    await made.keep(kept)
    made.personal.gate = asyncio.Event()
    storing = asyncio.create_task(made.keep(lookup))
    await asyncio.sleep(0)
    await made.cache.forget_session(SessionKey(TenantId("acme"), SessionId("a")))
    made.personal.gate.set()
    await storing
    assert (await made.find()).answer is None, "it was forgotten while it was on its way"
    assert (await made.find(b"q2")).answer is not None


async def test_a_store_that_is_away_is_a_miss() -> None:
    made = Made(acme=ON)
    await made.keep(await made.find())
    made.keys.away = True
    lookup = await made.find()
    assert (lookup.answer, lookup.outcome) == (None, "miss")
    await made.keep(lookup)
    await made.cache.forget_session(SessionKey(TenantId("acme"), SessionId("s")))
    assert made.outcomes[("unavailable",)] == 1


class Limited(NamedTuple):
    now: LimitsNow


LIMITED = Limited(lambda: Limits(default=TenantLimits(result_cache_s=60)))


def configured(
    directory: str = "", megabytes: int = 1, keys: Any = None, limited: Any = LIMITED
) -> TenantResultCache | None:
    return make_results(directory, megabytes, keys, limited, None, Metrics())  # type: ignore[arg-type]


async def test_alone_it_lies_in_memory_and_in_a_cluster_on_its_valkey() -> None:
    alone, shared = configured(), configured("redis://127.0.0.1", keys=ProcessKeys())
    assert alone is not None and isinstance(alone._store, MemoryResultStore)
    assert shared is not None and isinstance(shared._store, ValkeyResultStore)
    await shared.close()


def test_there_is_none_without_room_limits_or_keys_to_share_it_under() -> None:
    assert configured(megabytes=0) is None
    assert configured(limited=None) is None
    assert configured("redis://127.0.0.1") is None


ONE, TWO = TenantId("one"), TenantId("two")


async def test_all_tenants_together_are_bounded_and_counted() -> None:
    size = 1_000
    store = MemoryResultStore(3 * (size + ENTRY_OVERHEAD_BYTES), lambda: 0.0)
    for number, tenant in enumerate((ONE, TWO, ONE, TWO)):
        result = StoredResult(bytes([number]), b"m", bytes(size))
        await store.put(tenant, result, ttl_s=10, bytes_max=1 << 20)
    assert [await store.get(tenant, bytes([n])) is None for n, tenant in enumerate((ONE, TWO, ONE, TWO))] == [
        True,
        False,
        False,
        False,
    ], "the one that had most made room"
    assert len(store) == 3 and store.size == 3 * (size + ENTRY_OVERHEAD_BYTES)
    await store.put(ONE, StoredResult(b"x", b"m", bytes(1 << 20)), ttl_s=10, bytes_max=1 << 30)
    assert len(store) == 3, "it would have taken more than all of the room"
    await store.drop(TWO, None)
    assert store.size == size + ENTRY_OVERHEAD_BYTES
    await store.close()
    assert (len(store), store.size) == (0, 0)


@pytest.mark.parametrize(
    ("error", "kind"),
    [(NotSent("x"), Unavailable), (ResponseError("OOM"), Unavailable), (ReplyLost("x"), OutcomeUnknown)],
)
async def test_what_went_wrong_is_an_error_of_ours(error: Exception, kind: type[Exception]) -> None:
    store = ValkeyResultStore("redis://127.0.0.1")
    store._servers = ScriptedServers(error)  # type: ignore[assignment]
    with pytest.raises(kind):
        await store.drop(TenantId("t"), None)
