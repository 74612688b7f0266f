"""Opens what the settings let in: keys, issuers, who signs in; and keeps it up to date."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sessions.model.types import UnixMs
from sessions.store import Store
from transport.auth.api_key_cache import ApiKeyCache
from transport.auth.authenticator import Authenticator, Issuance
from transport.auth.client_addresses import TrustedProxies
from transport.auth.origins import OriginPolicy
from transport.auth.revocation_cache import RevocationCache
from transport.auth.tickets import Tickets
from transport.cli.settings import BadSetting, Settings, read_keys
from transport.tasks import background_tasks

if TYPE_CHECKING:
    from transport.auth.openid_provider import ProviderSettings
    from transport.auth.sealed_cookies import SealingKeys
    from transport.auth.sign_in import PublicUrl, SignIn


@asynccontextmanager
async def open_credentials(
    settings: Settings,
    store: Store,
    server_keys: Callable[[], SealingKeys],
    now_ms: Callable[[], UnixMs],
    tickets: Tickets | None = None,
) -> AsyncIterator[tuple[Authenticator, ApiKeyCache]]:
    """Opens everything that credentials are checked against: the keys file, the API keys, the issuers and the sign-in.
    All but the keys file are kept up to date while the block runs. API keys can be made on every server, but are
    required, and followed in the store, only with `auth = keys`. Raises BadInput for a wrong file or a provider that
    differs from its settings, Unavailable if keys cannot be read."""
    clock, demanded = asyncio.get_running_loop().time, settings.auth == "keys"
    api_keys = ApiKeyCache(store.api_keys, now_ms=now_ms, clock=clock, incarnation=lambda: store.journal.incarnation)
    jwts = sign_in = revocations = None
    issuers = [settings.oidc_issuer] if settings.oidc_issuer else []
    if settings.issuers:
        from transport.auth.jwt_issuers import JwtIssuers, read_issuers  # PyJWT takes a tenth of a second to load

        filed = read_issuers(settings.issuers)
        issuers += [each.issuer for each in filed if each.issuer not in issuers]
        jwts = JwtIssuers(filed, now_ms=now_ms, clock=clock)
        await jwts.load()
    if (sign_in_settings := read_sign_in(settings)) is not None:
        sign_in = await open_sign_in(settings.sign_in_s, *sign_in_settings, server_keys, now_ms)
    if issuers:
        revocations = RevocationCache(store.revocations, now_ms, clock, lambda: store.journal.incarnation)
        await revocations.refresh()
    if demanded:
        await api_keys.refresh()
    access = Authenticator(
        read_keys(settings.keys) if settings.keys else {},
        clock=clock,
        now_ms=now_ms,
        ring=api_keys if demanded else None,
        issued=Issuance(jwts, sign_in, revocations, tuple(issuers)),
        tickets=tickets,
        origins=OriginPolicy(settings.origins, proxies=TrustedProxies(settings.trusted_proxies)),
    )
    signing_keys = None if sign_in is None else sign_in.provider.keys
    followed = (api_keys if demanded else None, jwts, revocations, signing_keys)
    async with background_tasks(*(each.run() for each in followed if each is not None)):
        yield access, api_keys


def read_sign_in(settings: Settings) -> tuple[ProviderSettings, PublicUrl] | None:
    """Returns the provider and the public address that the settings name for signing in, None if nobody signs in.
    Raises BadInput and BadSetting, which say what is wrong."""
    if not settings.oidc_issuer and not settings.oidc_client_id:
        for name in ("oidc_tenant", "oidc_tenant_claim", "oidc_role_claim", "oidc_client_secret_file", "public_url"):
            if getattr(settings, name):
                raise BadSetting(f"{name}: nobody signs in without oidc_issuer and oidc_client_id; give both, or none")
        return None
    from transport.auth.openid_provider import ProviderSettings, check_provider
    from transport.auth.sign_in import PublicUrl

    provider = ProviderSettings(
        issuer=settings.oidc_issuer,
        client_id=settings.oidc_client_id,
        client_secret=settings.oidc_client_secret,
        scopes=settings.oidc_scopes,
        tenant=settings.oidc_tenant,
        tenant_claim=settings.oidc_tenant_claim,
        user_claim=settings.oidc_user_claim,
        role_claim=settings.oidc_role_claim,
        roles=settings.oidc_roles,
    )
    check_provider(provider)
    return provider, PublicUrl(settings.public_url)


async def open_sign_in(
    session_s: float,
    of_provider: ProviderSettings,
    public_url: PublicUrl,
    server_keys: Callable[[], SealingKeys],
    now_ms: Callable[[], UnixMs],
) -> SignIn:
    """Opens the sign-in with an OpenID provider. Raises BadInput, which says which setting is wrong, and Unavailable
    where the keys cannot be read."""
    from transport.auth.openid_provider import discover
    from transport.auth.sealed_cookies import CookieSealer
    from transport.auth.sign_in import SignIn

    sealing = server_keys()
    provider = await discover(of_provider, now_ms=now_ms, clock=asyncio.get_running_loop().time)
    await sealing.load()
    about = f"{of_provider.issuer} {of_provider.client_id} {public_url.at('')}"
    return SignIn(provider, CookieSealer(sealing, about), public_url, session_s=session_s, now_ms=now_ms)
