"""A server with every door open, a victim with secrets in it, and those who want them.

The victim is Ana of the tenant `acme`. Everything of hers that must not be seen has a canary in it: a word that stands
nowhere else. Nobody knows her item ids and canaries; her session, response and key ids are known to everyone here, as
the worst case.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio
import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from inference.simulated import SimulatedOptions
from persistence.memory.journal import MemoryJournal
from persistence.sql.api_keys import SqlApiKeys
from persistence.sql.revocations import SqlRevocations
from sessions.model.api_keys import ApiKeyRequest, make_api_key
from sessions.model.reviews import Subject, case_of
from sessions.model.types import (
    ALL_SCOPES,
    SCOPES,
    Authority,
    Principal,
    ResponseId,
    Scope,
    SessionId,
    SessionKey,
    TenantId,
    UnixMs,
)
from sessions.model.verdicts import Finding
from sessions.public_addresses import AddressRules
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.doors.assembly import Assembly, assembled, wall_ms
from tests.support.doors.push_service import vapid_key
from tests.support.stores.tables import put_case
from transport.auth.api_key_cache import ApiKeyCache
from transport.auth.auth_throttle import AuthThrottle, AuthThrottleLimits
from transport.auth.authenticator import Authenticator, Issuance, key_digest
from transport.auth.jwt_issuers import JwtIssuer, JwtIssuers
from transport.auth.revocation_cache import RevocationCache
from transport.cli.settings import read_keys
from transport.grpc_api.server import GrpcServer
from transport.push.door import PushDoor

ISSUER: Final = JwtIssuer(
    issuer="https://login.example",
    audience="sessile",
    jwks="https://login.example/keys",
    tenant_claim="org",
    algorithms=("ES256",),
)
CANARY: Final = "canary"
KINDS: Final = ("none", "garbage", "other tenant", "other user", "expired", "revoked", "wrong scope")


class Victim(NamedTuple):
    """Ana's things."""

    session: SessionId
    response: ResponseId
    item: str
    key_id: str
    review: str
    credential: str


