"""A chain of the audit log as plain lists, for what is decided about chains rather than about stores."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.model.audit import Audited, AuditHead, AuditRow, Sealer
from sessions.model.types import TenantId, UnixMs

TENANT = TenantId("acme")


def audited(number: int) -> Audited:
    return Audited(action="session.deleted", at=UnixMs(number), session=f"s{number}", detail={"n": number})


class AuditChain:
    """One tenant's rows and head."""

    def __init__(self, sealer: Sealer | None = None) -> None:
        self.sealer = sealer or Sealer(b"secret")
        self.stored: list[AuditRow] = []
        self.stored_head: AuditHead | None = None

    def add(self, *entries: Audited) -> AuditChain:
        rows, self.stored_head = self.sealer.chained(
            self.stored_head, [self.sealer.entry(TENANT, each) for each in entries]
        )
        self.stored += rows
        return self

    async def rows(
        self, tenant: TenantId, *, after: int, limit: int, about: Sequence[str] | None = None
    ) -> list[AuditRow]:
        return [row for row in self.stored if row.seq > after][:limit]

    async def head(self, tenant: TenantId) -> AuditHead | None:
        return self.stored_head
