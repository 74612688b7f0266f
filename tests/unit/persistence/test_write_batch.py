"""Appends as rows: what each part becomes, and how large it is."""

from __future__ import annotations

import pytest

from persistence.codec import PlainCodec
from persistence.write_batch import AppendWrite, GrantWrite
from sessions.model.audit import Sealer
from sessions.model.errors import BadInput, TooLarge
from sessions.model.journal_types import Append, Snapshot
from sessions.model.types import Epoch
from tests.support.stores.audit_tables import a_row
from tests.support.stores.journals import NOW, a_command, a_usage, delta, key, patch

CODEC = PlainCodec()


def a_write(bytes_max: int = 10_000, **fields: object) -> AppendWrite:
    append = Append(**{"key": key("s"), "fence": 1, "top": 0, "at": NOW, **fields})  # type: ignore[arg-type]
    return AppendWrite(CODEC, append, sealer=Sealer(b"secret"), bytes_max=bytes_max)


def test_each_part_beside_the_records_is_a_row_and_counts() -> None:
    sizes = [
        a_write(**fields).size
        for fields in (
            {},
            {"head": patch(title="t")},
            {"commands": (a_command(1),)},
            {"usage": (a_usage("r"),)},
            {"snapshot": Snapshot(0, b"s" * 100)},
            {"audit": (a_row(1),)},
        )
    ]
    assert all(size > sizes[0] for size in sizes[1:])
    write = a_write(head=patch(title="t"), commands=(a_command(1),), usage=(a_usage("r"),), audit=(a_row(1),))
    assert write.patch is not None and write.patch[:3] == ("acme", "s", False) and write.patch[-1] == NOW
    assert [len(rows) for rows in (write.commands, write.usage, write.audit)] == [1, 1, 1]


def test_what_cannot_be_stored_fails_where_it_is_made() -> None:
    with pytest.raises(TooLarge):
        a_write(100, records=(delta(1, "x" * 200),))
    with pytest.raises(BadInput):
        a_write(head=patch(user="\0"))
    with pytest.raises(BadInput):
        GrantWrite(CODEC, key("s"), None, "o\0", Epoch("e"), NOW)
