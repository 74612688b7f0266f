"""The SQL of the PostgreSQL journal, and how its answers become structs.

A batch is one statement, hence one transaction and one round trip: `mine` moves this writer's own row (and with it the
proof that the store did not go back), `held` locks the heads whose fence and top are as the writers believe, in key
order, `won` moves them (I1), and everything else is inserted for the winners alone. Its answer says who won.

Columns travel as arrays, one array a column, and a session's place in the batch (`no`, from 1) ties its rows together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import count
from typing import Any, Final

from persistence.codec import Codec, decode_record, snapshot_row
from persistence.postgres.audit_rows import AUDIT_TYPES, HEAD_TYPES, ChainedEntries, columns
from persistence.sql.audit import AUDIT_COLUMNS
from persistence.sql.journal import HEAD_COLUMNS, command_from, head_from
from persistence.write_batch import PUSH_AGAIN, PUSH_COLUMNS, REVIEW_AGAIN, REVIEW_COLUMNS, USAGE_COLUMNS, AppendWrite
from sessions.model.errors import Internal
from sessions.model.events import Record
from sessions.model.journal_types import CommandRecord, Due, Head, Snapshot
from sessions.model.types import NEVER, SessionKey, TenantId

LOAD_PAGE_ROWS = 20_000

Columns = list[list[Any]]

_EVENT = ("bigint", "text", "text", "bigint", "text", "bytea")
_HEAD_PATCH = ("boolean", "boolean", "text", "text", "text", "bytea", "boolean", "bigint", "bigint")
_COMMAND = ("bigint", "text", "text", "text", "text", "bigint", "bytea", "bytea")
_USAGE = ("bigint", *["text"] * 8, *["bigint"] * 8, "text", "text", "bigint")
_RESPONSE = ("bigint", "text", "text", "text", "bigint")
_REVIEW = (
    "bigint",
    *["text"] * 7,
    "double precision",
    *["text"] * 5,
    *["bigint"] * 3,
    "bytea",
    "bytea",
    *["bigint"] * 2,
)
_PUSH = ("bigint", *["text"] * 5, *["bigint"] * 3)
_SNAPSHOT = ("bigint", "text", "text", "bigint", "text", "bytea")
_APPEND = ("text", "text", "bigint", "bigint", "bigint")

WRITER: Final = "UPDATE writers SET commits = commits + 1, seen_at = now() WHERE id = $1 RETURNING commits"


_WINNERS: Final = "no = ANY ((SELECT nos FROM winners)::bigint[])"

_RECORDS: Final = """
WITH{chain}
mine AS (UPDATE writers SET commits = commits + 1 WHERE id = $1 AND commits = $2{chained} RETURNING id),
a AS (SELECT * FROM {appends} WITH ORDINALITY AS a (tenant, session, fence, top, n{patch_columns}, no)),
held AS MATERIALIZED (
    SELECT a.* FROM mine, a JOIN heads h
        ON h.tenant = a.tenant AND h.session = a.session AND h.fence = a.fence AND h.top = a.top
    ORDER BY h.tenant, h.session FOR UPDATE OF h),
won AS (
    UPDATE heads h SET top = h.top + held.n, empty = h.empty AND held.n = 0{set_patch}
    FROM held WHERE h.tenant = held.tenant AND h.session = held.session AND h.fence = held.fence AND h.top = held.top
    {all_held} RETURNING held.no),
winners AS (SELECT coalesce(array_agg(no), '{{}}') AS nos FROM won),
events_in AS (
    INSERT INTO events (tenant, session, "offset", key_id, body)
    SELECT tenant, session, "offset", key_id, body
    FROM {events} AS e (no, tenant, session, "offset", key_id, body) WHERE {winners})
