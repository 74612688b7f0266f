"""Checks whether a chain of the audit log is as it was written, from its floor on to its head. Pure, except for
`verify`'s reads.

It detects a row that was changed, left out, put elsewhere or written twice; rows missing at the end, or at the front
without a floor that says so; a floor that was changed, moved, made up, or put back (it must be what the last
"audit.trimmed" row of the chain says). Rows that were deleted behind a floor cannot be checked, nor anchors among them.

Does not know where rows are stored, nor how long they are kept.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from sessions.model.audit import NOTHING, PAGE_MAX, AuditFloor, AuditHead, AuditLog, AuditRow, Sealer
from sessions.model.errors import Unavailable
from sessions.model.types import TenantId, UnixMs

_TRIMMED: Final = b'{"action":"audit.trimmed"'  # how such a row's body begins (`Sealer.entry`)
_TRIES: Final = 8  # a floor moves about once an hour


class AuditVerification(msgspec.Struct, frozen=True, kw_only=True):
    """The result of checking a chain. `first_broken` is the number of the first row that is not as it was written;
    `anchor` is the chain's end, for the caller to keep elsewhere. `weak` counts rows that only the stored secret
    proves, though a key file is in use.

    `rows` rows exist and were checked, behind `trimmed` ones that were deleted because their time was over, the latest
    of them from `trimmed_until`. `unchecked` anchors are of deleted rows: they prove nothing any more.
    """

    tenant: TenantId
    intact: bool
    rows: int
    first_broken: int | None = None
    why: str = ""
    anchor: str = ""
    weak: int = 0
    trimmed: int = 0
    trimmed_until: UnixMs | None = None
    unchecked: int = 0


class AuditVerifier:
    """Checks one chain, page by page: `take` its rows in the order in which they are stored behind `after`, then
    `finish` with the head."""

    def __init__(
        self,
        sealer: Sealer,
        tenant: TenantId,
        anchors: Mapping[int, str] | None = None,
        floor: AuditFloor | None = None,
    ) -> None:
        """`anchors` are hexadecimal MACs by row number, as recorded elsewhere. `floor` is the chain's, None if it has
        none."""
        self._sealer = sealer
        self._tenant = tenant
        self._floor = floor
        self._begin = self._seq = 0 if floor is None else floor.seq
        self._prev = NOTHING if floor is None else floor.mac
        self._anchors = {seq: mac for seq, mac in (anchors or {}).items() if seq > self._begin}
        self._unchecked = sum(seq < self._begin for seq in anchors or ())
        self._recorded_floor: tuple[int, str] | None = None  # (number, MAC) by the last row about trimming
        self._last: AuditRow | None = None
        self._weak = 0
        self._broken: tuple[int, str] | None = None
        if floor is not None:
            anchored = (anchors or {}).get(floor.seq)
            if not sealer.floored(tenant, floor):
                self._broken = (floor.seq, "is said to be the last that was trimmed, by a floor that was changed")
            elif anchored is not None and not hmac.compare_digest(anchored, floor.mac.hex()):
                self._broken = (floor.seq, "is not the row that the anchor names")

    @property
    def broken(self) -> bool:
        return self._broken is not None

    @property
    def trouble(self) -> tuple[int, str] | None:
        """The number of the first row that is not as it was written, and why; None if there is none."""
        return self._broken

    @property
    def after(self) -> int:
        """The number of the last row that was as it was written; reading goes on behind it."""
        return self._seq

    def take(self, rows: Iterable[AuditRow]) -> None:
        for row in rows:
            if self._broken is not None:
                return
            self._take(row)

    def _take(self, row: AuditRow) -> None:
        due = self._seq + 1
        anchored = self._anchors.pop(due, None)
        if row.seq != due:
            self._broken = (due, f"is missing; row {row.seq} follows" if row.seq > due else "stands there twice")
        elif row.tenant != self._tenant:
            self._broken = (due, "belongs to another tenant")
        elif (trouble := self._sealer.trouble_of(row)) is not None:
            self._broken = (due, trouble)
        elif row.prev != self._prev:
            self._broken = (due, "does not follow the row before it")
        elif anchored is not None and not hmac.compare_digest(anchored, row.mac.hex()):
            self._broken = (due, "is not the row that the anchor names")
        else:
            self._seq, self._prev, self._last = due, row.mac, row
            self._weak += row.key_id != self._sealer.key_id
            if is_trim(row):
                self._recorded_floor = _trimmed_through(row)

    def finish(self, head: AuditHead | None) -> AuditVerification:
        """Returns the result. `head` must be read after the rows, so that it is never before the last of them."""
        if self._broken is None:
            self._broken = self._end(head)
        seq, why = self._broken or (None, "")
        return AuditVerification(
            tenant=self._tenant,
            intact=self._broken is None,
            rows=self._seq - self._begin,
            first_broken=seq,
            why=why,
            anchor=f"{self._seq}:{self._prev.hex()}" if self._seq and self._broken is None else "",
            weak=self._weak,
            trimmed=self._begin,
            trimmed_until=None if self._floor is None else UnixMs(self._floor.until),
            unchecked=self._unchecked,
        )

    def _end(self, head: AuditHead | None) -> tuple[int, str] | None:
        if head is None:
            return (max(self._begin, 1), "stands there without a head") if self._seq else self._unmet()
        if head.seq > self._seq:
            return self._seq + 1, f"is missing; the head says that there were {head.seq}"
        last = self._last
        if last is None or head.seq < last.seq or head.mac != last.mac:
            return max(self._seq, 1), "is not the one that the head names"
        if not self._sealer.sealed(self._tenant, head, last.key_id):
            return last.seq, "has a head that was changed"
        return self._misplaced() or self._unmet()

    def _misplaced(self) -> tuple[int, str] | None:
        """Returns what is wrong with the floor, if the chain records none or another one; else None."""
        floor, recorded = self._floor, self._recorded_floor
        if floor is None:
            return None if recorded is None else (recorded[0], "was trimmed, says a later row, and there is no floor")
        if recorded is None:
            return floor.seq, "is said to be the last that was trimmed, and no row tells of that"
        if recorded != (floor.seq, floor.mac.hex()):
            return floor.seq, f"is said to be the last that was trimmed, and the chain says that row {recorded[0]} was"
        return None

    def _unmet(self) -> tuple[int, str] | None:
        return (min(self._anchors), "is missing; an anchor names it") if self._anchors else None


def is_trim(row: AuditRow) -> bool:
    """Returns whether a row records that rows were trimmed."""
    return row.body.startswith(_TRIMMED)


def _trimmed_through(row: AuditRow) -> tuple[int, str]:
    detail: dict[str, Any] = msgspec.json.decode(row.body)["detail"]
    return detail["through"], detail["mac"]


async def verify(
    log: AuditLog, tenant: TenantId, *, anchors: Mapping[int, str] | None = None, page: int = PAGE_MAX
) -> AuditVerification:
    """Checks one chain as it is now, including rows that are added meanwhile. Raises Unavailable."""
    for _ in range(_TRIES):
        floor = await log.floor(tenant)
        result = await _checked(log, AuditVerifier(log.sealer, tenant, anchors, floor), tenant, page)
        if await log.floor(tenant) == floor:
            return result  # else rows were taken away while they were read
    raise Unavailable("journal_away", "The audit log is trimmed too often to be checked.", retry_after_ms=1000)


async def _checked(log: AuditLog, check: AuditVerifier, tenant: TenantId, page: int) -> AuditVerification:
    after = check.after
    while True:
        while not check.broken and (rows := await log.rows(tenant, after=after, limit=page)):
            check.take(rows)
            after = rows[-1].seq
        head = await log.head(tenant)
        if check.broken or head is None or head.seq <= after or not await log.rows(tenant, after=after, limit=1):
            return check.finish(head)


def parse_anchor(text: str) -> tuple[int, str]:
    """Parses SEQ:MAC, the form of `AuditVerification.anchor`. Raises ValueError."""
    seq, colon, mac = text.partition(":")
    if not colon or not seq.isascii() or not seq.isdigit() or len(mac) != 64 or int(seq) < 1:
        raise ValueError(f"{text!r} is no anchor: SEQ:MAC, as `audit verify` prints it")
    return int(seq), bytes.fromhex(mac).hex()
