"""Seals what browsers keep for us in cookies, so that they can neither read, change nor swap it.

AES-256-GCM under a key that all gateways of an installation have (`SealingKeys`), bound to what the cookie is for and
to whom it was issued under (`about`), so that one cookie is never taken for another. A cookie is `VERSION key-id nonce
ciphertext` in base64url, of at most `COOKIE_BYTES_MAX`: browsers drop longer ones without a word.

Reads and writes the headers, too: a name that comes twice is none that we trust. Knows nothing of sign-ins.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterable
from typing import Final, Literal, Protocol, TypeVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

COOKIE_BYTES_MAX: Final = 3800  # browsers accept 4,096 with name and attributes
_VERSION: Final = b"\x01"
_KEY_ID_BYTES: Final = 4
_NONCE_BYTES: Final = 12

SameSite = Literal["Strict", "Lax"]
T = TypeVar("T")


class SealingKeys(Protocol):
    """The sealing keys that all gateways of an installation share."""

    async def load(self) -> None:
        """Reads the keys. Raises Unavailable."""

    def writing(self) -> tuple[str, bytes]:
        """Returns the id (8 hex digits) and the secret of the key that seals now. Raises Unavailable."""
        ...

    def find(self, key_id: str) -> bytes | None: ...


class CookieSealer:
    """Encrypts the contents of cookies. `about` is part of every seal: cookies of another server do not open."""

    def __init__(self, keys: SealingKeys, about: str) -> None:
        self._keys = keys
        self._about = about

    def seal(self, name: str, content: msgspec.Struct) -> str | None:
        """Returns a content as a cookie's value; None if it is longer than browsers accept. Raises Unavailable."""
        key_id, secret = self._keys.writing()
        nonce = os.urandom(_NONCE_BYTES)
        sealed = AESGCM(secret).encrypt(nonce, msgspec.msgpack.encode(content), self._bound_to(name))
        written = base64.urlsafe_b64encode(_VERSION + bytes.fromhex(key_id) + nonce + sealed).decode().rstrip("=")
        return written if len(written) <= COOKIE_BYTES_MAX else None

    def open(self, name: str, written: str, kind: type[T]) -> T | None:
        """Returns the content that was sealed under this name; None for any other value."""
        if len(written) > COOKIE_BYTES_MAX:
            return None
        try:
            data = base64.b64decode(written + "=" * (-len(written) % 4), altchars=b"-_", validate=True)
            version, rest = data[:1], data[1:]
            key_id, rest = rest[:_KEY_ID_BYTES], rest[_KEY_ID_BYTES:]
            secret = self._keys.find(key_id.hex()) if version == _VERSION else None
            if secret is None:
                return None
            plain = AESGCM(secret).decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], self._bound_to(name))
            return msgspec.msgpack.decode(plain, type=kind)
        except (binascii.Error, ValueError, InvalidTag):  # msgspec's errors are ValueErrors
            return None

    def _bound_to(self, name: str) -> bytes:
        return msgspec.msgpack.encode((name, self._about))


def read_cookie(headers: Iterable[str], name: str) -> str | None:
    """Returns a cookie's value in Cookie headers; None if it is not there, "" if it is there more than once."""
    values = [
        value.strip()
        for header in headers
        for part in header.split(";")
        for key, mark, value in [part.partition("=")]
        if mark and key.strip() == name
    ]
    return (values[0] if len(values) == 1 else "") if values else None


def set_cookie(
    name: str, value: str, *, path: str = "/", secure: bool, same_site: SameSite = "Strict", max_age_s: int
) -> str:
    """Returns a Set-Cookie header for a cookie that scripts cannot read. `max_age_s` 0 deletes it."""
    attributes = [f"{name}={value}", f"Path={path}", f"Max-Age={max_age_s}", "HttpOnly", f"SameSite={same_site}"]
    return "; ".join([*attributes, "Secure"] if secure else attributes)
