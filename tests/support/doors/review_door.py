"""A server with a moderation policy that makes review cases, and a client with words for what its tests do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from inference.moderation import PolicyFilterSet
from inference.simulated import SimulatedOptions
from sessions.model import events as ev
from tests.support.doors.openai_server import SIMULATED, ScriptedEngine, Serving, serving

POLICY = """
[policies.default]
mode = "{mode}"
review_text = {keep}
[policies.default.input]
phrases = {{ deny = ["project nightjar"], action = "{input}", review = {review} }}
[policies.default.output]
phrases = {{ deny = ["project nightjar"], action = "block", review = {review} }}
pii = {{ kinds = ["email"], action = "{pii}" }}
"""


SECRET = "project nightjar"


class Door:
    """A client of one server, with words for what these tests do."""

    def __init__(self, server: Serving, http: httpx.AsyncClient) -> None:
        self.server = server
        self.http = http

    async def said(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        answer = await self.http.request(method, path, json=body, headers=headers)
        return answer.status_code, answer.json()

    async def ask(self, text: str, answer: str = "Fine.", **more: Any) -> tuple[str, Any]:
        """(session, body) of a response."""
        self.server.engine.script.append(answer)
        got = await self.http.post("/v1/responses", json={"model": SIMULATED, "input": text, **more})
        return got.headers.get("x-session-id", ""), got.json()

    async def queue(self, **query: Any) -> list[dict[str, Any]]:
        answer = await self.http.get("/v1/reviews", params=query)
        answer.raise_for_status()
        return list(answer.json()["data"])

    async def decide(self, review: str, outcome: str, **headers: str) -> tuple[int, Any]:
        status, _ = await self.said("POST", f"/v1/reviews/{review}/claim")
        assert status == 200
        return await self.said(
            "POST", f"/v1/reviews/{review}/decide", {"outcome": outcome, "note": "looked"}, **headers
        )

    def told(self, session: str) -> list[ev.AnyEvent]:
        return [
            each.event
            for each in self.server.log(session)
            if isinstance(each.event, ev.ReviewAppealed | ev.ReviewDecided)
        ]


@asynccontextmanager
async def running(
    path: Path,
    *,
    keep: bool = False,
    review: bool = False,
    input: str = "block",
    mode: str = "window",
    pii: str = "flag",
    engine: ScriptedEngine | None = None,
) -> AsyncIterator[Door]:
    path.write_text(POLICY.format(keep=str(keep).lower(), review=str(review).lower(), input=input, mode=mode, pii=pii))
    filters = PolicyFilterSet(str(path))
    await filters.open()
    try:
        options = SimulatedOptions(step_base_s=0.001)
        async with (
            serving(options, filters=filters, engine=engine) as server,
            httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
        ):
            yield Door(server, http)
    finally:
        await filters.close()
