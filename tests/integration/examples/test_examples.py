"""The examples of `docs/examples`, run as a reader runs them: programs of their own against a real server."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from inference.simulated import SimulatedOptions
from testbed.chaos.proxy import Flow, Proxy
from tests.support.doors.openai_server import Serving, serving
from tests.support.node import CLIENT, WITH_NODE, node_modules
from transport.grpc_api.server import GrpcServer

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "docs" / "examples"
PROGRAM_S = 110  # a program that imports half the world, on a machine that is busy


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving(SimulatedOptions(step_base_s=0.002, answer_tokens_mean=30)) as made:
        yield made


def ws(server: Serving) -> str:
    return server.server.url.replace("http", "ws") + "/v1/ws"


async def start(*command: str, cwd: Path = ROOT, **more: str) -> asyncio.subprocess.Process:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "clients" / "python"), **more}
    return await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment, cwd=cwd
    )


async def output(process: asyncio.subprocess.Process) -> tuple[str, str]:
    """What it wrote, when it has ended well."""
    out, err = await asyncio.wait_for(process.communicate(), PROGRAM_S)
    assert process.returncode == 0, err.decode()
    return out.decode(), err.decode()


def answers(server: Serving, session: str) -> list[str]:
    """The answers in a session's log."""
    found: dict[str, str] = {}
    for record in server.log(session):
        if type(record.event).__name__ == "OutputTextDelta":
            event: Any = record.event
            found[event.response_id] = found.get(event.response_id, "") + event.delta
    return list(found.values())


async def test_openais_javascript_sdk(server: Serving) -> None:
    await node_modules()
    example = str(EXAMPLES / "openai_sdk.mjs")
    process = await start(WITH_NODE, "node", example, server.server.url, cwd=CLIENT)
    out, _ = await output(process)
    lines = [line.split(":")[0] for line in out.splitlines() if re.match(r"(chat|response|conversation):", line)]
    assert lines == ["chat", "chat", "response", "conversation"]
    assert "conversation: user assistant user assistant" in out
    assert len(server.sessions) == 3, "the chat that resent its history stayed on one session"


@pytest.mark.slow
async def test_openais_sdk(server: Serving) -> None:
    out, _ = await output(await start(sys.executable, str(EXAMPLES / "openai_sdk.py"), "--url", server.server.url))
    lines = [line.split(":")[0] for line in out.splitlines() if re.match(r"(chat|response|conversation):", line)]
    assert lines == ["chat", "chat", "response", "conversation"]
    assert "['user', 'assistant', 'user', 'assistant']" in out
    assert len(server.sessions) == 3, "the chat that resent its history stayed on one session"


@pytest.mark.slow
async def test_langchain(server: Serving) -> None:
    pytest.importorskip("langchain_openai")
    out, _ = await output(
        await start(
            sys.executable, str(EXAMPLES / "langchain_chat.py"), "--url", server.server.url, LANGSMITH_TRACING="false"
        )
    )
    assert out.count("answer:") == 2 and "stream:" in out
    assert len(server.sessions) == 2


async def test_curl(server: Serving) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl on this machine")
    out, _ = await output(await start("sh", str(EXAMPLES / "chat.sh"), server.server.url))
    assert '"object":"chat.completion"' in out.replace(" ", "")
    assert "data: [DONE]" in out
    assert "event: caught_up" in out or "caught_up" in out


async def test_a_phone_goes_through_tunnels_and_is_killed(tmp_path: Path) -> None:
    options = SimulatedOptions(step_base_s=0.01, answer_tokens_mean=30)
    async with serving(options) as server, Proxy(("127.0.0.1", server.server.port), seed=3) as proxy:
        server.engine.script.append("all the stations of the line, one by one; " * 6)
        url = f"ws://127.0.0.1:{proxy.port}/v1/ws"
        command = [sys.executable, str(EXAMPLES / "phone.py"), "--url", url, "--state", str(tmp_path)]
        phone = await start(*command)
        assert phone.stdout is not None and phone.stderr is not None
        shown = await asyncio.wait_for(phone.stdout.readexactly(8), PROGRAM_S)
        proxy.set(down=Flow(cut_within_bytes=400))  # a tunnel
        while b"[tunnel" not in await asyncio.wait_for(phone.stderr.readline(), PROGRAM_S):
            pass
        proxy.heal()
        while b"[connected]" not in await asyncio.wait_for(phone.stderr.readline(), PROGRAM_S):
            pass
        shown += await asyncio.wait_for(phone.stdout.readexactly(8), PROGRAM_S)
        phone.kill()  # the system puts the app away
        shown += await asyncio.wait_for(phone.stdout.read(), PROGRAM_S)
        await phone.wait()
        again, _ = await output(await start(*command))
        (session,) = server.sessions
        (answer,) = answers(server, session)
        assert again.removesuffix("\n") == answer
        assert answer.startswith(shown.decode()), "what was shown before is the beginning of what is shown in the end"
        assert len(answer) == 252


