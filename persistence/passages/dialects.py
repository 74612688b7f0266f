"""The SQL that differs between SQLite and PostgreSQL: tables, vectors, words, and filters on attributes.

Statements have `$n` for their values. Every one that finds chunks names the tenant and the store.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy

from persistence.sql.script import Parameters
from sessions.model.errors import Unavailable
from sessions.retrieval.filters import AttributeFilter, Comparison, Value

OVERSAMPLED: Final = 400  # chunks whose signs are nearest; their vectors are compared as they are
COMMON_CHUNKS: Final = 1_000  # a word that more chunks have than this finds none by itself
RANKED_CHUNKS: Final = 2 * COMMON_CHUNKS  # a search by words ranks about so many, whatever its words are

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS stores (
    num        {serial},
    tenant     TEXT NOT NULL,
    id         TEXT NOT NULL,
    end_user   TEXT NOT NULL,
    model      TEXT NOT NULL,
    dimensions BIGINT NOT NULL,
    chunks     BIGINT NOT NULL DEFAULT 0,
    version    BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL,
    key_id     TEXT NOT NULL,
    body       {bytes} NOT NULL,
    UNIQUE (tenant, id)
);
CREATE TABLE IF NOT EXISTS files (
    tenant     TEXT NOT NULL,
    store      BIGINT NOT NULL,
    id         TEXT NOT NULL,
    status     TEXT NOT NULL,
    claimed    BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL,
    batch      TEXT NOT NULL,
    size       BIGINT NOT NULL,
    attributes {json} NOT NULL,
    key_id     TEXT NOT NULL,
    body       {bytes} NOT NULL,
    text_key   TEXT NOT NULL,
    text       {bytes} NOT NULL,
    PRIMARY KEY (tenant, store, id)
);
CREATE INDEX IF NOT EXISTS files_waiting ON files (created_at) WHERE status = 'in_progress';
CREATE INDEX IF NOT EXISTS files_of_document ON files (tenant, id);
CREATE TABLE IF NOT EXISTS chunks (
    num    {serial},
    tenant TEXT NOT NULL,
    store  BIGINT NOT NULL,
    file   TEXT NOT NULL,
    key_id TEXT NOT NULL,
    body   {bytes} NOT NULL{columns}
);
CREATE INDEX IF NOT EXISTS chunks_of_file ON chunks (tenant, store, file);
CREATE TABLE IF NOT EXISTS packed_signs (
    num    BIGINT PRIMARY KEY,
    tenant TEXT NOT NULL,
    store  BIGINT NOT NULL,
    file   TEXT NOT NULL,
    chunks {bytes} NOT NULL,
    bits   {bytes} NOT NULL
);
CREATE INDEX IF NOT EXISTS packed_signs_of_file ON packed_signs (tenant, store, file, num);
"""
_OF_FILE: Final = "tenant = $1 AND store = $2 AND (CAST($3 AS TEXT) IS NULL OR file = $3)"
_TAKE_AWAY: Final = [f"DELETE FROM {table} WHERE {_OF_FILE}" for table in ("packed_signs", "chunks")]
PUT_SIGNS: Final = "INSERT INTO packed_signs (tenant, store, file, num, chunks, bits) VALUES ($1, $2, $3, $4, $5, $6)"
PUT_WORDS: Final = "INSERT INTO words (rowid, body) VALUES ($1, $2)"  # in a table beside


def passages_unavailable(exc: BaseException) -> Unavailable:
    return Unavailable("vector_stores_unavailable", f"The vector stores do not answer ({type(exc).__name__}).")


