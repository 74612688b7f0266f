"""The key that pushes are signed with, by which a push service knows who sends (VAPID, RFC 8292)."""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from typing import Final
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sessions.model.types import UnixMs
from transport.push.key_files import p256_key
from transport.push.settings import invalid_setting

_CONTACT: Final = re.compile(r"mailto:[!-?A-~]+@[!-?A-~]+|https://[!-~]+", re.ASCII)
TOKEN_S: Final = 12 * 3600  # push services refuse those of more than a day
HOW: Final = "make one with `openssl ecparam -name prime256v1 -genkey -noout -out FILE`"


class VapidKey:
    def __init__(self, key: ec.EllipticCurvePrivateKey, contact: str) -> None:
        self._key = key
        self._contact = contact
        raw = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        self.public = urlsafe_b64encode(raw).rstrip(b"=").decode()
        self._made: dict[str, tuple[UnixMs, str]] = {}  # of each origin: from when another is made

    def authorization(self, endpoint: str, now: UnixMs) -> str:
        """Returns the Authorization header for the push service of `endpoint`. It is signed for this service only, so
        no other can use it."""
        parts = urlsplit(endpoint)
        origin = f"{parts.scheme}://{parts.netloc}"
        made = self._made.get(origin)
        if made is None or made[0] <= now:
            claims = {"aud": origin, "exp": now // 1000 + TOKEN_S, "sub": self._contact}
            if len(self._made) > 100:  # there are few push services; what users name besides is not kept
                self._made.clear()
            made = (UnixMs(now + TOKEN_S * 500), jwt.encode(claims, self._key, algorithm="ES256"))
            self._made[origin] = made
        return f"vapid t={made[1]}, k={self.public}"


def read_vapid_key(file: str, contact: str) -> VapidKey:
    """Reads the private key in a PEM file. `contact` is the address at which push services can reach the operator.
    Raises BadInput, which says what is wrong. Blocking."""
    if not _CONTACT.fullmatch(contact):
        raise invalid_setting(
            "push_contact", "push services want to know whom to write to: mailto:NAME@HOST or https://..."
        )
    return VapidKey(p256_key("push_key", file, HOW), contact)
