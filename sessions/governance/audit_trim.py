"""Deletes from the audit log the rows that are not kept any longer, so that the rest can still be checked.

The front of a chain is deleted, up to the first row that is still kept; a row behind that one stays as long as it,
however old its time is. In one transaction the floor moves (`sessions.model.audit`), the row "audit.trimmed" records
how many rows were deleted, up to which time, and the last one's MAC, and the rows are deleted: all of it happens, or
nothing.

* A row is checked before it is deleted. A broken chain keeps everything from the break on, as evidence.
* Rows about trimming are deleted with others, never alone: else a chain that nobody writes to would be trimmed for
  ever.
* If two replicas trim at once, one finds that the floor has moved, and does nothing.

Does not know how long rows are kept (`sessions.governance.retention`), nor where they are stored.
"""

from __future__ import annotations

from typing import Final

import structlog

from sessions.governance.audit_verify import AuditVerifier, is_trim
from sessions.model.audit import Audited, AuditLog
from sessions.model.types import TenantId, UnixMs

ROWS_AT_ONCE: Final = 2_000  # in one transaction, which holds up others that write
ROWS_A_PAGE: Final = 250  # about a millisecond of checking on the event loop
STEPS_MAX: Final = 50  # of one chain before the next one has its turn

log = structlog.get_logger(__name__)


async def trim(audit: AuditLog, tenant: TenantId, *, before: UnixMs, now: UnixMs) -> int:
    """Deletes the rows of a tenant's audit log that are older than `before`; returns how many. Raises Unavailable,
    OutcomeUnknown."""
    trimmed = 0
    for _ in range(STEPS_MAX):
        went = await _step(audit, tenant, before, now)
        trimmed += went
        if went < ROWS_AT_ONCE:
            break
    return trimmed


async def _step(audit: AuditLog, tenant: TenantId, before: UnixMs, now: UnixMs) -> int:
    """Deletes as many rows as one transaction may; returns how many, 0 when none is left to delete."""
    expected = await audit.floor(tenant)
    check = AuditVerifier(audit.sealer, tenant, floor=expected)
    start = check.after
    until, last, worth = 0 if expected is None else expected.until, None, False
    ended = check.broken
    while not ended:
        rows = await audit.rows(tenant, after=check.after, limit=min(ROWS_A_PAGE, start + ROWS_AT_ONCE - check.after))
        ended = not rows
        for row in rows:
            if row.at >= before:
                ended = True
                break
            check.take((row,))
            if check.broken:
                ended = True
                break
            until, last, worth = max(until, row.at), row, worth or not is_trim(row)
        ended = ended or check.after - start >= ROWS_AT_ONCE
    if check.trouble is not None and await audit.floor(tenant) == expected:
        log.error("audit_trim_failed", tenant=tenant, row=check.trouble[0], why=check.trouble[1])
    if last is None or not worth:
        return 0
    rows_gone = last.seq - start
    detail = {"through": last.seq, "mac": last.mac.hex(), "rows": rows_gone, "until": until}
    record = Audited(action="audit.trimmed", at=now, detail=detail)
    if not await audit.trim(tenant, record, expected=expected, floor=audit.sealer.floor(last, until)):
        return 0
    log.info("audit_trimmed", tenant=tenant, rows=rows_gone, through=last.seq)
    return rows_gone
