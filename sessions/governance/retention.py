"""How long sessions and the audit log are kept, per tenant: what a retention file says, and what is due by it. Pure.

A session is purged when the first of its times is over, so deleting one never makes it stay for longer. An idle session
is one without an open turn and without activity: it is purged without notice, as if it had been deleted.

Rows of the audit log are deleted by whole hours, so that a chain gets one row about it in an hour and not one every few
minutes: a row stays up to an hour longer than configured. The default periods hold for the installation's own chain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from sessions.model.journal_types import Due
from sessions.model.types import NEVER, TenantId, UnixMs

DAY_MS: Final = 86_400_000
HOUR_MS: Final = 3_600_000
Days = Annotated[float, Meta(ge=0, le=36_500)]
AuditDays = Annotated[float, Meta(ge=1, le=36_500)]
Tenant = Annotated[str, Meta(min_length=1, max_length=128)]


class RetentionPeriods(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a tenant's data is kept, in days. `idle_days` None: sessions stay until they are deleted. `audit_days`
    None: audit rows stay for ever. `audit_texts`: the audit log has what filters found as text, not only as a hash; an
    erasure does not remove that."""

    deleted_days: Days = 30.0
    unlisted_days: Days = 1.0
    idle_days: Days | None = None
    audit_texts: bool = False
    audit_days: AuditDays | None = None

    def due(self, now: UnixMs, *, tenant: TenantId | None = None, besides: tuple[TenantId, ...] = ()) -> Due:
        return Due(
            deleted_before=_ago(now, self.deleted_days),
            unlisted_before=_ago(now, self.unlisted_days),
            idle_before=NEVER if self.idle_days is None else _ago(now, self.idle_days),
            tenant=tenant,
            besides=besides,
        )

    def audit_before(self, now: UnixMs) -> UnixMs | None:
        """Returns the time before which audit rows are not kept; None if all are kept."""
        if self.audit_days is None:
            return None
        ago = _ago(now, self.audit_days)
        return UnixMs(ago - ago % HOUR_MS)


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A retention file. `default` is for all tenants that have no table of their own."""

    default: RetentionPeriods = RetentionPeriods()
    tenants: dict[Tenant, RetentionPeriods] = {}

    def of(self, tenant: TenantId) -> RetentionPeriods:
        return self.tenants.get(tenant, self.default)

    @property
    def trims_audit(self) -> bool:
        """Whether audit rows of at least one tenant are ever deleted."""
        return any(kept.audit_days is not None for kept in (self.default, *self.tenants.values()))

    def due(self, now: UnixMs) -> Iterator[Due]:
        """Yields what is to be purged now: for each tenant with a table, then for all others together."""
        named = tuple(TenantId(tenant) for tenant in sorted(self.tenants))
        for tenant in named:
            yield self.tenants[tenant].due(now, tenant=tenant)
        yield self.default.due(now, besides=named)


def _ago(now: UnixMs, days: float) -> UnixMs:
    return UnixMs(max(NEVER, now - int(days * DAY_MS)))
