"""The SQLite file: its tables, how it got there, and whether it may be used.

`MIGRATIONS` is a list that only grows: entry n takes a file from `user_version` n to n+1, in one transaction. A file
with a newer version than the list knows is refused, and so is a file that is some other application's.

Every table of sessions begins with the tenant, and every one but `responses` with (tenant, session), so that no
statement can forget whose rows it touches. `audit` is chained by tenant (sessions/model/audit.py).
`api_keys` is asked before a tenant is known. `responses` says which
session a response is in; it follows from the events of the same
append. `events` lies in the order of arrival with an index beside it: clustered by session, each event of a busy server
would rewrite 2.3 pages of 4 KiB instead of 1.1 (400 sessions taking turns), which is most of what a commit costs. The
other tables are clustered.

`heads` holds one row that is no session: tenant '' and session '' is the store itself. Its fence is the number of
this opening, its top counts commits, its incarnation is the store's. Every transaction moves it by the same statement
that checks the sessions' fences, so a second process that got at the file in spite of the lock finds itself fenced.

`updated_at` of a head moves with the appends that carry a head patch (a turn begins or ends, a title changes), not with
every delta: it is indexed for listing. `usage.seq` numbers the rows, and `relayed_at` stays NULL until an outbox
relay has passed the row on. Indexes that only purge and sweep need are partial.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import aiosqlite

from sessions.model.errors import Unavailable

APPLICATION_ID: Final = 0x5365731E
SQLITE_VERSION_MIN: Final = (3, 38, 0)

V1: Final = """
CREATE TABLE heads (
    tenant      TEXT    NOT NULL,
    session     TEXT    NOT NULL,
    fence       INTEGER NOT NULL,
    top         INTEGER NOT NULL,
    epoch       TEXT    NOT NULL,
    incarnation TEXT    NOT NULL,
    owner       TEXT    NOT NULL,
    open        INTEGER NOT NULL DEFAULT 0,
    listed      INTEGER NOT NULL DEFAULT 1,
    user        TEXT,
    model       TEXT    NOT NULL DEFAULT '',
    key_id      TEXT    NOT NULL,
    about       BLOB    NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    deleted_at  INTEGER,
    PRIMARY KEY (tenant, session)
) WITHOUT ROWID, STRICT;
CREATE INDEX heads_listed ON heads (tenant, updated_at DESC, session) WHERE listed = 1 AND deleted_at IS NULL;
CREATE INDEX heads_listed_by_user ON heads (tenant, user, updated_at DESC, session)
    WHERE listed = 1 AND deleted_at IS NULL AND user IS NOT NULL;
