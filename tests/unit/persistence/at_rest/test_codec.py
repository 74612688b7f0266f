"""Sealed bodies: they open in their own row, session and tenant, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.at_rest.codec import SealingCodec
from persistence.codec import HEAD_ROW, KeyNotLoaded, decode_command, encode_command, with_keys
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


async def test_a_body_opens_in_its_own_place_only(tmp_path: Path) -> None:
    codec = await loaded(tmp_path)
    key_id, stored = codec.encode(key("s"), 7, PLAIN)
    assert PLAIN not in stored and codec.decode(key("s"), 7, key_id, stored) == PLAIN
    for where, row in ((key("s"), 8), (key("s"), HEAD_ROW), (key("t"), 7)):
        with pytest.raises(Internal):
            codec.decode(where, row, key_id, stored)
    with pytest.raises(Internal):  # another tenant has other keys
        await with_keys(codec, lambda: codec.decode(key("s", "globex"), 7, key_id, stored))


async def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    codec = await loaded(tmp_path)
    key_id, stored = codec.encode(key("s"), 7, PLAIN)
    for at in range(len(stored)):
        changed = bytearray(stored)
        changed[at] ^= 1
        with pytest.raises(Internal):
            codec.decode(key("s"), 7, key_id, bytes(changed))
    for short in (b"", stored[:1], stored[:13], stored[:-1]):
        with pytest.raises(Internal):
            codec.decode(key("s"), 7, key_id, short)


async def test_no_nonce_comes_twice(tmp_path: Path) -> None:
    codec, other = await loaded(tmp_path), await loaded(tmp_path)
    bodies = [each.encode(key("s"), 1, PLAIN)[1] for each in (codec, other) for _ in range(500)]
    assert len({body[1:13] for body in bodies}) == 1000


async def test_a_codec_that_does_not_write_reads(tmp_path: Path) -> None:
    codec, reader = await loaded(tmp_path), await loaded(tmp_path, writes=False)
    assert reader.encode(key("s"), 1, PLAIN) == ("", PLAIN) and codec.decode(key("s"), 1, "", PLAIN) == PLAIN
    key_id, stored = codec.encode(key("s"), 1, PLAIN)
    assert reader.decode(key("s"), 1, key_id, stored) == PLAIN


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


async def test_a_command_hides_its_digest_too(tmp_path: Path) -> None:
    codec = await loaded(tmp_path)
    digest, answer = encode_command(codec, key("s"), "command k c", b"digest", b"\x01answer")
    assert digest == b"" and b"answer" not in answer and b"digest" not in answer
    assert decode_command(codec, key("s"), "command k c", digest, answer) == (b"digest", b"\x01answer")
    with pytest.raises(Internal):
        decode_command(codec, key("s"), "command k d", digest, answer)


async def test_plain_rows_open_until_the_keys_refuse_them(tmp_path: Path) -> None:
    codec = await a_codec(SqliteKeyDatabase(tmp_path / "keys.db"))
    with pytest.raises(KeyNotLoaded):  # what the keys say is not known
        codec.decode(key("s"), 1, "", PLAIN)
    await codec.load(ACME, "")
    assert codec.decode(key("s"), 1, "", PLAIN) == PLAIN
    assert decode_command(codec, key("s"), "command", b"digest", b"\x01ok") == (b"digest", b"\x01ok")
    await codec.keys.refuse_plain(ACME)
    for decode in (
        lambda: codec.decode(key("s"), 1, "", PLAIN),
        lambda: decode_command(codec, key("s"), "command", b"digest", b"\x01ok"),
    ):
        with pytest.raises(Internal, match="in the clear"):
            decode()
    off = await loaded(tmp_path, writes=False)  # a server that writes rows in the clear reads its own
    assert off.decode(key("s"), 1, "", PLAIN) == PLAIN
