"""A provider whose answers are written down, for what a real one never sends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from sessions.model.types import UnixMs
from transport.auth.jwt_issuers import JwtIssuer, JwtIssuers
from transport.auth.openid_provider import Metadata, OpenIdProvider, ProviderAnswer, ProviderSettings

ISSUER: Final = "https://login.example"
NOW_S: Final = 1_750_000_000
SIGNER: Final = ec.generate_private_key(ec.SECP256R1())
SETTINGS: Final = ProviderSettings(issuer=ISSUER, client_id="sessile", client_secret="a b:c", tenant="acme")
METADATA: Final[dict[str, Any]] = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/auth?kind=web",
    "token_endpoint": f"{ISSUER}/token",
    "jwks_uri": f"{ISSUER}/keys",
    "end_session_endpoint": f"{ISSUER}/end",
    "code_challenge_methods_supported": ["plain", "S256"],
    "id_token_signing_alg_values_supported": ["none", "HS256", "ES256"],
}


def id_token(key: ec.EllipticCurvePrivateKey = SIGNER, kid: str = "k1", **claims: Any) -> str:
    values = {"iss": ISSUER, "aud": "sessile", "sub": "ana", "exp": NOW_S + 600, "nonce": "n", **claims}
    return jwt.encode({name: value for name, value in values.items() if value is not None}, key, "ES256", {"kid": kid})


class ScriptedProvider:
    """Answers with `status` and `answer` at the token endpoint, and with the metadata elsewhere."""

    def __init__(self, **answer: Any) -> None:
        self.metadata = dict(METADATA)
        self.status = 200
        self.answer: Any = {"id_token": id_token(), **answer}
        self.sent: list[tuple[str, dict[str, str], dict[str, str]]] = []
        self.failure: OSError | None = None
        self.keys = [self.jwk(SIGNER, "k1")]
        self.now_s = float(NOW_S)

    @staticmethod
    def jwk(key: ec.EllipticCurvePrivateKey, kid: str) -> dict[str, Any]:
        return {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())), "kid": kid, "alg": "ES256"}

    def now_ms(self) -> UnixMs:
        return UnixMs(round(self.now_s * 1000))

    async def send(self, url: str, form: Mapping[str, str] | None, headers: Mapping[str, str]) -> ProviderAnswer:
        if self.failure is not None:
            raise self.failure
        self.sent.append((url, dict(form or {}), dict(headers)))
        if form is None:
            return ProviderAnswer(self.status, json.dumps(self.metadata).encode())
        return ProviderAnswer(self.status, json.dumps(self.answer).encode())

    async def fetch(self, _: str) -> bytes:
        return json.dumps({"keys": self.keys}).encode()

    async def provider(self, settings: ProviderSettings = SETTINGS, **metadata: Any) -> OpenIdProvider:
        """With its keys read."""
        issuer = JwtIssuer(issuer=ISSUER, audience="sessile", jwks=f"{ISSUER}/keys", tenant="acme", scope_claim="")
        keys = JwtIssuers([issuer], now_ms=self.now_ms, clock=lambda: self.now_s, fetch=self.fetch)
        await keys.load()
        chosen = {**self.metadata, **metadata}
        methods = tuple(chosen.get("token_endpoint_auth_methods_supported", ("client_secret_basic",)))
        read = Metadata(
            issuer=ISSUER,
            authorization_endpoint=chosen["authorization_endpoint"],
            token_endpoint=chosen["token_endpoint"],
            jwks_uri=chosen["jwks_uri"],
            end_session_endpoint=chosen.get("end_session_endpoint"),
            token_endpoint_auth_methods_supported=methods,
        )
        return OpenIdProvider(settings, read, keys, self.send)
