"""The simulated engine's snapshot: a session's tokens and whose they are. Anything that does not match is refused."""

from __future__ import annotations

import array
import zlib

import msgspec

from sessions.ports import EngineInfo
from sessions.types import SessionKey, pack_tokens, unpack_tokens


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    tenant: str
    session: str
    build: str
    model_fingerprint: str
    crc32: int
    tokens: bytes


def encode_snapshot(key: SessionKey, info: EngineInfo, tokens: array.array[int]) -> bytes:
    packed = pack_tokens(tokens)
    snapshot = _Snapshot(*key, info.build, info.model_fingerprint, zlib.crc32(packed), packed)
    return msgspec.msgpack.encode(snapshot)


def decode_snapshot(key: SessionKey, info: EngineInfo, data: bytes) -> array.array[int] | None:
    """The tokens of a snapshot that is whole and this session's, for this engine; else None."""
    try:
        snapshot = msgspec.msgpack.decode(data, type=_Snapshot)
        tokens = unpack_tokens(snapshot.tokens)
    except ValueError:  # msgspec's errors are ValueErrors too
        return None
    mine = (*key, info.build, info.model_fingerprint, zlib.crc32(snapshot.tokens))
    theirs = (
        snapshot.tenant,
        snapshot.session,
        snapshot.build,
        snapshot.model_fingerprint,
        snapshot.crc32,
    )
    return tokens if mine == theirs else None
