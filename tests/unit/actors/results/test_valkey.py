"""What a lost connection is called; what the script does is in tests/contract/test_result_store.py."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import NoScriptError, ResponseError

from actors.directory.pipelined_connection import NotSent, ReplyLost
from actors.results.valkey import ValkeyResultStore
from sessions.model.errors import OutcomeUnknown, Unavailable
from sessions.model.types import TenantId
from tests.support.cluster.scripted_servers import ScriptedServers


def over(*answers: Any) -> tuple[ValkeyResultStore, ScriptedServers]:
    store, servers = ValkeyResultStore("redis://127.0.0.1"), ScriptedServers(*answers)
    store._servers = servers  # type: ignore[assignment]
    return store, servers


async def test_the_script_is_sent_where_the_server_has_it_not_and_a_tenant_stays_in_one_slot() -> None:
    store, servers = over(NoScriptError("none"), b"body", None)
    assert await store.get(TenantId("a {b}"), b"n") == b"body"
    assert await store.get(TenantId("a {b}"), b"n") is None
    assert [call[1] for call in servers.calls] == ["EVALSHA", "EVAL", "EVALSHA"]
    keys = {call[0] for call in servers.calls}
    assert len(keys) == 1 and keys.pop().count("{") == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [(NotSent("x"), Unavailable), (ResponseError("OOM"), Unavailable), (ReplyLost("x"), OutcomeUnknown)],
)
async def test_what_went_wrong_is_an_error_of_ours(error: Exception, kind: type[Exception]) -> None:
    store, _ = over(error)
    with pytest.raises(kind):
        await store.drop(TenantId("t"), None)
