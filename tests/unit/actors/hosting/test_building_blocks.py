"""The parts of a runtime: commands under way, recovery's gate, shared attempts, subscribers, tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from actors.hosting.inflight_commands import InflightCommands
from actors.hosting.recovery_gate import FIRST, READ, UNREAD, RecoveryGate
from actors.hosting.runtime_limits import RuntimeLimits
from actors.hosting.single_flight import SingleFlight, shutting_down
from actors.hosting.subscribers import Subscribers
from actors.hosting.task_scope import TaskScope
from sessions.model import commands as cm
from sessions.model.errors import Conflict, Unavailable
from sessions.model.events import Record, SessionDeleted, SessionMigrated
from sessions.model.request import Request, request_of
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    ActivationId,
    CommandId,
    Epoch,
    ReplicaId,
    SessionId,
    SessionKey,
    TenantId,
    UnixMs,
)
from sessions.ports import Owner, Published
from tests.support.virtual_time import advance, settled, virtual


async def execute_once(inflight: InflightCommands, request: Request, execute: Callable[[], Awaitable[cm.Ok]]) -> cm.Ok:
    """Executes a request as a replica does."""
    answer = await inflight.join(request)
    if answer is None:
        with inflight.answering(request) as answers:
            answers.append(answer := await execute())
    return answer


def request(content: str) -> Request:
    command = cm.MessageCreate(id=CommandId("c1"), session=SessionId("s"), content=content)
    return request_of(LOCAL_PRINCIPAL, command)


@virtual
async def test_a_copy_whose_first_is_cancelled_goes_on_by_itself() -> None:
    inflight, go_on, begun = InflightCommands(), asyncio.Event(), list[str]()

    async def execute() -> cm.Ok:
        begun.append("once more")
        await go_on.wait()
        return cm.Ok(id=CommandId("c1"), offset=len(begun))

    first = asyncio.create_task(execute_once(inflight, request("hello"), execute))
    copy = asyncio.create_task(execute_once(inflight, request("hello"), execute))
    other = asyncio.create_task(execute_once(inflight, request("something else"), execute))
    await advance(0.1)
    assert len(begun) == 2, "the copy waits, another command of that id does not"
    first.cancel()
    await advance(0.1)
    assert len(begun) == 3
    go_on.set()
    assert [(await copy).offset, (await other).offset] == [3, 3]


@virtual
async def test_a_copy_gets_the_refusal_of_the_first_and_a_later_one_is_tried_anew() -> None:
    inflight, go_on, begun = InflightCommands(), asyncio.Event(), list[str]()

    async def refuse() -> cm.Ok:
        begun.append("once more")
        await go_on.wait()
        raise Conflict("response_in_progress", "busy")

    both = [asyncio.create_task(execute_once(inflight, request("hello"), refuse)) for _ in range(2)]
    await advance(0.1)
    go_on.set()
    errors = await asyncio.gather(*both, return_exceptions=True)
    assert len(begun) == 1 and all(isinstance(error, Conflict) for error in errors)
    with pytest.raises(Conflict):
        await execute_once(inflight, request("hello"), refuse)
    assert len(begun) == 2


@virtual
async def test_another_command_of_the_same_id_may_end_after_the_first() -> None:
    inflight, go_on = InflightCommands(), asyncio.Event()

    async def execute() -> cm.Ok:
        return cm.Ok(id=CommandId("c1"), offset=1)

    async def refuse() -> cm.Ok:
        await go_on.wait()
        raise Conflict("idempotency_conflict", "another command has this id")

    with inflight.answering(request("hello")) as answers:
        other = asyncio.create_task(execute_once(inflight, request("something else"), refuse))
        await advance(0.1)
        answers.append(await execute())
    go_on.set()
    with pytest.raises(Conflict):
        await other


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


KEY = SessionKey(TenantId("t"), SessionId("s"))


@virtual
async def test_callers_share_an_attempt_and_one_that_gives_up_takes_nothing_from_the_other() -> None:
    flights, go_on = SingleFlight[str](shutting_down, ended=lambda key, error: None), asyncio.Event()

    async def attempt() -> str:
        await go_on.wait()
        return "done"

    task = flights.begin(KEY, attempt())
    first, second = (asyncio.create_task(flights.join(task)) for _ in range(2))
    await advance(0.1)
    first.cancel()
    await advance(0.1)
    assert KEY in flights and list(flights) == [KEY]
    go_on.set()
    assert await second == "done" and first.cancelled()
    await advance(0.1)
    assert len(flights) == 0 and flights.get(KEY) is None


@virtual
async def test_a_failure_reaches_every_caller_and_is_reported_once() -> None:
    failures: list[tuple[SessionKey, Exception]] = []
    flights = SingleFlight[str](shutting_down, ended=lambda key, error: failures.append((key, error)))
    trouble = Unavailable("away", "away")

    async def attempt() -> str:
        await asyncio.sleep(0.1)
        raise trouble

    task = flights.begin(KEY, attempt())
    answers = await asyncio.gather(flights.join(task), flights.join(task), return_exceptions=True)
    assert list(answers) == [trouble, trouble] and failures == [(KEY, trouble)]


@virtual
async def test_closing_ends_the_attempt_and_its_callers_are_not_cancelled_by_it() -> None:
    flights = SingleFlight[str](shutting_down, ended=lambda key, error: None)

    async def attempt() -> str:
        await asyncio.get_running_loop().create_future()
        return "never"

    waiting = asyncio.create_task(flights.join(flights.begin(KEY, attempt())))
    await advance(0.1)
    await flights.close()
    with pytest.raises(Unavailable) as interrupted:
        await waiting
    assert interrupted.value.code == "shutting_down"


SUBSCRIBERS_KEY, OTHER = (SessionKey(TenantId("t"), SessionId(name)) for name in ("s", "o"))
NEXT = Owner(ReplicaId("r2"), "i", ActivationId("a"))


def subscribers() -> Subscribers:
    return Subscribers(RuntimeLimits(), lambda key: None, lambda key: None)


def published(key: SessionKey = SUBSCRIBERS_KEY) -> Published:
    return Published(key, Epoch("e"), ())


def actor() -> Any:
    return SimpleNamespace(key=SUBSCRIBERS_KEY, epoch=Epoch("e"), top=7, open=(), busy=False, fence=1)


def test_every_watcher_of_a_session_is_called_until_it_stops() -> None:
    every, first, second = subscribers(), list[Published](), list[Published]()
    stop_first = every.watch(SUBSCRIBERS_KEY, first.append)
    stop_second = every.watch(SUBSCRIBERS_KEY, second.append)
    every.publish(published())
    every.publish(published(OTHER))
    stop_first()
    stop_first()
    every.publish(published())
    assert (len(first), len(second), every.count(SUBSCRIBERS_KEY)) == (1, 2, 1)
    stop_second()
    assert every.empty and every.count(SUBSCRIBERS_KEY) == 0


def test_who_attached_is_notified_once_when_the_session_leaves_and_a_watch_outlives_it() -> None:
    every, left, seen = subscribers(), list[tuple[str, int, Owner | None]](), list[Published]()
    detach = every.attach(SUBSCRIBERS_KEY, seen.append, lambda epoch, top, owner: left.append((epoch, top, owner)))
    every.deactivated(actor(), NEXT)
    every.deactivated(actor(), None)
    assert left == [("e", 7, NEXT)]
    every.publish(published())
    assert len(seen) == 1, "it goes on with the next actor here"
    detach()
    assert every.empty


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


async def fails() -> None:
    raise ValueError("a bug")


@virtual
async def test_the_end_of_the_block_cancels_what_runs() -> None:
    scope = TaskScope()
    async with scope:
        task = scope.spawn(for_ever())
        await advance(0.1)
        assert not task.done()
    assert task.cancelled()


@virtual
async def test_a_task_that_fails_ends_the_block() -> None:
    scope = TaskScope()
    with pytest.raises(ExceptionGroup) as group:
        async with scope:
            other = scope.spawn(for_ever())
            scope.spawn(fails())
            await for_ever()
    assert group.group_contains(ValueError) and other.cancelled()
