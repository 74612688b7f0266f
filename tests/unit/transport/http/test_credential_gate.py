"""What needs a credential before its body is read, and what is refused whoever sends it."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.model.errors import SessileError
from sessions.model.types import Principal, TenantId, UnixMs
from transport.auth.authenticator import Authenticator, key_digest
from transport.auth.connection_shares import PLACE, ConnectionShares
from transport.http.credential_gate import CredentialGate

ACME = Principal(tenant=TenantId("acme"), key_id="k")


async def passed(method: str, path: str, *, keyed: bool = True, state: Any = None, **headers: str) -> str:
    """ "passed", or the code of the refusal. Fails where the gate reads."""
    came: list[str] = []

    async def app(*_: Any) -> None:
        came.append("passed")

    async def refuse(error: SessileError, *_: Any) -> None:
        came.append(error.code)

    async def unread() -> Any:
        raise AssertionError("the gate reads no body")

    async def unsent(_: Any) -> None:
        raise AssertionError("the gate sends nothing itself")

    keys = {key_digest("good"): ACME} if keyed else {}
    access = Authenticator(keys, clock=lambda: 0.0, now_ms=lambda: UnixMs(1))
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        "state": {} if state is None else state,
        "client": ("127.0.0.1", 1),
    }
    await CredentialGate(app, access, refuse)(scope, unread, unsent)
    (outcome,) = came
    return outcome


@pytest.mark.parametrize(
    ("method", "path", "needed"),
    [
        ("GET", "/", False),
        ("GET", "/healthz", False),
        ("HEAD", "/app.js", False),
        ("OPTIONS", "/v1/responses", False),
        ("GET", "/v1", True),
        ("GET", "/v1/models", True),
        ("HEAD", "/v1/nothing", True),
        ("POST", "/", True),
        ("DELETE", "/healthz", True),
        ("PROPFIND", "/app.js", True),
    ],
)
async def test_what_needs_a_credential(method: str, path: str, needed: bool) -> None:
    assert await passed(method, path) == ("unauthorized" if needed else "passed")
    assert await passed(method, path, authorization="Bearer good") == "passed"
    assert await passed(method, path, keyed=False) == "passed"


async def test_bodies_that_nobody_can_read() -> None:
    for keyed in (True, False):
        good = {"authorization": "Bearer good", "keyed": keyed}
        assert await passed("POST", "/v1/responses", content_encoding="gzip", **good) == "unsupported_content_encoding"  # type: ignore[arg-type]
        assert await passed("POST", "/v1/responses", content_encoding="Identity", **good) == "passed"  # type: ignore[arg-type]


async def test_a_connection_belongs_to_whom_it_has_shown_the_key_of() -> None:
    shares = ConnectionShares()
    state = {PLACE: shares.open("127.0.0.1", plain=True)}
    await passed("GET", "/v1/models", state=state)
    assert shares.unauthenticated == {"127.0.0.1": 1} and not shares.principals
    await passed("GET", "/v1/models", state=state, authorization="Bearer good")
    assert not shares.unauthenticated and shares.principals == {("acme", "k"): 1}
    assert state["principal"] is ACME  # type: ignore[comparison-overlap]
