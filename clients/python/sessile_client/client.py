"""The asyncio shell: keeps one connection for any number of sessions and carries out what the core decides.

Every rule of the protocol is in ``_core``; here are tasks, sockets and waiting. One task runs the connection (dial,
read, write, dial again); a second saves positions. Leaving ``async with`` ends both, answers what still waits with an
error and saves every position. Cancelling a caller never cancels its command: what was submitted is sent, and
repeated by the same id until it is answered or its time is up.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from . import _notices as notices
from ._bell import Bell
from ._core import ClientCore
from ._fields import Settings
from ._http import socket_url
from ._ids import ulid_factory
from ._notices import Link
from ._policy import DialError, Limits
from ._saver import Saver
from ._track import Event, Snapshot, Track
from ._transport import Connect, Dial, Transport, TransportClosed
from ._values import entries, text_or_none
from ._view import View
from ._ways import Ways
from ._wire import SUBPROTOCOLS, Encoding, Frame, decode, encode
from .errors import Lost, SessileError, WireError
from .session import Session
from .store import MemoryStore, Position, PositionStore

if TYPE_CHECKING:
    from typing_extensions import Unpack

ApiKey = str | Callable[[], str | Awaitable[str]]
OnLink = Callable[[notices.LinkNotice], None]
#: how long text may wait for what follows it on a slow link
ROLLUP_MS = 200


@dataclass(frozen=True)
class SessionInfo:
    """A line of the sessions list; ``data`` is all of its fields."""

    id: str
    title: str | None
    data: dict[str, Any]


class ClientOptions(TypedDict, total=False):
    """What few programs set. ``connect_with``, ``rng`` and ``now_ms`` are for tests: the socket, chance (jitter, ids)
    and the wall clock (ids); deadlines run on the event loop's clock. ``slow_link``: bytes are dear, so text comes up
    to 200 ms later, in fewer frames, and compressed.
    """

    device: str | None
    headers: Mapping[str, str] | None
    slow_link: bool
    connect_with: Connect
    rng: random.Random | None
    now_ms: Callable[[], int] | None


class Client:
    """A connection to Sessile. ``async with Client("ws://127.0.0.1:8080/v1/ws") as client: ...``

    ``api_key``: a key, or a function (plain or async) called anew for each attempt. ``store``: where positions outlive
    the process. ``on_link``: called with every change of the connection. ``options``: see ``ClientOptions``.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: ApiKey | None = None,
        encoding: Encoding = "msgpack",
        store: PositionStore | None = None,
        limits: Limits | None = None,
        on_link: OnLink | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        if encoding not in SUBPROTOCOLS:
            raise ValueError(f"encoding must be one of {', '.join(SUBPROTOCOLS)}, not {encoding!r}")
        if unknown := options.keys() - ClientOptions.__annotations__.keys():
            raise TypeError(f"Client has no option {', '.join(sorted(unknown))}")
        self.url = socket_url(url)
        self.limits = limits or Limits()
        self._api_key = api_key
        self._encoding: Encoding = encoding
        self._store: PositionStore = store if store is not None else MemoryStore()
        self._headers = dict(options.get("headers") or {})
        self._on_link = on_link
        self._ways = Ways()
        self._connect: Connect = options.get("connect_with", self._ways)
        rng = options.get("rng") or random.Random()
        new_id = ulid_factory(options.get("now_ms") or (lambda: time.time_ns() // 1_000_000), rng)
        self._slow_link = options.get("slow_link", False)
        self._core = ClientCore(
            rng=rng,
            new_id=new_id,
            device=options.get("device"),
            rollup_ms=ROLLUP_MS if self._slow_link else 0,
            limits=self.limits,
        )
        self._sessions: dict[str, Session] = {}
        self._answers: dict[str, asyncio.Future[Frame]] = {}
        self._wake = asyncio.Event()
        self._now_least = 0.0
        self._to_write = Bell()
        self._link_bell = Bell()
        self._saver = Saver(self._store, self._sessions.get)
        self._tasks: list[asyncio.Task[None]] = []
        self._crash: BaseException | None = None

    # Life

    async def __aenter__(self) -> Client:
        if self._tasks:
            raise RuntimeError("a Client is opened once")
        self._tasks = [
            asyncio.create_task(self._run(), name="sessile-client"),
            asyncio.create_task(self._saver.run(), name="sessile-client-saver"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection, end every wait with Lost, save positions. May be called twice."""
        self._check_open()
        self._core.stop()
        self._deliver()
        self._wake.set()
        self._saver.finish(self._sessions)
        # not cancelled: a store must not be left in the middle of a save
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._crash is not None:
            crash, self._crash = self._crash, None
            raise crash

    @property
    def link(self) -> Link:
        """offline (between attempts), connecting, ready or stopped."""
        return self._core.link

    @property
    def error(self) -> SessileError | None:
        """Why the client has stopped, if it has."""
        return self._core.error

    @property
    def closed(self) -> bool:
        """The program closed the client (it did not stop by itself)."""
        return isinstance(self.error, Lost)

    @property
    def captive_portal(self) -> bool:
        """Somebody else answers in the server's place, as a rule a network that wants its user to sign in."""
        return self._ways.captive_portal

    @property
    def over_http(self) -> bool:
        """Something on the way lets no WebSocket through: commands go by POST, events come by long poll."""
        return self._ways.http

    def reconnect(self) -> None:
        """The network is another one, or has given this machine another address: the connection is given up at once
        and resumed by cursor, instead of after 35 s of silence.
        """
        self._check_open()
        self._ways.forget()
        self._core.redial(self._now())
        self._flush()

    async def ready(self) -> None:
        """Wait for a connection. Raises what stopped the client."""
        while self.link is not Link.READY:
            if self.error is not None:
                raise self.error
            await self._link_bell.wait()

    # Sessions

    async def create_session(
        self, session: str | None = None, *, command_id: str | None = None, **fields: Unpack[Settings]
    ) -> Session:
        """Create a session (``model``, ``instructions``, ``tools``, ``metadata``, ``title``) and read it from its
        start. With the same ``command_id`` it is the same session, from any process.
        """
        body: dict[str, Any] = {**fields}
        if session is not None:
            body["session"] = session
        ok = await asyncio.shield(self._submit("session.create", body, command_id))
        name = ok.get("session")
        if not isinstance(name, str):
            raise WireError("ok to session.create without a session")
        known = self._sessions.get(name)
        if known is None:
            known = self._attach(Track(name, offset=0))
        return await known.caught_up()

    async def session(self, session: str, *, wait: bool = True) -> Session:
        """Read a session that exists, from the stored position if there is one; ``wait``: until it is live."""
        known = self._sessions.get(session)
        if known is None:
            position = await self._store.load(session)
            known = self._sessions.get(session)  # another caller may have been faster meanwhile
        if known is None:
            known = self._attach(_track(session, position))
        return await known.caught_up() if wait else known

    async def sessions(self, *, page: int = 50) -> AsyncIterator[SessionInfo]:
        """Every session of this principal, newest first, page by page."""
        cursor: dict[str, str] = {}
        while True:
            ok = await self.command("session.list", limit=page, **cursor)
            for session, entry in entries(ok.get("data"), "id"):
                yield SessionInfo(session, text_or_none(entry.get("title")), entry)
            after = ok.get("last_id")
            if not ok.get("has_more") or not isinstance(after, str):
                return
            cursor = {"after": after}

    async def command(self, type_: str, /, *, command_id: str | None = None, **fields: Any) -> Frame:
        """Send any command and wait for its ``ok``; raises ServerError, CommandTimeout or what stopped the client.

        ``command_id`` is its idempotency key: sent again with the same one and the same fields, by any process,
        it is applied once and has the same answer. Every command takes one; left out, it is made.
        """
        # Shielded: a caller that is cancelled must not make the answer vanish for the core's bookkeeping.
        return await asyncio.shield(self._submit(type_, fields, command_id))

    # Inside: commands and sessions

    def _check_open(self) -> None:
        if not self._tasks:
            raise RuntimeError("open the client first: async with Client(...) as client")

    def _submit(self, type_: str, fields: Mapping[str, Any], command_id: str | None) -> asyncio.Future[Frame]:
        self._check_open()
        size = len(encode([{"type": type_, **fields}], self._encoding))
        if size > self.limits.command_bytes_max:
            raise WireError(f"a {type_} of {size} bytes is over {self.limits.command_bytes_max}", 1009)
        timeout_s = self.limits.command_timeout_s
        command_id = self._core.submit(type_, fields, self._now(), id=command_id, timeout_s=timeout_s)
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        # a program may drop a handle; its error is not to be reported as forgotten
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._answers[command_id] = future
        self._flush()
        return future

    def _attach(self, track: Track) -> Session:
        self._check_open()
        session = self._sessions[track.session] = Session(self, track)
        self._core.attach(track)
        self._flush()
        return session

    async def _detach(self, session: Session) -> None:
        if self._sessions.get(session.id) is not session:
            return
        await self._saver.save(session.id)
        del self._sessions[session.id]
        self._core.detach(session.id)
        session._detach()
        self._flush()

    def _flush(self) -> None:
        """After every change of the core: its notices are delivered, its frames sent."""
        self._deliver()
        self._to_write.ring()
        self._wake.set()

    def _deliver(self) -> None:
        for notice in self._core.take_notices():
            match notice:
                case notices.Answered():
                    self._answer(notice)
                case Event() | Snapshot() | notices.CaughtUp() | notices.ReadEnded():
                    session = self._sessions.get(notice.session)
                    if session is not None:
                        session._receive(notice)
                    self._saver.mark(notice.session, now=_worth_saving(notice))
                case _:
                    if isinstance(notice, notices.Stopped):
                        for session in self._sessions.values():
                            session._bell.ring()
                    self._link_bell.ring()
                    if self._on_link is not None:
                        self._on_link(notice)

    def _answer(self, answer: notices.Answered) -> None:
        future = self._answers.pop(answer.id, None)
        if future is not None and not future.done():
            if answer.ok is not None:
                future.set_result(answer.ok)
            else:
                future.set_exception(answer.error or Lost("no answer"))

    # Inside: the connection

    def _now(self) -> float:
        return max(asyncio.get_running_loop().time(), self._now_least)

    def _ring_at(self, due: float) -> None:
        # loops may call a hair early; for the core it is due
        self._now_least = max(self._now_least, due)
        self._wake.set()

    async def _run(self) -> None:
        core = self._core
        try:
            while core.link is not Link.STOPPED:
                if core.link is Link.OFFLINE and self._now() >= core.dial_at:
                    core.dialing()
                    await self._connection()
                else:
                    await self._nap()
        except Exception as exc:
            self._crash = exc
            core.stop(SessileError(f"the client failed: {exc!r}"))
            raise
        finally:
            self._deliver()

    async def _nap(self) -> None:
        """Wait for something to do, or until the core's clock is due."""
        due = self._core.wakeup()
        alarm = None if due is None else asyncio.get_running_loop().call_at(due, self._ring_at, due)
        try:
            await self._wake.wait()
        finally:
            if alarm is not None:
                alarm.cancel()
        self._wake.clear()
        self._core.tick(self._now())
        self._deliver()
        self._to_write.ring()

    async def _connection(self) -> None:
        """One connection, from dialing to its end."""
        core = self._core
        self._link_bell.ring()
        dialing = asyncio.ensure_future(self._dial())
        try:
            await self._until_done(dialing)
            if core.link is not Link.CONNECTING:
                return
            transport = dialing.result()
        except DialError as exc:
            core.dial_failed(self._now(), exc)
            self._deliver()
            return
        finally:
            dialing.cancel()
            await asyncio.gather(dialing, return_exceptions=True)
        core.opened(self._now())
        reader = asyncio.ensure_future(self._read(transport))
        writer = asyncio.ensure_future(self._write(transport))
        try:
            await self._until_done(reader)
        finally:
            reader.cancel()
            writer.cancel()
            ends = await asyncio.gather(reader, writer, return_exceptions=True)
            code = core.take_close()
            if code is not None:
                await transport.close(code)
            self._deliver()
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
                raise end

    async def _until_done(self, task: asyncio.Future[Any]) -> None:
        """Keep the core's time while ``task`` runs; returns early when the core has given the connection up."""
        task.add_done_callback(lambda _: self._wake.set())
        while not task.done() and self._core.link in (Link.CONNECTING, Link.READY):
            await self._nap()

    async def _dial(self) -> Transport:
        key = self._api_key() if callable(self._api_key) else self._api_key
        if inspect.isawaitable(key):
            key = await key
        return await self._connect(
            Dial(
                url=self.url,
                subprotocol=SUBPROTOCOLS[self._encoding],
                api_key=key,
                timeout_s=self.limits.dial_timeout_s,
                frame_bytes_max=self.limits.frame_bytes_max,
                headers=self._headers,
                deflate=self._slow_link,
            )
        )

    async def _read(self, transport: Transport) -> None:
        core = self._core
        while core.link in (Link.CONNECTING, Link.READY):
            try:
                data = await transport.recv()
                core.received(decode(data, self._encoding), len(data), self._now())
            except TransportClosed as exc:
                core.closed(exc.code, exc.reason, self._now(), captive_portal=self._ways.captive_portal)
            except WireError as exc:
                core.broken(exc)
            self._flush()

    async def _write(self, transport: Transport) -> None:
        try:
            while True:
                frames = self._core.take_outbox()
                for frame in frames:
                    await transport.send(encode([frame], self._encoding))
                if not frames:
                    await self._to_write.wait()
        except TransportClosed:
            return  # the reader learns the same, with the close code


def _track(session: str, position: Position | None) -> Track:
    if position is None:
        return Track(session)
    return Track(session, epoch=position.epoch, offset=position.offset, view=View.from_state(position.state))


def _worth_saving(notice: notices.SessionNotice) -> bool:
    """Whether the position is saved at once rather than within a second."""
    if isinstance(notice, Event):
        return notice.type in ("response.completed", "response.incomplete", "response.failed", "session.deleted")
    return not isinstance(notice, Snapshot)
