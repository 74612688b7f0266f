"""Who is called with what a session publishes, and when it leaves memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from actors.hosting.runtime_limits import RuntimeLimits
from actors.hosting.subscribers import Subscribers
from sessions.model.types import ActivationId, Epoch, ReplicaId, SessionId, SessionKey, TenantId
from sessions.ports import Owner, Published

KEY, OTHER = (SessionKey(TenantId("t"), SessionId(name)) for name in ("s", "o"))
NEXT = Owner(ReplicaId("r2"), "i", ActivationId("a"))


def subscribers() -> Subscribers:
    return Subscribers(RuntimeLimits(), lambda key: None, lambda key: None)


def published(key: SessionKey = KEY) -> Published:
    return Published(key, Epoch("e"), ())


def actor() -> Any:
    return SimpleNamespace(key=KEY, epoch=Epoch("e"), top=7, open=(), busy=False, fence=1)


def test_every_watcher_of_a_session_is_called_until_it_stops() -> None:
    every, first, second = subscribers(), list[Published](), list[Published]()
    stop_first = every.watch(KEY, first.append)
    stop_second = every.watch(KEY, second.append)
    every.publish(published())
    every.publish(published(OTHER))
    stop_first()
    stop_first()
    every.publish(published())
    assert (len(first), len(second), every.count(KEY)) == (1, 2, 1)
    stop_second()
    assert every.empty and every.count(KEY) == 0


def test_who_attached_is_notified_once_when_the_session_leaves_and_a_watch_outlives_it() -> None:
    every, left, seen = subscribers(), list[tuple[str, int, Owner | None]](), list[Published]()
    detach = every.attach(KEY, seen.append, lambda epoch, top, owner: left.append((epoch, top, owner)))
    every.deactivated(actor(), NEXT)
    every.deactivated(actor(), None)
    assert left == [("e", 7, NEXT)]
    every.publish(published())
    assert len(seen) == 1, "it goes on with the next actor here"
    detach()
    assert every.empty
