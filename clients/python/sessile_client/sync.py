"""The client without async: the same sessions, driven by an event loop in a thread of its own.

::

    with Client("ws://127.0.0.1:8080/v1/ws") as client:
        session = client.create_session()
        for text in session.send("Hello!"):
            print(text, end="", flush=True)

Every call waits for its result and raises what the async one raises; ``timeout_s`` in ``wait``-like calls raises
TimeoutError and leaves the command under way. What is read of a session (items, text) is a copy, taken between two
events: safe from any thread. Interrupting an iteration (``break``, Ctrl-C) cancels nothing on the server.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from . import client as _async
from . import response as _response
from . import session as _session
from ._fields import Changes, Sampling, Settings
from ._items import Item, ResponseState
from ._notices import Link
from ._track import Event, Phase, Snapshot
from ._view import View
from ._wire import Frame
from .errors import Lost, SessileError
from .session import UNSET, Unset

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class _Loop:
    """An event loop in a daemon thread. ``close`` ends both."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sessile-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        if self._loop.is_closed():
            work.close()
            raise Lost("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
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

        async def step() -> tuple[bool, T | None]:
            try:
                return True, await source.__anext__()
            except StopAsyncIteration:
                return False, None

        async def close() -> None:
            aclose = getattr(source, "aclose", None)
            if aclose is not None:
                await aclose()

        try:
            while True:
                more, entry = self.run(step())
                if not more:
                    return
                yield entry  # type: ignore[misc]
        finally:
            if not self._loop.is_closed():
                self.run(close())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Client:
    """As ``sessile_client.Client``, with the same arguments."""

    def __init__(self, url: str, **options: Any) -> None:
        self._client = _async.Client(url, **options)
        self._loop: _Loop | None = None

    def __enter__(self) -> Client:
        self._loop = _Loop()
        self._loop.run(self._client.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, end every wait with Lost, save positions. May be called twice."""
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                loop.run(self._client.close())
            finally:
                loop.close()

    @property
    def _running(self) -> _Loop:
        if self._loop is None:
            raise Lost("the client is not open")
        return self._loop

    @property
    def link(self) -> Link:
        return self._client.link

    @property
    def error(self) -> SessileError | None:
        """Why the client has stopped, if it has."""
        return self._client.error

    @property
    def closed(self) -> bool:
        """The program closed the client (it did not stop by itself)."""
        return self._client.closed

    def ready(self, timeout_s: float | None = None) -> None:
        """Wait for a connection."""
        self._running.run(self._client.ready(), timeout_s)

    def create_session(
        self, session: str | None = None, *, command_id: str | None = None, **fields: Unpack[Settings]
    ) -> Session:
        loop = self._running
        return Session(loop, loop.run(self._client.create_session(session, command_id=command_id, **fields)))

    def session(self, session: str, *, wait: bool = True) -> Session:
        return Session(self._running, self._running.run(self._client.session(session, wait=wait)))

    def sessions(self, *, page: int = 50) -> Iterator[_async.SessionInfo]:
        return self._running.iterate(self._client.sessions(page=page))

    def command(self, type_: str, /, *, command_id: str | None = None, **fields: Any) -> Frame:
        return self._running.run(self._client.command(type_, command_id=command_id, **fields))


class Session:
    """As ``sessile_client.Session``."""

    def __init__(self, loop: _Loop, session: _session.Session) -> None:
        self._loop = loop
        self._session = session

    @property
    def id(self) -> str:
        return self._session.id

    @property
    def phase(self) -> Phase:
        return self._session.phase

    @property
    def offset(self) -> int:
        return self._session.offset

    @property
    def epoch(self) -> str | None:
        return self._session.epoch

    @property
    def view(self) -> View:
        """The conversation as it is now, with every branch."""
        return self._loop.read(lambda: View.from_state(copy.deepcopy(self._session.view.to_state())))

    @property
    def open_responses(self) -> list[Response]:
        """Handles on the responses that have not ended, oldest first."""
        return [Response(self._loop, each) for each in self._loop.read(lambda: self._session.open_responses)]

    def caught_up(self, timeout_s: float | None = None) -> Session:
        """Wait until it is live."""
        self._loop.run(self._session.caught_up(), timeout_s)
        return self

    @property
    def title(self) -> str | None:
        return self._session.title

    @property
    def items(self) -> list[Item]:
        """The current branch, as it is now."""
        return self._loop.read(lambda: [Item(copy.deepcopy(item.data)) for item in self._session.items])

    def events(self) -> Iterator[Event | Snapshot]:
        return self._loop.iterate(self._session.events())

    def send(
        self,
        content: _session.Content,
        *,
        parent_id: str | None | Unset = UNSET,
        respond: bool = True,
        queue: bool = False,
        command_id: str | None = None,
        **sampling: Unpack[Sampling],
    ) -> Response:
        return self._asked(
            lambda: self._session.send(
                content, parent_id=parent_id, respond=respond, queue=queue, command_id=command_id, **sampling
            )
        )

    def edit(
        self,
        item_id: str,
        content: _session.Content,
        *,
        respond: bool = True,
        command_id: str | None = None,
        **sampling: Unpack[Sampling],
    ) -> Response:
        return self._asked(
            lambda: self._session.edit(item_id, content, respond=respond, command_id=command_id, **sampling)
        )

    def regenerate(
        self,
        *,
        parent_id: str | None | Unset = UNSET,
        queue: bool = False,
        command_id: str | None = None,
        **sampling: Unpack[Sampling],
    ) -> Response:
        return self._asked(
            lambda: self._session.regenerate(parent_id=parent_id, queue=queue, command_id=command_id, **sampling)
        )

    def response(self, response_id: str) -> Response:
        return self._asked(lambda: self._session.response(response_id))

    def cancel(self, response_id: str | None = None, *, command_id: str | None = None) -> bool:
        return self._loop.run(self._session.cancel(response_id, command_id=command_id))

    def tool_output(
        self, call_id: str, output: str, *, is_error: bool = False, command_id: str | None = None
    ) -> Response | None:
        """Answer a tool call; the next response, if this was the last output missing."""
        answer = self._loop.run(self._session.tool_output(call_id, output, is_error=is_error, command_id=command_id))
        return None if answer.response is None else Response(self._loop, answer.response)

    def appeal(
        self,
        response_id: str | None = None,
        *,
        content: str | None = None,
        note: str = "",
        command_id: str | None = None,
    ) -> str:
        return self._loop.run(self._session.appeal(response_id, content=content, note=note, command_id=command_id))

    def update(self, *, command_id: str | None = None, **fields: Unpack[Changes]) -> None:
        self._loop.run(self._session.update(command_id=command_id, **fields))

    def delete(self, *, command_id: str | None = None) -> None:
        self._loop.run(self._session.delete(command_id=command_id))

    def get(self) -> dict[str, Any]:
        return self._loop.run(self._session.get())

    def warm(self) -> None:
        self._loop.run(self._session.warm())

    def close(self) -> None:
        self._loop.run(self._session.close())

    def _asked(self, ask: Callable[[], _response.Response]) -> Response:
        return Response(self._loop, self._loop.read(ask))


class Response:
    """As ``sessile_client.Response``: iterate it for its text."""

    def __init__(self, loop: _Loop, response: _response.Response) -> None:
        self._loop = loop
        self._response = response

    @property
    def session(self) -> Session:
        return Session(self._loop, self._response.session)

    @property
    def id(self) -> str | None:
        return self._response.id

    @property
    def state(self) -> ResponseState | None:
        """What the log has said of this response so far."""
        return self._loop.read(lambda: copy.deepcopy(self._response.state))

    @property
    def begun(self) -> bool:
        return self._loop.read(lambda: self._response.begun)

    @property
    def output(self) -> list[Item]:
        """The items so far."""
        return self._loop.read(lambda: [Item(copy.deepcopy(item.data)) for item in self._response.output])

    @property
    def item_id(self) -> str | None:
        return self._response.item_id

    @property
    def status(self) -> str:
        return self._response.status

    @property
    def usage(self) -> dict[str, Any] | None:
        return self._response.usage

    @property
    def incomplete_reason(self) -> str | None:
        return self._response.incomplete_reason

    @property
    def text_so_far(self) -> str:
        return self._loop.read(lambda: self._response.text_so_far)

    @property
    def tool_calls(self) -> list[Item]:
        return self._loop.read(lambda: [Item(copy.deepcopy(item.data)) for item in self._response.tool_calls])

    def accepted(self, timeout_s: float | None = None) -> Response:
        """Wait until the command is journaled."""
        self._loop.run(self._response.accepted(), timeout_s)
        return self

    def wait(self, timeout_s: float | None = None) -> ResponseState:
        """Wait until it has ended, however it did."""
        return self._loop.run(self._response.wait(), timeout_s)

    def text(self, timeout_s: float | None = None) -> str:
        """Wait for the whole answer."""
        return self._loop.run(self._response.text(), timeout_s)

    def texts(self) -> Iterator[str]:
        return self._loop.iterate(self._response.texts())

    def __iter__(self) -> Iterator[str]:
        return self._loop.iterate(self._response.__aiter__())

    def cancel(self) -> bool:
        return self._loop.run(self._response.cancel())
