"""Replicas in one process under virtual time: real runtimes on a memory journal, a memory directory, simulated engines.

    async with Place() as place:            what outlives replicas: the journal's rows and the directory's
        replica = await place.replica("r1")
        await replica.create()
        reader = place.read(KEY, replica)
        answer = await replica.say("hello")
        await reader.ended(answer.response_id)
        replica.crash()                     from now on nothing that it does reaches the world

`Faults` stand between a replica and its stores: scripted, so that a test says which call fails and how.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Literal

from actors.directory.memory import MemoryDirectory
from actors.directory.rules import DirectoryState as DirectoryStore
from actors.hosting.ownership import Identity, Peers
from actors.hosting.runtime import Runtime, RuntimeLimits
from actors.hosting.services import Accounting, Inference, Stores
from inference.simulated import SimulatedEngine, SimulatedOptions
from persistence.memory.database import MemoryDatabase
from persistence.memory.journal import MemoryJournal
from persistence.memory.store import MemoryStore
from sessions.clock import Clock
from sessions.machine.state import State, replay
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import OutcomeUnknown, Unavailable
from sessions.model.journal_types import Head, Loaded
from sessions.model.request import request_of
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    CommandId,
    Principal,
    ReplicaId,
    ResponseId,
    SessionId,
    SessionKey,
    TenantId,
    UnixMs,
)
from sessions.ports import FilterSet, Keys, Member, Published, ServerTools
from sessions.turn.keyword_filter import KeywordFilterSet
from sessions.turn.result_cache import ResultCache
from tests.support.stores.tables import head_of, page_of
from tests.support.virtual_time import passed, until

SESSION = SessionId("s1")
KEY = SessionKey(TenantId("local"), SESSION)
TERMINAL = ev.ResponseCompleted | ev.ResponseIncomplete | ev.ResponseFailed
Fault = Literal["refused", "lost", "applied"]


class Faults:
    """What lies between one replica and its stores. Everything passes until a test says otherwise."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._scripts: dict[str, list[Fault | Callable[[], Awaitable[None]]]] = {}
        self._away: set[str] = set()
        self._delays: dict[str, float] = {}
        self._afterwards: dict[str, Callable[[], None]] = {}
        self.dead = False

    def next(self, call: str, *faults: Fault | Callable[[], Awaitable[None]]) -> None:
        """The next calls fail: `refused` (nothing happened), `lost` (nothing happened, and nobody knows), `applied`
        (it happened, and nobody knows). A function is awaited first, and then the call passes."""
        self._scripts.setdefault(call, []).extend(faults)

    def afterwards(self, call: str, then: Callable[[], None]) -> None:
        """Does something when the next such call to the journal has taken effect, and before its caller knows."""
        self._afterwards[call] = then

    def away(self, *calls: str) -> None:
        """These calls are refused until `back`."""
        self._away.update(calls)

    def back(self) -> None:
        self._away.clear()

    def slow(self, call: str, seconds: float) -> None:
        self._delays[call] = seconds

    async def journal(self, call: str, key: SessionKey | None, effect: Callable[[], Any]) -> Any:
        fault = await self._before(call)
        if fault in ("refused", "lost"):
            raise _failure(fault)
        result = effect()
        if call in self._afterwards:
            self._afterwards.pop(call)()
            await self._alive()
        if fault == "applied":
            raise _failure(fault)
        return result

    async def request(self, operation: str) -> None:
        fault = await self._before(operation)
        if fault is not None:
            raise _failure(fault)

    async def reply(self, operation: str) -> None:
        await self._alive()

    async def _before(self, call: str) -> Fault | None:
        self.calls.append(call)
        if call in self._delays:
            await passed(self._delays[call])
        await self._alive()
        if call in self._away:
            return "refused"
        script = self._scripts.get(call)
        if script:
            fault = script.pop(0)
            if isinstance(fault, str):
                return fault
            await fault()
            await self._alive()
        return None

    async def _alive(self) -> None:
        """Whoever is dead waits for ever."""
        if self.dead:
            await asyncio.get_running_loop().create_future()


def _failure(fault: Fault) -> Unavailable:
    if fault == "refused":
        return Unavailable("store_away", "The store does not answer.")
    return OutcomeUnknown("outcome_unknown", "Nobody knows whether that happened.")


