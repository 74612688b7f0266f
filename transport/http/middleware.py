"""What surrounds every HTTP request: its id, the date, where its limits stand, the Host rule, how large a body may be,
and gzip.

Plain ASGI, so that streams pass through untouched. A body beyond the limit is answered with 413 where the answer has
not begun; its rest is not read.

Requests that come at once take turns on the event loop: to begin, and for each piece of a body, behind whose last one
it is parsed. A request whose client has left by then finds that out before anything of it is parsed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Hashable, MutableMapping
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import partial
from typing import Any, Final, Protocol

import structlog

from sessions.model.errors import SessileError, TooLarge, Unavailable
from sessions.model.types import Principal
from transport.auth.authenticator import Authenticator
from transport.auth.connection_shares import key_of
from transport.http.body_budget import BodyBudget
from transport.http.compression import is_packed, pack, packable, takes_gzip, unpacked
from transport.loop_turns import ROUND_BYTES, LoopTurns
from transport.quotas import RATE_LIMIT_STATE, Arrival, RateLimitState, http_arrival

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

NOTHING_RUNS: Final = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)
"""Headers of answers that are no page and set no policy of their own, in case a browser shows one."""

CALLERS_OWN: Final = (b"cache-control", b"private, no-cache")
"""The cache header of answers to an authenticated request. Shared caches do not keep answers to an Authorization header
(RFC 9111, 3.5), but they may to a cookie."""

UPLOADS: Final = "/v1/files"
"""The path whose bodies are files and may be larger than others."""

REFUSED: Final = "refused"
"""The key, in a request's state, of the error with which the credential gate has refused it; the middleware writes that
error after the earlier answers on the connection."""

LET_BODY_GO: Final = "let_body_go"
"""The key, in a request's state, of the function that a route calls once it keeps nothing of the body that it has read.
Without that call the body counts until the answer begins."""

_REQUEST_ID: Final = re.compile(r"^[A-Za-z0-9_.:-]{1,64}$")


def request_id_of(headers: dict[bytes, bytes], new_id: Callable[[], str]) -> str:
    """Returns the X-Request-ID that a caller sent if it is well formed, else a new id."""
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if _REQUEST_ID.match(given) else f"req_{new_id()}"


def _too_large(bytes_max: int, uploads: bool) -> TooLarge:
    if uploads:
        return TooLarge("file_too_large", f"An upload has at most {bytes_max} bytes, its form included.", param="file")
    return TooLarge("too_large", f"A request body has at most {bytes_max} bytes.")


def _caller(scope: Scope, principal: Principal | None) -> Hashable:
    """Returns who shares turns with whom: the requests of a key, or without one those of an address."""
    return key_of(principal) if principal is not None else (scope.get("client") or ("",))[0]


class Arrivals(Protocol):
    """Counts the requests of each key, and paces them."""

    async def arrive(self, principal: Principal, arrival: Arrival) -> None:
        """Counts an arrival and waits for its turn. Raises Limited."""

    def give_back(self, principal: Principal, arrival: Arrival) -> None: ...


@dataclass(eq=False, repr=False)
class RequestContextMiddleware:
    """ASGI middleware for what all requests share: ids, size limits, pacing, compression, headers. `refuse` writes a
    SessileError as the answer."""

    app: App
    access: Authenticator
    body_bytes_max: int
    new_id: Callable[[], str]
    refuse: Callable[[SessileError, Scope, Receive, Send], Awaitable[None]]
    upload_bytes_max: int = 0  # of an upload's body; 0: there are no uploads
    arrivals: Arrivals | None = None
    bodies: BodyBudget = field(default_factory=BodyBudget)
    _turns: LoopTurns = field(default_factory=LoopTurns, init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        state = scope.setdefault("state", {})
        request_id = state["request_id"] = request_id_of(headers, self.new_id)
        started = False
        taken = 0
        uploads = self.upload_bytes_max > 0 and scope["method"] == "POST" and scope["path"] == UPLOADS
        bytes_max = self.upload_bytes_max if uploads else self.body_bytes_max
        packed = is_packed(headers)
        packs = takes_gzip(headers.get(b"accept-encoding", b"").decode("latin-1"))
        held: Message | None = None  # the start of an answer that may be compressed
        principal: Principal | None = state.get("principal")
        arrived: tuple[Principal, Arrival] | None = None
        rate_limits = RateLimitState()
        RATE_LIMIT_STATE.set(rate_limits)  # for this request: tasks that it starts inherit it
        caller, tenant = _caller(scope, principal), None if principal is None else principal.tenant
        await self._turns.turn(caller)

        async def limited_receive() -> Message:
            nonlocal taken
            message = await receive()
            if size := len(message.get("body", b"")):
                weight = size if uploads else taken + size  # another body's last piece is parsed with all of it
                await self._turns.turn(caller, ROUND_BYTES if packed else weight)
            taken += size
            if taken > bytes_max:
                raise _too_large(bytes_max, uploads)
            return message

        kept = 0  # bytes of the body, unpacked, that count

        def let_body_go() -> None:
            nonlocal kept
            self.bodies.give_back(caller, tenant, kept)
            kept = 0

        state[LET_BODY_GO] = let_body_go

        async def counted_receive(receive: Receive) -> Message:
            nonlocal kept
            message = await receive()
            if size := len(message.get("body", b"")):
                self.bodies.take(caller, tenant, size)
                kept += size
            return message

        async def named_send(message: Message) -> None:
            nonlocal started, held
            if message["type"] == "http.response.start":
                started = True
                let_body_go()
                if message["status"] == 429 and arrived is not None and self.arrivals is not None:
                    self.arrivals.give_back(*arrived)
                headers_given = message.get("headers", ())
                names = [name for name, _ in headers_given]
                message["headers"] = [
                    *headers_given,
                    *(() if NOTHING_RUNS[0][0] in names else NOTHING_RUNS),
                    *(() if CALLERS_OWN[0] in names or "principal" not in state else (CALLERS_OWN,)),
                    (b"x-request-id", request_id.encode()),
                    (b"date", formatdate(usegmt=True).encode()),
                    (b"x-content-type-options", b"nosniff"),
                    *rate_limits.headers,
                ]
                if packs and packable(message):
                    held = message
                    return
            elif held is not None:  # usually the body's only piece
                begun, held = held, None
                message = await pack(begun, message)
                await send(begun)
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                self.access.check_host(headers.get(b"host", b"").decode("latin-1"))
                if REFUSED in state:
                    raise state.pop(REFUSED)
                if int(headers.get(b"content-length", b"0")) > bytes_max:
                    raise _too_large(bytes_max, uploads)
                if principal is not None and self.arrivals is not None:
                    arrived = principal, http_arrival(scope["method"], scope["path"], headers)
                    await self.arrivals.arrive(*arrived)
                plain: tuple[Scope, Receive] = scope, limited_receive
                if packed:
                    plain = unpacked(scope, limited_receive, bytes_max)
                read = plain[1] if uploads else partial(counted_receive, plain[1])  # an upload goes to its file
                await self.app(plain[0], read, named_send)
            except SessileError as error:
                if started:
                    raise
                await self.refuse(error, scope, receive, named_send)
            except asyncio.CancelledError:  # the server stops and has waited long enough for the rest of a body
                if started:
                    raise
                await self.refuse(Unavailable("draining", "The server is stopping."), scope, receive, named_send)
            finally:
                let_body_go()
                del state[LET_BODY_GO]  # it refers to this frame, and that to the state
