"""The gate of recovery: its slots, its order, and how a slot comes free."""

from __future__ import annotations

import asyncio

from actors.hosting.recovery_gate import FIRST, READ, UNREAD, RecoveryGate
from sessions.model.events import Record, SessionDeleted, SessionMigrated
from sessions.model.types import SessionId, SessionKey, TenantId, UnixMs
from tests.support.virtual_time import advance, settled, virtual


def key(number: int) -> SessionKey:
    return SessionKey(TenantId("t"), SessionId(f"s{number}"))


MIGRATED = Record(1, UnixMs(1), SessionMigrated(replica="r", cause="failover"))
WRITTEN = Record(2, UnixMs(1), SessionDeleted())


@virtual
async def test_slots_are_given_by_priority_and_then_in_order() -> None:
    gate = RecoveryGate(at_once=1, patience_s=30.0)
    admitted: list[str] = []

    async def recover(name: str, priority: int) -> None:
        await gate.enter(priority)
        admitted.append(name)

    await recover("first", UNREAD)
    tasks = [
        asyncio.ensure_future(recover(name, priority))
        for name, priority in (("c", UNREAD), ("a", READ), ("d", UNREAD), ("b", READ), ("now", FIRST))
    ]
    await settled()
    assert admitted == ["first"] and gate.waiting == 5
    for _ in tasks:
        gate.leave()
        await settled()
    assert admitted == ["first", "now", "a", "b", "c", "d"]


@virtual
async def test_a_slot_is_held_until_the_session_has_written_something() -> None:
    gate = RecoveryGate(at_once=1, patience_s=30.0)
    await gate.enter(READ)
    gate.hold(key(1))
    waiting = asyncio.ensure_future(gate.enter(READ))
    await settled()
    gate.published(key(2), (WRITTEN,))
    gate.published(key(1), (MIGRATED,))
    await settled()
    assert not waiting.done(), "that it moved is no progress, and another session's is not its own"
    gate.published(key(1), (WRITTEN,))
    await settled()
    assert waiting.done()


@virtual
async def test_patience_with_a_silent_session_ends() -> None:
    gate = RecoveryGate(at_once=1, patience_s=30.0)
    await gate.enter(READ)
    gate.hold(key(1))
    waiting = asyncio.ensure_future(gate.enter(READ))
    await advance(29.9)
    assert not waiting.done()
    await advance(0.2)
    assert waiting.done()
    gate.done(key(1))
    gate.leave()
    await asyncio.wait_for(gate.enter(READ), 0.1)
    third = asyncio.ensure_future(gate.enter(READ))
    await advance(60.0)
    assert not third.done(), "a slot came back twice"
    third.cancel()


@virtual
async def test_whoever_gives_up_waiting_takes_no_slot_along() -> None:
    gate = RecoveryGate(at_once=1, patience_s=30.0)
    await gate.enter(READ)
    quitter = asyncio.ensure_future(gate.enter(FIRST))
    patient = asyncio.ensure_future(gate.enter(UNREAD))
    late = asyncio.ensure_future(gate.enter(UNREAD))
    await settled()
    quitter.cancel()
    await settled()
    gate.leave()  # goes to `patient`
    await settled()
    assert patient.done() and not late.done()
    just_given = asyncio.ensure_future(gate.enter(FIRST))
    await settled()
    gate.leave()
    just_given.cancel()  # at the same moment at which it is admitted
    await settled()
    assert late.done(), "the slot of one that was cancelled was lost"


@virtual
async def test_a_session_that_was_asked_for_twice_has_one_slot() -> None:
    gate = RecoveryGate(at_once=2, patience_s=30.0)
    for _ in range(2):
        await gate.enter(READ)
        gate.hold(key(1))
    gate.done(key(1))
    await gate.enter(READ)
    second = asyncio.ensure_future(gate.enter(READ))
    await settled()
    assert second.done(), "a slot was lost"
