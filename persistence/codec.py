"""How a body becomes bytes in a store, and how it is read again however old it is.

Two layers, so that encryption is a matter of the second one alone:

    Record ──encode_record──> plain bytes ──Codec.encode──> (key_id, stored bytes)

The codec also gets the row of each body (`Row`), so that one that encrypts can bind the body to its row.

A plain body begins with one byte, its version. Writers use the newest version; readers know every version that was ever
written (`RECORD_VERSIONS`), so a log never has to be rewritten because the software changed. Version 1 is MessagePack:
an array of a record's time, event and private part, the event as a map with its type. A field that is added to an event
with a default needs no new version; a changed meaning does.

`key_id` "" means plain. It is stored beside every body, so that plain and encrypted rows may stand in one table.

Knows nothing of tables, and nothing of where keys come from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import msgspec

from sessions.model.commands import Ok
from sessions.model.errors import Internal
from sessions.model.events import AnyEvent, Private, Record
from sessions.model.types import CommandId, Json, SessionKey, TenantId, UnixMs

T = TypeVar("T")
Row = int | str
"""The name of a body's row within its session: an event's offset, or a text such as "head"."""

HEAD_ROW: Final = "head"
ADDED_TOOLS_ROW: Final = "added tools"
RECORD_VERSION: Final = 1
_VERSION_BYTE: Final = bytes([RECORD_VERSION])


class KeyNotLoaded(Exception):
    """Raised if a key of this tenant is not in memory: call `Codec.load`, then try again. The `key_id` "" stands for
    the key that encrypts new bodies."""

    def __init__(self, tenant: TenantId, key_id: str) -> None:
        super().__init__(tenant, key_id)
        self.tenant = tenant
        self.key_id = key_id


class KeyDestroyed(Internal):
    """Raised if the key that a stored body was encrypted with has been destroyed on purpose: the body is lost."""

    def __init__(self) -> None:
        super().__init__("body_unreadable", "A stored body, whose key is destroyed, cannot be read.")


class Codec(Protocol):
    """Turns the plain bytes of one session's bodies into what is stored, and back.

    Both methods are plain functions, because they run while a batch is built or a page is decoded. They raise
    KeyNotLoaded if the key is not in memory (`with_keys` handles that). `decode` raises Internal with code
    `body_unreadable` if the bytes are not what was stored in that row.
    """

    def encode(self, key: SessionKey, row: Row, plain: bytes) -> tuple[str, bytes]:
        """Returns the id of the key, "" if the body is stored plain, and the stored bytes."""
        ...

    def decode(self, key: SessionKey, row: Row, key_id: str, stored: bytes) -> bytes: ...

    async def load(self, tenant: TenantId, key_id: str) -> None:
        """Brings the tenant's keys into memory. Raises Unavailable, KeyDestroyed, and Internal (`body_unreadable`) if
        the key `key_id` cannot be unwrapped."""
        ...


async def with_keys(codec: Codec, work: Callable[[], T]) -> T:
    """Runs `work` and returns its result. If the codec lacks a key, the key is loaded and `work` runs again. Raises
    what `work` and `Codec.load` raise."""
    while True:
        try:
            return work()
        except KeyNotLoaded as needed:
            await codec.load(needed.tenant, needed.key_id)


class PlainCodec:
    """A codec that stores bodies as they are, and cannot read encrypted ones."""

    def encode(self, key: SessionKey, row: Row, plain: bytes) -> tuple[str, bytes]:
        return "", plain

    def decode(self, key: SessionKey, row: Row, key_id: str, stored: bytes) -> bytes:
        if key_id:
            raise Internal(
                "body_unreadable", "A stored body is encrypted, and this server was started without its key store."
            )
        return stored

    async def load(self, tenant: TenantId, key_id: str) -> None:
        return


class HeadBody(msgspec.Struct, frozen=True):
    """The part of a session's head that people wrote. It is kept as a body so that it is encrypted like the others."""

    title: str | None = None
    metadata: dict[str, Json] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode_record_1 = msgspec.msgpack.Decoder(tuple[UnixMs, AnyEvent, Private | None]).decode
_decode_head_body_1 = msgspec.msgpack.Decoder(HeadBody).decode
_decode_ok_1 = msgspec.msgpack.Decoder(Ok).decode

RECORD_VERSIONS: Final = {1: _decode_record_1}
HEAD_BODY_VERSIONS: Final = {1: _decode_head_body_1}
OK_VERSIONS: Final = {1: _decode_ok_1}


