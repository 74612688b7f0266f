"""The tables in PostgreSQL, and how it is noticed that they went back in time.

All of it lives in a schema of its own. `MIGRATIONS` is a list that only grows; a database that knows more than the
list is refused. Migrating and settling run under an advisory lock, so any number of processes may start at once.

Keys compare by bytes (`COLLATE "C"`), as in the other stores. `heads.empty` is `top = 0` in a column of its own: an
index that spoke of `top` would make every append touch every index of its row. For the same reason `updated_at` moves
only with the appends that carry a head patch.

**Incarnation.** `store.identity` names the physical store: system identifier, timeline, database, table. It differs
after a standby was promoted, after a recovery to a point in time, and after a dump was loaded elsewhere. An older
copy of the same files keeps it, and so does a dump that was loaded in place; these are noticed by counting. Each
process has a row in `writers` that every batch of its moves, and remembers how far it came: in memory for a server
that is restored under it, in a marker file for its own next start. A row that stands behind what was acknowledged, or
is gone, proves that the store went back. Every connection is checked when it is made, and a restore breaks all
connections.

Whoever notices makes a new incarnation, raises every fence, and says so in `store`; others adopt it when they
reconnect, because its number is greater than theirs. What cannot be noticed: the same files put back while every
process is down and every marker is lost. Then run `UPDATE sessile.store SET identity = ''` before the first one starts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import asyncpg
import msgspec

from persistence.validation import FENCES_PER_INCARNATION
from sessions.model.errors import Unavailable

ADVISORY_LOCK: Final = 0x5365731E

V1: Final = """
CREATE TABLE store (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    version     integer NOT NULL,
    identity    text    NOT NULL,
    incarnation text    NOT NULL
);
INSERT INTO store (version, identity, incarnation) VALUES (0, '', '');

