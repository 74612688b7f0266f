"""The public port of a process that still waits for what it needs."""

from __future__ import annotations

import httpx
import pytest

from sessions.model.errors import Unavailable
from tests.support.cluster.directories import free_port
from transport.http_api.starting_door import StartingDoor


async def test_it_lives_is_not_ready_and_refuses_the_rest_with_the_reason() -> None:
    port = free_port()
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "x"}
    async with (
        StartingDoor(lambda: "waiting for the journal", host="127.0.0.1", port=port) as door,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        alive = await client.get("/healthz")
        assert (alive.status_code, alive.json()["status"]) == (200, "ok")
        for path in ("/readyz", "/health"):
            answer = await client.get(path)
            assert answer.status_code == 503
            assert answer.json() == {"status": "unavailable", "reason": "waiting for the journal"}
        refused = [await client.post("/v1/chat/completions", json={}), await client.get("/v1/ws", headers=upgrade)]
        for answer in refused:
            assert answer.status_code == 503 and answer.headers["retry-after"] == "2"
            error = answer.json()["error"]
            assert (error["code"], error["retryable"]) == ("starting", True)
            assert error["message"] == "The server is waiting for the journal. Try again."
        await door.stop()
        await door.stop()
        async with StartingDoor(lambda: None, host="127.0.0.1", port=port):  # the port is free again
            with pytest.raises(Unavailable):
                await StartingDoor(lambda: None, host="127.0.0.1", port=port).__aenter__()


async def test_a_port_of_the_servers_own_choice_has_no_such_door() -> None:
    async with StartingDoor(lambda: None, host="127.0.0.1", port=0):
        pass
