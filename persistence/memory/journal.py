"""The journal in memory: the contract without a disk, for tests and for a whole cluster under virtual time.

Faults are not switches in here: every call goes through a `Medium`, which decides when the effect happens and what
the caller gets back:

    async def lossy(call, key, effect):
        await asyncio.sleep(0.005)              # slow
        if rng.random() < 0.01:
            raise Unavailable(...)              # it never arrived
        result = effect()                       # it stands
        if call == "append" and rng.random() < 0.01:
            raise OutcomeUnknown(...)           # its answer was lost
        return result

An effect is a plain function and atomic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from persistence.memory.database import MemoryDatabase, run_now
from persistence.sqlite.journal import SqliteCalls
from persistence.validation import closed
from sessions.limits import Tally
from sessions.model.journal_types import Append, CommandRecord, Due, Head, Loaded, Page, ResponsePlace
from sessions.model.types import CommandId, Epoch, ResponseId, SessionKey, TenantId, UnixMs

T = TypeVar("T")


class Medium(Protocol):
    """A layer between a journal's caller and the store, which a test may replace to inject faults.

    `call` is the name of the journal's method, `key` its session, None if it has none. `effect` does the work and
    returns the result.
    """

    def __call__(self, call: str, key: SessionKey | None, effect: Callable[[], Any]) -> Awaitable[Any]: ...


async def apply_at_once(call: str, key: SessionKey | None, effect: Callable[[], Any]) -> Any:
    """Runs `effect` at once: the medium without faults."""
    return effect()


class MemoryJournal:
    """The Journal port on a `MemoryDatabase`, through a `Medium`."""

    def __init__(self, database: MemoryDatabase | None = None, *, medium: Medium = apply_at_once) -> None:
        self.database = database or MemoryDatabase()
        self._medium = medium
        self._open = False

    @property
    def incarnation(self) -> str:
        return self.database.incarnation

    async def open(self) -> None:
        await self._medium("open", None, lambda: None)
        self._open = True

    async def close(self) -> None:
        self._open = False

    async def _call(
        self, call: str, key: SessionKey | None, effect: Callable[[SqliteCalls], Coroutine[Any, Any, T]]
    ) -> T:
        if not self._open:
            raise closed()
        result: T = await self._medium(call, key, lambda: run_now(effect(self.database.journal)))
        return result

    async def grant(
        self, key: SessionKey, *, expected_fence: int | None, owner: str, new_epoch: Epoch, now_ms: UnixMs
    ) -> Head:
        about: dict[str, Any] = {"owner": owner, "new_epoch": new_epoch, "now_ms": now_ms}
        return await self._call("grant", key, lambda to: to.grant(key, expected_fence=expected_fence, **about))

    async def append(self, append: Append) -> None:
        await self._call("append", append.key, lambda to: to.append(append))

    async def load(self, key: SessionKey, *, now_ms: UnixMs) -> Loaded | None:
        return await self._call("load", key, lambda to: to.load(key, now_ms=now_ms))

    async def head(self, key: SessionKey) -> Head | None:
        return await self._call("head", key, lambda to: to.head(key))

    async def read(self, key: SessionKey, *, after: int, limit: int, bytes_max: int) -> Page | None:
        return await self._call("read", key, lambda to: to.read(key, after=after, limit=limit, bytes_max=bytes_max))

    async def find_command(self, key: SessionKey, principal_id: str, command_id: CommandId) -> CommandRecord | None:
        return await self._call("find_command", key, lambda to: to.find_command(key, principal_id, command_id))

    async def find_response(self, tenant: TenantId, response_id: ResponseId) -> ResponsePlace | None:
        return await self._call("find_response", None, lambda to: to.find_response(tenant, response_id))

    async def list_heads(
        self, tenant: TenantId, *, user: str | None, limit: int, after: SessionKey | None
    ) -> list[Head]:
        return await self._call(
            "list_heads", None, lambda to: to.list_heads(tenant, user=user, limit=limit, after=after)
        )

    async def tally(self, tenant: TenantId, *, user: str | None, stored: bool) -> Tally:
        """Counts sessions and bytes as `sessions.limits.Tallies` says."""
        return await self._call("tally", None, lambda to: to.tally(tenant, user=user, stored=stored))

    async def open_heads(self, *, limit: int, after: SessionKey | None) -> list[Head]:
        return await self._call("open_heads", None, lambda to: to.open_heads(limit=limit, after=after))

    async def purgeable(self, due: Due, *, limit: int) -> list[SessionKey]:
        return await self._call("purgeable", None, lambda to: to.purgeable(due, limit=limit))

    async def purge(
        self, keys: Sequence[SessionKey], due: Due, *, commands_before: UnixMs, at: UnixMs
    ) -> list[SessionKey]:
        return await self._call("purge", None, lambda to: to.purge(keys, due, commands_before=commands_before, at=at))