CREATE TABLE writers (
    id      text   PRIMARY KEY,
    commits bigint NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

CREATE TABLE heads (
    tenant      text COLLATE "C" NOT NULL,
    session     text COLLATE "C" NOT NULL,
    fence       bigint  NOT NULL,
    top         bigint  NOT NULL,
    empty       boolean NOT NULL DEFAULT true,
    epoch       text    NOT NULL,
    incarnation text    NOT NULL,
    owner       text    NOT NULL,
    open        boolean NOT NULL DEFAULT false,
    listed      boolean NOT NULL DEFAULT true,
    end_user    text,
    model       text    NOT NULL DEFAULT '',
    key_id      text    NOT NULL,
    about       bytea   NOT NULL,
    created_at  bigint  NOT NULL,
    updated_at  bigint  NOT NULL,
    deleted_at  bigint,
    PRIMARY KEY (tenant, session)
) WITH (fillfactor = 70);
CREATE INDEX heads_listed ON heads (tenant, updated_at DESC, session) WHERE listed AND deleted_at IS NULL;
CREATE INDEX heads_listed_by_user ON heads (tenant, end_user, updated_at DESC, session)
    WHERE listed AND deleted_at IS NULL AND end_user IS NOT NULL;
CREATE INDEX heads_open ON heads (tenant, session) WHERE open;
CREATE INDEX heads_deleted ON heads (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX heads_empty ON heads (updated_at) WHERE empty;

CREATE TABLE events (
    tenant   text COLLATE "C" NOT NULL,
    session  text COLLATE "C" NOT NULL,
    "offset" bigint NOT NULL,
    key_id   text   NOT NULL,
    body     bytea  NOT NULL,
    PRIMARY KEY (tenant, session, "offset")
);

CREATE TABLE commands (
    tenant    text COLLATE "C" NOT NULL,
    session   text COLLATE "C" NOT NULL,
    principal text COLLATE "C" NOT NULL,
    command   text COLLATE "C" NOT NULL,
    at        bigint NOT NULL,
    digest    bytea  NOT NULL,
    answer    bytea  NOT NULL,
    PRIMARY KEY (tenant, session, principal, command)
);
CREATE INDEX commands_at ON commands (at);

CREATE TABLE snapshots (
    tenant   text COLLATE "C" NOT NULL,
    session  text COLLATE "C" NOT NULL,
    "offset" bigint NOT NULL,
    key_id   text   NOT NULL,
    body     bytea  NOT NULL,
    PRIMARY KEY (tenant, session)
);

CREATE TABLE usage (
    seq        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant     text COLLATE "C" NOT NULL,
    session    text COLLATE "C" NOT NULL,
    response   text COLLATE "C" NOT NULL,
    principal_key  text NOT NULL,
    principal_user text,
    principal_role text NOT NULL,
    model      text   NOT NULL,
    status     text   NOT NULL,
    input_tokens      bigint NOT NULL,
    output_tokens     bigint NOT NULL,
    cached_tokens     bigint NOT NULL,
    reasoning_tokens  bigint NOT NULL,
    recomputed_tokens bigint NOT NULL,
    withheld_tokens   bigint NOT NULL,
    at         bigint NOT NULL,
    relayed_at bigint,
    UNIQUE (tenant, session, response)
);
CREATE INDEX usage_at ON usage (tenant, at, seq);
CREATE INDEX usage_unrelayed ON usage (seq) WHERE relayed_at IS NULL;
"""

V2: Final = """
CREATE TABLE responses (
    tenant   text COLLATE "C" NOT NULL,
    response text COLLATE "C" NOT NULL,
    session  text COLLATE "C" NOT NULL,
    "offset" bigint NOT NULL,
    PRIMARY KEY (tenant, response)
);
CREATE INDEX responses_of_session ON responses (tenant, session);
"""

V3: Final = """
CREATE INDEX heads_unlisted ON heads (updated_at) WHERE NOT listed AND deleted_at IS NULL;
"""

V4: Final = """
CREATE TABLE api_keys (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    version    bigint NOT NULL UNIQUE,
    digest     bytea  NOT NULL,
    tenant     text COLLATE "C" NOT NULL,
    role       text   NOT NULL,
    end_user   text,
    scopes     text   NOT NULL,
    name       text   NOT NULL,
    created_at bigint NOT NULL,
    created_by text   NOT NULL,
    expires_at bigint,
    revoked_at bigint
);
"""

V5: Final = """
ALTER TABLE usage ADD COLUMN price_version text NOT NULL DEFAULT '';
ALTER TABLE usage ADD COLUMN currency text NOT NULL DEFAULT '';
ALTER TABLE usage ADD COLUMN cost bigint NOT NULL DEFAULT 0;
"""

V6: Final = """
CREATE TABLE reviews (
    tenant        text COLLATE "C" NOT NULL,
    id            text COLLATE "C" NOT NULL,
    session       text COLLATE "C" NOT NULL,
    cause         text   NOT NULL,
    direction     text   NOT NULL,
    action        text   NOT NULL,
    category      text   NOT NULL,
    score         double precision NOT NULL,
    model         text   NOT NULL,
    policy        text   NOT NULL,
    end_user      text,
    response      text,
    item          text,
    log_offset    bigint NOT NULL,
    span_start    bigint NOT NULL,
    span_end      bigint NOT NULL,
    kept          bytea  NOT NULL,
    note          bytea  NOT NULL,
    opened_at     bigint NOT NULL,
    appealed_at   bigint,
    remark        bytea  NOT NULL DEFAULT '',
    state         text   NOT NULL DEFAULT 'open',
    claimed_by    text   NOT NULL DEFAULT '',
    claimed_until bigint NOT NULL DEFAULT 0,
    claim_command text   NOT NULL DEFAULT '',
    outcome       text,
    decided_by    text   NOT NULL DEFAULT '',
    decided_at    bigint,
    decide_command text  NOT NULL DEFAULT '',
    decisions     bigint NOT NULL DEFAULT 0,
    told          bigint NOT NULL DEFAULT 1,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX reviews_id ON reviews (id);
CREATE INDEX reviews_opened ON reviews (tenant, opened_at, id);
CREATE INDEX reviews_of_session ON reviews (tenant, session);
CREATE INDEX reviews_untold ON reviews (decided_at) WHERE told = 0;
"""

V7: Final = """
CREATE TABLE audit (
    tenant text COLLATE "C" NOT NULL,
    seq    bigint NOT NULL,
    at     bigint NOT NULL,
    about  text COLLATE "C" NOT NULL,
    key_id text   NOT NULL,
    body   bytea  NOT NULL,
    prev   bytea  NOT NULL,
    mac    bytea  NOT NULL,
    PRIMARY KEY (tenant, seq)
);
CREATE INDEX audit_about ON audit (tenant, about, seq) WHERE about <> '';
CREATE TABLE audit_heads (
    tenant text COLLATE "C" NOT NULL PRIMARY KEY,
    seq    bigint NOT NULL,
    mac    bytea  NOT NULL,
    seal   bytea  NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE audit_secret (
    one    boolean PRIMARY KEY DEFAULT true CHECK (one),
    secret bytea NOT NULL
);
CREATE FUNCTION audit_stays() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'the audit log is only ever added to'; END $$;
CREATE TRIGGER audit_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON audit EXECUTE FUNCTION audit_stays();
"""

V8: Final = """
CREATE TABLE erasures (
    tenant   text COLLATE "C" NOT NULL,
    end_user text COLLATE "C" NOT NULL,
    asked_at bigint NOT NULL,
    asked_by text   NOT NULL,
    released text   NOT NULL,
    done_at  bigint,
    PRIMARY KEY (tenant, end_user, asked_at)
);
CREATE INDEX erasures_pending ON erasures (asked_at) WHERE done_at IS NULL;
"""

V9: Final = """
CREATE TABLE audit_floors (
    tenant text COLLATE "C" NOT NULL PRIMARY KEY,
    seq    bigint NOT NULL,
    mac    bytea  NOT NULL,
    until  bigint NOT NULL,
    key_id text   NOT NULL,
    seal   bytea  NOT NULL
);
CREATE FUNCTION audit_stays_from_floor() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NOT EXISTS (SELECT 1 FROM audit_floors WHERE tenant = OLD.tenant AND seq >= OLD.seq) THEN
        RAISE EXCEPTION 'the audit log is only ever added to';
    END IF;
    RETURN OLD;
END $$;
DROP TRIGGER audit_stays ON audit;
CREATE TRIGGER audit_stays BEFORE UPDATE OR TRUNCATE ON audit EXECUTE FUNCTION audit_stays();
CREATE TRIGGER audit_stays_from_floor BEFORE DELETE ON audit
    FOR EACH ROW EXECUTE FUNCTION audit_stays_from_floor();
"""

MIGRATIONS: Final[tuple[str, ...]] = (V1, V2, V3, V4, V5, V6, V7, V8, V9)


async def migrate(connection: asyncpg.Connection[Any], schema: str, migrations: tuple[str, ...] = MIGRATIONS) -> None:
    """Brings the schema to the newest version. Raises Unavailable when it is newer than that."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", ADVISORY_LOCK)
        await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        version = 0
        if await connection.fetchval("SELECT to_regclass('store')") is not None:
            version = await connection.fetchval("SELECT version FROM store")
        if version > len(migrations):
            raise Unavailable(
                "journal_newer",
                f"The database was written by a newer version of this server (schema {version}, this one knows "
                f"{len(migrations)}). Start that version, or name another database.",
                retryable=False,
            )
        for statements in migrations[version:]:
            await connection.execute(statements)
        if version < len(migrations):
            await connection.execute("UPDATE store SET version = $1", len(migrations))


# -- incarnation ----------------------------------------------------------------------------------------------------


class KnownPosition(msgspec.Struct, frozen=True, kw_only=True):
    """What a process knows of the store and of its own row in it."""

    writer: str
    incarnation: str = ""
    acknowledged: int = 0  # commits of this writer that someone was told of


READ_POSITION: Final = """
SELECT store.identity, store.incarnation, writers.commits,
    (SELECT system_identifier FROM pg_control_system())
    || '.' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
    || '.' || (SELECT oid FROM pg_database WHERE datname = current_database())
    || '.' || 'store'::regclass::oid AS now
FROM store LEFT JOIN writers ON writers.id = $1
"""


def was_restored(found: Any, known: KnownPosition) -> bool:
    """Whether the store lost something that stood in it, or is not the store that it says it is."""
    if found["identity"] != found["now"]:
        return True
    if not known.incarnation:
        return False
    if found["incarnation"] == known.incarnation:
        return found["commits"] is None or found["commits"] < known.acknowledged
    return incarnation_number(found["incarnation"]) <= incarnation_number(known.incarnation)


def incarnation_number(incarnation: str) -> int:
    """The place of an incarnation in the store's history; its text begins with it."""
    return int(incarnation.partition("-")[0] or 0)


async def settle_incarnation(
    connection: asyncpg.Connection[Any], known: KnownPosition, new_id: Callable[[], str]
) -> KnownPosition:
    """Checks a new connection. Returns what is known now; the store may have been given a new incarnation by it.

    Costs one round trip where nothing changed, which is nearly always.
    """
    found: Any = await connection.fetchrow(READ_POSITION, known.writer)
    if found["incarnation"] == known.incarnation and not was_restored(found, known):
        return known
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", ADVISORY_LOCK)
        found = await connection.fetchrow(READ_POSITION, known.writer)
        incarnation: str = found["incarnation"]
        if was_restored(found, known):
            number = 1 + max(incarnation_number(incarnation), incarnation_number(known.incarnation))
            incarnation = f"{number}-{new_id()}"
            await connection.execute("UPDATE store SET identity = $1, incarnation = $2", found["now"], incarnation)
            await connection.execute("SET LOCAL statement_timeout = 0")  # it touches every head there is
            await connection.execute("UPDATE heads SET fence = fence + $1", FENCES_PER_INCARNATION, timeout=3600)
        await connection.execute(
            "INSERT INTO writers (id, commits) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE"
            " SET commits = greatest(writers.commits, excluded.commits), seen_at = now()",
            known.writer,
            known.acknowledged,
        )
    return msgspec.structs.replace(known, incarnation=incarnation)
