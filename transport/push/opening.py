"""Makes push of the settings: the door of a gateway, the relay of a replica.

An address of the operator's that takes the place of Apple's or Google's is held to the same rules as a browser's: HTTPS
to a public address, or what `push_networks` names.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from sessions.metrics import Metrics
from sessions.model.push import PushKind, PushStore
from sessions.model.types import UnixMs
from sessions.public_addresses import AddressRules
from transport.push.apns import Apns, ApnsKey
from transport.push.door import PushDoor
from transport.push.fcm import FCM, Fcm
from transport.push.google_tokens import GoogleTokens, ServiceAccount, read_service_account
from transport.push.key_files import invalid_setting, p256_key
from transport.push.outbound import OutboundClient, parse_networks
from transport.push.relay import PushRelay
from transport.push.senders import Senders
from transport.push.vapid import VapidKey, read_vapid_key
from transport.push.web_push import WebPush

_TEN: Final = re.compile(r"[A-Z0-9]{10}")
_APP: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,154}")
_NEEDED: Final = {  # each key, and the settings that say nothing without it
    "push_key": ("push_contact",),
    "push_apns_key": ("push_apns_key_id", "push_apns_team", "push_apns_app", "push_apns_url"),
    "push_fcm_account": ("push_fcm_url",),
}
APPLE: Final = "Apple's developer page makes it once (keys, Apple Push Notifications service)"


class PushSettings(Protocol):
    @property
    def push_key(self) -> str: ...
    @property
    def push_contact(self) -> str: ...
    @property
    def push_networks(self) -> tuple[str, ...]: ...
    @property
    def push_apns_key(self) -> str: ...
    @property
    def push_apns_key_id(self) -> str: ...
    @property
    def push_apns_team(self) -> str: ...
    @property
    def push_apns_app(self) -> str: ...
    @property
    def push_apns_url(self) -> str: ...
    @property
    def push_fcm_account(self) -> str: ...
    @property
    def push_fcm_url(self) -> str: ...


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


def sends_pushes(settings: PushSettings) -> bool:
    """Returns whether the settings name a key for at least one kind of push. Raises BadInput if they have options of a
    kind whose key is missing."""
    for needed, about in _NEEDED.items():
        for setting in about:
            if getattr(settings, setting) and not getattr(settings, needed):
                flag = needed.replace("_", "-")
                raise invalid_setting(setting, f"{needed} is not set: give --{flag} FILE too, or leave this out")
    is_on = any(getattr(settings, needed) for needed in _NEEDED)
    if settings.push_networks and not is_on:
        keys = " or ".join(f"--{needed.replace('_', '-')} FILE" for needed in _NEEDED)
        raise invalid_setting("push_networks", f"no pushes are sent without a key: give {keys} too, or leave this out")
    return is_on


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


def push_door(settings: PushSettings) -> PushDoor | None:
    """Returns the door for subscriptions; None if the settings name no key. Raises BadInput. Blocking."""
    if not sends_pushes(settings):
        return None
    keys = read_push_credentials(settings)
    return PushDoor("" if keys.vapid is None else keys.vapid.public, keys.rules, keys.kinds)


def push_relays(
    settings: PushSettings, store: PushStore, now_ms: Callable[[], UnixMs], metrics: Metrics
) -> list[Coroutine[Any, Any, None]]:
    """Returns the coroutines that send push notices; an empty list if the settings name no key. Raises BadInput.
    Blocking."""
    if not sends_pushes(settings):
        return []
    keys = read_push_credentials(settings)

    async def relay() -> None:
        async with open_senders(keys, apns_url=settings.push_apns_url, fcm_url=settings.push_fcm_url, app=app) as all_:
            await PushRelay(store, all_, now_ms=now_ms, metrics=metrics).run()

    app = settings.push_apns_app
    return [relay()]


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
