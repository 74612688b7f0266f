"""Replicas that die, stand still or are cut off: the same answer goes on elsewhere, and nothing late is ever seen."""

from __future__ import annotations

import asyncio

import pytest

from inference.simulated import SimulatedOptions
from sessions.model.errors import Unavailable
from sessions.model.types import SessionKey
from tests.support.cluster.harness import Cluster, advance, cluster, until, with_runtime
from tests.support.cluster.steps import answering, migrations, now, text_of
from tests.support.stores.tables import head_of
from tests.support.virtual_time import outcome, virtual


@virtual
async def test_killed_in_mid_answer_it_goes_on_elsewhere_at_once() -> None:
    async with cluster(replicas=3, gateways=2) as made:
        key, reader = await answering(made, "g2")
        victim = made.owner(key)
        died_at = now()
        await made.replicas[victim].kill()
        await reader.reaches(made.top(key) + 2)
        assert now() - died_at < 0.2
        assert made.owner(key) != victim
        await reader.reaches(await made.at_rest(key))
        assert migrations(made, key) == ["failover"]


@virtual
async def test_the_text_after_a_failover_is_that_of_an_undisturbed_run() -> None:
    texts = []
    for disturb in (False, True):
        async with cluster(replicas=2) as made:
            key, _ = await answering(made)
            if disturb:
                await made.replicas[made.owner(key)].kill()
            await made.at_rest(key)
            texts.append(text_of(made, key))
    assert texts[0] == texts[1]


@virtual
async def test_stopped_for_ten_seconds_it_goes_on_elsewhere_and_the_sleeper_stays_silent() -> None:
    async with cluster(replicas=2, gateways=2) as made:
        key, reader = await answering(made, "g2", tokens=400)
        sleeper = made.replicas[made.owner(key)]
        stopped_at = now()
        sleeper.stop()
        fence = head_of(made.store, key).fence  # type: ignore[union-attr]
        await until(lambda: reader.told[-1][0] > stopped_at + 0.1)
        assert now() - stopped_at <= 3.0
        await advance(10.0 - (now() - stopped_at))
        told = len(reader.told)
        sleeper.wake()
        await until(lambda: sleeper.replica.runtime.actor(key) is None)
        assert head_of(made.store, key).fence == fence + 1  # type: ignore[union-attr]
        await reader.reaches(await made.at_rest(key))
        assert len(reader.told) >= told
        assert migrations(made, key) == ["failover"]


@virtual
async def test_an_answer_whose_replica_is_cut_off_goes_on_within_a_second() -> None:
    """Nothing is refused and nothing breaks; the cut heals later, and what it kept in is of no effect."""
    async with cluster(replicas=3, gateways=2) as made:
        await advance(1.0)  # links have measured how fast hosts answer
        key, reader = await answering(made, "g2", tokens=200)
        victim = made.replicas[made.owner(key)]
        fence = head_of(made.store, key).fence  # type: ignore[union-attr]
        victim.stop()
        await until(lambda: head_of(made.store, key).fence == fence + 1)  # type: ignore[union-attr]
        await until(lambda: reader.told[-1][0] >= now() - 0.05)
        assert max(reader.gaps_s()) <= 1.0
        victim.wake()
        await reader.reaches(await made.at_rest(key))
        assert migrations(made, key) == ["failover"]
        assert head_of(made.store, key).fence == fence + 1  # type: ignore[union-attr]


@virtual
async def test_a_replica_that_stands_still_for_a_quarter_of_a_second_keeps_its_sessions() -> None:
    async with cluster(replicas=2, gateways=2) as made:
        key, reader = await answering(made, "g2", tokens=200)
        owner = made.owner(key)
        for _ in range(5):
            made.replicas[owner].stop()
            await advance(0.25)
            made.replicas[owner].wake()
            await advance(0.3)
        await reader.reaches(await made.at_rest(key))
        assert made.owner(key) == owner and migrations(made, key) == []