class Reader:
    """What one reader is shown, checked as it comes: in order and without a gap."""

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.records: list[ev.Record] = []
        self.active: Callable[[], bool] = lambda: True
        self._waiting: list[tuple[Callable[[ev.Record], bool], asyncio.Future[ev.Record]]] = []

    def take(self, published: Published) -> None:
        assert published.key == self.key
        assert self.active(), "a dead replica showed something"
        for record in published.records:
            if self.records:
                assert record.offset == self.records[-1].offset + 1, "a gap, or something twice"
            self.records.append(record)
            for wanted, waiter in self._waiting:
                if not waiter.done() and wanted(record):
                    waiter.set_result(record)

    async def sees(self, wanted: Callable[[ev.Record], bool]) -> ev.Record:
        """The first record that is wanted: one that is here, or one that comes."""
        for record in self.records:
            if wanted(record):
                return record
        waiter: asyncio.Future[ev.Record] = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted, waiter))
        return await waiter

    async def delta(self, response_id: ResponseId | None, number: int = 1) -> None:
        """Waits for the response's first `number` deltas."""
        seen = 0

        def wanted(record: ev.Record) -> bool:
            nonlocal seen
            seen += isinstance(record.event, ev.OutputTextDelta) and record.event.response_id == response_id
            return seen >= number

        await self.sees(wanted)

    async def ended(self, response_id: ResponseId | None) -> ev.Terminal:
        record = await self.sees(lambda r: isinstance(r.event, TERMINAL) and r.event.response_id == response_id)
        assert isinstance(record.event, TERMINAL)
        return record.event

    def text(self, response_id: ResponseId | None) -> str:
        return text_of(self.records, response_id)


def text_of(records: list[ev.Record], response_id: ResponseId | None) -> str:
    """What a reader of these records has on the screen of a response."""
    events = [record.event for record in records]
    return "".join(e.delta for e in events if isinstance(e, ev.OutputTextDelta) and e.response_id == response_id)


class Replica:
    """One runtime with its engine and its ways to the stores."""

    def __init__(
        self,
        place: Place,
        name: str,
        incarnation: str,
        *,
        limits: RuntimeLimits | None = None,
        engine: SimulatedEngine | None = None,
        filters: FilterSet | None = None,
        accounting: Accounting | None = None,
        peers: Peers | None = None,
        results: ResultCache | None = None,
        tools: ServerTools | None = None,
    ) -> None:
        self.place = place
        self.name = ReplicaId(name)
        self.incarnation = incarnation
        self.faults = Faults()
        self.engine = engine or SimulatedEngine(place.options)
        self.journal = MemoryJournal(place.store, medium=self.faults.journal)
        self.directory = MemoryDirectory(place.directory_store, faults=self.faults)
        self.runtime = Runtime(
            Identity(self.name, incarnation),
            journal=self.journal,
            directory=self.directory,
            inference=Inference(self.engine, filters or KeywordFilterSet(), results=results, tools=tools),
            clock=place.clock,
            limits=limits or RuntimeLimits(),
            accounting=accounting,
            peers=peers,
        )
        self.crashed = False
        self._stop = asyncio.Event()
        self._announced = asyncio.Event()
        self._life = asyncio.create_task(self._live())

    def stores(self, keys: Keys | None = None) -> Stores:
        return Stores(MemoryStore(journal=self.journal), self.directory, keys)

    async def started(self) -> Replica:
        announced = asyncio.create_task(self._announced.wait())
        await asyncio.wait((announced, self._life), return_when=asyncio.FIRST_COMPLETED)
        announced.cancel()
        if self._life.done():
            await self._life
        return self

    async def _live(self) -> None:
        await self.journal.open()
        await self.directory.open()
        await self.engine.start()
        async with self.runtime, asyncio.TaskGroup() as tasks:
            announcing = tasks.create_task(self._announce())
            await self._stop.wait()
            await self.runtime.close()
            announcing.cancel()
        await self.engine.close()

    async def _announce(self) -> None:
        member = Member(replica=self.name, incarnation=self.incarnation, address="", model="simulated", fingerprint="f")
        while True:
            with contextlib.suppress(Unavailable):
                await self.directory.announce(member)
                self._announced.set()
            await passed(2.0)

    async def close(self) -> None:
        """Leaves in good order. Raises what the runtime raises: a task that failed fails the test."""
        if not self.crashed:
            self._stop.set()
            await self._life

    def crash(self) -> None:
        """Dies at this instruction: what it was about to do never happens, and it shows nothing more."""
        self.crashed = True
        self.faults.dead = True
        self._life.cancel()

    # -- commands ------------------------------------------------------------------------------------------------

    async def do(self, command: cm.ActorCommand, principal: Principal = LOCAL_PRINCIPAL) -> cm.Ok:
        return await self.runtime.execute(request_of(principal, command))

    async def create(self, **more: Any) -> cm.Ok:
        return await self.do(cm.SessionCreate(id=self.place.name(), session=SESSION, **more))

    async def say(self, content: str = "hello there", **more: Any) -> cm.Ok:
        return await self.do(cm.MessageCreate(id=self.place.name(), session=SESSION, content=content, **more))

    async def cancel(self, response_id: ResponseId | None) -> cm.Ok:
        assert response_id is not None
        return await self.do(cm.ResponseCancel(id=self.place.name(), session=SESSION, response_id=response_id))

    async def delete(self) -> cm.Ok:
        return await self.do(cm.SessionDelete(id=self.place.name(), session=SESSION))


