"""The codec: what it writes it reads, old versions for ever, and damage is said so."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.codec import (
    HeadBody,
    KeyNotLoaded,
    PlainCodec,
    decode_command,
    decode_head_body,
    decode_ok,
    decode_record,
    encode_command,
    encode_head_body,
    encode_ok,
    encode_record,
    seal_text,
    sealed_key_id,
    unseal_text,
    with_keys,
)
from sessions.model.commands import Ok
from sessions.model.errors import Internal
from sessions.model.events import OutputTextDelta, Private, Record
from sessions.model.types import CommandId, ItemId, ResponseId, Sampling, SessionId, SessionKey, TenantId, UnixMs

KEY = SessionKey(TenantId("t"), SessionId("s"))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


@given(
    offset=st.integers(1, 2**53 - 1),
    at=st.integers(0, 2**53 - 1),
    text=texts,
    tokens=st.binary(max_size=40),
    seed=st.none() | st.integers(0, 2**53 - 1),
)
def test_a_record_comes_back_equal(offset: int, at: int, text: str, tokens: bytes, seed: int | None) -> None:
    event = OutputTextDelta(
        response_id=ResponseId("r"), sequence_number=0, item_id=ItemId("i"), output_index=0, content_index=0, delta=text
    )
    private = Private(tokens=tokens, tail=text, sampling=Sampling(seed=seed))
    for record in (Record(offset, UnixMs(at), event, private), Record(offset, UnixMs(at), event)):
        assert decode_record(offset, encode_record(record)) == record


@given(title=st.none() | texts, metadata=st.dictionaries(texts, st.none() | st.integers(-5, 5) | texts))
def test_a_title_and_metadata_come_back_equal(title: str | None, metadata: dict[str, object]) -> None:
    assert decode_head_body(encode_head_body(HeadBody(title, metadata))) == HeadBody(title, metadata)


# What version 1 looks like on a disk today. These bytes stand in logs: they may never stop being readable.
RECORD_1 = bytes.fromhex(
    "0193cd03e887a474797065ba" + b"response.output_text.delta".hex() + "ab" + b"response_id".hex() + "a172"
    "af" + b"sequence_number".hex() + "07a7" + b"item_id".hex() + "a169ac" + b"output_index".hex() + "00"
    "ad" + b"content_index".hex() + "00a5" + b"delta".hex() + "a2686981a6" + b"tokens".hex() + "c40401000000"
)  # fmt: skip


def test_version_1_is_still_readable() -> None:
    record = decode_record(9, RECORD_1)
    event = OutputTextDelta(
        response_id=ResponseId("r"), sequence_number=7, item_id=ItemId("i"), output_index=0, content_index=0, delta="hi"
    )
    assert record == Record(9, UnixMs(1000), event, Private(tokens=b"\x01\0\0\0"))


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\x01",
        b"\x02" + RECORD_1[1:],
        b"\xff" + RECORD_1[1:],
        RECORD_1[:-1],
        RECORD_1[:40],
        b"\x01\x93\x01\x02\x03",
    ],
)
def test_bytes_that_are_no_body_are_refused(damaged: bytes) -> None:
    for decode in (lambda data: decode_record(1, data), decode_head_body, decode_ok):
        with pytest.raises(Internal) as caught:
            decode(damaged)
        assert caught.value.code == "body_unreadable"


def test_the_plain_codec_refuses_a_body_that_was_encrypted() -> None:
    codec = PlainCodec()
    assert codec.encode(KEY, 1, b"abc") == ("", b"abc")
    assert codec.decode(KEY, 1, "", b"abc") == b"abc"
    with pytest.raises(Internal):
        codec.decode(KEY, 1, "key1", b"abc")


def test_a_text_comes_back_and_damage_is_noticed() -> None:
    codec = PlainCodec()
    assert seal_text(codec, KEY, "r", "") == b"" and unseal_text(codec, KEY, "r", b"") == ""
    assert unseal_text(codec, KEY, "r", seal_text(codec, KEY, "r", "ü")) == "ü"
    assert sealed_key_id(seal_text(codec, KEY, "r", "ü")) == sealed_key_id(b"") == sealed_key_id(RECORD_1) == ""
    assert sealed_key_id(msgspec.msgpack.encode(("k1", b"x"))) == "k1"
    for damaged in (b"x", msgspec.msgpack.encode(("", b"\xff"))):
        with pytest.raises(Internal):
            unseal_text(codec, KEY, "r", damaged)
    with pytest.raises(Internal):
        sealed_key_id(b"\x92x")


def test_a_plain_command_is_stored_as_it_ever_was() -> None:
    codec, answer = PlainCodec(), encode_ok(Ok(id=CommandId("c")))
    assert encode_command(codec, KEY, "r", b"d", answer) == (b"d", answer)
    assert decode_command(codec, KEY, "r", b"d", answer) == (b"d", answer)


async def test_work_that_lacks_a_key_is_done_when_it_is_loaded() -> None:
    loaded: list[str] = []

    class Late(PlainCodec):
        async def load(self, tenant: TenantId, key_id: str) -> None:
            loaded.append(key_id)

    def work() -> int:
        if len(loaded) < 2:
            raise KeyNotLoaded(KEY.tenant, f"k{len(loaded)}")
        return 7

    assert await with_keys(Late(), work) == 7 and loaded == ["k0", "k1"]
