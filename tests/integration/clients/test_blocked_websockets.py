"""Both SDKs where no WebSocket gets through: a byte-level proxy before a real server, and what is shown then."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sessile_client import Client
from sessile_client._http import ask

from testbed.server_process import ROOT, ServerProcess
from tests.support.doors.blocking_proxy import BlockingProxy, Mode
from tests.support.node import WITH_NODE, node_modules

BLOCKS: list[tuple[Mode, int]] = [("refuse", 0), ("strip", 0), ("cut", 150), ("cut", 900)]
SLOW = [pytest.param(*each, marks=pytest.mark.slow) for each in BLOCKS[1:3]]
SPEAKER = Path(__file__).parent / "over_a_proxy.mjs"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--engine", "sim", "--sim-tokens-per-s", "200") as started:
        yield started


async def log_of(server: ServerProcess, session: str) -> list[dict[str, Any]]:
    """Every event, from the server itself."""
    events: list[dict[str, Any]] = []
    offset = 0
    while True:
        url = f"http://127.0.0.1:{server.port}/v1/sessions/{session}/events?after={offset}&wait_ms=0"
        frames = [each for each in json.loads((await ask(url)).body) if each["type"] == "event"]
        if not frames:
            return events
        events += frames
        offset = frames[-1]["offset"]


def judge(events: list[dict[str, Any]], words: list[str], texts: list[str]) -> None:
    said = [
        each["event"]["item"]["content"][0]["text"]
        for each in events
        if each["event"]["type"] == "item.created" and each["event"]["item"]["role"] == "user"
    ]
    assert said == words, "each command once, in order"
    written: dict[str, str] = {}
    for each in events:
        if each["event"]["type"] == "response.output_text.delta":
            written[each["event"]["response_id"]] = (
                written.get(each["event"]["response_id"], "") + each["event"]["delta"]
            )
    assert texts == list(written.values()), "the text shown is the log's"


@pytest.mark.parametrize(("mode", "cut_after"), [BLOCKS[0], BLOCKS[3], *SLOW])
async def test_the_python_client_goes_over_http_by_itself(server: ServerProcess, mode: Mode, cut_after: int) -> None:
    words, texts = ["one", "two", "three"], []
    async with BlockingProxy(server.port, mode, cut_after) as proxy:
        async with Client(proxy.socket_url) as client:
            client._ways._trial_s = 0.2
            session = await client.create_session()
            for word in words:
                answer = await session.send(word, max_output_tokens=20)
                texts.append(await answer.text())
            assert client.over_http
            assert not client.captive_portal
            name = session.id
            proxy.mode = "open"  # and back, once one gets through
            async with asyncio.timeout(60):
                while client.over_http:
                    words.append(f"word {len(words)}")
                    answer = await session.send(words[-1], max_output_tokens=20)
                    texts.append(await answer.text())
        assert proxy.upgraded > 0
    judge(await log_of(server, name), words, texts)


@pytest.mark.parametrize(
    ("mode", "cut_after"),
    [BLOCKS[0], *SLOW, *(pytest.param(*each, marks=pytest.mark.slow) for each in (BLOCKS[3], ("hang", 0)))],
)
async def test_the_typescript_client_goes_over_http_by_itself(
    server: ServerProcess, mode: Mode, cut_after: int
) -> None:
    await node_modules()
    words = ["one", "two", "three"]
    async with BlockingProxy(server.port, mode, cut_after) as proxy:
        node = await asyncio.create_subprocess_exec(
            WITH_NODE, "node", str(SPEAKER), proxy.url, *words, cwd=ROOT, stdout=subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(node.communicate(), 60)
        assert node.returncode == 0
    told = json.loads(out)
    assert told["via"] == "http"
    assert told["portals"] == 0
    for before, after in zip(told["offsets"], told["offsets"][1:], strict=False):
        assert after[0] == before[1] + 1, "no gap, no repeat"
    judge(await log_of(server, told["session"]), words, told["texts"])


@pytest.mark.parametrize("mode", ["portal", "redirect"])
async def test_a_captive_portal_is_told_and_gets_no_key_from_the_probe(server: ServerProcess, mode: Mode) -> None:
    async with (
        BlockingProxy(server.port, "portal") as elsewhere,
        BlockingProxy(server.port, mode, elsewhere=elsewhere.url) as proxy,
        Client(proxy.socket_url, api_key="a-secret") as client,
    ):
        async with asyncio.timeout(60):
            while not client.captive_portal:
                await client._link_bell.wait()
        assert client.error is None
        proxy.mode = "open"
        await client.ready()
        assert not client.captive_portal
        probes = [head for head in proxy.heads if b"upgrade: websocket" not in head.lower()]
        assert probes
        assert not any(b"a-secret" in head for head in probes)
        assert elsewhere.heads == [], "no redirect is followed"
