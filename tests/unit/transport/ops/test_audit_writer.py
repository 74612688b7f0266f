"""Rows of a gateway in the audit log: refusals are written once a minute for one key and one thing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from persistence.memory.store import MemoryStore
from sessions.model.audit import AuditLog, public
from sessions.model.errors import Forbidden, Limited, Unavailable
from sessions.model.types import Principal, TenantId, UnixMs
from transport.ops.audit_writer import EXPORTS_PER_MINUTE, REFUSALS_EVERY_S, AuditWriter
from transport.tasks import Tasks

ACME = TenantId("acme")
ALICE = Principal(tenant=ACME, key_id="k1", user="alice")
NO = Forbidden("forbidden", "No.")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def opened(clock: Clock) -> AuditWriter:
    store = MemoryStore()
    await store.open()
    return AuditWriter(store.audit, now_ms=lambda: UnixMs(1), clock=clock, tasks=Tasks())


async def rows(audit: AuditLog) -> list[dict[str, object]]:
    return [public(row) for row in await audit.rows(ACME, after=0, limit=99)]


async def test_refusals_are_written_once_a_minute_with_the_number_left_out() -> None:
    clock = Clock()
    writer = await opened(clock)
    for _ in range(3):
        await writer.forbidden(ALICE, NO, "GET /x")
    await writer.forbidden(ALICE, NO, "GET /y")
    assert len(await rows(writer.audit)) == 2
    clock.now += REFUSALS_EVERY_S
    await writer.forbidden(ALICE, NO, "GET /x")
    *_, last = await rows(writer.audit)
    detail = last["detail"]
    assert isinstance(detail, dict) and detail["left_out"] == 2


async def test_a_log_that_is_away_keeps_nobody_from_being_refused() -> None:
    writer = await opened(Clock())

    async def away(*_: object) -> None:
        raise Unavailable("journal_unavailable", "Away.")

    writer.audit.record = away  # type: ignore[method-assign, assignment]
    await writer.forbidden(ALICE, NO, "GET /x")


async def test_exports_have_a_rate_for_each_key_whatever_users_it_names() -> None:
    clock = Clock()
    writer = await opened(clock)
    service = Principal(tenant=ACME, key_id="service")
    for number in range(EXPORTS_PER_MINUTE):
        writer.take_export(replace(service, user=f"u{number}"))
    with pytest.raises(Limited):
        writer.take_export(replace(service, user="another"))
    writer.take_export(Principal(tenant=ACME, key_id="other"))
    clock.now += 60
    writer.take_export(service)
