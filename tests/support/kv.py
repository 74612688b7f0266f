"""Snapshots to test with: a payload of pseudo-random bytes that names its session."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

from inference.kv.envelope import KvIdentity, SnapshotManifest, encode_header, make_manifest, tag_payload
from inference.tokens import as_tokens
from sessions.model.types import SessionId, SessionKey, TenantId

IDENTITY = KvIdentity("engine/1", "model-1", "f16", "slots")


def key(session: str, tenant: str = "t") -> SessionKey:
    return SessionKey(TenantId(tenant), SessionId(session))


def payload_of(name: str, size: int) -> bytes:
    return random.Random(name).randbytes(size)


def snapshot(
    who: SessionKey, num_tokens: int, size: int, *, identity: KvIdentity = IDENTITY, salt: str = ""
) -> tuple[SnapshotManifest, bytes]:
    payload = payload_of(f"{who}{salt}", size)
    snapshot_id = hashlib.blake2b(f"{who}{num_tokens}{size}{salt}".encode(), digest_size=16).digest()
    tokens = as_tokens(range(100, 100 + num_tokens))
    return make_manifest(who, identity, tokens, snapshot_id, size, tag_payload(payload, snapshot_id)), payload


def file_of(manifest: SnapshotManifest, payload: bytes) -> bytes:
    return encode_header(manifest) + payload


def write_payload(folder: Path, manifest: SnapshotManifest, payload: bytes) -> Path:
    path = folder / f"{manifest.snapshot_id.hex()}.slot"
    path.write_bytes(payload)
    return path