@virtual
async def test_a_stopped_owner_of_an_idle_session_answers_nothing_stale_when_it_wakes() -> None:
    """The session moved because a command wanted it. The sleeper's lease has not even ended when it wakes."""
    async with cluster(replicas=2, gateways=2) as made:
        key = await made.gateways["g1"].create("one")
        sleeper = made.replicas[made.owner(key)]
        sleeper.stop()
        await advance(2.1)
        await made.gateways["g1"].say(key, tokens=2)
        top = await made.at_rest(key)
        assert now() < 6.0
        # A gateway that has heard nothing of it still believes in the sleeper.
        late = await made.add_gateway("g3")
        late.router.routes.remember(key, sleeper.replica.runtime.ownership.owner(key))
        sleeper.wake()
        reader = late.read(key)
        await late.say(key, "And then?", tokens=2)
        await reader.reaches(top + 3)
        assert sleeper.replica.runtime.actor(key) is None


@virtual
async def test_a_command_under_way_when_its_replica_dies_has_one_effect() -> None:
    async with cluster(replicas=2) as made:
        gateway = made.gateways["g1"]
        key = await gateway.create("one")
        saying = asyncio.ensure_future(gateway.say(key, tokens=3))
        await until(lambda: made.top(key) > 1, step_s=0.0001)  # durable, and not yet answered
        await made.replicas[made.owner(key)].kill()
        ok = await saying
        await made.at_rest(key)
        assert ok.response_id is not None


@virtual
async def test_the_end_of_an_answer_that_was_written_and_not_sent_is_told_all_the_same() -> None:
    async with cluster(replicas=2) as made:
        key, reader = await answering(made, tokens=20)
        victim = made.owner(key)
        lane = made.lane(victim, "g1")
        lane.hold()  # the last events never arrive
        await made.at_rest(key)
        await made.replicas[victim].kill()
        lane.release()
        await reader.reaches(made.top(key), limit_s=1.0)
        assert made.owner(key) == "", "a session at rest is not activated for its readers"


@virtual
async def test_a_broken_connection_to_a_living_replica_moves_nothing() -> None:
    async with cluster(replicas=2) as made:
        key, reader = await answering(made)
        owner = made.owner(key)
        for _ in range(3):
            made.network.cut(owner)
            await made.writes(key)
        assert made.owner(key) == owner
        await reader.reaches(await made.at_rest(key))
        assert migrations(made, key) == []


@virtual
async def test_an_answer_that_nobody_reads_is_finished_too() -> None:
    async with cluster(replicas=2) as made:
        gateway = made.gateways["g1"]
        key = await gateway.create("one")
        await gateway.say(key, tokens=100)
        await made.writes(key)
        await made.replicas[made.owner(key)].kill()
        await made.at_rest(key)
        assert migrations(made, key) == ["failover"]


@virtual
async def test_sessions_with_readers_come_back_at_once_and_the_others_when_the_lease_ends() -> None:
    wide = SimulatedOptions(step_base_s=0.02, answer_tokens_mean=0, slots=64)
    async with cluster(replicas=0, gateways=0) as made:
        made.engine_options = wide
        for name in ("r1", "r2"):
            await made.add_replica(name)
        gateway = await made.add_gateway("g1")
        keys = [await gateway.create(f"s{number}") for number in range(40)]
        for key in keys:
            await gateway.say(key, tokens=600)
        readers = {key: gateway.read(key) for key in keys[::2]}
        await advance(1.0)
        victim = made.owner(keys[0])
        lost = [key for key in keys if made.owner(key) == victim]
        read = [key for key in lost if key in readers]
        assert len(lost) > 12 and read
        survivor = next(name for name in made.replicas if name != victim)
        runtime = made.replicas[survivor].replica.runtime
        before = len(runtime.actors)
        await made.replicas[victim].kill()
        await until(lambda: all(runtime.actor(key) is not None for key in read), limit_s=1.0)
        assert sum(runtime.actor(key) is not None for key in lost if key not in readers) == 0
        assert len(runtime.actors) == before + len(read)
        for key in lost:
            await made.at_rest(key)


