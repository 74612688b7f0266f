"""Rows of the audit log as steps of an SQLite transaction, on the writer's thread. There is one writer, so the head
that is read is the head that is moved.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby

import aiosqlite

from persistence.sqlite.library import sqlite3
from sessions.model.audit import SECRET_BYTES, AuditEntry, AuditHead, Sealer


def chain(connection: sqlite3.Connection, sealer: Sealer, entries: Sequence[AuditEntry]) -> None:
    """Appends entries to their tenants' audit chains, in the open transaction."""
    for tenant, group in groupby(sorted(entries, key=lambda entry: entry.tenant), key=lambda entry: entry.tenant):
        heads = connection.execute("SELECT seq, mac, seal FROM audit_heads WHERE tenant = ?1", (tenant,)).fetchall()
        rows, head = sealer.chained(AuditHead(*heads[0]) if heads else None, group)
        connection.executemany(
            "INSERT INTO audit (tenant, seq, at, about, key_id, body, prev, mac) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows
        )
        connection.execute(
            "INSERT OR REPLACE INTO audit_heads (tenant, seq, mac, seal) VALUES (?, ?, ?, ?)", (tenant, *head)
        )


async def secret_of(writer: aiosqlite.Connection) -> bytes:
    """Returns the installation's secret, and makes it at the first start."""
    await writer.execute_fetchall(
        "INSERT OR IGNORE INTO audit_secret (one, secret) VALUES (1, ?)", (os.urandom(SECRET_BYTES),)
    )
    ((secret,),) = await writer.execute_fetchall("SELECT secret FROM audit_secret")
    return bytes(secret)