"""

_BESIDE: Final = """,
commands_in AS (
    INSERT INTO commands (tenant, session, principal, command, at, digest, answer)
    SELECT tenant, session, principal, command, at, digest, answer
    FROM {commands} AS c (no, tenant, session, principal, command, at, digest, answer) WHERE {winners}
    ON CONFLICT (tenant, session, principal, command)
    DO UPDATE SET at = excluded.at, digest = excluded.digest, answer = excluded.answer),
responses_in AS (
    INSERT INTO responses (tenant, response, session, "offset")
    SELECT tenant, response, session, "offset"
    FROM {responses} AS r (no, tenant, response, session, "offset") WHERE {winners}
    ON CONFLICT (tenant, response) DO NOTHING),
usage_in AS (
    INSERT INTO usage ({usage_columns})
    SELECT {usage_columns} FROM {usage} AS u (no, {usage_columns}) WHERE {winners}
    ON CONFLICT (tenant, session, response) DO NOTHING),
reviews_in AS (
    INSERT INTO reviews ({review_columns})
    SELECT {review_columns} FROM {reviews} AS v (no, {review_columns}) WHERE {winners}
    {review_again}),
pushes_in AS (
    INSERT INTO push_outbox ({push_columns})
    SELECT p.tenant, p.session, s.id, p.end_user, p.cause, p.response, p.log_offset, p.at, p.due_at, 0
    FROM {pushes} AS p (no, tenant, session, end_user, cause, response, log_offset, at, due_at)
        JOIN push_subscriptions s ON s.tenant = p.tenant AND s.end_user = p.end_user WHERE {winners}
    {push_again}),
snapshots_in AS (
    INSERT INTO snapshots (tenant, session, "offset", key_id, body)
    SELECT tenant, session, "offset", key_id, body
    FROM {snapshots} AS s (no, tenant, session, "offset", key_id, body) WHERE {winners}
    ON CONFLICT (tenant, session)
    DO UPDATE SET "offset" = excluded."offset", key_id = excluded.key_id, body = excluded.body)
"""

_ANSWER: Final = "SELECT (SELECT count(*) FROM mine) AS mine, nos FROM winners"

# With rows for chains it is all or nothing: what they follow must be as it was taken for, and all appends that have
# rows must win, because later rows follow from theirs. The answer says which of the two it was; the caller tries again.
_CHAIN: Final = """
c AS (SELECT * FROM {heads} AS c (tenant, seq, mac, to_seq, to_mac, to_seal)),
chain AS MATERIALIZED (
    SELECT c.* FROM c JOIN audit_heads h ON h.tenant = c.tenant AND h.seq = c.seq AND h.mac = c.mac
    ORDER BY h.tenant FOR UPDATE OF h),"""
_CHAINED: Final = " AND (SELECT count(*) FROM chain) = (SELECT count(*) FROM c)"
_ALL_HELD: Final = "AND (SELECT count(*) FROM held WHERE no = ANY ({audited})) = cardinality({audited})"
_AUDIT: Final = """,
audit_moved AS (
    UPDATE audit_heads h SET seq = chain.to_seq, mac = chain.to_mac, seal = chain.to_seal
    FROM chain WHERE h.tenant = chain.tenant AND EXISTS (SELECT 1 FROM won)),
audit_in AS (
    INSERT INTO audit ({audit_columns})
    SELECT {audit_columns} FROM {rows} AS r ({audit_columns}) WHERE EXISTS (SELECT 1 FROM won))
