"""A server that people sign in to, over a real provider, with a clock that can be put forward."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import httpx

from persistence.at_rest.server_keys import MemoryServerKeys
from persistence.memory.database import MemoryDatabase
from persistence.memory.journal import MemoryJournal
from persistence.sql.revocations import SqlRevocations
from sessions.model.types import SCOPES, Principal, TenantId, UnixMs
from tests.support.doors.assembly import Assembly, assembled, wall_ms
from tests.support.listening_sockets import free_ports
from tests.support.openid.provider import CLIENT_ID, CLIENT_SECRET, openid_provider
from transport.auth.api_key_cache import ApiKeyCache
from transport.auth.auth_throttle import AuthThrottle, AuthThrottleLimits
from transport.auth.authenticator import Authenticator, Issuance, key_digest
from transport.auth.openid_provider import ProviderSettings, discover
from transport.auth.origins import CSRF_HEADER
from transport.auth.revocation_cache import RevocationCache
from transport.auth.sealed_cookies import CookieSealer, SealingKeys
from transport.auth.sign_in import PublicUrl, SignIn

SESSION_S: Final = 43_200
KEY: Final = "sk-operator"
OPERATOR: Final = Principal(tenant=TenantId("acme"), key_id="filed", role="operator", scopes=SCOPES)


class Clock:
    """The time of day, and how far it was put forward."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> UnixMs:
        return UnixMs(wall_ms() + self.ahead_ms)


class SignInWorld(NamedTuple):
    assembly: Assembly
    page: str  # the address of the server
    issuer: str
    sign_in: SignIn
    access: Authenticator
    revocations: RevocationCache
    clock: Clock

    def browser(self) -> httpx.AsyncClient:
        """One with cookies of its own."""
        return httpx.AsyncClient(base_url=self.page, timeout=60)

    @property
    def own_page(self) -> dict[str, str]:
        """What a browser and our page put on a request that changes something."""
        return {"origin": self.page, "sec-fetch-site": "same-origin", CSRF_HEADER: "1"}


@asynccontextmanager
async def a_sign_in_world(
    *,
    ttl_s: int = 3600,
    failures: int = 1000,
    keys: SealingKeys | None = None,
    database: MemoryDatabase | None = None,
    provider: Callable[[SignIn], Any] = lambda _: None,
    **settings: Any,
) -> AsyncIterator[SignInWorld]:
    """`settings` of the provider, in place of those that fit it; `provider` is called with what was made of them."""
    (port,) = free_ports(1)
    page, clock, loop_time = f"http://127.0.0.1:{port}", Clock(), asyncio.get_running_loop().time
    async with openid_provider(page, ttl_s=ttl_s) as issuer:
        values = {
            "client_id": CLIENT_ID,
            "client_secret": CLIENT_SECRET,
            "scopes": ("openid", "offline_access"),
            "tenant_claim": "org",
            "role_claim": "groups",
            "roles": ("user", "operator"),
        }
        chosen = ProviderSettings(issuer=issuer, **{**values, **settings})
        found = await discover(chosen, now_ms=clock.now_ms, clock=loop_time)
        sealer = CookieSealer(keys or MemoryServerKeys(), f"{issuer} {CLIENT_ID} {page}")
        sign_in = SignIn(found, sealer, PublicUrl(page), session_s=SESSION_S, now_ms=clock.now_ms)
        provider(sign_in)
        made: list[tuple[Authenticator, RevocationCache]] = []

        def admit(journal: MemoryJournal) -> tuple[Authenticator, ApiKeyCache | None]:
            revocations = RevocationCache(SqlRevocations(journal.database), clock.now_ms, loop_time)
            throttle = AuthThrottle(clock=loop_time, limits=AuthThrottleLimits(failures=failures))
            access = Authenticator(
                {key_digest(KEY): OPERATOR},
                clock=loop_time,
                now_ms=clock.now_ms,
                issued=Issuance(None, sign_in, revocations, (issuer,)),
                throttle=throttle,
            )
            made.append((access, revocations))
            return access, None

        async with assembled(admit=admit, port=port, store=database) as assembly:
            ((access, revocations),) = made
            await revocations.refresh()
            yield SignInWorld(assembly, page, issuer, sign_in, access, revocations, clock)
