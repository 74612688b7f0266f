"""The codec: what it writes it reads, old versions for ever, and damage is said so."""

from __future__ import annotations

from hypothesis import strategies as st

from persistence.codec import (
    KeyNotLoaded,
    PlainCodec,
    decode_command,
    encode_command,
    encode_ok,
    with_keys,
)
from sessions.model.commands import Ok
from sessions.model.types import CommandId, SessionId, SessionKey, TenantId

KEY = SessionKey(TenantId("t"), SessionId("s"))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


# What version 1 looks like on a disk today. These bytes stand in logs: they may never stop being readable.
RECORD_1 = bytes.fromhex(
    "0193cd03e887a474797065ba" + b"response.output_text.delta".hex() + "ab" + b"response_id".hex() + "a172"
    "af" + b"sequence_number".hex() + "07a7" + b"item_id".hex() + "a169ac" + b"output_index".hex() + "00"
    "ad" + b"content_index".hex() + "00a5" + b"delta".hex() + "a2686981a6" + b"tokens".hex() + "c40401000000"
)  # fmt: skip


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
