"""A real database behind a simulated cluster.

Each request runs to its end on an event loop in a thread of its own while virtual time stands still, so a seed remains
one run. Whatever goes wrong on the way is the business of `stores.Medium`, as with the rows in memory.
"""

from __future__ import annotations

import asyncio
import inspect
import tempfile
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from persistence.at_rest.codec import SealingCodec
from persistence.memory.journal import MemoryJournal
from sessions.model.types import SessionKey
from sessions.ports import Journal
from sessions.store import Store as StorePort
from tests.simulation.books import Books
from tests.simulation.stores import Store
from tests.support.stores.journals import a_bed, a_log, patch

T = TypeVar("T")

PAGE = 10_000
PAGE_BYTES = 64 * 2**20


class LoopThread:
    """A thread with an event loop, for coroutines that the caller waits for."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class RealStore(Store):
    """The journal's rows in a new database of a kind that `a_bed` knows, with the store's other views."""

    def __init__(self, books: Books, kind: str, *, new_id: Callable[[], str]) -> None:
        super().__init__(books, new_id=new_id)
        self._thread, self._stack = LoopThread(), AsyncExitStack()
        self._folder = tempfile.TemporaryDirectory()

        async def opened() -> StorePort:
            bed = await self._stack.enter_async_context(a_bed(kind, Path(self._folder.name)))
            store = await bed.open()
            self._stack.push_async_callback(store.close)
            return store

        self._store = self._thread.run(opened())
        self._journal: Journal = self._store.journal
        self.incarnation = self._journal.incarnation
        self.note(_View(self._store.journal, self._thread))

    def lose(self, key: SessionKey, user: str, model: str) -> bool:
        """Does as the base class says: it destroys the keys of the session's tenant."""
        codec = getattr(self._store, "database").codec  # noqa: B009 - the port has none
        if not isinstance(codec, SealingCodec):
            return False

        async def lost() -> None:
            await a_log(self._journal, key.session, tenant=key.tenant, head=patch(open=True, user=user, model=model))
            await codec.keys.destroy(key.tenant)

        self._thread.run(lost())
        self.lost.add(key)
        return True

    def close(self) -> None:
        self._thread.run(self._stack.aclose())
        self._thread.close()
        self._folder.cleanup()

    def views(self, journal: MemoryJournal) -> Any:
        return _Views(journal, self._store, self._thread)


class _Views:
    """A process's store: its own way to the journal, and the other views of the database."""

    def __init__(self, journal: MemoryJournal, store: StorePort, thread: LoopThread) -> None:
        self.journal = self.tallies = journal
        self._store = store
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        return _View(getattr(self._store, name), self._thread)


class _View:
    """A view whose methods have been carried out when they return."""

    def __init__(self, view: Any, thread: LoopThread) -> None:
        self._view = view
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._view, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*arguments: Any, **named: Any) -> Any:
            return self._thread.run(method(*arguments, **named))

        return call
