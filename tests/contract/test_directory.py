"""The contract of the directory (`sessions.ports.Directory`, `actors.directory.Leases`), on every implementation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from actors.directory import LEASE_TTL_S, PARTITIONS, Leases, partition_of
from actors.directory.rules import GRACE_TTLS
from sessions.model.errors import Conflict, Unavailable
from sessions.model.types import ActivationId, ReplicaId, SessionId, SessionKey, TenantId
from sessions.ports import Member, Owner
from tests.support.cluster.directories import World, world_of

EVERYWHERE = frozenset(range(PARTITIONS))


@pytest.fixture(
    params=[
        "memory",
        pytest.param("valkey", marks=pytest.mark.cluster),
        pytest.param("cluster", marks=pytest.mark.cluster),
    ]
)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    fixtures = {"valkey": "one_valkey", "cluster": "many_valkeys"}
    servers = request.getfixturevalue(fixtures[request.param]) if request.param in fixtures else []
    async with world_of(request.param, servers) as world:
        yield world


@pytest.fixture
async def directory(world: World) -> Leases:
    return await world.handle()


def member(replica: str, incarnation: str = "i1", **fields: object) -> Member:
    defaults: dict[str, object] = {"address": f"{replica}:7000", "model": "m", "fingerprint": "f"}
    return Member(replica=ReplicaId(replica), incarnation=incarnation, **(defaults | fields))  # type: ignore[arg-type]


def owner(replica: str, incarnation: str = "i1", activation: str = "a1") -> Owner:
    return Owner(ReplicaId(replica), incarnation, ActivationId(activation))


def key(session: str, tenant: str = "t") -> SessionKey:
    return SessionKey(TenantId(tenant), SessionId(session))


KEYS = [key(f"s{n}") for n in range(100)]
KEY = KEYS[0]


async def test_a_member_is_in_the_view_of_everybody(world: World, directory: Leases) -> None:
    other = await world.handle()
    first = await directory.announce(member("r1", load=0.25))
    second = await other.announce(member("r2", draining=True))
    assert first.members == (member("r1", load=0.25),)
    assert second.members == (member("r1", load=0.25), member("r2", draining=True))
    assert await directory.view() == await other.view()
    assert (await directory.view()).members == second.members
    assert (await directory.view()).version == second.version > first.version


async def test_the_first_announcement_joins_everywhere_and_the_next_renews(directory: Leases) -> None:
    assert (await directory.announce(member("r1"))).rejoined == EVERYWHERE
    assert (await directory.announce(member("r1"))).rejoined == frozenset()


async def test_load_is_fresh_without_a_new_version_and_everything_else_makes_one(directory: Leases) -> None:
    first = await directory.announce(member("r1", load=0.1))
    loaded = await directory.announce(member("r1", load=0.9))
    assert loaded.version == first.version
    assert loaded.members[0].load == 0.9
    draining = await directory.announce(member("r1", load=0.9, draining=True))
    assert draining.version > loaded.version


async def test_a_lapsed_member_leaves_the_view_and_comes_back_by_announcing(world: World, directory: Leases) -> None:
    await directory.announce(member("r1"))
    before = await directory.announce(member("r2"))
    world.advance(LEASE_TTL_S / 2)
    await directory.announce(member("r1"))
    world.advance(LEASE_TTL_S / 2 + 0.1)
    without = await directory.view()
    assert [each.replica for each in without.members] == ["r1"]
    assert without.version > before.version
    back = await directory.announce(member("r2"))
    assert back.rejoined == EVERYWHERE
    assert [each.replica for each in back.members] == ["r1", "r2"]
    assert back.version > without.version


async def test_an_announcement_names_those_that_were_lost_sight_of(world: World) -> None:
    """They may live: the directory, and not they, may have been away. Who left in order is none of them."""
    old, new = await world.handle(), await world.handle()
    for name in ("r1", "r2", "r3"):
        await old.announce(member(name))
    await old.withdraw(ReplicaId("r3"), "i1")
    world.advance(LEASE_TTL_S + 0.1)
    joined = await new.announce(member("r4"))
    assert [each.replica for each in joined.members] == ["r4"]
    assert sorted(each.replica for each in joined.vanished) == ["r1", "r2"]
    assert (await new.announce(member("r4"))).vanished == (), "it is told once"
    back = await (await world.handle()).announce(member("r1", "i2"))
    assert [each.replica for each in back.vanished] == ["r2"], "its own place is taken"
    world.advance(LEASE_TTL_S * GRACE_TTLS)
    assert sorted(each.replica for each in (await (await world.handle()).announce(member("r5"))).vanished) == []


async def test_a_withdrawn_member_leaves_the_view_at_once(directory: Leases) -> None:
    before = await directory.announce(member("r1"))
    await directory.withdraw(ReplicaId("r1"), "another incarnation")
    assert await directory.view() == await directory.view()
    assert (await directory.view()).members == before.members
    await directory.withdraw(ReplicaId("r1"), "i1")
    after = await directory.view()
    assert after.members == ()
    assert after.version > before.version


async def test_the_version_never_goes_back_for_whoever_saw_it(world: World, directory: Leases) -> None:
    for n in range(5):
        before = await directory.announce(member(f"r{n}"))
    world.empty()
    emptied = await directory.view()
    assert emptied.members == ()
    assert emptied.version > before.version
    assert (await directory.announce(member("r1"))).version > emptied.version
    fresh = await world.handle()
    world.empty()
    assert (await fresh.view()).version < emptied.version  # it saw nothing before, so nothing goes back for it
    again = await directory.announce(member("r1"))
    assert again.version > emptied.version
    assert (await fresh.view()).version == again.version


async def test_a_restarted_replica_takes_its_place_and_the_old_process_is_told(world: World) -> None:
    old, new = await world.handle(), await world.handle()
    await old.announce(member("r1", "old"))
    await old.claim(KEY, owner("r1", "old"))
    joined = await new.announce(member("r1", "new"))
    assert [each.incarnation for each in joined.members] == ["new"]
    assert joined.rejoined == EVERYWHERE
    with pytest.raises(Conflict, match="replica_replaced"):
        await old.announce(member("r1", "old"))
    assert await new.locate(KEY) is None
    with pytest.raises(Unavailable, match="lease_missing"):
        await old.claim(KEYS[1], owner("r1", "old"))
    await old.withdraw(ReplicaId("r1"), "old")
    assert [each.incarnation for each in (await new.view()).members] == ["new"]


async def test_the_newer_process_wins_after_a_loss_too_whoever_comes_first(world: World) -> None:
    old, new = await world.handle(), await world.handle()
    await old.announce(member("r1", "old"))
    await new.announce(member("r1", "new"))
    world.empty()
    await old.announce(member("r1", "old"))  # nobody there who knows better
    assert [each.incarnation for each in (await new.announce(member("r1", "new"))).members] == ["new"]
    with pytest.raises(Conflict, match="replica_replaced"):
        await old.announce(member("r1", "old"))


async def test_a_claim_is_won_once_and_again_by_the_same_owner(directory: Leases) -> None:
    await directory.announce(member("r1"))
    await directory.announce(member("r2"))
    assert await directory.locate(KEY) is None
    first = await directory.claim(KEY, owner("r1"))
    assert (first.won, first.owner) == (True, owner("r1"))
    again = await directory.claim(KEY, owner("r1"))
    assert (again.won, again.owner) == (True, owner("r1"))
    assert await directory.locate(KEY) == owner("r1")


@pytest.mark.parametrize("other", [owner("r2"), owner("r1", activation="a2")], ids=["replica", "activation"])
async def test_losing_names_the_winner(directory: Leases, other: Owner) -> None:
    await directory.announce(member("r1"))
    await directory.announce(member("r2"))
    await directory.claim(KEY, owner("r1"))
    lost = await directory.claim(KEY, other)
    assert (lost.won, lost.owner) == (False, owner("r1"))
    assert await directory.locate(KEY) == owner("r1")


async def test_of_many_at_once_one_wins_and_all_agree_who(world: World) -> None:
    handles = [await world.handle() for _ in range(4)]
    for n, handle in enumerate(handles):
        await handle.announce(member(f"r{n}"))
    for each in KEYS[:20]:
        claims = await asyncio.gather(
            *(
                handle.claim(each, owner(f"r{n}", activation=f"a{m}"))
                for n, handle in enumerate(handles)
                for m in range(3)
            )
        )
        assert sum(claim.won for claim in claims) == 1
        assert len({claim.owner for claim in claims}) == 1
        assert await handles[0].locate(each) == claims[0].owner


async def test_a_claim_needs_a_living_lease_and_says_so(world: World, directory: Leases) -> None:
    with pytest.raises(Unavailable, match="lease_missing"):
        await directory.claim(KEY, owner("r1"))
    await asyncio.wait_for(directory.news(), 60)
    await directory.announce(member("r1"))
    assert (await directory.claim(KEY, owner("r1"))).won
    world.advance(LEASE_TTL_S + 0.1)
    with pytest.raises(Unavailable, match="lease_missing"):
        await directory.claim(KEY, owner("r1"))
    await directory.announce(member("r2"))
    assert (await directory.claim(KEY, owner("r2"))).won


async def test_the_sessions_of_the_dead_are_free(world: World, directory: Leases) -> None:
    await directory.announce(member("r1"))
    await directory.claim(KEY, owner("r1"))
    world.advance(LEASE_TTL_S + 0.1)
    await directory.announce(member("r2"))
    assert await directory.locate(KEY) is None
    assert (await directory.claim(KEY, owner("r2"))).won
    await directory.announce(member("r1"))
    lost = await directory.claim(KEY, owner("r1"))
    assert (lost.won, lost.owner) == (False, owner("r2"))


async def test_who_comes_back_in_time_finds_what_nobody_took(world: World, directory: Leases) -> None:
    await directory.announce(member("r1"))
    await directory.claim(KEY, owner("r1"))
    world.advance(LEASE_TTL_S + 0.1)
    assert await directory.locate(KEY) is None
    await directory.announce(member("r1"))
    assert await directory.locate(KEY) == owner("r1")


async def test_a_place_is_taken_from_exactly_the_named_owner(directory: Leases) -> None:
    for replica in ("r1", "r2", "r3"):
        await directory.announce(member(replica))
    await directory.claim(KEY, owner("r1"))
    lost = await directory.claim(KEY, owner("r2"), instead_of=owner("r1", activation="another"))
    assert (lost.won, lost.owner) == (False, owner("r1"))
    taken = await directory.claim(KEY, owner("r2"), instead_of=owner("r1"))
    assert (taken.won, taken.owner) == (True, owner("r2"))
    late = await directory.claim(KEY, owner("r3"), instead_of=owner("r1"))
    assert (late.won, late.owner) == (False, owner("r2"))
    assert (await directory.claim(KEYS[1], owner("r3"), instead_of=owner("r1"))).won  # nobody held it


async def test_release_is_for_the_owner(directory: Leases) -> None:
    await directory.announce(member("r1"))
    await directory.claim(KEY, owner("r1"))
    await directory.release(KEY, owner("r1", activation="a2"))
    await directory.release(KEY, owner("r2"))
    assert await directory.locate(KEY) == owner("r1")
    await directory.release(KEY, owner("r1"))
    assert await directory.locate(KEY) is None
    await directory.release(KEY, owner("r1"))


async def test_withdrawing_gives_back_every_session_for_good(directory: Leases) -> None:
    await directory.announce(member("r1"))
    await directory.announce(member("r2"))
    for each in KEYS:
        assert (await directory.claim(each, owner("r1"))).won
    await directory.withdraw(ReplicaId("r1"), "i1")
    assert [each for each in KEYS if await directory.locate(each) is not None] == []
    assert (await directory.claim(KEY, owner("r2"))).won
    # The same incarnation joins again: it is a new lease, and what was claimed under the old one stays free.
    assert (await directory.announce(member("r1"))).rejoined == EVERYWHERE
    assert [each for each in KEYS[1:] if await directory.locate(each) is not None] == []
    assert await directory.locate(KEY) == owner("r2")


async def test_after_a_loss_owners_announce_themselves_and_claim_again(world: World, directory: Leases) -> None:
    await directory.announce(member("r1"))
    for each in KEYS:
        await directory.claim(each, owner("r1"))
    world.empty()
    assert await directory.locate(KEY) is None
    with pytest.raises(Unavailable, match="lease_missing"):
        await directory.claim(KEY, owner("r1"))
    await asyncio.wait_for(directory.news(), 60)
    answer = await directory.announce(member("r1"))
    assert answer.rejoined == EVERYWHERE
    for each in KEYS:
        assert (await directory.claim(each, owner("r1"))).won
        assert await directory.locate(each) == owner("r1")


async def test_entries_of_the_dead_do_not_stay_for_ever(world: World, directory: Leases) -> None:
    await directory.announce(member("r1"))
    await directory.announce(member("r2"))
    for each in KEYS:
        await directory.claim(each, owner("r1"))
    await directory.claim(KEY, owner("r2"), instead_of=owner("r1"))
    assert world.entries() == len(KEYS)
    world.advance(LEASE_TTL_S * 20)
    await directory.announce(member("r2"))
    for _ in range(2 * PARTITIONS):
        await directory.announce(member("r2"))
    assert world.entries() == 1
    assert await directory.locate(KEY) == owner("r2")


@pytest.mark.parametrize("how", ["withdrawn", "replaced"])
async def test_entries_of_those_who_left_are_swept_soon(world: World, directory: Leases, how: str) -> None:
    await directory.announce(member("r1"))
    await directory.announce(member("r2"))
    for each in KEYS:
        await directory.claim(each, owner("r1"))
    if how == "withdrawn":
        await directory.withdraw(ReplicaId("r1"), "i1")
    else:
        await directory.announce(member("r1", "i2"))
    for _ in range(3):
        await directory.announce(member("r2"))
    assert world.entries() == 0


async def test_sessions_of_different_tenants_never_meet(directory: Leases) -> None:
    await directory.announce(member("r1"))
    keys = [key("c", "a/b"), key("b/c", "a"), key("s", "é"), key("s", "t"), key("s}{", "{t}"), key("s", "1:t")]
    for n, each in enumerate(keys):
        assert (await directory.claim(each, owner("r1", activation=f"a{n}"))).won
    for n, each in enumerate(keys):
        assert await directory.locate(each) == owner("r1", activation=f"a{n}")


def test_the_partition_of_a_session_is_part_of_the_format() -> None:
    assert [partition_of(key(f"s{n}")) for n in range(8)] == [46, 57, 42, 20, 56, 30, 10, 16]
    assert {partition_of(key(f"s{n}")) for n in range(1000)} == EVERYWHERE


async def test_an_answer_tells_of_a_newer_view(world: World, directory: Leases) -> None:
    await directory.announce(member("r1"))
    waiting = asyncio.ensure_future(directory.news())
    await directory.locate(KEY)
    assert not waiting.done()
    other = await world.handle()
    await other.announce(member("r2"))
    await directory.locate(KEY)
    await asyncio.wait_for(waiting, 60)
    await directory.view()
    quiet = asyncio.ensure_future(directory.news())
    await directory.locate(KEY)
    assert not quiet.done()
    quiet.cancel()


async def test_interest_lapses_unless_it_is_renewed(world: World, directory: Leases) -> None:
    other = await world.handle()
    assert await directory.watchers(KEY) == []
    await directory.watch("g2", KEYS)
    await other.watch("g1", [KEY])
    for each in KEYS[1:]:
        assert await other.watchers(each) == ["g2"]
    assert await other.watchers(KEY) == ["g1", "g2"]
    world.advance(LEASE_TTL_S / 2)
    await other.watch("g1", [KEY])
    world.advance(LEASE_TTL_S / 2 + 0.1)
    assert await directory.watchers(KEY) == ["g1"]
    assert await directory.watchers(KEYS[1]) == []
    await directory.watch("g1", [])


async def test_watchers_are_told_of_an_activation_and_others_are_not(world: World, directory: Leases) -> None:
    gateways = {name: await world.handle() for name in ("g1", "g2", "g3")}
    told = {name: handle.activations(name) for name, handle in gateways.items()}
    await gateways["g1"].watch("g1", KEYS)
    await gateways["g2"].watch("g2", [KEYS[0]])
    await gateways["g3"].watch("g3", [KEYS[2]])
    await directory.activated(KEYS[0], owner("r1"))
    await directory.activated(KEYS[1], owner("r1", activation="a2"))
    await directory.activated(KEYS[2], owner("r2"))

    async def next_of(name: str) -> tuple[SessionKey, Owner]:
        return await asyncio.wait_for(anext(told[name]), 60)

    # Different servers may tell in any order.
    everything = {await next_of("g1") for _ in range(3)}
    assert everything == {(KEYS[0], owner("r1")), (KEYS[1], owner("r1", activation="a2")), (KEYS[2], owner("r2"))}
    assert await next_of("g2") == (KEYS[0], owner("r1"))
    assert await next_of("g3") == (KEYS[2], owner("r2"))
    # Nothing else was on its way: a last mark comes next on each.
    await gateways["g2"].watch("g3", [KEYS[0]])
    await directory.activated(KEYS[0], owner("mark"))
    for name in told:
        assert await next_of(name) == (KEYS[0], owner("mark"))


async def test_nobody_is_told_whose_interest_lapsed(world: World, directory: Leases) -> None:
    told = directory.activations("g1")
    await directory.watch("g1", KEYS[:2])
    world.advance(LEASE_TTL_S + 0.1)
    await directory.watch("g1", KEYS[1:2])
    await directory.activated(KEYS[0], owner("r1"))
    await directory.activated(KEYS[1], owner("r2"))
    assert await asyncio.wait_for(anext(told), 60) == (KEYS[1], owner("r2"))


async def test_a_stream_of_activations_ends_with_its_directory(directory: Leases) -> None:
    told = directory.activations("g1")
    reader = asyncio.ensure_future(anext(told, None))
    await directory.watch("g1", [KEY])
    await directory.close()
    assert await asyncio.wait_for(reader, 60) is None


async def test_a_closed_directory_says_so(directory: Leases) -> None:
    await directory.announce(member("r1"))
    await directory.close()
    await directory.close()
    for call in (
        directory.announce(member("r1")),
        directory.view(),
        directory.locate(KEY),
        directory.claim(KEY, owner("r1")),
        directory.watch("g", [KEY]),
    ):
        with pytest.raises(Unavailable, match="directory_closed"):
            await call
    with pytest.raises(Unavailable, match="directory_closed"):
        directory.activations("g")
