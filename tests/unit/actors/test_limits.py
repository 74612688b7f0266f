"""Limits on Valkey, what falls back without it, and how turns are settled."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import structlog
from redis.exceptions import ResponseError

from actors.directory.pipelined_connection import NotSent, ReplyLost
from actors.limits import settlement
from actors.limits.fallback import FallbackLimiter
from actors.limits.memory import MemoryLimiter
from actors.limits.settlement import Settler
from actors.limits.valkey import ValkeyLimiter
from sessions.limits import Ceilings, Demand, Grant, Limits, RateLimitStatus
from sessions.model.errors import OutcomeUnknown, Unavailable
from sessions.model.events import (
    AnyEvent,
    CompactionFailed,
    ContextCompacted,
    Private,
    Record,
    ResponseBody,
    ResponseCompleted,
)
from sessions.model.types import Epoch, ItemId, Message, ResponseId, SessionId, SessionKey, TenantId, UnixMs
from sessions.ports import Published
from tests.support.cluster.scripted_servers import ScriptedServers

AWAY = Unavailable("limits_unavailable", "away")


class Store:
    """Fails as it is told, one call after another; then grants."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def reserve(self, demand: Demand) -> Grant:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return Grant(RateLimitStatus())

    async def settle(self, tenant: TenantId, name: ResponseId, session: SessionId, tokens: int) -> None:
        raise AWAY

    async def release(self, tenant: TenantId, name: ResponseId, *, unasked: bool) -> None:
        raise AWAY


class Time:
    ms = 10_000.0


def limiter(store: Store, **limits: object) -> FallbackLimiter:
    return FallbackLimiter(store, lambda: Limits(**limits), lambda: Time.ms)  # type: ignore[arg-type]


async def ask(limiter: FallbackLimiter, name: str = "a") -> Grant:
    ceilings = Ceilings(requests_per_minute=4)
    return await limiter.reserve(
        Demand(
            tenant=TenantId("t"),
            user="u",
            session=SessionId("s"),
            name=ResponseId(name),
            input_tokens=1,
            output_tokens=1,
            tenant_ceilings=ceilings,
            user_ceilings=Ceilings(),
            hold_ms=60_000,
        )
    )


async def test_an_unknown_outcome_is_repeated_under_the_same_name() -> None:
    store = Store(OutcomeUnknown("limits_outcome_unknown", "?"))
    assert (await ask(limiter(store))).refusal is None and store.calls == 2


async def test_a_settlement_that_fails_is_its_callers_to_repeat() -> None:
    with pytest.raises(Unavailable):
        await limiter(Store()).settle(TenantId("t"), ResponseId("a"), SessionId("s"), 1)


KEY = SessionKey(TenantId("acme"), SessionId("s"))


def ended(number: int) -> Published:
    name = ResponseId(f"r{number}")
    body = ResponseBody(
        id=name, model="m", status="completed", created_at=UnixMs(0), parent_id=None, usage={"input_tokens": 1}
    )
    event = ResponseCompleted(response_id=name, sequence_number=1, response=body)
    return Published(KEY, Epoch("e"), (Record(offset=number + 1, at=UnixMs(0), event=event),))


def test_beyond_the_bound_the_oldest_is_given_up_and_somebody_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settlement, "WAITING_MAX", 3)
    settler = Settler(MemoryLimiter(lambda: 0.0), Limits, lambda: 0.0)
    with structlog.testing.capture_logs() as said:
        for number in range(3):
            settler.published(ended(number))
        assert not said and settler.given_up == 0
        for number in range(3, 10):
            settler.published(ended(number))
    assert settler.given_up == 7
    assert [(line["event"], line["log_level"]) for line in said] == [("settlement_failed", "warning")], (
        "once, not each time"
    )


def summarised(cause: Literal["limit", "command"]) -> ContextCompacted:
    one = ItemId("m")
    cmp = ItemId("cmp")
    summary = Message(id=cmp, parent_id=None, role="user", content=(), status="completed", created_at=UnixMs(0))
    return ContextCompacted(
        summary=summary,
        model="m",
        items=1,
        first_item_id=one,
        last_item_id=one,
        read_item_id=one,
        tokens_before=40,
        tokens_after=10,
        usage={"input_tokens": 30, "output_tokens": 7},
        cause=cause,
    )


FAILED = CompactionFailed(compaction_id=ItemId("cmp"), error={"code": "c", "message": ""})


@pytest.mark.parametrize(
    ("event", "private", "expected"),
    [
        (summarised("command"), None, [("cmp", None, 37)]),
        (FAILED, None, [("cmp", None, 0)]),
        (FAILED, Private(spent=9), [("cmp", None, 9)]),
        (summarised("limit"), None, []),  # nobody requested it
    ],
)
def test_a_summary_that_was_requested_is_settled_too(
    event: AnyEvent, private: Private | None, expected: list[Any]
) -> None:
    settler = Settler(MemoryLimiter(lambda: 0.0), Limits, lambda: 0.0)
    settler.published(Published(KEY, Epoch("e"), (Record(offset=1, at=UnixMs(0), event=event, private=private),)))
    assert [(end.name, end.session, end.tokens) for end in settler._ended] == expected


@pytest.mark.parametrize(
    ("trouble", "kind", "code"),
    [
        (ReplyLost("gone"), OutcomeUnknown, "limits_outcome_unknown"),
        (NotSent("away"), Unavailable, "limits_unavailable"),
        (ResponseError("OOM"), Unavailable, "limits_unavailable"),
    ],
)
async def test_errors_say_whether_anything_may_have_been_counted(
    trouble: Exception, kind: type[Unavailable], code: str
) -> None:
    limiter = ValkeyLimiter("redis://127.0.0.1")
    limiter._servers = ScriptedServers(trouble)  # type: ignore[assignment]
    with pytest.raises(kind) as raised:
        await limiter.settle(TenantId("t"), ResponseId("r"), SessionId("s"), 1)
    assert raised.value.code == code