class Place:
    """What outlives replicas. Leaving it closes those that still live, and checks that none of them failed."""

    def __init__(self, options: SimulatedOptions | None = None) -> None:
        self.options = options or SimulatedOptions(answer_tokens_mean=40)
        self.clock = Clock(self.now_ms, self.new_id)
        self._numbers = itertools.count(1)
        self.store = MemoryDatabase(new_id=self.new_id)
        self.directory_store = DirectoryStore()
        self.replicas: list[Replica] = []

    async def __aenter__(self) -> Place:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            for replica in self.replicas:
                await replica.close()

    async def replica(self, name: str = "r1", **more: Any) -> Replica:
        replica = Replica(self, name, self.new_id(), **more)
        self.replicas.append(replica)
        return await replica.started()

    def read(self, replica: Replica, key: SessionKey = KEY) -> Reader:
        """A reader that sees what `replica` makes durable from now on."""
        reader = Reader(key)
        reader.active = lambda: not replica.crashed
        replica.runtime.watch(key, reader.take)
        return reader

    def name(self) -> CommandId:
        return CommandId(f"cmd{next(self._numbers)}")

    def new_id(self) -> str:
        return f"id{next(self._numbers)}"

    def now_ms(self) -> UnixMs:
        return UnixMs(1_700_000_000_000 + round(asyncio.get_running_loop().time() * 1000))

    # -- what the journal holds ------------------------------------------------------------------------------------

    def head(self, key: SessionKey = KEY) -> Head:
        head = head_of(self.store, key)
        assert head is not None
        return head

    def records(self, key: SessionKey = KEY) -> list[ev.Record]:
        page = page_of(self.store, key)
        return list(page.records) if page is not None else []

    def state(self, key: SessionKey = KEY) -> State:
        return replay(Loaded(self.head(key), None, tuple(self.records(key)), (), True))

    def terminals(self, response_id: ResponseId | None, key: SessionKey = KEY) -> list[ev.Terminal]:
        events = [record.event for record in self.records(key)]
        return [e for e in events if isinstance(e, TERMINAL) and e.response_id == response_id]


async def undisturbed(options: SimulatedOptions, content: str = "hello there", **more: Any) -> str:
    """Returns the text of an answer that nothing happens to."""
    async with Place(options) as place:
        replica = await place.replica()
        reader = place.read(replica)
        await replica.create()
        answer = await replica.say(content, **more)
        await reader.ended(answer.response_id)
        return reader.text(answer.response_id)


async def killed_at_append(
    replica: Replica,
    number: int,
    *commands: cm.ActorCommand,
    behind: bool = False,
    ended: Callable[[], bool] | None = None,
) -> list[cm.Ok]:
    """Sends the commands to a replica that dies at its append `number`, or right `behind` it, when nobody has heard of
    it; returns the answers that came before. The lease is over then. With `ended`, it dies at the end at the latest."""

    async def die() -> None:
        if behind:
            replica.faults.afterwards("append", replica.crash)
        else:
            replica.crash()

    async def nothing() -> None:
        return

    answers: list[cm.Ok] = []

    async def client() -> None:
        for command in commands:
            answers.append(await replica.do(command))

    replica.faults.next("append", *[nothing] * number, die)
    talking = asyncio.create_task(client())
    await until(lambda: replica.crashed or (ended is not None and ended()))
    replica.crash()
    await passed(7.0)
    talking.cancel()
    return answers
