"""Rows of the audit log in PostgreSQL: the statements that append them to a chain, and the rows of a batch of appends.

A statement moves a chain's head (`seq`, `mac`) from the one that its process knows to the new one, or does nothing at
all if the head is another. So rows of two processes never interleave, and no process holds a lock while it computes.

Locks are taken in one order everywhere: `api_keys`, `revocations`, then `erasures`, then chains by tenant, then
sessions' heads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final

from persistence.sql.audit import AUDIT_COLUMNS
from persistence.write_batch import AppendWrite
from sessions.model.audit import SECRET_BYTES, AuditEntry, AuditHead, AuditRow, Sealer
from sessions.model.errors import Unavailable
from sessions.model.types import TenantId

TRIES: Final = 200
CHAINS_MAX: Final = 10_000  # heads that a process remembers

AUDIT_TYPES: Final = ("text", "bigint", "bigint", "text", "text", "bytea", "bytea", "bytea")
# tenant, from (seq, mac), to (seq, mac, seal)
HEAD_TYPES: Final = ("text", "bigint", "bytea", "bigint", "bytea", "bytea")

MAKE_HEAD: Final = (
    "INSERT INTO audit_heads (tenant, seq, mac, seal) SELECT t, 0, '', '' FROM unnest($1::text[]) AS t"
    " ON CONFLICT (tenant) DO NOTHING"
)
HEADS: Final = "SELECT tenant, seq, mac, seal FROM audit_heads WHERE tenant = ANY ($1::text[])"
SECRET: Final = "SELECT secret FROM audit_secret"

_ARRAYS: Final = ", ".join(f"${n + 7}::{kind}[]" for n, kind in enumerate(AUDIT_TYPES))
# (tenant, seq, mac, next seq, next mac, next seal, columns of the rows): true where the chain was as it was taken for
RECORD: Final = f"""
WITH moved AS (
    UPDATE audit_heads SET seq = $4, mac = $5, seal = $6 WHERE tenant = $1 AND seq = $2 AND mac = $3 RETURNING 1),
rows_in AS (
    INSERT INTO audit ({AUDIT_COLUMNS}) SELECT {AUDIT_COLUMNS}
    FROM unnest({_ARRAYS}) AS r ({AUDIT_COLUMNS}) WHERE EXISTS (SELECT 1 FROM moved))
SELECT count(*) = 1 FROM moved
"""


def chain_columns(tenant: TenantId, head: AuditHead | None, behind: AuditHead) -> tuple[Any, ...]:
    """Returns the parameters of `RECORD` for moving a chain's head from `head` (None: an empty chain) to `behind`."""
    seq, mac = (0, b"") if head is None else (head.seq, head.mac)
    return (tenant, seq, mac, *behind)


def columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]


async def heads_of(connection: Any, tenants: Sequence[str]) -> dict[str, AuditHead | None]:
    """Returns the heads of the tenants' chains, None for an empty one; makes the rows that do not exist."""
    rows = await connection.fetch(HEADS, tenants)
    if len(rows) < len(tenants):
        await connection.execute(MAKE_HEAD, sorted(tenants))
        rows = await connection.fetch(HEADS, tenants)
    return {tenant: AuditHead(seq, mac, seal) if seq else None for tenant, seq, mac, seal in rows}


async def secret_of(connection: Any) -> bytes:
    """Returns the installation's secret, and makes it if this is the first process."""
    await connection.execute(
        "INSERT INTO audit_secret (one, secret) VALUES (true, $1) ON CONFLICT (one) DO NOTHING",
        os.urandom(SECRET_BYTES),
    )
    return bytes(await connection.fetchval(SECRET))


async def chain_entries(connection: Any, sealer: Sealer, entries: Sequence[AuditEntry]) -> None:
    """Appends entries of one tenant to its chain, in the open transaction. The chain stays locked until the transaction
    ends, so call this as the last step before the commit."""
    tenant = entries[0].tenant
    await lock_chain(connection, tenant)
    head = (await heads_of(connection, [tenant]))[tenant]
    moved = await move_chain(connection, sealer, head, entries)
    assert moved, "a chain moved while it was locked"


async def move_chain(connection: Any, sealer: Sealer, head: AuditHead | None, entries: Sequence[AuditEntry]) -> bool:
    """Appends entries of one tenant to its chain in one statement; returns False if the chain no longer ends with
    `head`."""
    tenant = entries[0].tenant
    rows, behind = sealer.chained(head, entries)
    chained = (*chain_columns(tenant, head, behind), *columns(rows, len(AUDIT_TYPES)))
    return bool(await connection.fetchval(RECORD, *chained))


async def lock_chain(connection: Any, tenant: str) -> None:
    await connection.execute(MAKE_HEAD, [tenant])
    await connection.execute("SELECT 1 FROM audit_heads WHERE tenant = $1 FOR UPDATE", tenant)


def too_much_contention() -> Unavailable:
    return Unavailable("journal_away", "The audit log is written to by too many at once.", retry_after_ms=500)


# -- batches of appends ---------------------------------------------------------------------------------------------


class ChainedEntries:
    """The audit rows of one batch of appends, chained to the heads that this process knows."""

    def __init__(self, sealer: Sealer, heads: dict[str, AuditHead | None], appends: Iterable[AppendWrite]) -> None:
        self._rows: list[AuditRow] = []
        self._moves: list[tuple[Any, ...]] = []
        self.behind: dict[str, AuditHead | None] = {}
        entries = sorted((entry for write in appends for entry in write.audit), key=lambda entry: entry.tenant)
        for tenant, group in groupby(entries, key=lambda entry: entry.tenant):
            rows, behind = sealer.chained(heads[tenant], group)
            self._rows += rows
            self._moves.append(chain_columns(tenant, heads[tenant], behind))
            self.behind[tenant] = behind

    @property
    def num_chains(self) -> int:
        return len(self._moves)

    @property
    def parameters(self) -> list[list[Any]]:
        return [*columns(self._moves, len(HEAD_TYPES)), *columns(self._rows, len(AUDIT_TYPES))]


class HeadCache:
    """The chain heads that this process knows. Once another process has written one is outdated, and the statement that
    uses it then has no effect."""

    def __init__(self) -> None:
        self._known: dict[str, AuditHead | None] = {}

    async def of(self, connection: Any, appends: Iterable[AppendWrite]) -> dict[str, AuditHead | None]:
        tenants = {str(entry.tenant) for write in appends for entry in write.audit}
        unknown = sorted(tenants - self._known.keys())
        if unknown:
            if len(self._known) > CHAINS_MAX:
                self._known.clear()
                unknown = sorted(tenants)
            self._known |= await heads_of(connection, unknown)
        return {tenant: self._known[tenant] for tenant in tenants}

    def moved(self, behind: dict[str, AuditHead | None]) -> None:
        self._known |= behind

    def forget(self) -> None:
        self._known.clear()