async def test_grpc(server: Serving) -> None:
    door = GrpcServer(server.gateway, host="127.0.0.1", port=0)
    assert await door.start()
    try:
        async with Proxy(("127.0.0.1", door.port), seed=1) as proxy:
            server.engine.script.append("over gRPC, and not once twice; " * 8)
            program = await start(sys.executable, str(EXAMPLES / "grpc_chat.py"), "--target", f"127.0.0.1:{proxy.port}")
            assert program.stdout is not None
            begun = await asyncio.wait_for(program.stdout.readexactly(8), PROGRAM_S)
            proxy.reset()
            rest, err = await output(program)
        (session,) = server.sessions
        assert [begun.decode() + rest.removesuffix("\n")] == answers(server, session)
        assert "[cut; going on]" in err
    finally:
        await door.stop()


class Platform:
    """What a bot meets of Slack: its API, and webhooks that are signed and delivered until they are answered."""

    def __init__(self) -> None:
        self.messages: dict[str, list[str]] = {}
        self.changed = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        async def post(request: Request) -> JSONResponse:
            body = await request.json()
            name = f"{len(self.messages) + 1}.0"
            self.messages[name] = [body["text"]]
            self.changed.set()
            return JSONResponse({"ok": True, "ts": name})

        async def update(request: Request) -> JSONResponse:
            body = await request.json()
            self.messages[body["ts"]].append(body["text"])
            self.changed.set()
            return JSONResponse({"ok": True})

        routes = [Route("/api/chat.postMessage", post, methods=["POST"])]
        routes += [Route("/api/chat.update", update, methods=["POST"])]
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(Starlette(routes=routes), log_level="error", lifespan="off")
        platform = uvicorn.Server(config)
        platform.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        serving = asyncio.create_task(platform.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            platform.should_exit = True
            await serving

    async def until_shown(self, text: str) -> None:
        async with asyncio.timeout(PROGRAM_S):
            while not any(texts[-1] == text for texts in self.messages.values()):
                self.changed.clear()
                await self.changed.wait()


async def deliver(http: httpx.AsyncClient, event_id: str, text: str, secret: str = "secret") -> int:
    event = {"type": "app_mention", "channel": "C1", "ts": "17.5", "text": text}
    body = json.dumps({"type": "event_callback", "event_id": event_id, "event": event}).encode()
    at = str(int(time.time()))
    signature = "v0=" + hmac.new(secret.encode(), f"v0:{at}:".encode() + body, hashlib.sha256).hexdigest()
    headers = {"x-slack-request-timestamp": at, "x-slack-signature": signature}
    return (await http.post("/slack/events", content=body, headers=headers)).status_code


async def test_a_bot_of_a_platform_like_slack(server: Serving, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    answer = "an answer that grows in its place " * 3
    server.engine.script += [answer, answer + "again"]
    platform = Platform()
    async with platform.running() as api:
        flags = ["--url", ws(server), "--api", api, "--inbox", str(tmp_path / "inbox"), "--port", str(port)]
        command = [sys.executable, str(EXAMPLES / "slack_bot.py"), *flags]
        bot = await start(*command, SLACK_BOT_TOKEN="token", SLACK_SIGNING_SECRET="secret")
        retries = httpx.AsyncHTTPTransport(retries=8)  # until it listens: a connection that is refused is tried again
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", transport=retries, timeout=60) as http:
                assert await deliver(http, "Ev1", "hello", secret="another") == 401
                assert await deliver(http, "Ev1", "hello") == 200
                assert await deliver(http, "Ev1", "hello") == 200
                await platform.until_shown(answer)
                assert await deliver(http, "Ev2", "more") == 200
                await platform.until_shown(answer + "again")
        finally:
            bot.terminate()
            await asyncio.wait_for(bot.communicate(), PROGRAM_S)
    assert len(platform.messages) == 2
    (session,) = server.sessions
    assert answers(server, session) == [answer, answer + "again"]


def test_every_example_is_listed() -> None:
    listed = set(re.findall(r"\]\((\w+\.\w+)\)", (EXAMPLES / "README.md").read_text()))
    assert listed == {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh", ".mjs")}
