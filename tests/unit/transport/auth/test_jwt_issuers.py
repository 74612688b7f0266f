"""Tokens of an issuer: what is let in, everything that is not, and key sets that change."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from sessions.model.errors import BadInput, SessileError, Unauthorized, Unavailable
from sessions.model.types import Principal, TenantId, TokenRef, UnixMs
from tests.support.virtual_time import advance, settled, virtual
from transport.auth.authenticator import Authenticator, Issuance
from transport.auth.jwt_issuers import RETRY_S, UNKNOWN_KID_S, JwtIssuer, JwtIssuers, parse_jwks, read_issuers

NOW_S = 1_750_000_000
URL = "https://login.example/keys"
OURS = JwtIssuer(
    issuer="https://login.example", audience="sessile", jwks=URL, tenant="acme", algorithms=("ES256", "RS256")
)
EC = ec.generate_private_key(ec.SECP256R1())
EC2 = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def jwk(key: Any, kid: str, **more: str) -> dict[str, Any]:
    kind = jwt.algorithms.ECAlgorithm if isinstance(key, ec.EllipticCurvePrivateKey) else jwt.algorithms.RSAAlgorithm
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": kid, **more}


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


SET = jwks(jwk(EC, "e1", alg="ES256", use="sig"), jwk(RSA, "r1"))


def token(key: Any = EC, kid: str | None = "e1", alg: str = "ES256", **claims: Any) -> str:
    said = {"iss": OURS.issuer, "aud": "sessile", "sub": "ana", "exp": NOW_S + 600, **claims}
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode({name: value for name, value in said.items() if value is not None}, key, alg, headers)


class World:
    """Issuers whose key set is whatever `data` is; `fetched` counts who asked for it."""

    def __init__(self, *issuers: JwtIssuer, data: bytes = SET) -> None:
        self.data: bytes | OSError = data
        self.fetched = 0
        self.now_s = float(NOW_S)
        self.clock: Callable[[], float] = lambda: self.now_s
        self.issuers = JwtIssuers(
            issuers or (OURS,), now_ms=lambda: UnixMs(round(self.now_s * 1000)), clock=self._clock, fetch=self._fetch
        )

    def _clock(self) -> float:
        return self.clock()

    async def _fetch(self, where: str) -> bytes:
        self.fetched += 1
        if isinstance(self.data, OSError):
            raise self.data
        return self.data

    async def loaded(self) -> World:
        await self.issuers.load()
        return self

    def refused(self, credential: str) -> SessileError:
        with pytest.raises((Unauthorized, Unavailable)) as caught:
            self.issuers.principal_of(credential)
        assert credential not in str(caught.value)
        return caught.value


async def test_a_token_is_a_principal_of_what_it_says() -> None:
    world = await World().loaded()
    told = world.issuers.principal_of(token(scope="openid chat other"))
    assert told == Principal(
        tenant=TenantId("acme"),
        key_id="jwt:https://login.example",
        user="ana",
        role="user",
        scopes=("chat",),
        expires_at=UnixMs((NOW_S + 600 + 30) * 1000),
        token=TokenRef("https://login.example", "ana"),
    )
    ref = world.issuers.principal_of(token(jti="t1", iat=NOW_S - 5)).token
    assert ref == TokenRef("https://login.example", "ana", "t1", UnixMs((NOW_S - 5) * 1000))
    assert world.issuers.principal_of(token(RSA, "r1", "RS256")).scopes == ("chat", "read")
    assert world.issuers.principal_of(token(scope=["read", "admin"])).scopes == ("read",)
    assert world.issuers.principal_of(token(scope="admin")).scopes == ()
    assert world.fetched == 1


def unsigned(**header: Any) -> str:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    claims = {"iss": OURS.issuer, "aud": "sessile", "sub": "ana", "exp": NOW_S + 600}
    return f"{part({'typ': 'JWT', **header})}.{part(claims)}."


HS = jwt.encode(
    {"iss": OURS.issuer, "aud": "sessile", "sub": "ana", "exp": NOW_S + 600}, "k" * 64, "HS256", {"kid": "e1"}
)

WRONG = {
    "another issuer": token(iss="https://evil.example"),
    "no issuer": token(iss=None),
    "no signature": unsigned(alg="ES256", kid="e1"),
    "another audience": token(aud="other"),
    "no audience": token(aud=None),
    "no subject": token(sub=None),
    "an empty subject": token(sub=""),
    "a subject with control characters": token(sub="ana\n"),
    "a subject that is too long": token(sub="a" * 129),
    "no end": token(exp=None),
    "an end that is a truth": token(exp=True),
    "an end beyond all time": token(exp=10**15),
    "not valid yet": token(nbf=NOW_S + 31),
    "another key's signature": token(EC2),
    "no algorithm": unsigned(alg="none", kid="e1"),
    "an algorithm of another case": unsigned(alg="None", kid="e1"),
    "a secret algorithm": HS,
    "an algorithm that is not on the list": token(RSA, "r1", "RS512"),
    "an algorithm that is not the key's": token(RSA, "e1", "RS256"),
    "a key of another kind": token(EC, "r1", "ES256"),
    "no key id among several": token(kid=None),
    "rubbish": "eyJ.eyJ.x",
    "rubbish that is long": "eyJ" + "a" * 4000 + "." + "b" * 2000 + ".c",
}


@pytest.mark.parametrize("name", WRONG)
async def test_what_is_wrong_with_a_token_ends_it(name: str) -> None:
    world = await World().loaded()
    assert world.refused(WRONG[name]).code == "unauthorized"


async def test_a_changed_letter_anywhere_is_refused() -> None:
    world = await World().loaded()
    good = token()
    world.issuers.principal_of(good)
    for place in range(0, len(good), 7):
        if good[place] == ".":
            continue
        changed = good[:place] + ("A" if good[place] != "A" else "B") + good[place + 1 :]
        if changed.rpartition(".")[2] and place == len(good) - 1:
            continue  # its last letter has bits that stand for nothing
        with pytest.raises((Unauthorized, Unavailable)):
            world.issuers.principal_of(changed)


async def test_a_token_ends_when_it_says_so_also_where_it_is_remembered() -> None:
    world = await World().loaded()
    given = token(nbf=NOW_S + 20)
    access = Authenticator(
        {}, clock=world._clock, issued=Issuance(world.issuers), now_ms=lambda: UnixMs(round(world.now_s * 1000))
    )
    principal = access.authenticate(given)
    assert world.issuers.known(given) == principal
    world.now_s += 600 + 29.9
    assert access.authenticate(given) == principal
    access.verify(principal)
    world.now_s += 0.1
    for ended in (lambda: access.authenticate(given), lambda: access.verify(principal)):
        with pytest.raises(Unauthorized) as caught:
            ended()
        assert caught.value.code == "token_expired"


async def test_tenant_authority_and_scopes_come_from_claims_within_what_is_allowed() -> None:
    issuer = JwtIssuer(
        issuer=OURS.issuer,
        audience="sessile",
        jwks=URL,
        tenant_claim="org",
        role_claim="role",
        roles=("user", "service"),
        scope_claim="",
        scopes=("chat", "usage"),
        user_claim="email",
        algorithms=("ES256",),
    )
    world = await World(issuer).loaded()
    told = world.issuers.principal_of(token(org="beta", role="service", email="b@x", scope="admin"))
    assert (told.tenant, told.role, told.user, told.scopes) == ("beta", "service", "b@x", ("chat", "usage"))
    assert world.issuers.principal_of(token(org="beta", email="b@x")).role == "user"
    wrong: dict[str, Any]
    for wrong in ({"role": "operator"}, {"role": 3}, {"org": None}, {"org": 7}, {"org": ""}, {"email": None}):
        assert world.refused(token(**{"org": "beta", "email": "b@x"} | wrong)).code == "unauthorized"


async def test_dots_lead_to_a_claim_inside_another_unless_one_has_that_very_name() -> None:
    """Keycloak has its roles in `realm_access.roles`; others name claims like addresses, which have dots too."""
    issuer = msgspec.structs.replace(
        OURS, tenant="", tenant_claim="org.id", role_claim="https://a.example/role", roles=("user", "operator")
    )
    world = await World(issuer).loaded()
    claims: dict[str, Any] = {"org": {"id": "beta"}, "org.id": "acme", "https://a.example/role": ["x", "operator"]}
    named = token(**claims)
    assert (world.issuers.principal_of(named).tenant, world.issuers.principal_of(named).role) == ("acme", "operator")
    claims = {"org": {"id": "beta"}, "https://a": {"example/role": "operator"}}
    inside = token(**claims)
    assert world.issuers.principal_of(inside).tenant == "beta"
    assert world.issuers.principal_of(inside).role == "operator"
    wrong: dict[str, Any]
    for wrong in ({"org": "id"}, {"org": {"id": {"id": "beta"}}}, {"org": []}, {"org": {}}):
        assert world.refused(token(**wrong)).code == "unauthorized"
    claims = {"org": {"id": "beta"}, "https://a.example/role": 3}
    assert world.refused(token(**claims)).code == "unauthorized"


@virtual
async def test_strangers_with_unknown_key_ids_do_not_make_us_ask_more_often() -> None:
    world = World()
    world.clock = asyncio.get_running_loop().time
    await world.issuers.load()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(world.issuers.run())
        for number in range(50):
            world.refused(token(kid=f"k{number}"))
            await settled()
        assert world.fetched == 2
        await advance(UNKNOWN_KID_S)
        assert world.refused(token(kid="again")).retryable and world.refused(token(kid="other")).retryable
        await settled()
        assert not world.refused(token(kid="again")).retryable
        assert world.fetched == 3
        running.cancel()


async def test_a_set_that_cannot_be_read_or_understood_changes_nothing() -> None:
    world = await World().loaded()
    for bad in (b"", b"{}", b"[]", b'{"keys":[]}', b'{"keys":[{"kty":"EC"}]}', b"x" * 300_000, OSError("away")):
        world.data = bad
        with pytest.raises((OSError, ValueError)):
            await world.issuers._read(world.issuers._sets[OURS.issuer])
        assert world.issuers.principal_of(token()).user == "ana"


async def test_until_a_set_was_read_nobody_gets_in() -> None:
    world = World()
    world.data = OSError("not yet")
    await world.issuers.load()  # a URL may come up later than we do
    assert world.refused(token()).retryable
    file = JwtIssuer(issuer="a", audience="b", jwks="/nowhere/keys.json", tenant="t")
    with pytest.raises(BadInput, match=r"keys\.json"):
        await World(file, data=b"nonsense").issuers.load()


def test_a_set_that_was_never_read_is_read_again_soon() -> None:
    each = JwtIssuers((OURS,), now_ms=lambda: UnixMs(0), clock=lambda: 0.0)._sets[OURS.issuer]
    assert JwtIssuers._pause_s(each) == RETRY_S
    each.keys = parse_jwks(SET, OURS.algorithms)
    assert JwtIssuers._pause_s(each) == OURS.refresh_s


def test_secret_keys_and_keys_for_other_uses_are_not_taken() -> None:
    oct_key = {"kty": "oct", "k": "c2VjcmV0", "kid": "o", "alg": "HS256"}
    found = parse_jwks(jwks(oct_key, jwk(EC, "enc", use="enc"), jwk(EC2, "e2"), jwk(RSA, "p", alg="PS256")), ("ES256",))
    assert set(found) == {"e2"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "issuers"),
        ("issuers = 3", "issuers"),
        ("[[issuers]]\nissuer='a'\naudience='b'\njwks='k'", "tenant"),
        ("[[issuers]]\nissuer='a'\naudience='b'\njwks='k'\ntenant='t'\ntenant_claim='o'", "one of the two"),
        ("[[issuers]]\nissuer='a'\naudience='b'\njwks='k'\ntenant='t'\nalgorithms=['HS256']", "HS256"),
        ("[[issuers]]\nissuer='a'\naudience='b'\njwks='k'\ntenant='t'\nalgorithms=['none']", "none"),
        ("[[issuers]]\nissuer='a'\naudience='b'\njwks='k'\ntenant='t'\nroles=['king']", "king"),
        ("[[issuers]]\nissuer='a'\naudience='b'\njwks='http://login.example/k'\ntenant='t'", "not https"),
        ("[[issuers]]\nissuer='a'\naudience='b'\njwks='ftp://login.example/k'\ntenant='t'", "not https"),
        ("[[issuers]]\nissuer='a'\naudience='b'\njwks='k'\ntenant='t'\nleeway_s=1000", "leeway_s"),
        ("[[issuers]]\nissuer='a'\naudience='b'\njwks='k'\ntenant='t'\nnope=1", "nope"),
        ("[[issuers]]\nissuer='a'\naudience='b'\njwks='k'\ntenant='t'\n" * 2, "twice"),
        ("not toml", "issuers"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_wrong(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "issuers.toml"
    file.write_text(text)
    with pytest.raises(BadInput, match=why) as caught:
        read_issuers(str(file))
    assert str(file) in caught.value.public_message


def test_a_good_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "issuers.toml"
    file.write_text("[[issuers]]\nissuer='a'\naudience='b'\njwks='http://127.0.0.1:1/k'\ntenant='t'\n")
    (found,) = read_issuers(str(file))
    assert found.algorithms == ("RS256", "ES256") and found.scopes == ("chat", "read") and found.remote
