"""Sends requests to addresses that strangers named, and to none inside the network.

A subscription's address is whatever a client says. So its host is resolved here, every address that it has must be a
public one (or of a network that the operator named), and the connection goes to the very address that was looked at:
a name that answers otherwise a moment later leads nowhere. No redirect is followed, no proxy of the environment is
used, only TLS leaves the machine, and of the answer no more than its status and one header is looked at; of the answer
of a push service that the operator named, the first bytes too.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, NamedTuple

import httpx2

from sessions.model.errors import BadInput, Forbidden, Unavailable
from sessions.name_lookup import NameLookup
from sessions.public_addresses import AGENT, AddressRules, Destination, destination

TIMEOUT_S: Final = 10.0
CONNECTIONS: Final = 256  # as many as messages are on their way: who never answers takes nobody's

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class OutboundAnswer(NamedTuple):
    status: int
    retry_after: str  # the header; "": none
    body: bytes = b""  # as far as it was asked for


def parse_networks(names: Sequence[str]) -> AddressRules:
    """Returns rules that allow public addresses and those of the named networks (`10.0.0.0/8`). Raises BadInput for a
    malformed name."""
    try:
        return AddressRules(names)
    except ValueError as error:
        raise BadInput("invalid_setting", f"push_networks: {error}", param="push_networks") from error


class OutboundClient:
    """An HTTPS client that only connects to addresses that its rules allow. Usable inside its `async with` block."""

    def __init__(
        self,
        rules: AddressRules | None = None,
        *,
        resolve: Resolve | None = None,
        http2: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """With `http2` it speaks only HTTP/2, otherwise only HTTP/1.1. `tls` has the authorities that servers'
        certificates are checked against; None: the system's. `resolve` looks host names up."""
        self._rules = rules or AddressRules()
        self._resolve = resolve or NameLookup(CONNECTIONS).addresses
        self._client = httpx2.AsyncClient(
            timeout=TIMEOUT_S,
            trust_env=False,
            limits=httpx2.Limits(max_connections=CONNECTIONS),
            http1=not http2,
            http2=http2,
            verify=tls or True,
        )

    async def __aenter__(self) -> OutboundClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    def check_address(self, url: str) -> Destination:
        """Checks a URL without looking its host name up, and returns its parts. Raises Forbidden."""
        if not self._rules.permits_url(url):
            raise _forbidden()
        return destination(url)

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], *, answer_bytes: int = 0) -> OutboundAnswer:
        """Sends a POST request and returns the status, the `retry-after` header and the first `answer_bytes` bytes of
        the answer. Raises Forbidden for an address that the rules do not allow, Unavailable if the server does not
        answer."""
        to = self.check_address(url)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                addresses = await self._resolve(to.host, to.port)
                if not self._rules.permits_all(addresses):
                    raise _forbidden()
                target = httpx2.URL(url).copy_with(netloc=to.at(addresses[0]).encode())
                about = {"accept-encoding": "identity", **headers, "host": to.authority, "user-agent": AGENT}
                request = self._client.build_request(
                    "POST", target, content=body, headers=about, extensions={"sni_hostname": to.host}
                )
                answer = await self._client.send(request, stream=True)
                try:
                    said = await _first_bytes(answer, answer_bytes)
                finally:
                    await answer.aclose()
        except (httpx2.HTTPError, httpx2.StreamError, OSError, UnicodeError, TimeoutError) as error:
            raise Unavailable("push_service_away", f"The push service {to.host!r} does not answer.") from error
        return OutboundAnswer(answer.status_code, answer.headers.get("retry-after", ""), said)


async def _first_bytes(answer: httpx2.Response, bytes_max: int) -> bytes:
    """Returns the first `bytes_max` bytes of an answer's body, as they are sent, without decompressing them."""
    said = bytearray()
    if bytes_max:
        async for part in answer.aiter_raw():
            said += part
            if len(said) >= bytes_max:
                break
    return bytes(said[:bytes_max])


def _forbidden() -> Forbidden:
    return Forbidden("forbidden", "A push is sent by https to a public address only.")
