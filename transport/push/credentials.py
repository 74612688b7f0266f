"""Reads the keys with which pushes are sent, and opens what sends them.

An address of the operator's that takes the place of Apple's or Google's is held to the same rules as a browser's: HTTPS
to a public address, or what `push_networks` names.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from sessions.model.push import PushKind
from sessions.public_addresses import AddressRules
from transport.push.apns import Apns, ApnsKey
from transport.push.fcm import FCM, Fcm
from transport.push.google_tokens import GoogleTokens, ServiceAccount, read_service_account
from transport.push.key_files import p256_key
from transport.push.outbound import OutboundClient, parse_networks
from transport.push.senders import Senders
from transport.push.settings import PushSettings, invalid_setting
from transport.push.vapid import VapidKey, read_vapid_key
from transport.push.web_push import WebPush

_TEN: Final = re.compile(r"[A-Z0-9]{10}")
_APP: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,154}")
APPLE: Final = "Apple's developer page makes it once (keys, Apple Push Notifications service)"


class PushCredentials(NamedTuple):
    """The credentials that the settings name for each kind of push, None for kinds that are not sent, and the `rules`
    on which addresses may be sent to."""

    rules: AddressRules
    vapid: VapidKey | None
    apns: ApnsKey | None
    fcm: tuple[ServiceAccount, RSAPrivateKey] | None

    @property
    def kinds(self) -> tuple[PushKind, ...]:
        ways: tuple[tuple[PushKind, object], ...] = (("web_push", self.vapid), ("apns", self.apns), ("fcm", self.fcm))
        return tuple(kind for kind, key in ways if key is not None)


def read_push_credentials(settings: PushSettings) -> PushCredentials:
    """Reads the keys that the settings name. Raises BadInput for a wrong setting or file. Blocking."""
    rules = parse_networks(settings.push_networks)
    for setting in ("push_apns_url", "push_fcm_url"):
        _check_origin(rules, setting, getattr(settings, setting))
    fcm = read_service_account(settings.push_fcm_account) if settings.push_fcm_account else None
    if fcm is not None and not rules.permits_url(fcm[0].token_uri):
        raise invalid_setting("push_fcm_account", "its token_uri is no https address outside the network")
    return PushCredentials(
        rules=rules,
        vapid=read_vapid_key(settings.push_key, settings.push_contact) if settings.push_key else None,
        apns=_read_apns_key(settings) if settings.push_apns_key else None,
        fcm=fcm,
    )


@asynccontextmanager
async def open_senders(
    keys: PushCredentials, *, app: str = "", apns_url: str = "", fcm_url: str = ""
) -> AsyncIterator[Senders]:
    """Opens a sender for each kind of push. Each has connections of its own, so that a browser's push service that
    never answers does not use up those to Apple and Google."""
    web_push, apns, fcm = None, None, None
    async with AsyncExitStack() as stack:
        if keys.vapid is not None:
            web_push = WebPush(keys.vapid, await stack.enter_async_context(OutboundClient(keys.rules)))
        if keys.apns is not None:
            outbound = await stack.enter_async_context(OutboundClient(keys.rules, http2=True))
            apns = Apns(keys.apns, app, outbound, url=apns_url.rstrip("/"))
        if keys.fcm is not None:
            account, key = keys.fcm
            outbound = await stack.enter_async_context(OutboundClient(keys.rules))
            tokens = GoogleTokens(account, key, outbound)
            fcm = Fcm(tokens, account.project_id, outbound, url=fcm_url.rstrip("/") or FCM)
        yield Senders(web_push, apns, fcm)


def _read_apns_key(settings: PushSettings) -> ApnsKey:
    for setting, what in (
        ("push_apns_key_id", "Apple's name of the key"),
        ("push_apns_team", "Apple's name of the team"),
    ):
        if _TEN.fullmatch(getattr(settings, setting)) is None:
            raise invalid_setting(setting, f"{what}: ten letters and digits")
    if _APP.fullmatch(settings.push_apns_app) is None:
        raise invalid_setting("push_apns_app", "the app's bundle id, like com.example.chat")
    key = p256_key("push_apns_key", settings.push_apns_key, APPLE)
    return ApnsKey(key, settings.push_apns_key_id, settings.push_apns_team)


def _check_origin(rules: AddressRules, setting: str, url: str) -> None:
    if not url:
        return
    is_good = rules.permits_url(url)
    if is_good:
        parts = urlsplit(url)
        is_good = parts.path in ("", "/") and not parts.query and not parts.fragment
    if not is_good:
        raise invalid_setting(setting, f"{url!r} is no https://HOST[:PORT] outside the network; see push_networks")
