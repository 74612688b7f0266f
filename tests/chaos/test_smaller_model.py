"""A smaller model in brownout on real llama.cpp: a flood raises the level, a killed server goes on with the same model,
and when it is calm the model goes on from where its KV was."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from testbed.server_process import ROOT, ServerProcess
from testbed.wire_client import WireClient, connected

pytestmark = [pytest.mark.chaos, pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(240)]

LIMITS = "brownout = [{ smaller_model = true }]\n[targets.default]\nttft_ms = 6_000\ntpot_ms = 5_000\n"
SMALL = "SmolLM2-cut"
STORY = "Tell me a long story about a bird that could not fly, and about the river that it crossed with its friends."


class Flood:
    """Clients that ask all the time, each question in a session of its own, and come back when they are told to."""

    def __init__(self, server: ServerProcess, clients: int) -> None:
        self._http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60)
        self._clients = clients
        self._numbers = itertools.count()
        self.refused = 0

    async def __aenter__(self) -> Flood:
        self._tasks = [asyncio.create_task(self._ask_on()) for _ in range(self._clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends

    async def _ask_on(self) -> None:
        while True:
            body = {"model": "main", "input": f"Count from {next(self._numbers)}.", "max_output_tokens": 24}
            with contextlib.suppress(httpx.HTTPError):
                answer = await self._http.post("/v1/responses", json=body)
                if answer.status_code != 200:
                    assert answer.json()["error"]["code"] == "overloaded", answer.text
                    self.refused += 1
                    await asyncio.sleep(int(answer.headers["retry-after-ms"]) / 1000)


@pytest.fixture
def server(model_path: Path, smaller_model_path: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    main = tmp_path / "main.gguf"
    main.symlink_to(model_path)
    limits = tmp_path / "limits.toml"
    limits.write_text(LIMITS)
    made = ServerProcess(
        *("--model", str(main), "--brownout-model", str(smaller_model_path), "--limits", str(limits)),
        *("--slots", "1", "--threads", "1", "--context", "1024"),
        data=str(tmp_path / "data"),
    )
    with made:
        yield made


async def metrics(server: ServerProcess) -> dict[str, float]:
    async with httpx.AsyncClient(timeout=60) as http:
        lines = (await http.get(f"http://127.0.0.1:{server.port}/metrics")).text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] not in ("#", ""))}


class Talk:
    """One session, as its client reads it."""

    def __init__(self, wire: WireClient, session: str) -> None:
        self.wire = wire
        self.session = session

    async def ask(self, text: str, tokens: int) -> dict[str, Any]:
        """The response as it began, once it was let in."""
        while True:
            fields = {"content": text, "max_output_tokens": tokens, "temperature": 0}
            try:
                ok = await self.wire.command("message.create", session=self.session, **fields)
            except RuntimeError as refused:
                if "overloaded" not in str(refused):
                    raise
                await asyncio.sleep(0.25)  # a client that keeps to what it is told, at the least
                continue
            return await self.event("response.created", ok["response_id"])

    async def event(self, kind: str, response_id: str) -> dict[str, Any]:
        while True:
            event = (await self.wire.events.get())["event"]
            if event["type"] == kind and event["response_id"] == response_id:
                found: dict[str, Any] = event.get("response", event)
                return found

    async def ended(self, response_id: str) -> dict[str, Any]:
        body: dict[str, Any] = (await self.wire.until_end(response_id))[-1]["event"]["response"]
        return body

    async def ask_smaller(self, text: str, tokens: int) -> dict[str, Any]:
        """Asks until the smaller model takes it."""
        while (begun := await self.ask(text, tokens))["model"] != SMALL:
            await self.ended(begun["id"])
        return begun


@asynccontextmanager
async def talking(server: ServerProcess) -> AsyncIterator[Talk]:
    async with connected(server.url) as wire:
        yield Talk(wire, await wire.create())


async def test_a_flood_brings_the_smaller_model_and_calm_the_model_with_its_kv(server: ServerProcess) -> None:
    async with connected(server.url) as wire:
        talks = [Talk(wire, await wire.create()) for _ in range(12)]
        firsts = []
        for talk in talks:
            begun = await talk.ask(STORY, 20)
            assert begun["model"] == "main" and "service" not in begun
            firsts.append((await talk.ended(begun["id"]))["usage"])
        async with Flood(server, 20) as flood:
            while (await metrics(server))["sessile_brownout_level"] < 1:
                pass
            for number, each in enumerate(talks):  # what the model takes fills its queue
                talk, first = each, firsts[number]
                begun = await talk.ask("And then?", 30)
                if begun["model"] == SMALL:
                    break
            assert begun["service"]["brownout"] == 1 and begun["service"]["smaller_model"] == SMALL
            second = await talk.ended(begun["id"])
            assert second["model"] == SMALL and second["usage"]["output_tokens"]
        assert flood.refused
        while (now := await metrics(server))["sessile_num_requests_running"] + now["sessile_num_requests_waiting"]:
            pass
        begun = await talk.ask("And in the end?", 20)
        assert begun["model"] == "main"
        third = (await talk.ended(begun["id"]))["usage"]
        cached = third["input_tokens_details"]["cached_tokens"]
        assert cached >= first["input_tokens"], "the model goes on from where its KV was"
        assert cached < third["input_tokens"] - second["usage"]["output_tokens"], "what the other wrote it had to read"
        told = await metrics(server)
        assert told['sessile_smaller_model_events_total{event="decoded_tokens"}'] >= 30


async def test_killed_in_mid_answer_the_smaller_model_goes_on_with_it(server: ServerProcess) -> None:
    async with talking(server) as talk:
        async with Flood(server, 20):
            begun = await talk.ask_smaller(STORY, 150)
            before = ""
            while len(before) < 40:
                before += (await talk.event("response.output_text.delta", begun["id"]))["delta"]
            server.kill()
        session, response_id = talk.session, begun["id"]
    server.start()
    async with connected(server.url) as wire:
        await wire.command("subscribe", session=session, offset=0)
        events = [frame["event"] for frame in await wire.until_end(response_id)]
        mine = [event for event in events if event.get("response_id") == response_id]
        assert [event["type"] for event in mine].count("response.created") == 1
        numbers = [event["sequence_number"] for event in mine]
        assert numbers == sorted(set(numbers)), "deltas may come merged, and none comes twice"
        assert "session.migrated" in [event["type"] for event in events]
        text = "".join(event["delta"] for event in mine if event["type"] == "response.output_text.delta")
        end = mine[-1]["response"]
        assert text.startswith(before) and len(text) > len(before), "what was shown stands"
        assert end["model"] == SMALL and end["service"] == begun["service"]
        told = await metrics(server)
        assert told['sessile_smaller_model_events_total{event="decoded_tokens"}'] > 0
    assert server.stop() == 0
    command = [sys.executable, "app.py", "usage", "reconcile", "--data", server.data, "--log-level", "error"]
    reconciled = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    assert await reconciled.wait() == 0, "every row names the model and the tokens that its log does"
