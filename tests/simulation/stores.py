"""The journal and the directory as one process reaches them, and all that can go wrong on the way.

A request that has left its process is on its way whatever becomes of the process: it takes effect while that one stands
still, or after its death. It can be lost before it takes effect, its answer can be lost behind it, it can take effect
long after its sender was told that nobody knows (`late`), and twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from actors.directory.rules import DirectoryState as DirectoryRules
from persistence.memory.database import MemoryDatabase
from persistence.memory.journal import MemoryJournal
from persistence.memory.store import MemoryStore
from sessions.model.errors import OutcomeUnknown, SessileError, Unavailable
from sessions.model.journal_types import Append, Head
from sessions.model.types import SessionKey
from sessions.ports import Claim, Owner
from tests.simulation.books import Books
from tests.simulation.loop import Process
from tests.simulation.world import World

WRITES = ("append", "grant")
ANSWER_S = 0.4  # after which a process gives up a store that does not answer


class Trouble(msgspec.Struct):
    """What is wrong with a store at the moment; all zero: nothing."""

    away: bool = False
    slow_s: float = 0.0
    request_lost: float = 0.0  # shares of the calls
    answer_lost: float = 0.0
    late: float = 0.0
    twice: float = 0.0
    cut: frozenset[str] = frozenset()  # processes that do not reach it

    @property
    def any(self) -> bool:
        return bool(
            self.away or self.slow_s or self.cut or self.request_lost or self.answer_lost or self.late or self.twice
        )


class NotedCalls:
    """The calls of a journal. What is written is shown to the books, with who wrote it."""

    def __init__(self, journal: Any, store: Store) -> None:
        self._journal = journal
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def grant(self, key: SessionKey, **more: Any) -> Head:
        head: Head = await self._journal.grant(key, **more)
        if key not in self._store.lost:
            self._store.books.granted(self._store.writer, key, head)
        return head

    async def append(self, append: Append) -> None:
        books, writer, is_lost = self._store.books, self._store.writer, append.key in self._store.lost
        try:
            await self._journal.append(append)
        except SessileError:
            if not is_lost:
                books.refused(writer, append)
            raise
        if not is_lost:
            books.appended(writer, append)


class Store(MemoryDatabase):
    """The tables of the cluster. `journal` shows the books what is written."""

    def __init__(self, books: Books, *, new_id: Callable[[], str]) -> None:
        super().__init__(new_id=new_id)
        self.books = books
        self.writer = ""
        self.lost = set[SessionKey]()  # of which the books know nothing
        self.note(self.journal)

    def note(self, journal: Any) -> None:
        """Takes a journal for that of the cluster."""
        self.journal = NotedCalls(journal, self)  # type: ignore[assignment]

    def views(self, journal: MemoryJournal) -> MemoryStore:
        """Returns the store of a process with this way to the journal."""
        return MemoryStore(journal=journal)

    def lose(self, key: SessionKey, user: str, model: str) -> bool:
        """Makes a session with an open turn that cannot be read. Returns False where this kind of store has none."""
        return False

    def close(self) -> None:
        """Frees what the store needs outside this process."""


class Medium:
    """One process's way to the journal: `persistence.memory.journal.Medium`."""

    def __init__(self, world: World, process: Process, store: Store, trouble: Trouble, rng: Random) -> None:
        self._world = world
        self._process = process
        self._store = store
        self._trouble = trouble
        self._rng = rng

    async def __call__(self, call: str, key: SessionKey | None, effect: Callable[[], Any]) -> Any:
        world, rng, trouble, loop = self._world, self._rng, self._trouble, self._world.loop
        answer: asyncio.Future[Any] = loop.create_future()
        writes = call in WRITES
        delay_s = (0.0004 if not writes else 0.0008) + rng.random() * (0.001 + trouble.slow_s)

        def tell(result: Any) -> None:
            if answer.done() or self._process.dead:
                return
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        def apply(told: bool = True) -> None:
            world.trace(self._process.name, "journal", call, key and key.session)
            self._store.writer = self._process.name
            try:
                result = effect()
            except SessileError as error:
                world.trace("journal", "refuses", self._process.name, call, key and key.session, error.code)
                result = error
            if told:
                loop.in_world(0.0002 + rng.random() * 0.0005, tell, result)

        if call == "open":
            return effect()
        fate = rng.random() if trouble.any else 1.0
        if trouble.away:
            loop.in_world(delay_s, tell, away() if fate < 0.7 or not writes else unknown())
        elif self._process.name in trouble.cut:
            loop.in_world(ANSWER_S, tell, unknown() if writes else away())
        elif not writes:
            if fate < trouble.request_lost:
                loop.in_world(ANSWER_S / 4, tell, away())
            else:
                loop.in_world(delay_s, apply)
        elif fate < (bound := trouble.request_lost):
            loop.in_world(ANSWER_S / 4, tell, unknown())
        elif fate < (bound := bound + trouble.answer_lost):
            loop.in_world(delay_s, apply, False)
            loop.in_world(ANSWER_S / 4, tell, unknown())
        elif fate < (bound := bound + trouble.late):
            loop.in_world(ANSWER_S / 4, tell, unknown())
            loop.in_world(ANSWER_S / 4 + rng.random() * 0.6, apply, False)
        else:
            loop.in_world(delay_s, apply)
            if fate < bound + trouble.twice:
                loop.in_world(delay_s + rng.random() * 0.5, apply, False)
        return await answer


