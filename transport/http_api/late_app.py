"""The HTTP application, made when it is first needed: a server is ready before FastAPI and its routes are loaded.

It has two parts (`doors`). The common one has what nearly every client uses; a server that has said that it is ready
makes it at once, in a thread (`load`). The rare one, with the OpenAPI document, is made in a thread at the first
request for one of its paths. A request that comes earlier waits for its part. Nothing is loaded on the event loop, and
clients see the same routes as if all had been there from the start.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from sessions.model.errors import Internal
from transport.gateway import Gateway
from transport.http_api.doors import Part, is_rare
from transport.http_api.request_context import in_context
from transport.ops.prometheus import MetricsExposition

if TYPE_CHECKING:
    from fastapi import FastAPI

    from transport.http.middleware import Receive, Scope, Send
    from transport.openai.turn_starter import TurnStarter

LOADED_BY_REQUESTS: Final = ("anyio._backends._asyncio", "pydantic._internal._dataclasses")

log = structlog.get_logger(__name__)


class LateApp:
    """The HTTP application of a server, as ASGI."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        readiness: Callable[[], str | None],
        web: Path | None,
        exposition: MetricsExposition,
    ) -> None:
        self._gateway = gateway
        self._readiness = readiness
        self._web = web
        self._exposition = exposition
        self._turn_starter: TurnStarter | None = None
        self._parts: dict[Part, asyncio.Task[FastAPI]] = {}
        self._in_context = in_context(self._route, gateway)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._in_context(scope, receive, send)

    async def load(self) -> None:
        """Makes the common part unless it is there. If that fails, the next request tries again."""
        with suppress(Exception):  # `_load` logs it
            await self.part("common")

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            app = await self.part("rare" if is_rare(scope["path"]) else "common")
        except Exception as error:
            raise Internal("internal_error", "The server failed to carry this out.") from error
        await app(scope, receive, send)

    async def part(self, part: Part) -> FastAPI:
        """Returns a part, and makes it if it is not there."""
        task = self._parts.get(part)
        if task is None:
            task = self._parts[part] = asyncio.create_task(self._load(part))
        return await asyncio.shield(task)

    async def _load(self, part: Part) -> FastAPI:
        try:
            if part != "common":
                await self.part("common")  # two threads that import the same modules could wait for each other
            return await asyncio.to_thread(self._make, part)
        except Exception:
            log.exception("http_application_failed", part=part)
            del self._parts[part]  # the next request tries again
            raise

    def _make(self, part: Part) -> FastAPI:
        from transport.http_api.app import make_app
        from transport.openai.turn_starter import TurnStarter

        if self._turn_starter is None:
            self._turn_starter = TurnStarter(self._gateway)
        for name in LOADED_BY_REQUESTS:
            importlib.import_module(name)
        return make_app(
            self._gateway,
            readiness=self._readiness,
            web=self._web,
            exposition=self._exposition,
            turn_starter=self._turn_starter,
            part=part,
        )
