"""Writes a gateway's rows into the audit log: actions and refusals that no session's append can carry.

Each row is durable before the action that it records is answered. Refusals are the exception where a door cannot wait:
they are written beside it, and at most once a minute for one key and one thing, with the number of those left out, so
that whoever is refused cannot fill the log. A journal that is away keeps nobody from being refused.

Does not know who may do what (`sessions.model.authorization`), nor how rows are made (`sessions.model.audit`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from sessions.limits import Bucket
from sessions.model.api_keys import ApiKey
from sessions.model.audit import Action, Audited, AuditLog
from sessions.model.errors import Forbidden, Limited, SessileError
from sessions.model.types import Json, Principal, TenantId, UnixMs
from transport.auth.api_key_cache import KeyListener
from transport.auth.connection_shares import key_of
from transport.tasks import Tasks

REFUSALS_EVERY_S: Final = 60.0
REFUSALS_KNOWN_MAX: Final = 4096
EXPORTS_PER_MINUTE: Final = 60
EXPORTERS_KNOWN_MAX: Final = 4096

log = structlog.get_logger(__name__)


@dataclass(frozen=True, eq=False, repr=False)
class AuditWriter(KeyListener):
    """Writes audit rows for the doors, and limits how many refusals and exports are written a minute. Its clock is
    monotonic, in seconds."""

    audit: AuditLog
    now_ms: Callable[[], UnixMs]
    clock: Callable[[], float]
    tasks: Tasks
    _exports: dict[tuple[str, str], Bucket] = field(default_factory=dict)
    _refused: dict[tuple[str, ...], tuple[float, int]] = field(default_factory=dict)  # (written last, left out since)

    async def record(
        self,
        tenant: TenantId,
        action: Action,
        *,
        by: Principal | None,
        user: str | None = None,
        session: str = "",
        detail: Mapping[str, Json] | None = None,
    ) -> None:
        """Writes an action before it is carried out. Raises Unavailable; then the action must not be carried out."""
        row = Audited(action=action, at=self.now_ms(), by=by, user=user, session=session, detail=detail or {})
        await self.audit.record(tenant, [row])

    def take_export(self, by: Principal) -> None:
        """Counts an export, each of which makes a lasting audit row. Raises Limited if its key makes too many."""
        name, now_ms = key_of(by), self.clock() * 1000
        bucket = self._exports.pop(name, None) or Bucket(EXPORTS_PER_MINUTE, now_ms)
        if len(self._exports) >= EXPORTERS_KNOWN_MAX:
            self._exports.pop(next(iter(self._exports)))
        self._exports[name] = bucket
        bucket.look(EXPORTS_PER_MINUTE, now_ms)
        if wait_ms := bucket.wait_ms(1):
            raise Limited("rate_limited", f"A key exports {EXPORTS_PER_MINUTE} times a minute.", retry_after_ms=wait_ms)
        bucket.take(1)

    async def forbidden(self, principal: Principal, error: Forbidden, what: str) -> None:
        """Records that a known principal was refused. Raises nothing."""
        row = self._refusal(principal, error, what)
        if row is not None:
            await self._write(principal.tenant, row)

    def key_refused(self, key: ApiKey, error: SessileError) -> None:
        """Implements `KeyListener`: records the use of a revoked or expired key."""
        row = self._refusal(key.principal, error, "a key that has ended")
        if row is not None:
            self.tasks.start(self._write(key.tenant, row))

    def _refusal(self, principal: Principal, error: SessileError, what: str) -> Audited | None:
        """Returns the row of a refusal; None if the same one was written less than `REFUSALS_EVERY_S` ago."""
        about, now = (principal.tenant, principal.id, error.code, what), self.clock()
        written_at, left_out = self._refused.pop(about, (None, 0))
        if written_at is not None and now - written_at < REFUSALS_EVERY_S:
            self._refused[about] = (written_at, left_out + 1)
            return None
        if len(self._refused) >= REFUSALS_KNOWN_MAX:
            self._refused.pop(next(iter(self._refused)))
        self._refused[about] = (now, 0)
        detail: dict[str, Json] = {"code": error.code, "what": what}
        if left_out:
            detail["left_out"] = left_out
        user = principal.user if principal.role == "user" else None
        return Audited(action="access.refused", at=self.now_ms(), by=principal, user=user, detail=detail)

    async def _write(self, tenant: TenantId, row: Audited) -> None:
        try:
            await self.audit.record(tenant, [row])
        except SessileError as error:
            log.error("refusal_audit_failed", tenant=tenant, error=error.code)