class Directory(DirectoryRules):
    """The directory's rows. Claims are shown to the books; what is told of activations can be lost or come late."""

    def __init__(self, world: World, books: Books, trouble: Trouble) -> None:
        super().__init__()
        self._world = world
        self._books = books
        self._trouble = trouble
        self._rng = world.chance("directory")

    def claim(self, key: SessionKey, owner: Owner, *, instead_of: Owner | None, now: float) -> Claim:
        before = self.locate(key, now=now)
        claim = super().claim(key, owner, instead_of=instead_of, now=now)
        if claim.won:
            self._books.claimed(key, owner, before)
        return claim

    def release(self, key: SessionKey, owner: Owner) -> None:
        super().release(key, owner)
        if self._rng.random() < self._trouble.twice:
            self._world.loop.in_world(self._rng.random(), super().release, key, owner)

    def activated(self, key: SessionKey, owner: Owner, *, now: float) -> None:
        rng = self._rng
        if rng.random() < self._trouble.request_lost:
            return
        tell = super().activated
        self._world.loop.in_world(rng.random() * 0.002, lambda: tell(key, owner, now=now))
        if rng.random() < self._trouble.twice:
            self._world.loop.in_world(rng.random() * 0.5, lambda: tell(key, owner, now=now))


class Way:
    """One process's way to the directory: `actors.directory.memory.Faults`."""

    def __init__(self, world: World, process: Process, trouble: Trouble, rng: Random) -> None:
        self._world = world
        self._process = process
        self._trouble = trouble
        self._rng = rng

    async def request(self, operation: str) -> None:
        trouble = self._trouble
        await self._pass(0.0002 + self._rng.random() * (0.0006 + trouble.slow_s))
        if trouble.away:
            raise Unavailable("directory_unavailable", "The directory is away.")
        if self._process.name in trouble.cut:
            await self._pass(ANSWER_S)
            raise lost(operation)
        if trouble.request_lost and self._rng.random() < trouble.request_lost:
            raise lost(operation)

    async def reply(self, operation: str) -> None:
        await self._pass(0.0001 + self._rng.random() * 0.0003)
        if self._trouble.answer_lost and self._rng.random() < self._trouble.answer_lost:
            raise lost(operation)

    async def _pass(self, seconds: float) -> None:
        """The time on the wire passes for a process that stands still, too; it goes on when it wakes."""
        passed: asyncio.Future[None] = self._world.loop.create_future()
        self._world.loop.in_world(seconds, lambda: None if passed.done() else passed.set_result(None))
        await passed


READS = ("view", "locate", "watchers")


def lost(operation: str) -> Unavailable:
    if operation in READS:
        return Unavailable("directory_unavailable", "The directory did not answer.")
    return OutcomeUnknown("directory_unknown", "The directory did not answer.")


def away() -> Unavailable:
    return Unavailable("journal_unavailable", "The journal is away.")


def unknown() -> OutcomeUnknown:
    return OutcomeUnknown("outcome_unknown", "The journal did not answer.")
