"""A bot for a platform like Slack: signed webhooks in, answers that grow in place out.

    SLACK_SIGNING_SECRET=… SLACK_BOT_TOKEN=… python docs/examples/slack_bot.py --url ws://127.0.0.1:8080/v1/ws

The platform delivers an event until it is answered with 200 within three seconds, so the message is journaled first and
the answer is drawn afterwards: a second delivery of the event is recognised, by the bot's next process too. A thread is
a session. Killed in mid-answer, the bot goes on in the same message when it is started again.

Needs `starlette`, `uvicorn` and `httpx`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import hmac
import json
import os
import time
from collections.abc import AsyncIterator

import httpx
import uvicorn
from sessile_client import Bot, Client, FileInbox, SessileError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

SIGNED_S = 300  # a signature is good for so long


class Slack:
    """The platform's API, as far as a bot needs it. A conversation is `channel/thread`."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def post(self, conversation: str, text: str) -> str:
        channel, _, thread = conversation.partition("/")
        said = await self._call("chat.postMessage", {"channel": channel, "thread_ts": thread, "text": text})
        return str(said["ts"])

    async def edit(self, conversation: str, message: str, text: str) -> None:
        channel = conversation.partition("/")[0]
        await self._call("chat.update", {"channel": channel, "ts": message, "text": text})

    async def _call(self, method: str, body: dict[str, str]) -> dict[str, object]:
        answer = await self._http.post(f"/api/{method}", json=body)
        if answer.status_code == 429:  # the platform says when; the next drawing has the newer text anyway
            await asyncio.sleep(float(answer.headers.get("retry-after", "1")))
            answer = await self._http.post(f"/api/{method}", json=body)
        said: dict[str, object] = answer.raise_for_status().json()
        if not said.get("ok"):
            raise RuntimeError(f"{method}: {said.get('error')}")
        return said


def signed(secret: str, headers: dict[str, str], body: bytes, now_s: float) -> bool:
    """Whether the platform sent this, and not long ago."""
    at = headers.get("x-slack-request-timestamp", "")
    if not at.isdigit() or abs(now_s - int(at)) > SIGNED_S:
        return False
    expected = "v0=" + hmac.new(secret.encode(), f"v0:{at}:".encode() + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected.encode(), headers.get("x-slack-signature", "").encode())


def application(url: str, key: str | None, api: str, token: str, secret: str, folder: str) -> Starlette:
    bots: list[Bot] = []

    async def events(request: Request) -> Response:
        body = await request.body()
        if not signed(secret, dict(request.headers), body, time.time()):
            return PlainTextResponse("not signed", 401)
        delivery = json.loads(body)
        if delivery["type"] == "url_verification":
            return PlainTextResponse(delivery["challenge"])
        event = delivery["event"]
        if event["type"] != "app_mention" or event.get("bot_id"):
            return PlainTextResponse("not for us")
        conversation = f"{event['channel']}/{event.get('thread_ts') or event['ts']}"
        try:
            await asyncio.wait_for(bots[0].receive(delivery["event_id"], conversation, event["text"]), 2.5)
        except (SessileError, TimeoutError):
            return PlainTextResponse("come again", 503)
        return PlainTextResponse("ok")

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with (
            httpx.AsyncClient(base_url=api, headers={"authorization": f"Bearer {token}"}) as http,
            Client(url, api_key=key) as client,
            Bot(client, Slack(http), name="slack", inbox=FileInbox(folder), instructions="Be brief.") as bot,
        ):
            bots.append(bot)
            yield

    return Starlette(routes=[Route("/slack/events", events, methods=["POST"])], lifespan=lifespan)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--url", default="ws://127.0.0.1:8080/v1/ws")
    options.add_argument("--key")
    options.add_argument("--api", default="https://slack.com")
    options.add_argument("--inbox", default="slack-inbox")
    options.add_argument("--port", type=int, default=3000)
    given = options.parse_args()
    app = application(
        given.url,
        given.key,
        given.api,
        os.environ["SLACK_BOT_TOKEN"],
        os.environ["SLACK_SIGNING_SECRET"],
        given.inbox,
    )
    uvicorn.run(app, host="127.0.0.1", port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
