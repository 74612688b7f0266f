"""How a limiter reads the script's answer, and which errors its callers get."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import NoScriptError, ResponseError

from actors.directory.pipelined_connection import NotSent, ReplyLost
from actors.limits.valkey import ValkeyLimiter
from sessions.limits import Ceilings, Demand
from sessions.model.errors import OutcomeUnknown, Unavailable
from sessions.model.types import ResponseId, SessionId, TenantId
from tests.support.cluster.scripted_servers import ScriptedServers

NOTHING = [*[-1] * 12, 0]


def over(*answers: Any) -> tuple[ValkeyLimiter, ScriptedServers]:
    limiter, servers = ValkeyLimiter("redis://127.0.0.1"), ScriptedServers(*answers)
    limiter._servers = servers  # type: ignore[assignment]
    return limiter, servers


def demand(**tenant: int) -> Demand:
    return Demand(
        tenant=TenantId("a {b}"),
        user="u",
        session=SessionId("s"),
        name=ResponseId("r"),
        input_tokens=1,
        output_tokens=1,
        tenant_ceilings=Ceilings(**tenant),
        user_ceilings=Ceilings(),
        hold_ms=1_000,
    )


async def test_a_refusal_names_the_limit_and_levels_are_those_of_the_nearest_bucket() -> None:
    limiter, _ = over([700, 2, 1, 50, 9, 3, 10, 50, 0, 700, *[-1] * 6, 0])
    grant = await limiter.reserve(demand(requests_per_minute=9, tokens_per_minute=50))
    assert grant.refusal is not None
    assert (grant.refusal.what, grant.refusal.scope) == ("tokens_per_minute", "tenant")
    assert (grant.refusal.limit, grant.refusal.retry_after_ms) == (50, 700)
    assert grant.standing.requests is not None and grant.standing.requests.remaining == 3


async def test_a_server_that_does_not_know_the_script_gets_its_text_under_a_tag_of_the_tenant() -> None:
    limiter, servers = over(NoScriptError(), [0, 0, 0, 0, *NOTHING])
    assert (await limiter.reserve(demand())).refusal is None
    assert [call[1] for call in servers.calls] == ["EVALSHA", "EVAL"]
    tag = servers.calls[0][0]
    assert tag.startswith("{sessile:limits:") and tag.count("{") == tag.count("}") == 1, "braces of a tenant are hashed"


@pytest.mark.parametrize(
    ("trouble", "kind", "code"),
    [
        (ReplyLost("gone"), OutcomeUnknown, "limits_outcome_unknown"),
        (NotSent("away"), Unavailable, "limits_unavailable"),
        (ResponseError("OOM"), Unavailable, "limits_unavailable"),
    ],
)
async def test_errors_say_whether_anything_may_have_been_counted(
    trouble: Exception, kind: type[Unavailable], code: str
) -> None:
    limiter, _ = over(trouble)
    with pytest.raises(kind) as raised:
        await limiter.settle(TenantId("t"), ResponseId("r"), SessionId("s"), 1)
    assert raised.value.code == code
