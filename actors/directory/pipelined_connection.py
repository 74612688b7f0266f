"""One connection to a server that all calls of this process share, one after another.

Calls wait in a bounded queue; a pump takes a batch, writes it whole, reads one answer for each, and resolves their
futures. What that decides:

* A caller that is cancelled leaves only its future. Only the pump reads from the connection, and the pump stops
  only with the lane, so an answer can never go to the next caller (a cancelled redis-py call has once left its
  connection one answer behind). Leftover bytes on an idle connection close it, as a second lock on the same door.
* Calls take effect in the order in which they were made, also those that were cancelled after they were sent.
* "Nothing happened" (NotSent) and "it may have happened" (ReplyLost) are distinguished by whether the batch was
  written.

It does not know what the commands mean, and repeats none. Source: the multiplexed connection of StackExchange.Redis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

Word = str | bytes | int

BATCH_MAX: Final = 64
WAITING_MAX: Final = 4096
CONNECT_ATTEMPTS: Final = 2
CONNECT_PAUSE_S: Final = 0.05
END_AGAIN_S: Final = 0.1

# Errors that redis-py raises as if the connection had failed, although the server has answered "no".
REFUSALS: Final = (AuthenticationError, AuthorizationError, BusyLoadingError)


class NotSent(Exception):
    """Raised if the server has not seen the call."""


class ReplyLost(Exception):
    """Raised if the call was written and its answer did not come."""


class _Call:
    __slots__ = ("answer", "asking", "since", "words")

    def __init__(self, words: tuple[Word, ...], asking: bool, answer: asyncio.Future[Any], since: float) -> None:
        self.words = words
        self.asking = asking
        self.answer = answer
        self.since = since

    def fail(self, kind: type[NotSent] | type[ReplyLost], cause: BaseException | str) -> None:
        """Fails the call with an exception object of its own: shared ones would mix their tracebacks."""
        if self.answer.done():
            return
        if isinstance(cause, str):
            self.answer.set_exception(kind(cause))
        else:
            error = kind(f"{type(cause).__name__}: {cause}" if str(cause) else "no answer in time")
            error.__cause__ = cause
            self.answer.set_exception(error)

    def settle(self, result: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(result)

    def refuse(self, error: RedisError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class PipelinedConnection:
    def __init__(self, make: Callable[[], AbstractConnection], *, timeout_s: float) -> None:
        """Connects by `make`, which returns a new, unconnected connection. Connecting takes at most `timeout_s`, and so
        does each batch."""
        self._make = make
        self._timeout_s = timeout_s
        self._waiting: asyncio.Queue[_Call] = asyncio.Queue(WAITING_MAX)
        self._connection: AbstractConnection | None = None
        self._pump: asyncio.Task[None] | None = None
        self._closed = False

    async def call(self, *words: Word, asking: bool = False) -> Any:
        """Sends one command and returns its answer, undecoded. `asking` sends ASKING first (for a slot that is moving
        between nodes of a cluster). Raises NotSent, ReplyLost, or the server's own ResponseError."""
        loop = asyncio.get_running_loop()
        if self._closed:
            raise NotSent("closed")
        if self._pump is None:
            self._pump = loop.create_task(self._run(), name="directory-lane")
        elif self._pump.done():
            await self._pump  # raises what ended it: our own bug, and no caller should wait for it
        if self._waiting.full():
            raise NotSent(f"{WAITING_MAX} calls are waiting already")
        call = _Call(words, asking, loop.create_future(), loop.time())
        self._waiting.put_nowait(call)
        try:
            return await call.answer
        finally:
            if call.answer.done() and not call.answer.cancelled():
                call.answer.exception()  # cancelled just as it was answered: nothing else retrieves it

    async def close(self) -> None:
        """Closes the connection: calls in flight end with ReplyLost, waiting ones with NotSent. Idempotent."""
        self._closed = True
        if self._pump is not None:
            await end(self._pump)
        self._refuse_waiting("closed")
        await self._disconnect()

    async def _run(self) -> None:
        batch: list[_Call] = []
        try:
            while True:
                batch = [await self._waiting.get()]
                while len(batch) < BATCH_MAX and not self._waiting.empty():
                    batch.append(self._waiting.get_nowait())
                await self._serve(batch)
        finally:
            for call in batch:
                call.fail(ReplyLost, "the connection was given up")
            self._refuse_waiting("the connection was given up")

    async def _serve(self, batch: list[_Call]) -> None:
        too_old = asyncio.get_running_loop().time() - self._timeout_s
        for call in batch:
            if call.since < too_old:
                call.fail(NotSent, "the server is too slow, the call waited too long")
        batch = [call for call in batch if not call.answer.done()]
        if not batch:
            return
        try:
            connection = await self._connected()
        except (RedisError, OSError) as error:
            for call in batch:
                call.fail(NotSent, error)
            self._refuse_waiting(error)  # or each batch of them would wait for a connection in turn
            return
        commands: list[tuple[Word, ...]] = []
        for call in batch:
            commands += [("ASKING",), call.words] if call.asking else [call.words]
        try:
            async with asyncio.timeout(self._timeout_s):
                await send(connection, commands)
                for call in batch:
                    if call.asking:
                        await connection.read_response()
                    await self._answer(connection, call)
        except (RedisError, OSError) as error:
            for call in batch:
                call.fail(ReplyLost, error)
            await self._disconnect()

    async def _answer(self, connection: AbstractConnection, call: _Call) -> None:
        try:
            answer = await connection.read_response()
        except ReadOnlyError as error:
            call.refuse(error)
            raise  # not the master any more: the next connection may find the new one
        except ResponseError as error:
            call.refuse(error)
        except REFUSALS as error:
            call.fail(NotSent, error)
            raise
        else:
            call.settle(answer)

    def _refuse_waiting(self, cause: BaseException | str) -> None:
        while not self._waiting.empty():
            self._waiting.get_nowait().fail(NotSent, cause)

    async def _connected(self) -> AbstractConnection:
        """Returns the connection, connected and with nothing unread. Raises RedisError or OSError after
        `CONNECT_ATTEMPTS`."""
        if self._connection is None:
            self._connection = self._make()
            # Its own time-outs are per read, in a task each, and can swallow a cancellation: one per batch is ours.
            self._connection.socket_timeout = None
        if self._connection.is_connected:
            try:
                if not await self._connection.can_read():
                    return self._connection
            except RedisConnectionError:
                pass  # closed meanwhile: a new one below
            await self._disconnect()
        for attempt in range(CONNECT_ATTEMPTS):
            try:
                async with asyncio.timeout(self._timeout_s):
                    await connect(self._connection)
                break
            except (RedisError, OSError):
                await self._disconnect()
                if attempt == CONNECT_ATTEMPTS - 1:
                    raise
                await asyncio.sleep(CONNECT_PAUSE_S)
        return self._connection

    async def _disconnect(self) -> None:
        if self._connection is not None:
            await self._connection.disconnect(nowait=True)


async def connect(connection: AbstractConnection) -> None:
    """Connects `connection` to its server. Raises RedisError or OSError."""
    try:
        await connection.connect()  # type: ignore[no-untyped-call]  # redis-py has no types for it
    except RuntimeError as error:
        raise _closed_under_us(error) from error


async def send(connection: AbstractConnection, commands: list[tuple[Word, ...]]) -> None:
    """Writes commands in one go. Raises RedisError or OSError."""
    try:
        await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
    except RuntimeError as error:
        raise _closed_under_us(error) from error


def _closed_under_us(error: RuntimeError) -> RedisConnectionError:
    """Returns the error for a connection that the other side has reset: uvloop raises RuntimeError, and redis-py lets
    it pass."""
    return RedisConnectionError(str(error))


async def end(task: asyncio.Task[None]) -> None:
    """Cancels a task again and again until it has ended, because in Python 3.11 `wait_for` and `TaskGroup` may each
    swallow one cancellation. Its result or error is dropped."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=END_AGAIN_S)
    if not task.cancelled():
        task.exception()
