"""A smaller model in brownout, at the doors: what clients, bills and metrics are told of who wrote an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.simulated import SimulatedOptions
from sessions.actor.admission import Admission
from sessions.billing.prices import PriceBook, read_prices
from tests.support.doors.assembly import Assembly, assembled
from tests.support.doors.websocket_wire import wire

LIMITS = "brownout = [{ smaller_model = true }]\n[targets.default]\nttft_ms = 100\n"
PRICES = (
    'currency = "USD"\n[[prices]]\nmodel = "simulated"\ninput = 0\noutput = 1000\n'
    '[[prices]]\nmodel = "small"\ninput = 0\noutput = 10'
)
MODEL = SimulatedOptions(step_base_s=0.002, slots=1, answer_tokens_mean=0)
SMALL = MODEL.smaller("small", 4.0, 4)


class Doors:
    """A server in brownout, whose model is busy until `free` is called."""

    def __init__(self, server: Assembly, http: httpx.AsyncClient) -> None:
        self.server = server
        self.http = http
        self.holder: asyncio.Task[httpx.Response] | None = None

    @property
    def admission(self) -> Admission:
        made = self.server.runtime.limits.actor.admission
        assert made is not None
        return made

    async def complete(self, text: str, tokens: int = 20, **more: Any) -> httpx.Response:
        body = {"model": "simulated", "messages": [{"role": "user", "content": text}], "max_tokens": tokens, **more}
        return await self.http.post("/v1/chat/completions", json=body)

    async def metrics(self) -> dict[str, float]:
        lines = (await self.http.get("/metrics")).text.splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line and not line.startswith("#")]
        return {name: float(value) for name, value in pairs}


@asynccontextmanager
async def doors(tmp_path: Path, *, smaller: SimulatedOptions | None = SMALL) -> AsyncIterator[Doors]:
    path = tmp_path / "limits.toml"
    path.write_text(LIMITS)
    prices = PriceBook(read_prices(PRICES))
    async with (
        assembled(limits_file=path, engine=MODEL, smaller=smaller, prices=prices) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):
        made = Doors(server, http)
        assert (await made.complete("Learn how long you take.", 400)).status_code == 200
        made.admission.brownout.level = 1
        made.holder = asyncio.create_task(made.complete("Take the one slot that there is.", 4_000))
        while (await made.metrics())["sessile_num_requests_running"] < 1:
            pass
        yield made
        made.holder.cancel()
        await asyncio.gather(made.holder, return_exceptions=True)


async def test_every_door_and_the_bill_name_the_model_that_wrote_it(tmp_path: Path) -> None:
    async with doors(tmp_path) as made:
        answer = (await made.complete("Hello")).json()
        assert answer["model"] == "small"
        tokens = answer["usage"]["completion_tokens"]
        assert tokens and float(answer["usage"]["cost"]["amount"]) == pytest.approx(tokens * 10 / 1e6)
        streamed = (await made.complete("Hello again", stream=True)).text
        chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
        assert {chunk["model"] for chunk in chunks} == {"small"}
        body = {"model": "simulated", "input": "And here?", "max_output_tokens": 20}
        response = (await made.http.post("/v1/responses", json=body)).json()
        assert response["model"] == "small"
        assert (await made.http.get(f"/v1/responses/{response['id']}")).json()["model"] == "small"
        rows = (await made.http.get("/v1/usage/responses")).json()["data"]
        assert [row["model"] for row in rows] == ["simulated", "small", "small", "small"]
        sums = (await made.http.get("/v1/usage", params={"group_by": "model"})).json()["data"]
        assert {each["model"]: each["output_tokens"] for each in sums} == {
            "simulated": rows[0]["output_tokens"],
            "small": sum(row["output_tokens"] for row in rows[1:]),
        }
        listed = (await made.http.get("/v1/models")).json()["data"]
        chatting = [model["id"] for model in listed if not model["capabilities"]["embedding"]]
        assert chatting == ["simulated"], "nobody chooses the smaller one"
        refused = await made.complete("Hello", model="small")
        assert refused.status_code == 404 and refused.json()["error"]["code"] == "model_not_found"


async def test_the_event_that_begins_the_response_says_so_and_the_session_keeps_its_model(tmp_path: Path) -> None:
    async with doors(tmp_path) as made, wire(made.server.server.port) as client:
        await client.hello()
        client.send({"type": "session.create", "id": "make", "session": "s"})
        await client.until(type="ok", id="make")
        client.send({"type": "subscribe", "id": "read", "session": "s", "offset": 0})
        await client.until(type="caught_up", session="s")
        client.send({"type": "message.create", "id": "say", "session": "s", "content": "Hi", "max_output_tokens": 5})
        created = (await client.event("response.created"))["event"]["response"]
        assert created["model"] == "small"
        assert created["service"] == {"brownout": 1, "smaller_model": "small"}
        ended = (await client.event("response.incomplete"))["event"]["response"]
        assert (ended["model"], ended["service"]) == ("small", created["service"])
        session = (await made.http.get("/v1/sessions/s")).json()
        assert session["model"] == "simulated"


async def test_metrics_keep_the_two_apart(tmp_path: Path) -> None:
    async with doors(tmp_path) as made:
        before = await made.metrics()
        await made.complete("Hello", 30)
        after = await made.metrics()
        assert after['sessile_admission_smaller_model_total{target="ttft"}'] == 1
        assert after['sessile_smaller_model_events_total{event="decoded_tokens"}'] == 30
        assert after["sessile_smaller_model_slots"] == 4 and after["sessile_num_slots"] == 1
        assert after['sessile_smaller_model_requests{state="running"}'] == 0
        name = "sessile_engine_decoded_tokens_total"
        assert after[name] > before[name] >= 400, "the model's own go on"
        assert not [each for each in after if each.startswith("sessile_engine_") and "smaller" in each]


async def test_without_one_the_step_holds_without_it(tmp_path: Path) -> None:
    async with doors(tmp_path, smaller=None) as made:
        answer = await made.complete("Hello")
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "overloaded"
        assert not [each for each in await made.metrics() if "smaller_model_" in each and "admission" not in each]