def unreadable(what: str, exc: Exception | None = None) -> Internal:
    error = Internal("body_unreadable", f"A stored {what} cannot be read.")
    if exc is not None:
        error.add_note(str(exc))
    return error


def encode_record(record: Record) -> bytes:
    """Returns the plain body of a record: everything except the offset, which is the row's key."""
    return _VERSION_BYTE + _encode((record.at, record.event, record.private))


def decode_record(offset: int, plain: bytes) -> Record:
    """Decodes a body that any version of `encode_record` wrote. Raises Internal (`body_unreadable`)."""
    try:
        at, event, private = RECORD_VERSIONS[plain[0]](memoryview(plain)[1:])
    except (KeyError, IndexError, msgspec.DecodeError) as exc:
        raise unreadable(f"record (offset {offset})", exc) from exc
    return Record(offset, at, event, private)


def encode_head_body(about: HeadBody) -> bytes:
    return _VERSION_BYTE + _encode(about)


def decode_head_body(plain: bytes) -> HeadBody:
    try:
        return HEAD_BODY_VERSIONS[plain[0]](memoryview(plain)[1:])
    except (KeyError, IndexError, msgspec.DecodeError) as exc:
        raise unreadable("head", exc) from exc


def encode_ok(answer: Ok) -> bytes:
    return _VERSION_BYTE + _encode(answer)


def decode_ok(plain: bytes) -> Ok:
    try:
        return OK_VERSIONS[plain[0]](memoryview(plain)[1:])
    except (KeyError, IndexError, msgspec.DecodeError) as exc:
        raise unreadable("answer", exc) from exc


# -- bodies whose key id has no column of its own ----------------------------------------------------------------------

_decode_sealed = msgspec.msgpack.Decoder(tuple[str, bytes]).decode
_decode_command = msgspec.msgpack.Decoder(tuple[bytes, bytes]).decode
_SEALED_BYTE: Final = 0x92  # what begins an array of two in MessagePack, and no body of `encode_ok`


def seal_text(codec: Codec, key: SessionKey, row: Row, text: str) -> bytes:
    """Encrypts a text that is stored beside a session's log. The returned bytes begin with the id of the key."""
    return _encode(codec.encode(key, row, text.encode())) if text else b""


def unseal_text(codec: Codec, key: SessionKey, row: Row, stored: bytes) -> str:
    """Returns the text that `seal_text` stored. Raises Internal if it cannot be read."""
    if not stored:
        return ""
    try:
        return codec.decode(key, row, *_decode_sealed(stored)).decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise unreadable("text", exc) from exc


def sealed_key_id(stored: bytes) -> str:
    """Returns the id of the key at the beginning of bytes from `seal_text` or `encode_command`; "" if they are
    plain."""
    if not stored or stored[0] != _SEALED_BYTE:
        return ""
    try:
        return _decode_sealed(stored)[0]
    except msgspec.DecodeError as exc:
        raise unreadable("body", exc) from exc


def snapshot_row(offset: int) -> str:
    return f"snapshot {offset}"


def review_row(review_id: str, column: str) -> str:
    return f"review {review_id} {column}"


def memory_row(user: str, memory_id: str) -> str:
    return f"memory {memory_id} {user}"


def push_row(user: str, push_id: str) -> str:
    return f"push {push_id} {user}"


def file_row(user: str, file_id: str) -> str:
    return f"file {file_id} {user}"


def command_row(principal_id: str, command_id: CommandId | str) -> str:
    return f"command {principal_id} {command_id}"


def encode_command(codec: Codec, key: SessionKey, row: Row, digest: bytes, answer: bytes) -> tuple[bytes, bytes]:
    """Returns digest and answer of a command as they are stored. The digest is encrypted too, because it could confirm
    a guessed text."""
    key_id, stored = codec.encode(key, row, _encode((digest, answer)))
    return (b"", _encode((key_id, stored))) if key_id else (digest, answer)


def decode_command(codec: Codec, key: SessionKey, row: Row, digest: bytes, answer: bytes) -> tuple[bytes, bytes]:
    """Returns the digest and the answer that were passed to `encode_command`."""
    if not answer or answer[0] != _SEALED_BYTE:
        return digest, codec.decode(key, row, "", answer)
    try:
        return _decode_command(codec.decode(key, row, *_decode_sealed(answer)))
    except msgspec.DecodeError as exc:
        raise unreadable("answer", exc) from exc
