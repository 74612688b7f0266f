"""Two real models of different families as pools: a session switches between turns, at OpenAI's door and WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.llama import LlamaEngine, LlamaOptions
from persistence.memory.store import MemoryStore
from sessions.clock import Clock
from sessions.routing.models_file import read_models
from testbed.real_cluster import ALICE, RealCluster, new_id, now_ms, real_cluster
from tests.support.doors.websocket_wire import wire
from transport.auth.authenticator import Authenticator, key_digest
from transport.gateway import Gateway, GatewayServices
from transport.http_api.server import Server
from transport.model_catalog import ModelCatalog, PooledModels

pytestmark = [pytest.mark.model, pytest.mark.cluster, pytest.mark.slow]

SECOND = Path(__file__).resolve().parents[3] / ".cache" / "models" / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
ENDS = ("response.completed", "response.incomplete", "response.failed")
KEY = {"authorization": "Bearer sk-1"}
HARD = "Implement it: write a Python function `add(a, b)`.\n```python\ndef add(a, b):\n```\nOnly code, no words."
FILE = """
default = "auto"
[models.small]
quality = 1
[models.large]
quality = 2
[aliases]
auto = ["small", "large"]
[routing]
hard = 0.4
margin = 0.05
calm_turns = 1
smoothing = 1.0
"""


async def add_model(made: RealCluster, name: str, model: str, path: Path) -> None:
    options = LlamaOptions(model_path=path, model_name=model, slots=1, context_window=1_024, threads=1)
    await made.add_replica(name, LlamaEngine(options))


@pytest.fixture
async def cluster(model_path: Path) -> AsyncIterator[RealCluster]:
    if not SECOND.is_file():
        pytest.skip("the second model is missing: `make serve` fetches it")
    async with real_cluster(0) as made:
        pools = read_models(FILE)
        made.pools = lambda: pools
        await add_model(made, "s1", "small", model_path)
        await add_model(made, "l1", "large", SECOND)
        yield made


@pytest.fixture
async def server(cluster: RealCluster) -> AsyncIterator[Server]:
    router, clock = await cluster.add_gateway("g1"), asyncio.get_running_loop().time
    states = router.routes.pool_states
    assert cluster.pools is not None
    catalog = ModelCatalog(lambda: router.routes.view, clock=clock, created=0)
    services = GatewayServices(
        models=PooledModels(catalog, cluster.pools, lambda name: states()[name].replicas if name in states() else 0),
        pools=cluster.pools,
    )
    gateway = Gateway(
        router,
        MemoryStore(journal=cluster.journal),  # type: ignore[arg-type]
        Authenticator({key_digest("sk-1"): ALICE}, clock=clock, now_ms=now_ms),
        Clock(now_ms, new_id),
        services=services,
    )
    made = Server(gateway, host="127.0.0.1", port=0)
    await made.start()
    yield made
    await made.stop()


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


async def test_a_session_switches_between_turns_and_its_answers_stay_right(
    cluster: RealCluster, server: Server, model_path: Path
) -> None:
    async with httpx.AsyncClient(base_url=server.url, headers=KEY, timeout=120) as http:
        shown = {each["id"]: each for each in (await http.get("/v1/models")).json()["data"]}
        assert set(shown) == {"auto", "small", "large"}
        assert shown["auto"]["pool"]["models"] == ["small", "large"] and shown["large"]["pool"]["quality"] == 2

        async def turn(text: str, before: str | None = None) -> tuple[dict[str, Any], str]:
            body = {"input": text, "previous_response_id": before, "temperature": 0, "max_output_tokens": 24}
            answer = await http.post("/v1/responses", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json(), answer.headers["x-sessile-routing"]

        first, why = await turn("What is the capital of France? Answer in one word.")
        assert first["model"] == "small" and why.startswith("small: first_turn") and "Paris" in text_of(first)
        hard, why = await turn(HARD, first["id"])
        assert hard["model"] == "large" and why.startswith("large from small: hard")
        assert hard["metadata"]["sessile.routing"] == why and "return a + b" in text_of(hard)
        back, why = await turn("Which city did you name at first? One word.", hard["id"])
        assert back["model"] == "small" and why.startswith("small from large: ")
        again, why = await turn(HARD, back["id"])
        assert again["model"] == "large"
        await cluster.replicas["l1"].close()
        down, why = await turn("What is the capital of France? Answer in one word.", again["id"])
        assert down["model"] == "small" and why.startswith("small from large: pool_lost") and text_of(down)
        met = asyncio.Event()
        cluster.replicas["s1"].replica.membership.listen(lambda change: met.set() if "l2" in change.joined else None)
        await add_model(cluster, "l2", "large", SECOND)
        async with asyncio.timeout(60):
            await met.wait()
        up, why = await turn(HARD, down["id"])
        assert up["model"] == "large" and "return a + b" in text_of(up)


async def test_on_a_websocket_the_receipt_stands_in_the_response(cluster: RealCluster, server: Server) -> None:
    async with wire(server.port, headers={"Authorization": "Bearer sk-1"}) as client:
        await client.hello()
        client.send({"type": "session.create", "id": "c", "session": "mine", "model": "auto"})
        await client.until(type="ok", id="c")
        client.send({"type": "subscribe", "id": "s", "session": "mine", "offset": 0})
        turn = {"type": "message.create", "session": "mine", "temperature": 0, "max_output_tokens": 8}
        client.send({**turn, "id": "m1", "content": "What is the capital of France? Answer in one word."})
        small = (await client.event("response.created"))["event"]["response"]
        assert (small["model"], small["service"]["routing"]["why"]) == ("small", "first_turn")
        while (event := (await client.until(type="event"))["event"])["type"] not in ENDS:
            pass
        assert event["response"]["model"] == "small"
        client.send({**turn, "id": "m2", "content": HARD})
        large = (await client.event("response.created"))["event"]["response"]
        receipt = large["service"]["routing"]
        assert (large["model"], receipt["from"], receipt["why"]) == ("large", "small", "hard") and receipt["tokens"] > 0
        while (event := (await client.until(type="event"))["event"])["type"] not in ENDS:
            pass
        assert event["response"]["model"] == "large"
