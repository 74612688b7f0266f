"""Admission at the doors: who waits is told its place, who would wait too long is refused with a time to come back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from inference.simulated import SimulatedOptions
from tests.support.doors.assembly import assembled
from tests.support.doors.websocket_wire import wire

TARGETS = "[targets.default]\nttft_ms = 500\n"
SLOW = SimulatedOptions(step_base_s=0.005, slots=1, answer_tokens_mean=0)  # an answer below takes a fifth of a second


async def test_a_turn_waits_with_its_place_or_is_refused_with_a_time(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(TARGETS)

    async with (
        assembled(limits_file=path, engine=SLOW) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):

        async def ask(number: int) -> httpx.Response:
            body: dict[str, Any] = {"model": "simulated", "input": f"Question {number}", "max_output_tokens": 40}
            return await http.post("/v1/responses", json=body)

        assert (await ask(0)).status_code == 200, "an engine that has learned nothing lets everybody in"
        answers = await asyncio.gather(*(ask(number) for number in range(1, 9)))
        assert {answer.status_code for answer in answers} == {200, 503}
        for refused in (answer for answer in answers if answer.status_code == 503):
            error = refused.json()["error"]
            assert (error["code"], error["retryable"]) == ("overloaded", True)
            assert int(refused.headers["retry-after-ms"]) == error["retry_after_ms"] >= 250
        good = [answer for answer in answers if answer.status_code == 200]
        for answer in good:
            assert answer.json()["usage"]["output_tokens"] == 40, "whoever was let in is answered"
        # A session that was refused whole leaves memory at once.
        while len(server.runtime.actors) > 1 + len(good):  # noqa: ASYNC110 - nothing says when a session has left
            await asyncio.sleep(0)


async def test_the_event_that_begins_a_response_says_that_it_waits(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("[targets.default]\nttft_ms = 600_000\n")
    async with assembled(limits_file=path, engine=SLOW) as server, wire(server.server.port) as client:
        await client.hello()
        created: dict[str, Any] = {}
        for number in range(3):
            client.send({"type": "session.create", "id": f"make{number}", "session": f"s{number}"})
            await client.until(type="ok", id=f"make{number}")
            client.send({"type": "subscribe", "id": f"read{number}", "session": f"s{number}", "offset": 0})
            await client.until(type="caught_up", session=f"s{number}")
        for number in range(3):
            say = {"type": "message.create", "id": f"say{number}", "content": "Go on.", "max_output_tokens": 200}
            client.send({**say, "session": f"s{number}"})
            created[f"s{number}"] = (await client.event("response.created"))["event"]["response"]
        assert "service" not in created["s0"]
        places = [created[name]["service"]["queue_position"] for name in ("s1", "s2")]
        assert places == [1, 2]
