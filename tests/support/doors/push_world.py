"""A server whose answers devices are told of, with the three push services that stand behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx

from actors.hosting.runtime import RuntimeLimits
from inference.simulated import SimulatedOptions
from persistence.sql.push import SqlPush
from sessions.metrics import Metrics
from sessions.model.push import GRACE_MS
from sessions.model.types import ALL_SCOPES, Principal, TenantId, UnixMs
from sessions.public_addresses import AddressRules
from testbed.wire_client import connected
from tests.support.doors.apple_service import APP, KEY_ID, TEAM, AppleService
from tests.support.doors.assembly import Assembly, assembled, wall_ms
from tests.support.doors.google_service import PROJECT, GoogleService
from tests.support.doors.push_service import PushService, vapid_key
from transport.auth.authenticator import key_digest
from transport.push.apns import Apns, ApnsKey
from transport.push.door import PushDoor
from transport.push.fcm import Fcm
from transport.push.google_tokens import GoogleTokens, ServiceAccount
from transport.push.outbound import OutboundClient
from transport.push.relay import PushRelay
from transport.push.senders import Senders
from transport.push.web_push import WebPush

ACME = Principal(tenant=TenantId("acme"), key_id="k", role="service", scopes=ALL_SCOPES)
ANA_HERSELF = Principal(tenant=TenantId("acme"), key_id="ana", user="ana")
BEN_HIMSELF = Principal(tenant=TenantId("acme"), key_id="ben", user="ben")
KEYS = {
    key_digest("s3cret-of-acme"): ACME,
    key_digest("s3cret-of-ana"): ANA_HERSELF,
    key_digest("s3cret-of-ben"): BEN_HIMSELF,
}
ANA = {"authorization": "Bearer s3cret-of-acme", "x-sessile-user": "ana"}
BEN = {"authorization": "Bearer s3cret-of-acme", "x-sessile-user": "ben"}
LOOPBACK = AddressRules(["127.0.0.0/8"])
SECRET_WORDS = "nightjar"


class Services(NamedTuple):
    browsers: PushService
    apple: AppleService
    google: GoogleService


class PushWorld:
    def __init__(self, server: Assembly, http: httpx.AsyncClient, services: Services, relay: PushRelay) -> None:
        self.server, self.http, self.relay = server, http, relay
        self.service, self.apple, self.google = services
        self.push = SqlPush(server.journal.database)
        self.ahead_ms = 0  # of the relay's clock

    async def subscribe(self, name: str = "phone", headers: dict[str, str] = ANA, **more: Any) -> dict[str, Any]:
        """A browser; with `kind` and `token` an app."""
        body = more if "kind" in more else {**self.service.device(name), **more}
        made = await self.http.post("/v1/push/subscriptions", json=body, headers=headers)
        assert made.status_code == 201, made.text
        return made.json()  # type: ignore[no-any-return]

    async def session(self, auth: str = "s3cret-of-ana", **more: Any) -> str:
        made = await self.command({"type": "session.create", **more}, auth)
        return str(made["session"])

    async def command(self, command: dict[str, Any], auth: str = "s3cret-of-ana") -> dict[str, Any]:
        name = command.pop("type")
        async with connected(self.server.ws, auth=auth) as wire:
            return await wire.command(name, **command)

    async def ended(self, session: str, count: int = 1) -> None:
        """Waits until so many of a session's answers have ended."""
        of_session = "SELECT count(*) FROM usage WHERE session = ?1"
        async with asyncio.timeout(60):
            while self.server.journal.database.query(of_session, session)[0][0] < count:
                await self.http.get("/v1/me", headers=ANA)

    async def ask(self, session: str, count: int = 1, auth: str = "s3cret-of-ana", **more: Any) -> None:
        """A question whose device is gone before the answer."""
        await self.command({"type": "message.create", "session": session, "content": SECRET_WORDS, **more}, auth)
        await self.ended(session, count)


@asynccontextmanager
async def a_push_world(**assembly: Any) -> AsyncIterator[PushWorld]:
    key = vapid_key()
    door = PushDoor(key.public, LOOPBACK, ("web_push", "apns", "fcm"))
    async with (
        PushService() as browsers,
        AppleService() as apple,
        GoogleService() as google,
        OutboundClient(LOOPBACK) as outbound,
        OutboundClient(LOOPBACK, http2=True) as http2,
        assembled(
            keys=KEYS,
            engine=SimulatedOptions(step_base_s=0.001, answer_tokens_mean=8),
            runtime_limits=RuntimeLimits(push=True),
            push=door,
            **assembly,
        ) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):
        about = {name: value for name, value in google.account().items() if name != "client_id"}
        tokens = GoogleTokens(ServiceAccount(**about), google.key, outbound)
        senders = Senders(
            WebPush(key, outbound),
            Apns(ApnsKey(apple.key, KEY_ID, TEAM), APP, http2, url=apple.url),
            Fcm(tokens, PROJECT, outbound, url=google.url),
        )

        def later() -> UnixMs:
            """The grace of whatever has ended is over."""
            return UnixMs(wall_ms() + GRACE_MS + 60_000 + world.ahead_ms)

        relay = PushRelay(server.gateway.store.push, senders, now_ms=later, metrics=Metrics())
        world = PushWorld(server, http, Services(browsers, apple, google), relay)
        yield world