@virtual
async def test_recovery_admits_no_more_than_its_slots_at_a_time() -> None:
    slow = with_runtime(Cluster().replica_limits, recoveries_max=2)
    async with cluster(replicas=2, gateways=1, replica_limits=slow) as made:
        gateway = made.gateways["g1"]
        keys = [await gateway.create(f"s{number}") for number in range(24)]
        for key in keys:
            await gateway.say(key, tokens=300)
        readers = [gateway.read(key) for key in keys]
        await advance(0.5)
        victim = made.owner(keys[0])
        survivor = next(node for name, node in made.replicas.items() if name != victim)
        lost = [key for key in keys if made.owner(key) == victim]
        tops: dict[SessionKey, int] = {}
        most = 0

        def silent() -> int:
            """Sessions that the survivor has taken and that have said nothing yet (beyond that they moved)."""
            taken = [key for key in lost if survivor.replica.runtime.actor(key) is not None]
            return sum(made.top(key) <= tops[key] + 1 for key in taken)

        await made.replicas[victim].kill()
        tops.update({key: made.top(key) for key in lost})
        while len([key for key in lost if survivor.replica.runtime.actor(key) is not None]) < len(lost):
            most = max(most, silent())
            await advance(0.001)
        assert 1 <= most <= 2
        for key, reader in zip(keys, readers, strict=True):
            await reader.reaches(await made.at_rest(key))


@virtual
async def test_the_directory_is_away_and_answers_go_on_and_sessions_can_be_made() -> None:
    async with cluster(replicas=2, gateways=2) as made:
        key, reader = await answering(made, "g2", tokens=600)
        owner = made.owner(key)
        made.directory_away = True
        await advance(8.0)  # the leases have ended, as far as anybody can tell
        assert made.owner(key) == owner
        reader.close()
        fresh = made.gateways["g2"].read(key)
        await fresh.reaches(made.top(key))
        other = await made.gateways["g2"].create("two")
        await made.gateways["g1"].say(other, tokens=3)
        await made.at_rest(other)
        made.directory_away = False
        await fresh.reaches(await made.at_rest(key))
        assert migrations(made, key) == []


@virtual
async def test_a_replica_dies_while_the_directory_is_away() -> None:
    async with cluster(replicas=2, gateways=1) as made:
        key, reader = await answering(made, tokens=200)
        made.directory_away = True
        await advance(0.5)
        died_at = now()
        await made.replicas[made.owner(key)].kill()
        await reader.reaches(made.top(key) + 2)
        assert now() - died_at < 0.5
        await reader.reaches(await made.at_rest(key))


@virtual
async def test_an_emptied_directory_is_filled_again_and_nothing_moves() -> None:
    async with cluster(replicas=3, gateways=2) as made:
        key, reader = await answering(made, "g2", tokens=300)
        owner = made.owner(key)
        made.directory_store.empty()
        await made.gateways["g1"].say(await made.gateways["g1"].create("two"), tokens=2)
        await advance(3.0)
        late = await made.add_gateway("g3")
        assert (await late.router.routes.owner(key)).replica == owner  # type: ignore[union-attr]
        await reader.reaches(await made.at_rest(key))
        assert migrations(made, key) == []


@virtual
async def test_a_gateway_that_is_cut_off_from_an_owner_takes_its_sessions_over() -> None:
    """Only one gateway cannot reach it: the session moves once, not back and forth."""
    async with cluster(replicas=2, gateways=2) as made:
        key, reader = await answering(made, "g1", tokens=700)
        far = made.gateways["g2"].read(key)
        owner = made.owner(key)
        lanes = (made.lane("g1", owner), made.lane(owner, "g1"))
        for lane in lanes:
            lane.hold()
        await until(lambda: made.owner(key) not in (owner, ""), limit_s=10.0)
        await reader.reaches(made.top(key) + 5)
        await far.reaches(made.top(key) + 5)
        top = await made.at_rest(key)
        await reader.reaches(top)
        await far.reaches(top)
        assert migrations(made, key) == ["failover"]


