"""How a body becomes bytes in a store, and how it is read again however old it is.

Two layers, so that encryption is a matter of the second one alone:

    Record ──encode_record──> plain bytes ──Codec.encode──> (key_id, stored bytes)

A plain body begins with one byte, its version. Writers use the newest version; readers know every version that was
ever written (`RECORD_VERSIONS`), so a log never has to be rewritten because the software changed. Inside version 1
stands MessagePack: an array of a record's time, event and private part, the event as a map with its type. A field that
is added to an event with a default needs no new version; a changed meaning does.

`key_id` "" means plain. It is stored beside every body, so that plain and encrypted rows may stand in one table.

Knows nothing of tables, and nothing of where keys come from.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from sessions.model.commands import Ok
from sessions.model.errors import Internal
from sessions.model.events import AnyEvent, Private, Record
from sessions.model.types import Json, SessionKey, UnixMs

RECORD_VERSION: Final = 1
_VERSION_BYTE: Final = bytes([RECORD_VERSION])


class Codec(Protocol):
    """Turns the plain bytes of one session's bodies into what is stored, and back.

    Both calls are plain functions, because they run while a batch is built or a page is decoded: a codec that
    encrypts holds the session's data key in memory by then. `decode` raises Internal with code
    `body_unreadable` when the key is gone or the bytes are not what was stored.
    """

    def encode(self, key: SessionKey, plain: bytes) -> tuple[str, bytes]:
        """(key_id, stored)."""
        ...

    def decode(self, key: SessionKey, key_id: str, stored: bytes) -> bytes: ...


class PlainCodec:
    """Stores bodies as they are."""

    def encode(self, key: SessionKey, plain: bytes) -> tuple[str, bytes]:
        return "", plain

    def decode(self, key: SessionKey, key_id: str, stored: bytes) -> bytes:
        if key_id:
            raise Internal(
                "body_unreadable", "A stored body is encrypted, and this server was started without its key store."
            )
        return stored


class HeadBody(msgspec.Struct, frozen=True):
    """The part of a head that people wrote, kept as a body so that it is encrypted with the rest."""

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
    """The plain body of a record: all of it but the offset, which is the row's key."""
    return _VERSION_BYTE + _encode((record.at, record.event, record.private))


def decode_record(offset: int, plain: bytes) -> Record:
    """The inverse of `encode_record`, for every version. Raises Internal (`body_unreadable`)."""
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
    """An answer holds ids and numbers only, so it is never encrypted."""
    return _VERSION_BYTE + _encode(answer)


def decode_ok(plain: bytes) -> Ok:
    try:
        return OK_VERSIONS[plain[0]](memoryview(plain)[1:])
    except (KeyError, IndexError, msgspec.DecodeError) as exc:
        raise unreadable("answer", exc) from exc