class World:
    """The running server and who there is. Credentials by what they are."""

    def __init__(
        self, assembly: Assembly, grpc_address: str, ring: ApiKeyCache, signer: ec.EllipticCurvePrivateKey
    ) -> None:
        self.assembly = assembly
        self.grpc_address = grpc_address
        self.ring = ring
        self.signer = signer
        self.canary = f"{CANARY}-{secrets.token_hex(8)}"
        self.http = httpx.AsyncClient(base_url=assembly.server.url, timeout=60)
        self.channel = grpc.aio.insecure_channel(grpc_address)
        self.by_scopes: dict[tuple[Authority, tuple[Scope, ...]], str] = {}
        self.credentials: dict[str, str] = {}
        self.victim: Victim
        self.named: Victim  # Ana's too: what others call things of theirs after; so that an echo of it shows nothing
        self.owner_of_orders: Principal  # a service of hers, whose requests go by an Idempotency-Key

    async def key(self, **wanted: Any) -> str:
        _, written = await self.ring.create(ApiKeyRequest(**wanted), created_by="")
        return written

    async def ended_key(self) -> str:
        """One that was made an hour ago for half an hour."""
        now = wall_ms()
        wanted = ApiKeyRequest(tenant="acme", user="ana", scopes=SCOPES[:4], expires_at=now - 1_800_000)
        key, written = make_api_key(wanted, secrets.token_bytes(40), now=UnixMs(now - 3_600_000))
        await SqlApiKeys(self.assembly.journal.database).add(key)
        await self.ring.refresh()
        return written

    async def populate(self) -> None:
        ana = await self.key(tenant="acme", user="ana", scopes=SCOPES[:4], name=f"{self.canary} key")
        key_id = ana.split("-")[2]
        self.credentials = {
            "victim": ana,
            "other tenant": await self.key(tenant="beta", role="service", scopes=SCOPES),
            "operator of another tenant": await self.key(tenant="beta", role="operator", scopes=SCOPES),
            "emergency operator": await self.key(tenant="beta", role="operator", scopes=ALL_SCOPES),
            "other tenant's ana": await self.key(tenant="beta", user="ana", scopes=SCOPES[:4]),
            "other user": await self.key(tenant="acme", user="ben", scopes=SCOPES[:4]),
            "other user without a name": await self.key(tenant="acme"),
            "expired": await self.ended_key(),
            "revoked": await self.key(tenant="acme", user="ana", scopes=SCOPES[:4]),
            "token of another user": self.token(),
            "token of another tenant": self.token(org="beta", sub="ana"),
            "owner of orders": await self.key(tenant="acme", role="service", scopes=SCOPES[:2]),
        }
        self.owner_of_orders = self.assembly.gateway.access.authenticate(self.credentials["owner of orders"])
        await self.ring.revoke(self.credentials["revoked"].split("-")[2], revoked_by="")
        for role, scopes in _wrong_scopes():
            user = "ana" if role == "user" else None
            self.by_scopes[role, scopes] = await self.key(tenant="acme", role=role, user=user, scopes=scopes)
        self.victim = await self.owned(ana, key_id)
        second = await self.key(tenant="acme", user="ana", scopes=SCOPES[:4])
        self.named = await self.owned(second, second.split("-")[2])

    async def owned(self, credential: str, key_id: str) -> Victim:
        """A session of the holder's, with an answer that was made in the background, and everything in it a canary."""
        headers = {"authorization": f"Bearer {credential}"}
        begun = await self.http.post(
            "/v1/responses",
            headers=headers,
            json={"model": "simulated", "input": f"{self.canary} message", "background": True},
        )
        begun.raise_for_status()
        session, response = SessionId(begun.headers["x-session-id"]), ResponseId(begun.json()["id"])
        told = {"title": f"{self.canary} title", "metadata": {"note": f"{self.canary} metadata"}}
        (await self.http.patch(f"/v1/sessions/{session}", headers=headers, json=told)).raise_for_status()
        actor = self.assembly.runtime.actor(SessionKey(TenantId("acme"), session))
        if actor is not None:
            await actor.written()
        items = await self.http.get(f"/v1/conversations/{session}/items", headers=headers)
        items.raise_for_status()
        review = self.a_review(SessionKey(TenantId("acme"), session), response)
        return Victim(session, response, items.json()["data"][-1]["id"], key_id, review, credential)

    def forget_retries(self) -> None:
        """As if the next request with an Idempotency-Key came to another gateway."""
        starter = self.assembly.server._app._turn_starter
        assert starter is not None
        starter._retries.clear()

    def a_review(self, key: SessionKey, response: ResponseId) -> str:
        """A case of hers, with what she says of it."""
        finding = Finding(category="keyword", action="block", start=0, end=5)
        now = UnixMs(wall_ms())
        answer = Subject(
            key=key, name=response, direction="output", user="ana", offset=1, now=now, response_id=response
        )
        case = case_of(finding, answer, appeal=f"{self.canary} note")
        put_case(self.assembly.journal.database, case)
        return case.id

    def token(self, *, key: ec.EllipticCurvePrivateKey | None = None, typ: Any = "JWT", **claims: Any) -> str:
        said = {"iss": ISSUER.issuer, "aud": "sessile", "sub": "carol", "org": "acme", "exp": wall_ms() // 1000 + 3600}
        return jwt.encode(said | claims, key or self.signer, "ES256", {"kid": "k1", "typ": typ})

    async def log_of(self, victim: Victim) -> tuple[str, int]:
        """(epoch, top): what nobody but its owner may move."""
        head = await self.assembly.journal.head(SessionKey(TenantId("acme"), victim.session))
        return ("", 0) if head is None or head.deleted_at is not None else (head.epoch, head.top)

    def keys_of_acme(self) -> set[tuple[str, bool]]:
        return {(key.id, key.revoked_at is not None) for key in self.ring.all() if key.tenant == "acme"}


def _wrong_scopes() -> list[tuple[Authority, tuple[Scope, ...]]]:
    """Every authority with all scopes but one (and what includes it)."""
    found: list[tuple[Authority, tuple[Scope, ...]]] = []
    for role in ("user", "service", "operator"):
        allowed = SCOPES[:4] if role == "user" else SCOPES
        for scope in allowed:
            lacking = {scope, "chat"} if scope == "read" else {scope}
            found.append((role, tuple(each for each in allowed if each not in lacking)))
    return found


def without(world: World, role: Authority, scope: Scope) -> str:
    """Of this authority, with every scope but one."""
    allowed = SCOPES[:4] if role == "user" else SCOPES
    lacking = {scope, "chat"} if scope == "read" else {scope}
    return world.by_scopes[role, tuple(each for each in allowed if each not in lacking)]


FILED: Final = f'''
[[keys]]
id = "app"
tenant = "acme"
sha256 = "{key_digest("sk-filed-of-acme")}"
'''
"""A file's key of a user without a name: it is a user of its own, not the whole tenant."""


@asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    with TemporaryDirectory() as folder:
        keys_file = Path(folder) / "keys.toml"
        keys_file.write_text(FILED)
        async with _a_world(keys_file) as world:
            yield world


@asynccontextmanager
async def _a_world(keys_file: Path) -> AsyncIterator[World]:
    signer = ec.generate_private_key(ec.SECP256R1())
    made: list[tuple[ApiKeyCache, RevocationCache]] = []

    async def keys_of_the_issuer(_: str) -> bytes:
        public = jwt.algorithms.ECAlgorithm.to_jwk(signer.public_key())
        return f'{{"keys":[{public[:-1]},"kid":"k1","alg":"ES256"}}]}}'.encode()

    clock = asyncio.get_running_loop().time
    issuers = JwtIssuers((ISSUER,), now_ms=wall_ms, clock=clock, fetch=keys_of_the_issuer)
    await issuers.load()

    def admit(journal: MemoryJournal) -> tuple[Authenticator, ApiKeyCache]:
        ring = ApiKeyCache(SqlApiKeys(journal.database), now_ms=wall_ms, clock=clock)
        revocations = RevocationCache(SqlRevocations(journal.database), wall_ms, clock)
        made.append((ring, revocations))
        filed = Principal(tenant=TenantId("beta"), key_id="filed", user="eve", scopes=SCOPES)
        # How often an address may be wrong is another test's: here everybody is on one, and is wrong all the time.
        throttle = AuthThrottle(clock=clock, limits=AuthThrottleLimits(failures=10**9))
        keys = {key_digest("sk-filed-of-beta"): filed, **read_keys(str(keys_file))}
        issued = Issuance(issuers, None, revocations, (ISSUER.issuer,))
        access = Authenticator(keys, clock=clock, now_ms=wall_ms, ring=ring, issued=issued, throttle=throttle)
        return access, ring

    engine, filters = (
        SimulatedOptions(step_base_s=0.0005, answer_tokens_mean=8),
        KeywordFilterSet(input_phrases=["nightjar"]),
    )
    limits = keys_file.with_name("limits.toml")
    limits.write_text("[default]\nmemories = true\n")
    door = PushDoor(vapid_key().public, AddressRules())
    async with assembled(admit=admit, engine=engine, filters=filters, limits_file=limits, push=door) as assembly:
        ((ring, revocations),) = made
        server = GrpcServer(assembly.gateway, host="127.0.0.1", port=0)
        assert await server.start()
        running = [asyncio.create_task(each.run()) for each in (ring, revocations)]
        try:
            world = World(assembly, server.address, ring, signer)
            await ring.refresh()
            await revocations.refresh()
            await world.populate()
            try:
                yield world
            finally:
                await world.http.aclose()
                await world.channel.close()
        finally:
            for each in running:
                each.cancel()
            await asyncio.wait(running)
            await server.stop()
