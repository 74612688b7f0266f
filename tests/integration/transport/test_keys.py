"""`/v1/keys` and `app.py keys`: keys are made, shown, used and revoked, on a journal and through a running server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest

from sessions.model.types import SCOPES, CommandId, SessionId
from tests.support.authorisation.attempts import talk
from tests.support.authorisation.world import World, a_world, without
from transport.cli.commands import parse
from transport.cli.keys import KeyCommand, format_keys, run_on_server
from transport.cli.settings import BadSetting
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.sessile_pb2_grpc import SessionsStub
from transport.protocol.frames import SessionGet

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


def command(*words: str) -> KeyCommand:
    parsed = parse(["keys", *words], {}, "0")
    assert parsed is not None and isinstance(parsed.options, KeyCommand)
    return parsed.options


async def told(world: World, credential: str, *words: str) -> Any:
    return await run_on_server(
        command(*words, "--url", world.assembly.server.url), credential, world.assembly.gateway.now_ms()
    )


async def test_an_operator_makes_shows_and_revokes_keys_through_a_server(world: World) -> None:
    boss, why = world.credentials["emergency operator"], ("--reason", "gamma has no administrator yet")
    made = await told(world, boss, "create", "--tenant", "gamma", "--user", "zoe", "--expires-in", "30d", *why)
    assert (made["tenant"], made["role"], made["user"], made["scopes"]) == ("gamma", "user", "zoe", ["chat", "read"])
    hers = {"authorization": f"Bearer {made['key']}"}
    assert (await world.http.get("/v1/sessions", headers=hers)).status_code == 200
    listed = await told(world, boss, "list", "--tenant", "gamma")
    assert [key["id"] for key in listed] == [made["id"]] and "key" not in listed[0] and "digest" not in listed[0]
    assert len(await told(world, boss, "list")) > len(listed)
    assert (await told(world, boss, "show", made["id"]))["state"] == "active"
    assert (await told(world, boss, "revoke", made["id"]))["state"] == "revoked"
    refused = await world.http.get("/v1/sessions", headers=hers)
    assert refused.status_code == 401 and "revoked" in refused.text
    text = format_keys(made, as_json=False)
    assert made["key"] in text and "shown once" in text
    assert made["id"] in format_keys(listed, as_json=False) and made["key"] not in format_keys(listed, as_json=True)


async def test_a_service_administers_its_own_tenant_and_nobody_above_it(world: World) -> None:
    service = {"authorization": f"Bearer {without(world, 'service', 'usage')}"}
    made = await world.http.post("/v1/keys", headers=service, json={"role": "service", "scopes": list(SCOPES)})
    assert made.status_code == 201 and made.json()["tenant"] == "acme" and made.headers["cache-control"] == "no-store"
    for wrong, status in (
        ({"role": "operator"}, 403),
        ({"tenant": "beta"}, 403),
        ({"role": "king"}, 400),
        ({"scopes": ["everything"]}, 400),
        ({"scopes": []}, 400),
        ({"role": "service", "user": "ana"}, 400),
        ({"expires_at": 1}, 400),
        ({"name": "x" * 129}, 400),
        ({"digest": "00"}, 400),
    ):
        answer = await world.http.post("/v1/keys", headers=service, json=wrong)
        assert (wrong, answer.status_code) == (wrong, status)
        assert answer.json()["error"]["message"]
    keys = (await world.http.get("/v1/keys", headers=service)).json()["data"]
    assert {key["tenant"] for key in keys} == {"acme"}
    operators = next(key["id"] for key in keys if key["role"] == "operator")
    assert (await world.http.delete(f"/v1/keys/{operators}", headers=service)).status_code == 403


async def test_keys_are_listed_in_pages(world: World) -> None:
    boss = {"authorization": f"Bearer {without(world, 'operator', 'usage')}"}
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 5}
    while True:
        page = (await world.http.get("/v1/keys", headers=boss, params=query)).json()
        seen += [key["id"] for key in page["data"]]
        if not page["has_more"]:
            break
        query["after"] = page["last_id"]
    assert len(seen) == len(set(seen)) == len(world.ring.all()) > 10
    assert (await world.http.get("/v1/keys?after=nobodyshere2", headers=boss)).status_code == 404


async def test_a_service_keeps_its_users_apart(world: World) -> None:
    key = await world.key(tenant="acme", role="service")
    ana, ben = ({"authorization": f"Bearer {key}", "x-sessile-user": user} for user in ("ana2", "ben2"))
    made = await world.http.post("/v1/conversations", headers=ana, json={})
    mine = f"/v1/sessions/{made.json()['id']}"
    assert (await world.http.get(mine, headers=ana)).status_code == 200
    assert (await world.http.get(mine, headers=ben)).status_code == 404
    assert (await world.http.get(mine, headers={"authorization": f"Bearer {key}"})).status_code == 200
    ticket = (await world.http.post("/v1/ws/tickets", headers=ben)).json()["ticket"]
    frame = SessionGet(id=CommandId("1"), session=SessionId(made.json()["id"]))
    assert (await talk(world, [frame], None, query=f"?ticket={ticket}")).outcome == "not found"
    assert (await talk(world, [frame], None, header=f"Bearer {key}", user="ben2")).outcome == "not found"
    assert (await talk(world, [frame], None, header=f"Bearer {key}", user="ana2")).outcome == "allowed"
    assert (await talk(world, [frame], key, user="ben2")).outcome == "other"  # refused: it would be the service's own
    hers = {"authorization": f"Bearer {world.credentials['other user']}", "x-sessile-user": "ana2"}
    assert (await world.http.get(mine, headers=hers)).status_code == 403


async def test_a_revoked_key_ends_its_calls_on_grpc(world: World) -> None:
    credential = await world.key(tenant="acme", user="ana")
    metadata = (("authorization", f"Bearer {credential}"),)
    stub = SessionsStub(world.channel)
    calls = stub.Converse(metadata=metadata)
    await calls.write(pb.ConverseRequest(open=pb.Open(session=world.victim.session)))
    reading = stub.History(pb.HistoryRequest(session=world.victim.session, follow=True), metadata=metadata)
    assert (await calls.read()).WhichOneof("reply") == "resumed" and (await reading.read()) is not grpc.aio.EOF
    await world.ring.revoke(credential.split("-")[2], revoked_by="test")
    async with asyncio.timeout(60):
        for call in (calls, reading):
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                while await call.read() is not grpc.aio.EOF:
                    pass
                raise grpc.aio.AioRpcError(
                    await call.code(), await call.initial_metadata(), await call.trailing_metadata()
                )
            assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("create", "--tenant", "a", "--scopes", "chat,all"), "all"),
        (("create", "--tenant", "a", "--expires-in", "soon"), "expires-in"),
        (("create", "--tenant", "a", "--expires-in", "0d"), "expires-in"),
    ],
)
def test_what_the_command_cannot_do_it_says_by_name(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(BadSetting, match=why):
        command(*words)


async def test_a_key_does_not_go_over_plain_http_to_another_machine() -> None:
    listing = command("list", "--url", "http://chat.example:8080")
    with pytest.raises(BadSetting, match="https"):
        await run_on_server(listing, "sk-sessile-x", 0)  # type: ignore[arg-type]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "app.py", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_the_first_key_is_made_before_the_server_runs_and_the_next_ones_through_it(tmp_path: Path) -> None:
    """As docs/keys.md says it."""
    data = ("--data", str(tmp_path / "data"))
    made = run("keys", "create", "--tenant", "acme", "--role", "operator", "--json", *data)
    assert made.returncode == 0, made.stderr
    boss = json.loads(made.stdout)["key"]
    assert boss not in made.stderr
    starting = [sys.executable, "app.py", "serve", "--engine", "sim", "--port", "0", "--auth", "keys", *data]
    with subprocess.Popen(starting, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"ready: (\S+)/", server.stdout.readline())
            assert found
            url = found[1]
            assert httpx.get(f"{url}/v1/models", timeout=60).status_code == 401
            words = ("keys", "create", "--tenant", "acme", "--user", "ana", "--json", "--url", url)
            stranger = json.loads(run(*words, SESSILE_API_KEY=boss).stdout)["key"]
            headers = {"authorization": f"Bearer {stranger}"}
            assert httpx.get(f"{url}/v1/models", headers=headers, timeout=60).status_code == 200
            assert httpx.get(f"{url}/metrics", headers=headers, timeout=60).status_code == 403
            asked = {"authorization": f"Bearer {boss}"}
            assert httpx.delete(f"{url}/v1/keys/{stranger.split('-')[2]}", headers=asked, timeout=60).status_code == 200
            assert httpx.get(f"{url}/v1/models", headers=headers, timeout=60).status_code == 401
        finally:
            server.terminate()
            _, errors = server.communicate(timeout=60)
    assert server.returncode == 0 and boss not in errors and stranger not in errors