class WordQuery(NamedTuple):
    """Hashes of words: chunks have one of `some`, or each of `every`; they are ranked by all words."""

    some: tuple[str, ...]
    every: tuple[str, ...]
    ranked_by: tuple[str, ...]

    @classmethod
    def of(cls, counted: Sequence[tuple[int, str]]) -> WordQuery:
        """Chooses words by how many chunks have them: the rarest, with at most `RANKED_CHUNKS` in all. If all of them
        are common a chunk must have the first three. Words that no chunk has, such as misspelt ones, do not count."""
        counted = [(count, word) for count, word in counted if count]
        some, total = list[str](), 0
        for count, word in sorted(counted, key=lambda each: each[0]):
            total += count
            if count > COMMON_CHUNKS or total > RANKED_CHUNKS:
                break
            some.append(word)
        words = tuple(word for _, word in counted)
        return cls(tuple(some), () if some else words[:3], words)


def halved(vector: bytes) -> bytes:
    half: bytes = numpy.frombuffer(vector, "<f4").astype("<f2").tobytes()
    return half


_SIGN: Final = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


class SqliteDialect:
    one_table = False
    """Whether a chunk's words stand in the chunk's row, or in a table beside it."""

    def tables(self) -> str:
        tables = _TABLES.format(
            serial="INTEGER PRIMARY KEY AUTOINCREMENT", bytes="BLOB", json="TEXT", columns=",\n    vector BLOB NOT NULL"
        )
        return tables + (
            "CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(store, body, content='', contentless_delete=1,"
            " tokenize='ascii');\n"
        )

    def vector(self, given: bytes) -> Any:
        return halved(given)

    def put_chunk(self) -> str:
        """Returns the statement that inserts a chunk (tenant, store, file, key, body, vector; in one table also the
        number of dimensions and the words) and returns its number."""
        return (
            "INSERT INTO chunks (tenant, store, file, key_id, body, vector) VALUES ($1, $2, $3, $4, $5, $6)"
            " RETURNING num"
        )

    def take_away(self) -> list[str]:
        """Returns statements that delete chunks. Their parameters are tenant, store and file; with NULL as the file
        they delete all chunks of the store."""
        return [f"DELETE FROM words WHERE rowid IN (SELECT num FROM chunks WHERE {_OF_FILE})", *_TAKE_AWAY]

    def score(self, statement: Parameters, vector: bytes) -> str:
        """Returns the expression for the cosine of the vectors of `c` and of a query."""
        return f"cosine(c.vector, {statement.put(vector)})"

    def with_word(self, statement: Parameters, word: str) -> str:
        """Returns the query for chunks that have a word, at most one more than `COMMON_CHUNKS`."""
        return f"SELECT 1 FROM words WHERE words MATCH {statement.put(f'body : {word}')} LIMIT {COMMON_CHUNKS + 1}"

    def numbered(self, statement: Parameters, numbers: Sequence[int], table: str = "chunks") -> str:
        """Returns the FROM clause for the rows `c` with these numbers: of `chunks`, or of another table."""
        return f"FROM json_each({statement.put(json.dumps(list(numbers)))}) j CROSS JOIN {table} c ON c.num = j.value"

    def with_words(self, statement: Parameters, words: WordQuery) -> str:
        """Returns the FROM clause for the chunks `c` that words find; `place` orders them, the best first."""
        has = " OR ".join(words.some) or " AND ".join(words.every)
        match = statement.put(f"body : (({has}) AND ({' OR '.join(words.ranked_by)}))")
        ranked = f"SELECT rowid AS num, rank AS place FROM words WHERE words MATCH {match} LIMIT {RANKED_CHUNKS}"
        return f"FROM (SELECT h.*, w.place FROM ({ranked}) w CROSS JOIN chunks h ON h.num = w.num) c"

    def attributes(self, key: str) -> str:
        """Returns the FROM and WHERE clauses for the attribute `a` of `f` whose name is the parameter `key`."""
        return f"FROM json_each(f.attributes) a WHERE a.key = {key}"

    def compared(self, statement: Parameters, op: str, value: Value) -> str:
        """Returns the expression that compares the attribute `a` with a value; `ne` and `nin` as `eq`."""
        if isinstance(value, bool):
            return f"a.type = '{'true' if value else 'false'}'"
        kinds = "'text'" if isinstance(value, str) else "'integer', 'real'"
        return f"a.type IN ({kinds}) AND a.value {_SIGN.get(op, '=')} {statement.put(value)}"


