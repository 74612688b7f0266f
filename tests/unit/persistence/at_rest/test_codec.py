"""Sealed bodies: they open in their own row, session and tenant, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.at_rest.codec import SealingCodec
from persistence.codec import KeyNotLoaded, with_keys
from persistence.key_database import SqliteKeyDatabase
from sessions.model.errors import Internal
from tests.support.stores.journals import ACME, a_codec, key

PLAIN = b"the words of a person"


async def loaded(folder: Path, *, writes: bool = True) -> SealingCodec:
    codec = await a_codec(SqliteKeyDatabase(folder / "keys.db"), writes=writes)
    await codec.load(ACME, "")
    return codec


async def test_a_key_that_is_not_in_memory_is_called_for(tmp_path: Path) -> None:
    codec = await a_codec(SqliteKeyDatabase(tmp_path / "keys.db"))
    with pytest.raises(KeyNotLoaded):
        codec.encode(key("s"), 1, PLAIN)
    key_id, stored = await with_keys(codec, lambda: codec.encode(key("s"), 1, PLAIN))
    again = await a_codec(SqliteKeyDatabase(tmp_path / "keys.db"))
    with pytest.raises(KeyNotLoaded):
        again.decode(key("s"), 1, key_id, stored)
    assert await with_keys(again, lambda: again.decode(key("s"), 1, key_id, stored)) == PLAIN
    with pytest.raises(Internal):
        await with_keys(again, lambda: again.decode(key("s"), 1, "unknown", stored))


async def test_a_rotated_key_writes_at_once_and_the_older_one_reads(tmp_path: Path) -> None:
    codec = await loaded(tmp_path)
    first = codec.encode(key("s"), 1, PLAIN)
    await codec.keys.rotate(ACME)
    second = codec.encode(key("s"), 1, PLAIN)
    assert first[0] != second[0]
    assert codec.decode(key("s"), 1, *first) == codec.decode(key("s"), 1, *second) == PLAIN
    await codec.keys.destroy(ACME)
    for stored in (first, second):
        with pytest.raises(Internal):
            await with_keys(codec, lambda stored=stored: codec.decode(key("s"), 1, *stored))  # type: ignore[misc]