@virtual
async def test_a_session_that_was_taken_from_a_living_owner_takes_its_other_readers_along() -> None:
    """The old owner is idle and notices nothing; a gateway that still reaches it is told of the activation."""
    async with cluster(replicas=2, gateways=2) as made:
        near, far = made.gateways["g1"], made.gateways["g2"]
        key = await near.create("one")
        owner = made.owner(key)
        reader = far.read(key)
        await advance(0.1)
        for lane in (made.lane("g1", owner), made.lane(owner, "g1")):
            lane.hold()
        await advance(2.5)
        await near.say(key, tokens=30)
        await until(lambda: made.top(key) >= 4)
        await reader.reaches(4, limit_s=0.1)
        await reader.reaches(await made.at_rest(key), limit_s=0.1)


@virtual
async def test_the_journal_is_away_and_nothing_is_shown_until_it_is_back() -> None:
    async with cluster(replicas=2, gateways=1) as made:
        key, reader = await answering(made, tokens=100)
        made.journal_away = True
        await advance(0.1)
        told = len(reader.told)
        error = await outcome(made.gateways["g1"].say(key))
        assert isinstance(error, Unavailable) and error.code == "journal_unavailable"
        await advance(3.0)
        assert len(reader.told) == told
        made.journal_away = False
        await reader.reaches(await made.at_rest(key))
        assert migrations(made, key) == []


@virtual
async def test_a_journal_restored_from_a_backup_gives_a_new_epoch_and_the_answer_ends_in_it() -> None:
    async with cluster(replicas=2, gateways=2) as made:
        made.checker.restored = True
        key, reader = await answering(made, "g2", tokens=200)
        backup = made.store.backup()
        kept, epoch = made.top(key), reader.epoch
        await made.writes(key, 20)
        await reader.reaches(kept + 10)
        made.store.restore(backup)
        await until(lambda: reader.epoch not in ("", epoch), limit_s=30.0)
        await reader.reaches(await made.at_rest(key))
        assert head_of(made.store, key).epoch == reader.epoch  # type: ignore[union-attr]


@virtual
async def test_an_answer_that_a_restored_journal_has_half_of_is_told_anew_although_it_had_ended() -> None:
    async with cluster(replicas=2, gateways=2) as made:
        made.checker.restored = True
        key, reader = await answering(made, "g2", tokens=20)
        backup, kept = made.store.backup(), made.top(key)
        await reader.reaches(await made.at_rest(key))
        await made.gateways["g1"].say(key, "And then?", tokens=20)
        lost = await made.at_rest(key)
        await reader.reaches(lost)
        epoch = reader.epoch
        assert lost > kept
        made.store.restore(backup)
        await until(lambda: reader.epoch != epoch, limit_s=10.0)
        await reader.reaches(await made.at_rest(key))


@virtual
async def test_readers_of_a_session_whose_last_turn_was_lost_are_told_although_nothing_is_open() -> None:
    async with cluster(replicas=2) as made:
        made.checker.restored = True
        key, reader = await answering(made, tokens=10)
        await reader.reaches(await made.at_rest(key))
        backup, kept, epoch = made.store.backup(), made.top(key), reader.epoch
        await made.gateways["g1"].say(key, "And then?", tokens=10)
        await reader.reaches(await made.at_rest(key))
        made.store.restore(backup)
        await until(lambda: reader.epoch != epoch, limit_s=10.0)
        assert head_of(made.store, key).epoch == reader.epoch  # type: ignore[union-attr]
        assert made.top(key) >= kept


@virtual
async def test_with_nobody_left_a_command_ends_with_a_retryable_error() -> None:
    async with cluster(replicas=1, gateways=1) as made:
        gateway = made.gateways["g1"]
        key = await gateway.create("one")
        await made.replicas["r1"].kill()
        with pytest.raises(Unavailable) as error:
            await gateway.say(key)
        assert error.value.retryable and error.value.code == "session_unavailable"
        assert now() < 30.0
        await made.add_replica("r2")
        await gateway.say(key, tokens=2)
        await made.at_rest(key)