class PostgresDialect:
    one_table = True

    def tables(self) -> str:
        return _TABLES.format(
            serial="BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
            bytes="BYTEA",
            json="JSONB",
            columns=",\n    dimensions BIGINT NOT NULL,\n    vector vector NOT NULL,\n    words TSVECTOR NOT NULL",
        ) + (
            # A list of pending entries would be read anew for each word of each search.
            "CREATE INDEX IF NOT EXISTS chunks_words ON chunks USING gin (words) WITH (fastupdate = off);\n"
        )

    def vector(self, given: bytes) -> Any:
        return "[" + ",".join(f"{each:.7g}" for each in numpy.frombuffer(given, "<f4").tolist()) + "]"

    def put_chunk(self) -> str:
        return (
            "INSERT INTO chunks (tenant, store, file, key_id, body, vector, dimensions, words)"
            " VALUES ($1, $2, $3, $4, $5, $6::text::vector, $7, to_tsvector('simple', $8)) RETURNING num"
        )

    def take_away(self) -> list[str]:
        return _TAKE_AWAY

    def score(self, statement: Parameters, vector: bytes) -> str:
        return f"-(c.vector <#> (SELECT {statement.put(self.vector(vector))}::text::vector))"  # parsed once, not by row

    def with_word(self, statement: Parameters, word: str) -> str:
        return f"SELECT 1 FROM chunks WHERE words @@ {_query(statement, word)} LIMIT {COMMON_CHUNKS + 1}"

    def numbered(self, statement: Parameters, numbers: Sequence[int], table: str = "chunks") -> str:
        given = f"unnest({statement.put(list(numbers))}::bigint[]) n (num)"
        return f"FROM {given}, LATERAL (SELECT * FROM {table} WHERE num = n.num OFFSET 0) c"

    def with_words(self, statement: Parameters, words: WordQuery) -> str:
        has = _query(statement, " | ".join(words.some) or " & ".join(words.every))
        place = f"-ts_rank(words, {_query(statement, ' | '.join(words.ranked_by))}) AS place"
        return f"FROM (SELECT *, {place} FROM chunks WHERE words @@ {has} LIMIT {RANKED_CHUNKS}) c"

    def attributes(self, key: str) -> str:
        return f"FROM jsonb_each(f.attributes) a WHERE a.key = {key}"

    def compared(self, statement: Parameters, op: str, value: Value) -> str:
        sign = _SIGN.get(op)
        if sign is None:
            return f"a.value = {statement.put(json.dumps(value))}::text::jsonb"
        if isinstance(value, str):
            text = f"(a.value #>> '{{}}') COLLATE \"C\" {sign} {statement.put(value)}"
            return f"jsonb_typeof(a.value) = 'string' AND {text}"
        number = f"(a.value #>> '{{}}')::float8 {sign} {statement.put(float(value))}::float8"
        return f"CASE WHEN jsonb_typeof(a.value) = 'number' THEN {number} ELSE false END"


Dialect = SqliteDialect | PostgresDialect


def condition(dialect: Dialect, statement: Parameters, given: AttributeFilter) -> str:
    """Returns the SQL condition of an attribute filter on `f`, a row of `files`."""
    if not isinstance(given, Comparison):
        inner = f" {given.op.upper()} ".join(condition(dialect, statement, each) for each in given.filters)
        return f"({inner})"
    there = dialect.attributes(statement.put(given.key))
    values = given.value if isinstance(given.value, tuple) else (given.value,)
    some = " OR ".join(f"({dialect.compared(statement, given.op, value)})" for value in values)
    return f"{'NOT ' if given.op in ('ne', 'nin') else ''}EXISTS (SELECT 1 {there} AND ({some}))"


def _query(statement: Parameters, words: str) -> str:
    return f"(SELECT to_tsquery('simple', {statement.put(words)}))"
