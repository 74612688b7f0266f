"""The client without async: the same sessions, driven by an event loop in a thread of its own.

::

    with Client("ws://127.0.0.1:8080/v1/ws") as client:
        session = client.create_session()
        for text in session.send("Hello!"):
            print(text, end="", flush=True)

Every call waits for its result and raises what the async one raises; ``timeout_s`` in ``wait``-like calls raises
TimeoutError and leaves the command under way. What is read of a session (items, text) is a copy, taken between two
events: safe from any thread. Interrupting an iteration (``break``, Ctrl-C) cancels nothing on the server.

A method is bridged from the async one by ``_waits``, ``_sends``, ``_opens`` or ``_iterates``, which keep its parameters
for type checkers; a property by ``_Value`` or ``_Copy``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from . import client as _async
from . import response as _response
from . import session as _session
from ._items import Item, ResponseState
from ._notices import Link
from ._track import Phase
from ._view import View
from .errors import Lost, SessileError

if TYPE_CHECKING:
    from typing_extensions import Never

A = TypeVar("A")
P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class _Loop:
    """An event loop in a daemon thread, from ``start`` to ``close``."""

    def __init__(self) -> None:
        self._running: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None

    def start(self) -> None:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="sessile-client", daemon=True)
        self._running = loop, thread
        thread.start()

    @property
    def running(self) -> bool:
        return self._running is not None

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        if self._running is None:
            work.close()
            raise Lost("the client is not open")
        future = asyncio.run_coroutine_threadsafe(work, self._running[0])
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError as exc:
            future.cancel()
            raise TimeoutError(f"not within {timeout_s} s") from exc
        except KeyboardInterrupt:
            future.cancel()
            raise

    def read(self, look: Callable[[], T]) -> T:
        """Call ``look`` between two events."""

        async def looking() -> T:
            return look()

        return self.run(looking())

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """Walk an async generator from here; leaving early closes it."""

        async def step() -> T:
            return await source.__anext__()

        async def close() -> None:
            aclose = getattr(source, "aclose", None)
            if aclose is not None:
                await aclose()

        try:
            while True:
                yield self.run(step())
        except StopAsyncIteration:
            return
        finally:
            if self.running:
                self.run(close())

    def close(self) -> None:
        if self._running is not None:
            (loop, thread), self._running = self._running, None
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


class _Bridge(Generic[A]):
    """An async object (``_of``) and the loop that it lives on."""

    def __init__(self, loop: _Loop, of: A) -> None:
        self._loop = loop
        self._of = of


class _Value(Generic[T]):
    """A property of the async object, read as it stands."""

    def __init__(self, source: Any) -> None:
        self._source: property = source
        self.__doc__ = source.__doc__

    def __get__(self, bridge: _Bridge[Any] | None, owner: type) -> T:
        if bridge is None:
            return self  # type: ignore[return-value]
        return self._read(bridge)

    def __set__(self, bridge: _Bridge[Any], value: Never) -> None:
        raise AttributeError("read-only")

    def _read(self, bridge: _Bridge[Any]) -> T:
        value: T = self._source.__get__(bridge._of)
        return value


class _Copy(_Value[T]):
    """A property of the async object, copied between two events."""

    def _read(self, bridge: _Bridge[Any]) -> T:
        return bridge._loop.read(lambda: copy.deepcopy(super(_Copy, self)._read(bridge)))


def _through(
    run: Callable[[_Loop, Callable[[], S]], T], method: Callable[Concatenate[A, P], S]
) -> Callable[Concatenate[_Bridge[A], P], T]:
    @functools.wraps(method)
    def call(self: _Bridge[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(self._loop, lambda: method(self._of, *args, **kwargs))

    return call


def _waits(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[_Bridge[A], P], T]:
    return _through(lambda loop, begin: loop.run(begin()), method)


def _iterates(
    method: Callable[Concatenate[A, P], AsyncIterator[T]],
) -> Callable[Concatenate[_Bridge[A], P], Iterator[T]]:
    return _through(lambda loop, begin: loop.iterate(begin()), method)


def _opens(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, _session.Session]],
) -> Callable[Concatenate[_Bridge[A], P], Session]:
    return _through(lambda loop, begin: Session(loop, loop.run(begin())), method)


def _sends(
    method: Callable[Concatenate[A, P], _response.Response],
) -> Callable[Concatenate[_Bridge[A], P], Response]:
    return _through(lambda loop, begin: Response(loop, loop.read(begin)), method)


class Client(_Bridge[_async.Client]):
    """As ``sessile_client.Client``, with the same arguments."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(_Loop(), _async.Client(url, **options))

    def __enter__(self) -> Client:
        self._loop.start()
        self._loop.run(self._of.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, end every wait with Lost, save positions. May be called twice."""
        if self._loop.running:
            try:
                self._loop.run(self._of.close())
            finally:
                self._loop.close()

    link = _Value[Link](_async.Client.link)
    error = _Value[SessileError | None](_async.Client.error)
    closed = _Value[bool](_async.Client.closed)
    captive_portal = _Value[bool](_async.Client.captive_portal)
    over_http = _Value[bool](_async.Client.over_http)

    def reconnect(self) -> None:
        """The network is another: give the connection up at once, and resume by cursor."""
        self._loop.read(self._of.reconnect)

    def ready(self, timeout_s: float | None = None) -> None:
        """Wait for a connection."""
        self._loop.run(self._of.ready(), timeout_s)

    create_session = _opens(_async.Client.create_session)
    session = _opens(_async.Client.session)
    sessions = _iterates(_async.Client.sessions)
    command = _waits(_async.Client.command)


class Session(_Bridge[_session.Session]):
    """As ``sessile_client.Session``."""

    id = _Value[str](_session.Session.id)
    phase = _Value[Phase](_session.Session.phase)
    offset = _Value[int](_session.Session.offset)
    epoch = _Value[str | None](_session.Session.epoch)
    title = _Value[str | None](_session.Session.title)
    view = _Copy[View](_session.Session.view)
    items = _Copy[list[Item]](_session.Session.items)

    @property
    def open_responses(self) -> list[Response]:
        """Handles on the responses that have not ended, oldest first."""
        return [Response(self._loop, each) for each in self._loop.read(lambda: self._of.open_responses)]

    def caught_up(self, timeout_s: float | None = None) -> Session:
        """Wait until it is live."""
        self._loop.run(self._of.caught_up(), timeout_s)
        return self

    events = _iterates(_session.Session.events)
    send = _sends(_session.Session.send)
    edit = _sends(_session.Session.edit)
    regenerate = _sends(_session.Session.regenerate)
    response = _sends(_session.Session.response)
    cancel = _waits(_session.Session.cancel)
    steer = _sends(_session.Session.steer)

    def tool_output(
        self, call_id: str, output: str, *, is_error: bool = False, command_id: str | None = None
    ) -> Response | None:
        """Answer a tool call; the next response, if this was the last output missing."""
        answer = self._loop.run(self._of.tool_output(call_id, output, is_error=is_error, command_id=command_id))
        return None if answer.response is None else Response(self._loop, answer.response)

    appeal = _waits(_session.Session.appeal)
    compact = _waits(_session.Session.compact)
    undo_compaction = _waits(_session.Session.undo_compaction)
    pin = _waits(_session.Session.pin)
    update = _waits(_session.Session.update)
    delete = _waits(_session.Session.delete)
    get = _waits(_session.Session.get)
    warm = _waits(_session.Session.warm)
    close = _waits(_session.Session.close)


class Response(_Bridge[_response.Response]):
    """As ``sessile_client.Response``: iterate it for its text."""

    @property
    def session(self) -> Session:
        return Session(self._loop, self._of.session)

    id = _Value[str | None](_response.Response.id)
    item_id = _Value[str | None](_response.Response.item_id)
    status = _Value[str](_response.Response.status)
    usage = _Value[dict[str, Any] | None](_response.Response.usage)
    incomplete_reason = _Value[str | None](_response.Response.incomplete_reason)
    state = _Copy[ResponseState | None](_response.Response.state)
    begun = _Copy[bool](_response.Response.begun)
    output = _Copy[list[Item]](_response.Response.output)
    tool_calls = _Copy[list[Item]](_response.Response.tool_calls)
    text_so_far = _Copy[str](_response.Response.text_so_far)

    def accepted(self, timeout_s: float | None = None) -> Response:
        """Wait until the command is journaled."""
        self._loop.run(self._of.accepted(), timeout_s)
        return self

    def wait(self, timeout_s: float | None = None) -> ResponseState:
        """Wait until it has ended, however it did."""
        return self._loop.run(self._of.wait(), timeout_s)

    def text(self, timeout_s: float | None = None) -> str:
        """Wait for the whole answer."""
        return self._loop.run(self._of.text(), timeout_s)

    texts = _iterates(_response.Response.texts)
    __iter__ = _iterates(_response.Response.__aiter__)
    cancel = _waits(_response.Response.cancel)

    def steer(self, content: _session.Content) -> Response:
        """Say something while it is written; what is returned goes on."""
        return Response(self._loop, self._loop.run(self._of.steer(content)))
