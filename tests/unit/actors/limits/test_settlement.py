"""Settling: what cannot be kept is given up, counted and said."""

from __future__ import annotations

import sys
from typing import Any, Literal

import pytest
import structlog

from actors.limits import settlement
from actors.limits.memory import MemoryLimiter
from actors.limits.settlement import Settler
from sessions.limits import Limits
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


async def test_nothing_stays_of_a_session_whose_tokens_nothing_limits() -> None:
    limiter, session = MemoryLimiter(lambda: 0.0), SessionId("".join(("a", "session")))
    references = sys.getrefcount(session)
    await limiter.settle(KEY.tenant, ResponseId("r"), session, 100)
    assert sys.getrefcount(session) == references
