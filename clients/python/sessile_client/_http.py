"""The session protocol over HTTP, for where no WebSocket gets through: commands by POST, events by long poll.

``ask`` makes one request and says whose the answer is: our server repeats the name that a request has
(``x-request-id``), and whoever answers in its place (a captive portal, a proxy) does not know it. Nothing of theirs is
taken for data, and no redirect is followed, so the key goes to the server's address alone. ``HttpTransport`` takes the
frames that a WebSocket would, and gives those that would come: for the client it is a transport like the other one.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from ._policy import CLOSE_ABNORMAL
from ._transport import Dial, TransportClosed
from ._wire import SUBPROTOCOLS, Encoding, Frame, decode, encode
from .errors import WireError

#: sessions that wait for events at a time; where more are read they take turns
POLLS_MAX = 32
POLL_S = 25.0
TURN_S = 2.0
#: what a request may take beyond the time that it waits at the server
REQUEST_S = 15.0
#: silence after which the client asks for a sign of life: more than a poll takes
HEARTBEAT_MS = 30_000
HEAD_BYTES_MAX = 64 * 1024
RETRY_AFTER_S_MAX = 3600.0
_QUEUED_MAX = 64
_PORTAL_STATUS = 511  # Network Authentication Required
_SOCKET_SCHEMES = {"http": "ws", "https": "wss"}
_ENCODINGS: dict[str, Encoding] = {SUBPROTOCOLS["json"]: "json", SUBPROTOCOLS["msgpack"]: "msgpack"}


@dataclass(frozen=True)
class Heard:
    """``ours``: the server's answer. ``outage``: nobody's, or that of a gateway before it. ``portal``: somebody
    else's.
    """

    whose: Literal["ours", "outage", "portal"]
    status: int = 0
    retry_after_s: float = 0.0
    body: bytes = b""


def socket_url(address: str) -> str:
    """The WebSocket's URL of what people write as a server's address: ``HOST:PORT``, ``ws(s)://HOST:PORT``, the page's
    ``http(s)://...``, or the URL itself. Raises ValueError."""
    scheme, given, rest = address.partition("://")
    if not given:
        scheme, rest = "ws", address
    if not rest.strip("/") or scheme not in (*_SOCKET_SCHEMES, *_SOCKET_SCHEMES.values()):
        raise ValueError(f"{address}: http(s)://HOST:PORT, ws(s)://HOST:PORT or HOST:PORT is expected")
    if scheme in _SOCKET_SCHEMES or not any(mark in rest.rstrip("/") for mark in "/?#"):
        rest = f"{rest.rstrip('/').removesuffix('/v1/ws')}/v1/ws"
    return f"{_SOCKET_SCHEMES.get(scheme, scheme)}://{rest}"


def base_of(url: str) -> str:
    """Where the server of a WebSocket's URL is asked by HTTP."""
    parts = urlsplit(url)
    scheme = "https" if parts.scheme in ("wss", "https") else "http"
    return f"{scheme}://{parts.netloc}{parts.path.removesuffix('/v1/ws').rstrip('/')}"


async def ask(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    wait_s: float = 0.0,
    bytes_max: int = 64 * 1024 * 1024,
) -> Heard:
    """One request, on a connection of its own. Raises nothing but cancellation."""
    name = f"sdk-{secrets.token_hex(8)}"
    try:
        async with asyncio.timeout(wait_s + REQUEST_S) if hasattr(asyncio, "timeout") else _Timeout(wait_s + REQUEST_S):
            return await _asked(url, name, headers or {}, body, bytes_max)
    except ssl.SSLCertVerificationError:
        return Heard("portal")
    except (OSError, TimeoutError, asyncio.TimeoutError, EOFError, ValueError, asyncio.LimitOverrunError):
        return Heard("outage")


async def _asked(url: str, name: str, headers: Mapping[str, str], body: bytes | None, bytes_max: int) -> Heard:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    host = parts.hostname or ""
    port = parts.port or (443 if secure else 80)
    context = ssl.create_default_context() if secure else None
    reader, writer = await asyncio.open_connection(host, port, ssl=context, limit=HEAD_BYTES_MAX)
    try:
        lines = {
            "Host": parts.netloc.rpartition("@")[2],
            "Connection": "close",
            "Accept": "application/json",
            "X-Request-Id": name,
            **headers,
            **({} if body is None else {"Content-Type": "application/json", "Content-Length": str(len(body))}),
        }
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        head = f"{'GET' if body is None else 'POST'} {target} HTTP/1.1\r\n"
        head += "".join(f"{key}: {value}\r\n" for key, value in lines.items()) + "\r\n"
        writer.write(head.encode("latin-1") + (body or b""))
        await writer.drain()
        status, told = _head(await reader.readuntil(b"\r\n\r\n"))
        retry_after_s = _retry_after_s(told)
        if told.get("x-request-id") != name:
            return Heard("portal" if status < 400 or status == _PORTAL_STATUS else "outage", status, retry_after_s)
        return Heard("ours", status, retry_after_s, await _body(reader, told, bytes_max))
    finally:
        writer.transport.abort()


