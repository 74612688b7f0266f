"""What devices subscribe with: the server's public key, and a check of what they say."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from collections.abc import Sequence
from typing import Final, assert_never
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey

from sessions.model.errors import BadInput
from sessions.model.push import ApnsTarget, FcmTarget, PushKind, PushTarget, QuietHours, WebPushTarget, kind_of
from sessions.public_addresses import AddressRules

ENDPOINT_MAX: Final = 2048
TOKEN_MAX: Final = 2048
AUTH_BYTES: Final = 16
_APNS_TOKEN: Final = re.compile(r"(?:[0-9a-f]{2}){32,100}")
_FCM_TOKEN: Final = re.compile(r"[A-Za-z0-9_:-]{32,2048}")


class PushDoor:
    """Checks the devices that clients subscribe, and has the public key that browsers need."""

    def __init__(self, public_key: str, rules: AddressRules, kinds: Sequence[PushKind] = ("web_push",)) -> None:
        """`public_key` is the server's key in base64url, as browsers expect it; "" if this server sends to no browser.
        `kinds` are the kinds of devices that it sends to."""
        self.public_key = public_key
        self.kinds = tuple(kinds)
        self._rules = rules

    def check(self, target: PushTarget, quiet: QuietHours | None) -> None:
        """Raises BadInput if nothing could be sent to this target, or the time zone of the quiet hours is unknown."""
        if (kind := kind_of(target)) not in self.kinds:
            raise _invalid("kind", f"{kind} is not sent by this server, only {', '.join(self.kinds)}")
        match target:
            case WebPushTarget():
                self._check_browser(target)
            case ApnsTarget():
                if _APNS_TOKEN.fullmatch(target.token) is None:
                    raise _invalid("token", "is no device token of Apple's, in hexadecimal")
            case FcmTarget():
                if _FCM_TOKEN.fullmatch(target.token) is None:
                    raise _invalid("token", "is no registration token of Firebase's")
            case other:
                assert_never(other)
        if quiet is not None:
            try:
                ZoneInfo(quiet.time_zone)
            except (ZoneInfoNotFoundError, ValueError, OSError) as error:
                raise _invalid("quiet_hours.time_zone", "is no time zone, like Europe/Berlin") from error

    def _check_browser(self, target: WebPushTarget) -> None:
        if not self._rules.permits_url(target.endpoint):
            raise _invalid("endpoint", "is no https address of a push service")
        try:
            EllipticCurvePublicKey.from_encoded_point(SECP256R1(), decode_key(target.p256dh))
        except ValueError as error:
            raise _invalid("keys.p256dh", "is no public key on P-256 in base64url") from error
        try:
            whole = len(decode_key(target.auth)) == AUTH_BYTES
        except ValueError:
            whole = False
        if not whole:
            raise _invalid("keys.auth", f"is not {AUTH_BYTES} bytes in base64url")


def decode_key(text: str) -> bytes:
    """Decodes base64url without its padding. Raises ValueError."""
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _invalid(param: str, problem: str) -> BadInput:
    return BadInput("invalid_request", f"{param} {problem}.", param=param)
