"""Which server a session goes to: the same one each time while it lives (rendezvous hashing), and the next one where
that failed.

A server that failed is left alone for a while; where all have, they are tried all the same: nobody is refused who could
be served. The pool knows no tokens.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import structlog

from inference.http_client import HttpClient
from sessions.model.errors import Unavailable

log = structlog.get_logger(__name__)


class RemoteServer:
    """A server at one address. `away_until`: when it is tried again after a failure, by the pool's clock. `is_checked`:
    whether it has shown, since it last failed, that it has the pool's model."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        headers = {"authorization": f"Bearer {key}"} if key else None
        self._key = key.encode()
        self.name = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
        path = parts.path.rstrip("/")
        self.path = path.removesuffix("/v1")
        self.api = "/v1" if path in (self.path + "/v1", "") else ""  # OpenAI's routes, behind `path`
        self.http = HttpClient(parts.hostname, parts.port or (443 if tls else 80), tls=tls, headers=headers)
        self.away_until = 0.0
        self.is_checked = False

    def without_key(self, answer: bytes) -> bytes:
        """Returns a server's refusal without our key in it, because some servers repeat the key that they were sent."""
        return answer.replace(self._key, b"[key]") if self._key else answer


class RemotePool:
    """The servers of one model."""

    def __init__(
        self, servers: Sequence[RemoteServer], clock: Callable[[], float], *, away_s: float, answer_s: float
    ) -> None:
        """`away_s`: how many seconds a server that failed is left alone. `answer_s`: how many seconds a server may take
        for a short answer."""
        self.servers = servers
        self._clock = clock
        self._away_s = away_s
        self._answer_s = answer_s

    def in_order(self, name: bytes) -> list[RemoteServer]:
        """Returns the servers in the order in which to try them for `name`; those that failed lately come last."""
        now = self._clock()

        def rank(server: RemoteServer) -> tuple[bool, bytes]:
            return server.away_until > now, hashlib.blake2b(name + server.name.encode(), digest_size=8).digest()

        return sorted(self.servers, key=rank)

    def failed(self, server: RemoteServer, why: str) -> None:
        """Notes that a server did not answer, or broke off an answer."""
        if server.away_until <= self._clock():
            log.warning("remote_engine_failed", server=server.name, reason=why)
        server.is_checked = False
        server.away_until = self._clock() + self._away_s

    def answered(self, server: RemoteServer) -> None:
        server.away_until = 0.0

    @property
    def away(self) -> list[str]:
        """The names of the servers that have failed within the last `away_s` seconds."""
        now = self._clock()
        return [server.name for server in self.servers if server.away_until > now]

    async def question(self, server: RemoteServer, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Sends a request to this server and returns (status, body). Raises Unavailable if the server does not answer
        in time."""
        try:
            async with asyncio.timeout(self._answer_s):
                return await server.http.call(method, server.path + path, body)
        except TimeoutError as error:
            raise Unavailable("engine_unavailable", "The model's server does not answer any more.") from error

    async def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Sends a request to one server after the other, and returns (status, body) of the first answer with a status
        below 500. Raises Unavailable if there is none."""
        for server in self.in_order(b""):
            try:
                status, answer = await self.question(server, method, path, body)
            except Unavailable as error:
                self.failed(server, error.public_message)
                continue
            if status < 500:
                return status, answer
            self.failed(server, f"status {status}")
        raise Unavailable("engine_unavailable", "None of the model's servers answers.")
