"""Access tokens of a Google service account: an assertion that its key signs, exchanged at its token address.

A token is kept until a minute before its end; whoever needs one meanwhile waits for the same exchange.

Source: RFC 7523; Google, "Using OAuth 2.0 for server to server applications".
"""

from __future__ import annotations

import asyncio
import re
from typing import Final
from urllib.parse import urlencode

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from sessions.model.errors import Unavailable
from sessions.model.types import UnixMs
from transport.push.key_files import private_key, read_key_file
from transport.push.outbound import OutboundClient
from transport.push.settings import invalid_setting

SCOPE: Final = "https://www.googleapis.com/auth/firebase.messaging"
GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ASSERTION_S: Final = 3600
EARLY_MS: Final = 60_000
AWAY_MS: Final = 5_000
KEPT_MAX_S: Final = 3600
ANSWER_BYTES: Final = 16 * 1024
ADVICE: Final = "Firebase's console makes it (project settings, service accounts, a new private key)"
_PROJECT: Final = re.compile(r"[a-z][a-z0-9.:-]{1,99}")
_TOKEN: Final = re.compile(r"[!-~]{1,8192}")


class ServiceAccount(msgspec.Struct, frozen=True):
    """The fields of a service account's file that are used."""

    type: str
    project_id: str
    private_key_id: str
    private_key: str
    client_email: str
    token_uri: str = "https://oauth2.googleapis.com/token"


class _Exchanged(msgspec.Struct):
    access_token: str
    expires_in: int


class GoogleTokens:
    def __init__(self, account: ServiceAccount, key: RSAPrivateKey, outbound: OutboundClient) -> None:
        self._account, self._key, self._outbound = account, key, outbound
        self._token = ""
        self._until = UnixMs(0)
        self._away_until = UnixMs(0)  # an exchange failed: those who waited for it do not each try one of their own
        self._exchange = asyncio.Lock()

    async def token(self, now: UnixMs) -> str:
        """Returns a valid access token, a new one if the last one ends soon. Raises Unavailable if Google gives none,
        Forbidden for a token address inside the network."""
        async with self._exchange:
            if not self._token or now >= self._until:
                if now < self._away_until:
                    raise Unavailable("push_service_away", "Google's token address gave no token a moment ago.")
                self._away_until = UnixMs(now + AWAY_MS)
                fresh = await self._exchanged(now)
                self._away_until = UnixMs(0)
                self._token = fresh.access_token
                self._until = UnixMs(now + min(fresh.expires_in, KEPT_MAX_S) * 1000 - EARLY_MS)
            return self._token

    def drop(self, token: str) -> None:
        """Drops a token that was refused, unless a newer one is kept already."""
        if token == self._token:
            self._token = ""

    async def _exchanged(self, now: UnixMs) -> _Exchanged:
        account, seconds = self._account, now // 1000
        claims = {
            "iss": account.client_email,
            "scope": SCOPE,
            "aud": account.token_uri,
            "iat": seconds,
            "exp": seconds + ASSERTION_S,
        }
        assertion = jwt.encode(claims, self._key, algorithm="RS256", headers={"kid": account.private_key_id})
        body = urlencode({"grant_type": GRANT, "assertion": assertion}).encode()
        answer = await self._outbound.post(
            account.token_uri,
            body,
            {"content-type": "application/x-www-form-urlencoded"},
            answer_bytes=ANSWER_BYTES,
        )
        if answer.status != 200:
            raise Unavailable(
                "push_service_away", f"Google's token address answers {answer.status}: is push_fcm_account still good?"
            )
        try:
            fresh = msgspec.json.decode(answer.body, type=_Exchanged)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unavailable("push_service_away", "Google's token address answers with no token.") from error
        if _TOKEN.fullmatch(fresh.access_token) is None:  # it goes into a header
            raise Unavailable("push_service_away", "Google's token address answers with no token.")
        return fresh


def read_service_account(file: str) -> tuple[ServiceAccount, RSAPrivateKey]:
    """Reads the JSON file that Google makes. Raises BadInput, which names what is wrong. Blocking."""
    setting = "push_fcm_account"
    text = read_key_file(setting, file, ADVICE)
    try:
        account = msgspec.json.decode(text, type=ServiceAccount)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # its words could quote the key
        raise invalid_setting(setting, f"{file!r} is no service account's JSON; {ADVICE}") from error
    if account.type != "service_account":
        raise invalid_setting(setting, f"{file!r} is of another kind than service_account; {ADVICE}")
    if _PROJECT.fullmatch(account.project_id) is None:
        raise invalid_setting(setting, f"{file!r}: project_id is no project's name; {ADVICE}")
    key = private_key(setting, file, account.private_key, ADVICE)
    if not isinstance(key, RSAPrivateKey):
        raise invalid_setting(setting, f"{file!r}: private_key is no RSA key; {ADVICE}")
    return account, key