"""
_ANSWER_AUDITED: Final = (
    "SELECT (SELECT count(*) FROM mine) AS mine, nos, (SELECT count(*) FROM chain) AS chained,"
    " (SELECT coalesce(array_agg(no), '{}') FROM held) AS held FROM winners"
)


@cache
def batch(*, whole: bool, audited: bool = False) -> str:
    """Returns the statement of a batch: of records alone, or of everything that an append may carry (`whole`). With
    `audited` the batch has audit rows too, and `$3` then numbers the appends that have some."""
    assert whole or not audited
    numbers = count(4 if audited else 3)  # $1 and $2 are the writer's id and commits

    def unnest(types: Sequence[str]) -> str:
        return "unnest(" + ", ".join(f"${next(numbers)}::{kind}[]" for kind in types) + ")"

    statement = _RECORDS.format(
        chain=_CHAIN.format(heads=unnest(HEAD_TYPES)) if audited else "",
        chained=_CHAINED if audited else "",
        all_held=_ALL_HELD.format(audited="$3::bigint[]") if audited else "",
        appends=unnest((*_APPEND, *_HEAD_PATCH) if whole else _APPEND),
        patch_columns=", patched, " + ", ".join(_PATCHED) if whole else "",
        set_patch=_SET_PATCH if whole else "",
        events=unnest(_EVENT),
        winners=_WINNERS,
    )
    if whole:
        statement += _BESIDE.format(
            commands=unnest(_COMMAND),
            responses=unnest(_RESPONSE),
            usage=unnest(_USAGE),
            reviews=unnest(_REVIEW),
            review_columns=REVIEW_COLUMNS,
            review_again=REVIEW_AGAIN,
            pushes=unnest(_PUSH),
            push_columns=PUSH_COLUMNS,
            push_again=PUSH_AGAIN,
            snapshots=unnest(_SNAPSHOT),
            usage_columns=USAGE_COLUMNS,
            winners=_WINNERS,
        )
    if not audited:
        return statement + _ANSWER
    return statement + _AUDIT.format(audit_columns=AUDIT_COLUMNS, rows=unnest(AUDIT_TYPES)) + _ANSWER_AUDITED


_PATCHED: Final = ("open", "end_user", "model", "key_id", "about", "listed", "deleted_at", "updated_at")
_SET_PATCH: Final = "".join(
    f", {column} = CASE WHEN held.patched THEN held.{column} ELSE h.{column} END" for column in _PATCHED
)


def batch_of(writes: Sequence[AppendWrite], chained: ChainedEntries | None = None) -> tuple[str, Columns]:
    """Returns the statement for these appends, and its parameters from the third on (the first two are the writer's).
    `chained` has their audit rows, if there are some."""
    if chained is not None:
        audited = [no for no, w in enumerate(writes, 1) if w.audit]
        heads, rows = chained.parameters[: len(HEAD_TYPES)], chained.parameters[len(HEAD_TYPES) :]
        return batch(whole=True, audited=True), [audited, *heads, *_whole(writes), *rows]
    whole = any(w.patch or w.commands or w.responses or w.usage or w.reviews or w.push or w.snapshot for w in writes)
    if not whole:
        appends = [(*w.key, w.append.fence, w.append.top, len(w.events)) for w in writes]
        return batch(whole=False), [
            *columns(appends, len(_APPEND)),
            *columns([(no, *row) for no, w in enumerate(writes, 1) for row in w.events], len(_EVENT)),
        ]
    return batch(whole=True), _whole(writes)


def _whole(writes: Sequence[AppendWrite]) -> Columns:
    appends = [(*w.key, w.append.fence, w.append.top, len(w.events)) for w in writes]
    patched = [
        (*append, *((True, *w.patch[2:]) if w.patch else (False, *[None] * 8)))
        for append, w in zip(appends, writes, strict=True)
    ]
    numbered = list(enumerate(writes, 1))
    return [
        *columns(patched, len(_APPEND) + len(_HEAD_PATCH)),
        *columns([(no, *row) for no, w in numbered for row in w.events], len(_EVENT)),
        *columns([(no, *row) for no, w in numbered for row in w.commands], len(_COMMAND)),
        *columns([(no, *row) for no, w in numbered for row in w.responses], len(_RESPONSE)),
        *columns([(no, *row) for no, w in numbered for row in w.usage], len(_USAGE)),
        *columns([(no, *row) for no, w in numbered for row in w.reviews], len(_REVIEW)),
        *columns([(no, *w.push) for no, w in numbered if w.push], len(_PUSH)),
        *columns([(no, *w.snapshot) for no, w in numbered if w.snapshot], len(_SNAPSHOT)),
    ]


# -- grants ---------------------------------------------------------------------------------------------------------

_HEAD: Final = (
    "{0}tenant, {0}session, {0}epoch, {0}fence, {0}incarnation, {0}top, {0}open, {0}owner, {0}end_user, {0}model,"
    " {0}listed, {0}created_at, {0}updated_at, {0}deleted_at, {0}key_id, {0}about"
)

# (tenant, session, epoch, owner, key_id, about, now). The incarnation is the store's at that moment, not the caller's.
GRANT_NEW: Final = f"""
INSERT INTO heads (tenant, session, fence, top, epoch, incarnation, owner, key_id, about, created_at, updated_at)
SELECT $1, $2, 1, 0, $3, store.incarnation, $4, $5, $6, $7, $7 FROM store
ON CONFLICT (tenant, session) DO NOTHING RETURNING {_HEAD.format("")}
"""

# (tenant, session, expected fence, new epoch, owner, now)
GRANT_NEXT: Final = f"""
UPDATE heads SET fence = fence + 1, owner = $5, incarnation = store.incarnation,
    epoch = CASE WHEN heads.incarnation = store.incarnation THEN epoch ELSE $4 END,
    updated_at = CASE WHEN empty THEN $6 ELSE updated_at END
FROM store WHERE tenant = $1 AND session = $2 AND fence = $3 RETURNING {_HEAD.format("heads.")}
"""


# -- reads ----------------------------------------------------------------------------------------------------------

HEAD = f"SELECT {_HEAD.format('')} FROM heads WHERE tenant = $1 AND session = $2"

_PAGE: Final = """
LATERAL (
    SELECT coalesce(array_agg("offset"), '{{}}') AS offsets, array_agg(key_id) AS key_ids, array_agg(body) AS bodies
    FROM (
        SELECT *, sum(length(body)) OVER (ORDER BY "offset" ROWS UNBOUNDED PRECEDING) - length(body) AS bytes_before
        FROM (
            SELECT "offset", key_id, body FROM events
            WHERE tenant = $1 AND session = $2 AND "offset" > {after} ORDER BY "offset" LIMIT {limit}) x
    ) y WHERE bytes_before < {bytes_max}
) page
"""

# (tenant, session, after, limit, bytes_max): a head and a stretch of its log, cut by rows and by bytes.
READ = f"""
SELECT {_HEAD.format("h.")}, page.* FROM heads h, {_PAGE.format(after="$3", limit="$4", bytes_max="$5")}
WHERE h.tenant = $1 AND h.session = $2
"""

# (tenant, session, commands since, commands limit, events limit, events bytes_max)
LOAD = f"""
SELECT {_HEAD.format("h.")}, page.*, recent.*,
    s."offset" AS snapshot_offset, s.key_id AS snapshot_key_id, s.body AS snapshot_body
FROM heads h LEFT JOIN snapshots s ON s.tenant = h.tenant AND s.session = h.session,
{_PAGE.format(after='coalesce(s."offset", 0)', limit="$5", bytes_max="$6")},
LATERAL (
    SELECT array_agg(principal) AS principals, array_agg(command) AS commands, array_agg(digest) AS digests,
        array_agg(answer) AS answers, array_agg(at) AS ats
    FROM (
        SELECT * FROM commands WHERE tenant = $1 AND session = $2 AND at > $3
        ORDER BY at DESC, command DESC LIMIT $4) c
) recent
WHERE h.tenant = $1 AND h.session = $2
"""

FIND_COMMAND = """
SELECT principal, command, digest, answer, at FROM commands
WHERE tenant = $1 AND session = $2 AND principal = $3 AND command = $4
"""

FIND_RESPONSE = 'SELECT session, "offset" FROM responses WHERE tenant = $1 AND response = $2'

PLACE = "SELECT updated_at, session, end_user FROM heads WHERE tenant = $1 AND session = $2"


# (tenant, end user or NULL, whether bytes are counted)
TALLY = """
SELECT
    (SELECT count(*) FROM heads WHERE tenant = $1 AND listed AND deleted_at IS NULL AND NOT empty
        AND ($2::text IS NULL OR end_user = $2)),
    CASE WHEN $3 THEN coalesce((SELECT sum(length(e.body)) FROM events e JOIN heads h USING (tenant, session)
        WHERE e.tenant = $1 AND ($2::text IS NULL OR h.end_user = $2)), 0)::bigint ELSE 0 END
"""


def list_heads(tenant: TenantId, user: str | None, limit: int, behind: tuple[int, str] | None) -> tuple[str, list[Any]]:
    """Returns the query for a page of heads, newest first. `behind` is the (updated_at, session) after which the page
    begins; None for the first page."""
    where = "tenant = $1 AND listed AND deleted_at IS NULL AND NOT empty"
    values: list[Any] = [tenant, limit]
    if user is not None:
        values.append(user)
        where += f" AND end_user IS NOT NULL AND end_user = ${len(values)}"
    if behind is not None:
        values += behind
        place, session = f"${len(values) - 1}", f"${len(values)}"
        where += f" AND updated_at <= {place} AND (updated_at < {place} OR session > {session})"
    return f"SELECT {_HEAD.format('')} FROM heads WHERE {where} ORDER BY updated_at DESC, session LIMIT $2", values


# (tenant, user, session, limit): whatever is stored of a user, in key order.
HEADS_OF_USER = f"""
SELECT {_HEAD.format("")} FROM heads WHERE tenant = $1 AND session > $3 AND end_user = $2 ORDER BY session LIMIT $4
"""

# (limit, tenant, session)
OPEN_HEADS = f"""
SELECT {_HEAD.format("")} FROM heads WHERE open AND (tenant, session) > ($2, $3) ORDER BY tenant, session LIMIT $1
"""


# -- purge ----------------------------------------------------------------------------------------------------------

# What may be due, each arm by an index; `Due.reason` decides.
_DUE: Final = (
    "deleted_at IS NOT NULL AND deleted_at < $1",
    "empty AND updated_at < $1",
    "NOT listed AND deleted_at IS NULL AND updated_at < $3 AND NOT open",
    "NOT listed AND deleted_at IS NOT NULL AND updated_at < $3 AND NOT open",
)
# Listed sessions stand in an index of their tenant's, which is read for one tenant after the other: an index of all
# by their time would be written with every event.
_TENANTS: Final = """
WITH RECURSIVE tenants (name) AS (
    SELECT min(tenant) FROM heads
    UNION ALL
    SELECT (SELECT min(tenant) FROM heads WHERE tenant > name) FROM tenants WHERE name IS NOT NULL
)
"""
_IDLE: Final = (
    "updated_at < $4 AND NOT open AND NOT empty AND deleted_at IS NOT NULL",
    "updated_at < $4 AND NOT open AND NOT empty AND deleted_at IS NULL AND NOT listed",
)
_IDLE_LISTED: Final = "updated_at < $4 AND NOT open AND NOT empty AND deleted_at IS NULL AND listed AND tenant = "


def purgeable(due: Due, limit: int) -> tuple[str, list[Any]]:
    whose = "$5::text IS NULL" if due.tenant is None else "tenant = $5::text"
    tenants, arms = "", list(_DUE)
    if due.idle_before > NEVER:
        arms += _IDLE if due.tenant is None else (*_IDLE, f"{_IDLE_LISTED}$5::text")
        tenants = _TENANTS if due.tenant is None else ""
    selects = [f"SELECT tenant, session, end_user FROM heads WHERE {whose} AND {arm}" for arm in arms]
    if tenants:
        selects.append(
            "SELECT found.* FROM tenants, LATERAL (SELECT tenant, session, end_user FROM heads"
            f" WHERE {_IDLE_LISTED}tenants.name OFFSET 0) AS found"
        )
    # (deleted before, limit, unlisted before, idle before, tenant or NULL, other tenants, user or NULL)
    statement = (
        f"{tenants}SELECT DISTINCT tenant, session FROM ({' UNION ALL '.join(selects)}) AS due"
        " WHERE $4::bigint IS NOT NULL AND tenant <> ALL ($6::text[])"
        " AND ($7::text IS NULL OR end_user = $7) LIMIT $2"
    )
    times = (due.deleted_before, limit, due.unlisted_before, due.idle_before)
    return statement, [*times, due.tenant, list(due.besides), due.user]


# (tenant, session): locks the head
STANDING: Final = (
    "SELECT top, listed, open, updated_at, deleted_at, end_user FROM heads"
    " WHERE tenant = $1 AND session = $2 FOR UPDATE"
)

# (tenant, session, now): nobody goes on with a session whose log is being taken away.
PURGE_BEGUN: Final = (
    "UPDATE heads SET fence = fence + 1, deleted_at = $3 WHERE tenant = $1 AND session = $2 AND deleted_at IS NULL"
)

# (tenant, session, limit)
PURGE_EVENTS: Final = """
WITH gone AS (
    DELETE FROM events WHERE tenant = $1 AND session = $2 AND "offset" < $3 + (
        SELECT min("offset") FROM events WHERE tenant = $1 AND session = $2) RETURNING 1)
SELECT count(*) FROM gone
"""

# (before, limit)
PURGE_COMMANDS: Final = """
WITH gone AS (
    DELETE FROM commands WHERE ctid = ANY (ARRAY(SELECT ctid FROM commands WHERE at < $1 ORDER BY at LIMIT $2))
    RETURNING 1)
SELECT count(*) FROM gone
"""

PURGE_WRITERS: Final = "DELETE FROM writers WHERE seen_at < now() - interval '90 days'"


# -- rows to structs ------------------------------------------------------------------------------------------------


def head_of(codec: Codec, row: Any) -> Head:
    return head_from(codec, row[:HEAD_COLUMNS], row["about"])


def heads_of(codec: Codec, rows: Sequence[Any]) -> list[Head]:
    return [head_of(codec, row) for row in rows]


def records_of(codec: Codec, key: SessionKey, row: Any, *, after: int) -> tuple[Record, ...]:
    """Returns a page's records. Raises Internal unless they begin right behind the offset `after` and have no gap."""
    offsets = row["offsets"]
    if not offsets:
        return ()
    if offsets != list(range(after + 1, after + len(offsets) + 1)):
        raise Internal("journal_hole", "The stored log of this session has a hole.")
    decode = codec.decode
    return tuple(
        [
            decode_record(offset, decode(key, offset, key_id, body))
            for offset, key_id, body in zip(offsets, row["key_ids"], row["bodies"], strict=True)
        ]
    )


def snapshot_of(codec: Codec, key: SessionKey, row: Any) -> Snapshot | None:
    if row["snapshot_offset"] is None:
        return None
    offset = row["snapshot_offset"]
    return Snapshot(offset, codec.decode(key, snapshot_row(offset), row["snapshot_key_id"], row["snapshot_body"]))


def commands_of(codec: Codec, key: SessionKey, row: Any) -> list[CommandRecord]:
    """Returns the commands of a row, newest first."""
    columns = (row[name] or [] for name in ("principals", "commands", "digests", "answers", "ats"))
    return [command_from(codec, key, values) for values in zip(*columns, strict=True)]


def command_of(codec: Codec, key: SessionKey, row: Any) -> CommandRecord:
    return command_from(codec, key, tuple(row))