CREATE INDEX heads_open ON heads (tenant, session) WHERE open = 1;
CREATE INDEX heads_deleted ON heads (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX heads_empty ON heads (updated_at) WHERE top = 0;

CREATE TABLE events (
    tenant  TEXT    NOT NULL,
    session TEXT    NOT NULL,
    "offset" INTEGER NOT NULL,
    key_id  TEXT    NOT NULL,
    body    BLOB    NOT NULL,
    PRIMARY KEY (tenant, session, "offset")
) STRICT;

CREATE TABLE commands (
    tenant     TEXT    NOT NULL,
    session    TEXT    NOT NULL,
    principal  TEXT    NOT NULL,
    command    TEXT    NOT NULL,
    at         INTEGER NOT NULL,
    digest     BLOB    NOT NULL,
    answer     BLOB    NOT NULL,
    PRIMARY KEY (tenant, session, principal, command)
) WITHOUT ROWID, STRICT;
CREATE INDEX commands_at ON commands (at);

CREATE TABLE snapshots (
    tenant  TEXT    NOT NULL,
    session TEXT    NOT NULL,
    "offset" INTEGER NOT NULL,
    key_id  TEXT    NOT NULL,
    body    BLOB    NOT NULL,
    PRIMARY KEY (tenant, session)
) WITHOUT ROWID, STRICT;

CREATE TABLE usage (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant     TEXT    NOT NULL,
    session    TEXT    NOT NULL,
    response   TEXT    NOT NULL,
    principal_key  TEXT NOT NULL,
    principal_user TEXT,
    principal_role TEXT NOT NULL,
    model      TEXT    NOT NULL,
    status     TEXT    NOT NULL,
    input_tokens      INTEGER NOT NULL,
    output_tokens     INTEGER NOT NULL,
    cached_tokens     INTEGER NOT NULL,
    reasoning_tokens  INTEGER NOT NULL,
    recomputed_tokens INTEGER NOT NULL,
    withheld_tokens   INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    relayed_at INTEGER,
    UNIQUE (tenant, session, response)
) STRICT;
CREATE INDEX usage_at ON usage (tenant, at, seq);
CREATE INDEX usage_unrelayed ON usage (seq) WHERE relayed_at IS NULL;
"""

V2: Final = """
CREATE TABLE responses (
    tenant   TEXT    NOT NULL,
    response TEXT    NOT NULL,
    session  TEXT    NOT NULL,
    "offset" INTEGER NOT NULL,
    PRIMARY KEY (tenant, response)
) WITHOUT ROWID, STRICT;
CREATE INDEX responses_of_session ON responses (tenant, session);
"""

V3: Final = """
CREATE INDEX heads_unlisted ON heads (updated_at) WHERE listed = 0 AND deleted_at IS NULL;
"""

V4: Final = """
CREATE TABLE api_keys (
    id         TEXT    NOT NULL PRIMARY KEY,
    version    INTEGER NOT NULL UNIQUE,
    digest     BLOB    NOT NULL,
    tenant     TEXT    NOT NULL,
    role       TEXT    NOT NULL,
    end_user   TEXT,
    scopes     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT    NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER
) WITHOUT ROWID, STRICT;
"""

V5: Final = """
ALTER TABLE usage ADD COLUMN price_version TEXT NOT NULL DEFAULT '';
ALTER TABLE usage ADD COLUMN currency TEXT NOT NULL DEFAULT '';
ALTER TABLE usage ADD COLUMN cost INTEGER NOT NULL DEFAULT 0;
"""

V6: Final = """
CREATE TABLE reviews (
    tenant        TEXT    NOT NULL,
    id            TEXT    NOT NULL,
    session       TEXT    NOT NULL,
    cause         TEXT    NOT NULL,
    direction     TEXT    NOT NULL,
    action        TEXT    NOT NULL,
    category      TEXT    NOT NULL,
    score         REAL    NOT NULL,
    model         TEXT    NOT NULL,
    policy        TEXT    NOT NULL,
    end_user      TEXT,
    response      TEXT,
    item          TEXT,
    log_offset    INTEGER NOT NULL,
    span_start    INTEGER NOT NULL,
    span_end      INTEGER NOT NULL,
    kept          BLOB    NOT NULL,
    note          BLOB    NOT NULL,
    opened_at     INTEGER NOT NULL,
    appealed_at   INTEGER,
    remark        BLOB    NOT NULL DEFAULT x'',
    state         TEXT    NOT NULL DEFAULT 'open',
    claimed_by    TEXT    NOT NULL DEFAULT '',
    claimed_until INTEGER NOT NULL DEFAULT 0,
    claim_command TEXT    NOT NULL DEFAULT '',
    outcome       TEXT,
    decided_by    TEXT    NOT NULL DEFAULT '',
    decided_at    INTEGER,
    decide_command TEXT   NOT NULL DEFAULT '',
    decisions     INTEGER NOT NULL DEFAULT 0,
    told          INTEGER NOT NULL DEFAULT 1,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID, STRICT;
CREATE INDEX reviews_id ON reviews (id);
CREATE INDEX reviews_opened ON reviews (tenant, opened_at, id);
CREATE INDEX reviews_of_session ON reviews (tenant, session);
CREATE INDEX reviews_untold ON reviews (decided_at) WHERE told = 0;
"""

V7: Final = """
CREATE TABLE audit (
    tenant TEXT    NOT NULL,
    seq    INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    about  TEXT    NOT NULL,
    key_id TEXT    NOT NULL,
    body   BLOB    NOT NULL,
    prev   BLOB    NOT NULL,
    mac    BLOB    NOT NULL,
    PRIMARY KEY (tenant, seq)
) WITHOUT ROWID, STRICT;
CREATE INDEX audit_about ON audit (tenant, about, seq) WHERE about <> '';
CREATE TABLE audit_heads (
    tenant TEXT    NOT NULL PRIMARY KEY,
    seq    INTEGER NOT NULL,
    mac    BLOB    NOT NULL,
    seal   BLOB    NOT NULL
) WITHOUT ROWID, STRICT;
CREATE TABLE audit_secret (
    one    INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    secret BLOB    NOT NULL
) STRICT;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit BEGIN
    SELECT RAISE(ABORT, 'the audit log is only ever added to');
END;
CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit BEGIN
    SELECT RAISE(ABORT, 'the audit log is only ever added to');
END;
"""

V8: Final = """
CREATE TABLE erasures (
    tenant   TEXT    NOT NULL,
    end_user TEXT    NOT NULL,
    asked_at INTEGER NOT NULL,
    asked_by TEXT    NOT NULL,
    released TEXT    NOT NULL,
    done_at  INTEGER,
    PRIMARY KEY (tenant, end_user, asked_at)
) WITHOUT ROWID, STRICT;
CREATE INDEX erasures_pending ON erasures (asked_at) WHERE done_at IS NULL;
"""

V9: Final = """
CREATE TABLE audit_floors (
    tenant TEXT    NOT NULL PRIMARY KEY,
    seq    INTEGER NOT NULL,
    mac    BLOB    NOT NULL,
    until  INTEGER NOT NULL,
    key_id TEXT    NOT NULL,
    seal   BLOB    NOT NULL
) WITHOUT ROWID, STRICT;
DROP TRIGGER audit_is_not_deleted;
CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit
WHEN NOT EXISTS (SELECT 1 FROM audit_floors WHERE tenant = OLD.tenant AND seq >= OLD.seq) BEGIN
    SELECT RAISE(ABORT, 'the audit log is only ever added to');
END;
"""

MIGRATIONS: Final[tuple[str, ...]] = (V1, V2, V3, V4, V5, V6, V7, V8, V9)


async def migrate(connection: aiosqlite.Connection, path: Path, migrations: tuple[str, ...] = MIGRATIONS) -> None:
    """Brings the file to the newest version. Raises Unavailable for a newer or a foreign file."""
    version = await _pragma(connection, "user_version")
    application = await _pragma(connection, "application_id")
    ((tables,),) = await connection.execute_fetchall("SELECT count(*) FROM sqlite_schema")
    if tables and application != APPLICATION_ID:
        raise Unavailable(
            "journal_foreign",
            f"{path} is an SQLite database, but not a journal of this server. Choose another data folder.",
            retryable=False,
        )
    if version > len(migrations):
        raise Unavailable(
            "journal_newer",
            f"{path} was written by a newer version of this server (schema {version}, this one knows "
            f"{len(migrations)}). Start that version, or choose another data folder.",
            retryable=False,
        )
    for number in range(version, len(migrations)):
        await connection.executescript(
            f"BEGIN IMMEDIATE;\n{migrations[number]}\n"
            f"PRAGMA application_id = {APPLICATION_ID};\nPRAGMA user_version = {number + 1};\nCOMMIT;"
        )


async def check_integrity(connection: aiosqlite.Connection, path: Path, *, whole_bytes_max: int) -> None:
    """Looks for damage: the whole file up to a size, above it the table that everything hangs on. Raises Unavailable.

    The whole check reads every page (about a second per GiB from the page cache), which a start should not
    wait for on a large file. A file that was cut off is noticed at any size.
    """
    page_count = await _pragma(connection, "page_count")
    page_size = await _pragma(connection, "page_size")
    whole = page_count * page_size <= whole_bytes_max
    findings = await connection.execute_fetchall(f"PRAGMA quick_check{'' if whole else '(heads)'}")
    cut_off = await asyncio.to_thread(_is_cut_off, path, page_count * page_size)
    if cut_off or [row[0] for row in findings] != ["ok"]:
        raise damaged(path)


def _is_cut_off(path: Path, bytes_expected: int) -> bool:
    """Whether the file is shorter than its header says. With a write-ahead file beside it that is no sign."""
    wal = path.with_name(path.name + "-wal")
    if wal.exists() and wal.stat().st_size > 0:
        return False
    return path.stat().st_size < bytes_expected


def damaged(path: Path) -> Unavailable:
    return Unavailable(
        "journal_damaged",
        f"The journal {path} is damaged. Nothing was changed. Restore it from a backup, or move the files "
        f"{path.name}* away to start with an empty one.",
        retryable=False,
    )


async def _pragma(connection: aiosqlite.Connection, name: str) -> int:
    ((value,),) = await connection.execute_fetchall(f"PRAGMA {name}")
    return int(value)
