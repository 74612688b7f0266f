"""Which way the client goes: WebSocket, or HTTP (``_http``) where something on the way lets no WebSocket through; and
whether who answers is the server at all, or a captive portal.

A refused handshake, one that hangs, two in a row that never came to a greeting, or four connections in a row that were
cut soon after it, make it ask: ``GET /v1/ws`` without an upgrade, without a key. 426 from our own server means that a
handshake would be welcome there, so it is the way that is closed: HTTP it is. While that serves, a WebSocket is tried
beside it now and then, and is gone back to once the server has greeted on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ._http import HttpTransport, ask, base_of
from ._policy import CLOSE_ABNORMAL, CLOSE_GOING_AWAY, DialError, is_final_status
from ._transport import Connect, Dial, Transport, TransportClosed
from ._transport import connect as dial_websocket
from ._wire import SUBPROTOCOLS, Encoding, encode

#: a handshake that takes longer is asked about beside
HANGING_S = 4.0
#: a connection that was cut before counts as one that something cuts
BRIEF_S = 10.0
MISSES_MAX = 4
TRIAL_FIRST_S = 60.0
TRIAL_LAST_S = 600.0
TRIAL_TAKES_S = 10.0


@dataclass(eq=False)
class Ways:
    """A ``Connect`` that chooses. One for each client: it remembers what it has found of its network."""

    websocket: Connect = dial_websocket
    http: bool = False
    captive_portal: bool = False
    _misses: int = 0
    _trial_s: float = TRIAL_FIRST_S

    def forget(self) -> None:
        """The network is another: what was found of the old one means nothing."""
        self.http = self.captive_portal = False
        self._misses = 0
        self._trial_s = TRIAL_FIRST_S

    async def __call__(self, dial: Dial) -> Transport:
        """A transport, whichever way it goes; DialError if there is none."""
        if self.http:
            return _OverHttp(self, dial)
        if self._misses >= MISSES_MAX:  # handshakes pass, and what comes after them is cut
            heard = await ask(f"{base_of(dial.url)}/v1/ws")
            if heard.whose == "ours" and heard.status == 426:
                return self._over_http(dial)
        try:
            transport = await self._dialled(dial)
        except DialError as failure:
            if failure.captive_portal:
                self.captive_portal = True
                raise
            self._misses += 2 if failure.http_status is None else MISSES_MAX
            # what says when to come back, or that the key is wrong, is the server
            if self._misses < MISSES_MAX or failure.http_status == 401 or failure.retry_after_s > 0:
                raise
            return await self._asked(dial, failure)
        return transport if isinstance(transport, _OverHttp) else _Watched(self, transport)

    async def _dialled(self, dial: Dial) -> Transport:
        """A WebSocket; or HTTP, if the handshake hangs and the server says that it waits for one."""
        dialling = asyncio.ensure_future(self.websocket(dial))
        try:
            done, _ = await asyncio.wait((dialling,), timeout=HANGING_S)
            if not done:
                asking = asyncio.ensure_future(ask(f"{base_of(dial.url)}/v1/ws"))
                try:
                    await asyncio.wait((dialling, asking), return_when=asyncio.FIRST_COMPLETED)
                    if not dialling.done() and asking.result().whose == "portal":
                        raise portal_error(dial)
                    if not dialling.done() and asking.result().status == 426 and asking.result().whose == "ours":
                        return self._over_http(dial)
                finally:
                    asking.cancel()
            return await dialling
        finally:
            if not dialling.done():
                dialling.cancel()
                await asyncio.gather(dialling, return_exceptions=True)

    async def _asked(self, dial: Dial, failure: DialError) -> Transport:
        self._misses = MISSES_MAX - 2  # the next handshake has its chance first; if it fails too, this is asked again
        heard = await ask(f"{base_of(dial.url)}/v1/ws")
        self.captive_portal = heard.whose == "portal"
        if heard.whose == "portal":
            raise portal_error(dial) from failure
        if heard.whose == "ours" and heard.status == 426:
            return self._over_http(dial)
        if not heard.retry_after_s and (heard.whose == "ours" or is_final_status(heard.status)):
            raise failure
        # nobody but a proxy has refused: that is no reason to stop
        raise DialError(str(failure), retry_after_s=heard.retry_after_s) from failure

    def _over_http(self, dial: Dial) -> _OverHttp:
        self.http = True
        self._misses = 0
        return _OverHttp(self, dial)

    # What transports report

    def greeted(self) -> None:
        self.captive_portal = False

    def lost(self, code: int, lived_s: float | None) -> None:
        """A WebSocket ended, and not by us, so long after its greeting; None: before it."""
        if lived_s is None:
            self._misses += 2
        elif lived_s >= BRIEF_S:
            self._misses = 0
            self._trial_s = TRIAL_FIRST_S
        elif code == CLOSE_ABNORMAL:
            self._misses += 1

    def next_trial_s(self) -> float:
        wait_s, self._trial_s = self._trial_s, min(self._trial_s * 2, TRIAL_LAST_S)
        return wait_s

    async def trial(self, dial: Dial) -> bool:
        """Whether a WebSocket gets through, to the server's greeting."""
        try:
            transport = await asyncio.wait_for(self.websocket(dial), TRIAL_TAKES_S)
        except (DialError, asyncio.TimeoutError):
            return False
        try:
            encoding: Encoding = "json" if dial.subprotocol == SUBPROTOCOLS["json"] else "msgpack"
            await transport.send(encode([{"type": "hello"}], encoding))
            await asyncio.wait_for(transport.recv(), TRIAL_TAKES_S)
        except (TransportClosed, asyncio.TimeoutError):
            return False
        finally:
            await transport.close(1000)
        self.http = False
        self._misses = 0
        return True


def portal_error(dial: Dial) -> DialError:
    return DialError(f"somebody else answers for {dial.url}: a captive portal", captive_portal=True)


class _Watched:
    """A WebSocket whose end is judged."""

    def __init__(self, ways: Ways, below: Transport) -> None:
        self._ways = ways
        self._below = below
        self._greeted_at: float | None = None
        self._clock: Callable[[], float] = asyncio.get_running_loop().time

    async def send(self, data: str | bytes) -> None:
        await self._below.send(data)

    async def recv(self) -> str | bytes:
        try:
            data = await self._below.recv()
        except TransportClosed as end:
            self._ways.lost(end.code, None if self._greeted_at is None else self._clock() - self._greeted_at)
            raise
        if self._greeted_at is None:
            self._greeted_at = self._clock()
            self._ways.greeted()
        return data

    async def close(self, code: int) -> None:
        await self._below.close(code)


class _OverHttp(HttpTransport):
    """Over HTTP, until a WebSocket is possible again."""

    def __init__(self, ways: Ways, dial: Dial) -> None:
        super().__init__(dial)
        self._ways = ways
        self._dial = dial
        self._trying = asyncio.ensure_future(self._try())

    async def recv(self) -> str | bytes:
        try:
            data = await super().recv()
        except TransportClosed:
            self._trying.cancel()
            self._ways.captive_portal = self.portal
            if not self.greeted:
                self._ways.http = False
            raise
        self._ways.greeted()
        return data

    async def close(self, code: int) -> None:
        self._trying.cancel()
        await asyncio.gather(self._trying, return_exceptions=True)
        await super().close(code)

    async def _try(self) -> None:
        while True:
            await asyncio.sleep(self._ways.next_trial_s())
            if await self._ways.trial(self._dial):
                self.end(TransportClosed(CLOSE_GOING_AWAY, "a WebSocket is possible again"))
                return
