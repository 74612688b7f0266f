"""Seals bodies with the key of their tenant: AES-256-GCM.

    0x01 | nonce, 12 bytes | ciphertext and tag

The cipher's key is made from the tenant's key and the session (tenant and id), and the row is the body's associated
data: bytes that are put into another row, session or tenant do not open. A body may be stored under each of its
tenant's keys; the id beside the body names the key, and "" means that the body is plain, from before encryption. Once
all of a tenant's rows are encrypted, a plain row was not written by this server and does not open either.

A nonce is 7 random bytes of the cipher object and a count of 5: it never comes twice from one object, and a session has
few objects. A session's cipher is kept in memory, so that an event costs one call into OpenSSL.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from persistence.at_rest.tenant_keys import TenantKey, TenantKeys
from persistence.codec import KeyNotLoaded, Row, unreadable
from sessions.model.types import SessionKey, TenantId

VERSION: Final = 1
_VERSION_BYTE: Final = bytes([VERSION])
_PREFIX_BYTES: Final = 7
_COUNT_BYTES: Final = 5
_NONCE_BYTES: Final = _PREFIX_BYTES + _COUNT_BYTES
CIPHERS_MAX: Final = 512  # sessions whose ciphers are kept: small to keep, for one is quickly made


class _Sealer:
    """The cipher of one session under one key, with the key's id."""

    __slots__ = ("begin", "count", "encrypt", "key_id")

    def __init__(self, cipher: AESGCM, key_id: str) -> None:
        self.key_id = key_id
        self.encrypt = cipher.encrypt
        self.begin = os.urandom(_PREFIX_BYTES)
        self.count = itertools.count()


class SealingCodec:
    """The Codec that encrypts with tenants' keys. With `writes` False it writes plain bodies, and still reads encrypted
    ones."""

    def __init__(self, keys: TenantKeys, *, writes: bool = True) -> None:
        self.keys = keys
        self.writes = writes
        self._sealers: dict[SessionKey, _Sealer] = {}
        self._ciphers: dict[tuple[SessionKey, str], AESGCM] = {}
        keys.listen(self._forget)

    def encode(self, key: SessionKey, row: Row, plain: bytes) -> tuple[str, bytes]:
        sealer = self._sealers.get(key)
        if sealer is None:
            if not self.writes:
                return "", plain
            sealer = self._new_sealer(key)
        nonce = sealer.begin + next(sealer.count).to_bytes(_COUNT_BYTES, "big")
        about = b"%d" % row if isinstance(row, int) else row.encode()
        return sealer.key_id, _VERSION_BYTE + nonce + sealer.encrypt(nonce, plain, about)

    def decode(self, key: SessionKey, row: Row, key_id: str, stored: bytes) -> bytes:
        if not key_id:
            self._check_plain(key.tenant)
            return stored
        cipher = self._ciphers.get((key, key_id)) or self._new_cipher(key, key_id)
        if stored[:1] != _VERSION_BYTE:
            raise unreadable("body")
        try:
            about = b"%d" % row if isinstance(row, int) else row.encode()
            return cipher.decrypt(stored[1 : 1 + _NONCE_BYTES], stored[1 + _NONCE_BYTES :], about)
        except (InvalidTag, ValueError) as exc:  # ValueError: too short to be one
            raise unreadable("body", exc) from exc

    async def load(self, tenant: TenantId, key_id: str) -> None:
        await self.keys.load(tenant, key_id)

    def _check_plain(self, tenant: TenantId) -> None:
        """Raises Internal if plain rows of this tenant are refused, so that this one was not written by this server.
        Raises KeyNotLoaded if that is not known yet."""
        ring = self.keys.ring(tenant)
        if self.writes and (ring is None or ring.writes is None):
            raise KeyNotLoaded(tenant, "")
        if self.writes and ring is not None and ring.refuses_plain:
            raise unreadable("body, in the clear where all of its tenant are encrypted,")

    def _new_sealer(self, key: SessionKey) -> _Sealer:
        ring = self.keys.ring(key.tenant)
        if ring is None or ring.writes is None:
            raise KeyNotLoaded(key.tenant, "")
        if len(self._sealers) >= CIPHERS_MAX:
            self._sealers.clear()
        made = self._sealers[key] = _Sealer(_cipher(ring.writes, key), ring.writes.id)
        return made

    def _new_cipher(self, key: SessionKey, key_id: str) -> AESGCM:
        ring = self.keys.ring(key.tenant)
        tenant_key = None if ring is None else ring.by_id.get(key_id)
        if tenant_key is None:
            raise KeyNotLoaded(key.tenant, key_id)
        if len(self._ciphers) >= CIPHERS_MAX:
            self._ciphers.clear()
        made = self._ciphers[key, key_id] = _cipher(tenant_key, key)
        return made

    def _forget(self, tenant: TenantId) -> None:
        """Drops a tenant's ciphers when its keys change. It replaces the dicts, because another thread may be reading
        the old ones."""
        self._sealers = {key: sealer for key, sealer in self._sealers.items() if key.tenant != tenant}
        self._ciphers = {place: cipher for place, cipher in self._ciphers.items() if place[0].tenant != tenant}


def _cipher(tenant_key: TenantKey, key: SessionKey) -> AESGCM:
    whose = msgspec.msgpack.encode((key.tenant, key.session))
    return AESGCM(hashlib.blake2b(whose, key=tenant_key.secret, digest_size=32, person=b"sessile-journal").digest())
