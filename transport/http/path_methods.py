"""Which methods a path has: 405 with a whole `Allow`, 404 for paths that are not there, HEAD wherever GET is.

Looked at only where no route took a request, and for HEAD: what is served costs nothing here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException

from transport.http.middleware import App, Message, Receive, Scope, Send


class PathMethods:
    """The methods of every path of an application, from its routes."""

    def __init__(self, routes: Iterable[Any]) -> None:
        self._table = [(route.path_regex, frozenset[str](route.methods)) for route in routes]

    def of(self, path: str) -> frozenset[str]:
        """Returns the methods of a path; an empty set if there is no such path."""
        methods = frozenset[str]().union(*(each for pattern, each in self._table if pattern.match(path)))
        return methods | {"HEAD"} if "GET" in methods else methods

    def check(self, path: str) -> None:
        """Raises HTTPException 405 if the path exists; callers ask after no route took the request's method."""
        if methods := self.of(path):
            raise HTTPException(405, headers=allow(methods))


def allow(methods: Iterable[str]) -> dict[str, str]:
    return {"allow": ", ".join(sorted(methods))}


@dataclass(eq=False, repr=False)
class HeadRequests:
    """ASGI middleware that answers HEAD as GET: it sends the answer's head and cancels the rest."""

    app: App
    methods: PathMethods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or "GET" not in self.methods.of(scope["path"]):
            await self.app(scope, receive, send)
            return
        begun = asyncio.Event()

        async def send_head(message: Message) -> None:
            if not begun.is_set():
                begun.set()
                await send(message)
                await send({"type": "http.response.body", "body": b""})

        work = asyncio.ensure_future(self.app({**scope, "method": "GET"}, receive, send_head))
        head = asyncio.create_task(begun.wait())
        try:
            await asyncio.wait((work, head), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
        finally:
            work.cancel()
            head.cancel()
            await asyncio.wait((work, head))
