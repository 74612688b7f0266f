"""Sends a tool's request to an address that was looked at, and reads no more of the answer than the tool may give.

The name is resolved here, every address that it has must be permitted, and the connection goes to the very one that was
looked at: a name that answers otherwise a moment later leads nowhere. No redirect is followed, no proxy of the
environment is used, no connection is kept: one that died while it was idle would leave open what was sent over it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

import httpcore2  # noqa: F401 - httpx2 loads it, and truststore, with its first client, which is made on the loop
import httpx2
import truststore  # noqa: F401

from sessions.name_lookup import NameLookup
from sessions.public_addresses import AGENT, AddressRules, destination

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class ToolUnreached(Exception):
    """Raised when no part of a request has left for its server."""


class ToolUnanswered(Exception):
    """Raised if a request was sent, at least in part, and no complete answer came."""


class ToolAnswer(NamedTuple):
    """A tool's answer. `cut`: whether the body was longer than what was read of it."""

    status: int
    body: bytes
    cut: bool


async def permitted_request(
    request: httpx2.Request, headers: httpx2.Headers, rules: AddressRules, resolve: Resolve
) -> httpx2.Request:
    """Resolves a request's host and checks each of its addresses. Returns the request as it is sent: with `headers`, to
    the very address that was checked, with the name that it was resolved from. Raises ToolUnreached."""
    url = str(request.url)
    if not rules.permits_url(url):
        raise ToolUnreached("its address is not permitted")
    to = destination(url)
    try:
        addresses = await resolve(to.host, to.port)
    except (OSError, UnicodeError) as error:
        raise ToolUnreached("its name is not found") from error
    if not rules.permits_all(addresses):
        raise ToolUnreached("its address is not permitted")
    headers = headers.copy()
    headers.update({"host": to.authority, "accept-encoding": "identity"})
    return httpx2.Request(
        request.method,
        httpx2.URL(url).copy_with(netloc=to.at(addresses[0]).encode()),
        headers=headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": to.host},
    )


class ToolHttpClient:
    """Sends requests of tools; usable inside its `async with`."""

    def __init__(self, *, resolve: Resolve | None = None) -> None:
        self._resolve = resolve or NameLookup().addresses
        self._client = httpx2.AsyncClient(
            headers={"user-agent": AGENT},
            timeout=None,
            trust_env=False,
            follow_redirects=False,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),  # room is its caller's
        )

    async def __aenter__(self) -> ToolHttpClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._client.aclose()

    async def send(
        self,
        method: str,
        url: str,
        rules: AddressRules,
        *,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
        bytes_max: int,
    ) -> ToolAnswer:
        """Sends one request. Raises ToolUnreached and ToolUnanswered, whose texts do not mention the address."""
        request = None
        try:
            async with asyncio.timeout(timeout_s):
                given = self._client.build_request(method, url, content=body, headers=headers)
                request = await permitted_request(given, given.headers, rules, self._resolve)
                return await self._answer(request, bytes_max)
        except TimeoutError as error:
            if request is None:
                raise ToolUnreached("its name was not resolved in time") from error
            raise ToolUnanswered("it did not answer in time") from error
        except httpx2.InvalidURL as error:
            raise ToolUnreached("its address is not permitted") from error
        except httpx2.ConnectError as error:
            raise ToolUnreached("it cannot be reached") from error
        except (httpx2.HTTPError, OSError) as error:
            raise ToolUnanswered("its answer was broken off") from error

    async def _answer(self, request: httpx2.Request, bytes_max: int) -> ToolAnswer:
        answer = await self._client.send(request, stream=True)
        try:
            read = bytearray()
            async for chunk in answer.aiter_raw():
                read += chunk
                if len(read) > bytes_max:
                    break
            return ToolAnswer(answer.status_code, bytes(read[:bytes_max]), len(read) > bytes_max)
        finally:
            await answer.aclose()
