"""Chains as a process knows them: columns of a batch, and heads that are remembered."""

from __future__ import annotations

from typing import Any

import pytest

from persistence.codec import PlainCodec
from persistence.postgres import audit_rows
from persistence.postgres.audit_rows import AUDIT_TYPES, HEAD_TYPES, ChainedEntries, HeadCache, columns
from persistence.write_batch import AppendWrite
from sessions.model.audit import AuditHead, Sealer
from sessions.model.journal_types import Append
from tests.support.stores.audit_tables import a_row
from tests.support.stores.journals import NOW, key

SEALER = Sealer(b"secret")


class Chains:
    """A connection to a database with the heads of these tenants; how often it was read."""

    def __init__(self, **heads: AuditHead) -> None:
        self.heads = heads
        self.reads: list[list[str]] = []

    async def fetch(self, statement: str, tenants: list[str]) -> list[Any]:
        self.reads.append(list(tenants))
        return [(tenant, *self.heads[tenant]) for tenant in tenants if tenant in self.heads]

    async def execute(self, statement: str, tenants: list[str]) -> None:
        for tenant in tenants:
            self.heads.setdefault(tenant, AuditHead(0, b"", b""))


def a_write(tenant: str, count: int = 1) -> AppendWrite:
    append = Append(key=key("s", tenant), fence=1, top=0, at=NOW, audit=tuple(a_row(n) for n in range(count)))
    return AppendWrite(PlainCodec(), append, sealer=SEALER, bytes_max=10_000)


def test_rows_of_a_batch_follow_each_other_in_each_tenants_chain() -> None:
    head = AuditHead(4, b"m" * 32, b"s" * 32)
    writes = [a_write("b"), a_write("a", 2), a_write("b", 2)]
    chained = ChainedEntries(SEALER, {"a": None, "b": head}, writes)
    heads, rows = chained.parameters[: len(HEAD_TYPES)], chained.parameters[len(HEAD_TYPES) :]
    assert chained.num_chains == 2 and len(rows) == len(AUDIT_TYPES)
    assert (heads[0], heads[1], heads[3]) == (["a", "b"], [0, 4], [2, 7])
    assert (rows[0], rows[1]) == (["a", "a", "b", "b", "b"], [1, 2, 5, 6, 7])
    assert rows[6][2] == head.mac, "the first row behind a chain names its end"
    behind = chained.behind["b"]
    assert behind is not None and behind.seq == 7
    assert columns([], 3) == [[], [], []]


async def test_heads_are_read_once_until_they_are_forgotten() -> None:
    database, cache = Chains(a=AuditHead(3, b"m", b"s")), HeadCache()
    writes = [a_write("a"), a_write("new")]
    assert await cache.of(database, writes) == {"a": AuditHead(3, b"m", b"s"), "new": None}
    assert database.reads == [["a", "new"], ["a", "new"]], "again after the missing one was made"
    cache.moved({"new": AuditHead(1, b"n", b"t")})
    assert (await cache.of(database, writes))["new"] == AuditHead(1, b"n", b"t") and len(database.reads) == 2
    cache.forget()
    await cache.of(database, writes)
    assert len(database.reads) == 3


async def test_a_process_remembers_no_more_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_rows, "CHAINS_MAX", 1)
    database, cache = Chains(), HeadCache()
    for tenants in (["a", "b"], ["c"], ["a"]):
        await cache.of(database, [a_write(tenant) for tenant in tenants])
    assert database.reads[-1] == ["a"] and ["c"] in database.reads