def _head(data: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = data.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError("not HTTP")
    pairs = (line.partition(":") for line in lines if line)
    return int(rest[:3]), {key.strip().lower(): value.strip() for key, _, value in pairs}


async def _body(reader: asyncio.StreamReader, told: Mapping[str, str], bytes_max: int) -> bytes:
    if "chunked" in told.get("transfer-encoding", "").lower():
        pieces, total = [], 0
        while (size := int((await reader.readuntil(b"\n")).split(b";")[0], 16)) > 0:
            total += size
            if total > bytes_max:
                raise ValueError("too long")
            pieces.append(await reader.readexactly(size))
            await reader.readexactly(2)
        return b"".join(pieces)
    length = int(told.get("content-length", "-1"))
    if length > bytes_max:
        raise ValueError("too long")
    return await reader.readexactly(length) if length >= 0 else await reader.read(bytes_max)


def _retry_after_s(told: Mapping[str, str]) -> float:
    for header, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = told.get(header, "")
        if value.isdigit():
            return min(int(value) / unit, RETRY_AFTER_S_MAX)
    return 0.0


class _Timeout:
    """``asyncio.timeout`` for Python 3.10."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._expired = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None

        def expire() -> None:
            self._expired = True
            task.cancel()

        self._alarm = asyncio.get_running_loop().call_later(self._seconds, expire)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._alarm.cancel()
        if self._expired and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError


@dataclass(eq=False)
class _Reading:
    session: str
    epoch: str | None
    offset: int | None
    told: bool = False
    live: bool = False
    #: answers that come after the events up to their offset
    held: list[Frame] = field(default_factory=list)


class HttpTransport:
    """A connection over HTTP. ``recv`` raises TransportClosed once it has ended, 4401 where the key is refused."""

    def __init__(self, dial: Dial) -> None:
        self._encoding = _ENCODINGS[dial.subprotocol]
        self._base = base_of(dial.url)
        self._bytes_max = dial.frame_bytes_max
        self._headers = dict(dial.headers)
        if dial.api_key is not None:
            self._headers["Authorization"] = f"Bearer {dial.api_key}"
        self._messages: asyncio.Queue[list[Frame] | TransportClosed] = asyncio.Queue(_QUEUED_MAX)
        self._readings: dict[str, _Reading] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._polls = asyncio.Semaphore(POLLS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._end: TransportClosed | None = None
        #: the server has answered
        self.greeted = False
        #: somebody else has
        self.portal = False

    async def send(self, data: str | bytes) -> None:
        if self._end is not None:
            raise self._end
        for frame in decode(data, self._encoding):
            match frame["type"]:
                case "hello":
                    for each in frame.get("resume", ()):
                        self._read(each)
                    if not self._readings:
                        self._spawn(self._greet())
                case "ping":
                    self._spawn(self._greet())
                case "subscribe":
                    await self._hear([{"type": "ok", "id": frame["id"]}])
                    self._read(frame)
                case "unsubscribe":
                    self._readings.pop(frame["session"], None)
                    await self._hear([{"type": "ok", "id": frame["id"]}])
                case "ack" | "pong":
                    pass  # polls have no window
                case _:
                    lock = self._locks.setdefault(str(frame.get("session", "")), asyncio.Lock())
                    self._spawn(self._command(frame, lock))

    async def recv(self) -> str | bytes:
        if self._end is not None and self._messages.empty():
            raise self._end
        message = await self._messages.get()
        if isinstance(message, TransportClosed):
            raise message
        return encode(message, self._encoding)

    async def close(self, code: int) -> None:
        self.end(TransportClosed(code))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def end(self, why: TransportClosed) -> None:
        """It is of no more use."""
        if self._end is not None:
            return
        self._end = why
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        if self._messages.full():
            self._messages.get_nowait()  # the rest is asked for again, by offset
        self._messages.put_nowait(why)

    # Inside

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.end(TransportClosed(error.close_code if isinstance(error, WireError) else CLOSE_ABNORMAL, str(error)))

    async def _hear(self, frames: list[Frame]) -> None:
        if self._end is None and frames:
            await self._messages.put(frames)

    async def _ask(self, path: str, body: bytes | None = None, wait_s: float = 0.0) -> Heard | None:
        """None: the connection has ended."""
        heard = await ask(self._base + path, headers=self._headers, body=body, wait_s=wait_s, bytes_max=self._bytes_max)
        if self._end is not None:
            return None
        if heard.whose != "ours" or heard.status == 401:
            self.portal = heard.whose == "portal"
            reason = "somebody else answers: a captive portal" if self.portal else "no answer over HTTP"
            refused = TransportClosed(4401, "the key is refused")
            self.end(refused if heard.whose == "ours" else TransportClosed(CLOSE_ABNORMAL, reason))
            return None
        if not self.greeted:
            self.greeted = True
            await self._hear([{"type": "ready", "connection": "http", "heartbeat_ms": HEARTBEAT_MS}])
        return heard

    async def _greet(self) -> None:
        if await self._ask("/v1/me") is not None:
            await self._hear([{"type": "pong"}])

    async def _command(self, frame: Frame, lock: asyncio.Lock) -> None:
        async with lock:  # first come, first served: commands of a session keep their order
            body = json.dumps(frame, separators=(",", ":"), allow_nan=False).encode()
            heard = await self._ask("/v1/commands", body)
        if heard is None:
            return
        if heard.status != 200:
            await self._hear([{"type": "error", "id": frame["id"], "error": _error_of(heard)}])
            return
        answer: Frame = {**_object_of(heard), "type": "ok", "id": frame["id"]}
        reading = self._readings.get(str(frame.get("session", "")))
        offset = answer.get("offset")
        if reading is not None and isinstance(offset, int) and offset > (reading.offset or 0):
            reading.held.append(answer)
        else:
            await self._hear([answer])

    def _read(self, position: Frame) -> None:
        reading = _Reading(position["session"], position.get("epoch"), position.get("offset"))
        self._readings[reading.session] = reading
        self._spawn(self._follow(reading))

    async def _follow(self, reading: _Reading) -> None:
        while self._end is None and self._readings.get(reading.session) is reading:
            wait_s = 0.0 if not reading.live else TURN_S if len(self._readings) > POLLS_MAX else POLL_S
            query = f"wait_ms={wait_s * 1000:.0f}"
            if reading.offset is not None:
                query += f"&after={reading.offset}"
                query += f"&epoch={quote(reading.epoch, safe='')}" if reading.epoch else ""
            async with self._polls:
                heard = await self._ask(f"/v1/sessions/{quote(reading.session)}/events?{query}", wait_s=wait_s)
            if heard is None or self._readings.get(reading.session) is not reading:
                return
            await self._take(reading, heard)

    async def _take(self, reading: _Reading, heard: Heard) -> None:
        """One poll's frames, completed to what a WebSocket would have said."""
        session = reading.session
        if heard.status != 200:
            del self._readings[session]
            gone = {"type": "resumed", "session": session, "mode": "gone", "error": _error_of(heard)}
            await self._hear([gone, *reading.held])
            return
        told: list[Frame] = []
        frames = decode(heard.body.decode(), "json")
        if not reading.told and not (frames and frames[0]["type"] == "resumed"):
            epoch = reading.epoch or (frames[0].get("epoch") if frames else None)
            begun = reading.offset or 0
            told.append(
                {
                    "type": "resumed",
                    "session": session,
                    "mode": "replay",
                    "epoch": epoch,
                    "from": begun + 1,
                    "top": begun,
                }
            )
        reading.told = True
        for frame in frames:
            if frame["type"] == "caught_up":
                if reading.live:
                    continue
                reading.live = True
            elif frame["type"] == "event":
                reading.offset, reading.epoch = frame["offset"], frame["epoch"]
            elif "at" in frame:
                reading.offset, reading.epoch = frame["at"], frame["epoch"]
            told.append(frame)
        if not frames and not reading.live:
            reading.live = True
            told.append({"type": "caught_up", "session": session, "offset": reading.offset or 0})
        is_begun = not frames or frames[0]["type"] != "event"
        due = [each for each in reading.held if is_begun or each["offset"] <= (reading.offset or 0)]
        reading.held = [each for each in reading.held if each not in due]
        await self._hear([*told, *due])


def _object_of(heard: Heard) -> Frame:
    try:
        body = json.loads(heard.body)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _error_of(heard: Heard) -> Frame:
    error = _object_of(heard).get("error")
    if isinstance(error, dict):
        return error
    return {"code": f"http_{heard.status}", "message": f"HTTP {heard.status}", "retryable": heard.status >= 500}
