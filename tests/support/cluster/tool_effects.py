"""One turn with calls of server tools, in a cluster under virtual time, broken off at any place; and what it came to.

The service behind the tools is outside of all processes: an effect that it was asked for stands, whoever dies. What a
process says to it passes its `Power`, before and after, like what it says to the journal.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Final, Literal, NamedTuple

from inference.tools.code.run_files import FilledFolder, FolderBounds, RunFiles
from persistence.memory.database import MemoryDatabase
from persistence.sql.files import SqlFiles
from sessions.machine.responses import OUTCOME_UNKNOWN
from sessions.machine.scrubbing import files_line
from sessions.machine.state import State, replay
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.journal_types import Loaded
from sessions.model.knowledge.files import FileQuotas, StoredFile
from sessions.model.request import request_of
from sessions.model.types import FunctionCallOutput, ResponseId, RunFile, SessionId, SessionKey, TenantId, Tool, UnixMs
from sessions.ports import Engine
from sessions.server_tools import ReportProgress, ServerTool, ToolRequest, ToolResult
from tests.support.cluster.harness import ALICE, Cluster, Power, ReplicaNode, advance, cluster, until
from tests.support.scripted import Scripted
from tests.support.stores.tables import head_of, records_of

TRAVEL_S: Final = 0.003
Fault = Literal["kill", "stop", "hand_off"]
_CALL: Final = '<tool_call>{"name": "book", "arguments": {"n": %d}}</tool_call>'
_BOOK: Final = Tool(name="book", parameters={"type": "object", "properties": {"n": {"type": "integer"}}}, server=True)


class EffectService:
    """What is behind the tools: each call that arrives has its effect, unless its key is known."""

    def __init__(self, *, takes_keys: bool) -> None:
        self.takes_keys = takes_keys
        self.effects: Counter[str] = Counter()  # by what was asked for
        self.powers: dict[str, int] = {}  # by process: what it had said when it sent its first call

    def arrive(self, request: ToolRequest, keys: set[str]) -> str:
        if not self.takes_keys or request.execution_id not in keys:
            keys.add(request.execution_id)
            self.effects[request.arguments] += 1
        return f"booked {request.arguments}"


class FilesBehindPower(SqlFiles):
    """The files of a cluster, as one process reaches them."""

    def __init__(self, database: MemoryDatabase, power: Power) -> None:
        super().__init__(database)
        self._power = power

    async def finish(self, file: StoredFile, quotas: FileQuotas) -> StoredFile:
        await self._power.passing(TRAVEL_S)
        stored = await super().finish(file, quotas)
        await self._power.passing(TRAVEL_S)
        return stored


class StandInTools:
    """The port, of one process. With `files` each call also leaves two files, which no two processes write alike."""

    def __init__(self, service: EffectService, power: Power, keys: set[str], files: CallFolder | None = None) -> None:
        self._service, self._power, self._keys = service, power, keys
        self._files = files
        service.powers.setdefault(power.name, 0)

    def find(self, tenant: TenantId, name: str) -> ServerTool | None:
        return ServerTool(tool=_BOOK, takes_keys=self._service.takes_keys) if name == "book" else None

    def offered(self, tenant: TenantId) -> tuple[str, ...]:
        return ()

    async def call(self, request: ToolRequest, report: ReportProgress | None = None) -> ToolResult:
        name = self._power.name
        self._service.powers[name] = self._service.powers[name] or self._power.passed
        await self._power.passing(TRAVEL_S)
        output = self._service.arrive(request, self._keys)
        await self._power.passing(TRAVEL_S)
        if self._files is None:
            return ToolResult(outcome="done", output=output)
        kept = await self._files.keep(name, request)
        return ToolResult(outcome="done", output=files_line(kept), files=kept)


class CallFolder(NamedTuple):
    """Folders of calls, and the stored files of a cluster, as one process reaches them."""

    parent: Path
    files: RunFiles

    async def keep(self, name: str, request: ToolRequest) -> tuple[RunFile, ...]:
        folder = Path(tempfile.mkdtemp(dir=self.parent))
        for file in ("a.txt", "b.txt"):
            (folder / file).write_text(f"{file} of {name}")
        return (await self.files.keep(folder, request, FilledFolder({}), 10, FolderBounds(10, 1_000))).files


class Verdict(NamedTuple):
    """What a turn came to. `broke`: the fault happened before its end. `sent_at`: how many words its first owner had
    said to the world before it sent the first call (0: it sent none); `words`: in all."""

    broke: bool
    sent_at: int
    words: int
    effects: dict[str, int]
    outputs: tuple[str, ...]
    ended: bool
    files: tuple[RunFile, ...] = ()  # that the log names
    stored: tuple[str, ...] = ()  # ids of all stored files

    @property
    def problem(self) -> str:
        """What must never be; "" where all is well."""
        unknown = sum(output.startswith(OUTCOME_UNKNOWN[:15]) for output in self.outputs)
        if not self.ended:
            return "the turn did not end"
        if any(count > 1 for count in self.effects.values()):
            return "an effect happened twice"
        if len(self.outputs) != len(set(self.outputs)) + max(0, unknown - 1):
            return "an output stands twice"
        if len(self.effects) + unknown < len(self.outputs):
            return "an effect that did not happen is said to have"
        return ""


async def turn_with_tools(
    fault: Fault,
    at: int,
    *,
    takes_keys: bool,
    calls: int = 1,
    seed: int = 0,
    folder: Path | None = None,
) -> Verdict:
    """A turn that calls a tool `calls` times at once, whose owner suffers `fault` at its `at`-th word to the world
    behind the user's message. With a `folder` each call leaves files."""
    scripts, given = ["".join(_CALL % n for n in range(calls)), "Done."], dict[ResponseId, str]()
    service, keys, database = EffectService(takes_keys=takes_keys), set[str](), MemoryDatabase()

    def tools(power: Power) -> StandInTools:
        if folder is None:
            return StandInTools(service, power, keys)
        files = FilesBehindPower(database, power)
        run_files = RunFiles(files, lambda _: FileQuotas(), lambda: UnixMs(1), bytes_max=1_000)
        return StandInTools(service, power, keys, CallFolder(folder, run_files))

    async with cluster(replicas=0, seed=seed, tools=tools) as made:
        for name in ("r1", "r2"):
            await made.add_replica(name, engine=_engine(scripts, given))
        gateway = made.gateways["g1"]
        key = SessionKey(ALICE.tenant, SessionId("trip"))
        book = Tool(name="book", server=True)
        create = cm.SessionCreate(id=made.command_id(), session=key.session, tools=(book,))
        await gateway.router.execute(request_of(ALICE, create))
        owner = made.replicas[made.owner(key)]
        begun, broke = owner.power.passed, False

        async def on_pass(passed: int) -> None:
            nonlocal broke
            if passed - begun == at and not broke:
                broke = True
                await _break(made, owner, fault, key)

        owner.power.on_pass = on_pass
        ok = await gateway.say(key, "book it", tokens=400)
        assert ok.response_id is not None
        await until(lambda: _ended(made, key), step_s=0.05, limit_s=120.0)
        owner.power.on_pass, words = None, owner.power.passed - begun
        if fault == "stop" and broke:
            await advance(30.0)
        state = _state(made, key)
        given_back = [item for item in state.items.values() if isinstance(item, FunctionCallOutput)]
        outputs = tuple(item.output for item in given_back)
        files = tuple(file for item in given_back for file in (item.files if isinstance(item.files, tuple) else ()))
        whole = len(outputs) == calls
        sent_at = max(0, service.powers[owner.power.name] - begun)
        stored = tuple(file_id for (file_id,) in database.query("SELECT id FROM files"))
        return Verdict(broke, sent_at, words, dict(service.effects), outputs, whole and not state.busy, files, stored)


def _engine(scripts: list[str], given: dict[ResponseId, str]) -> Engine:
    return Scripted(scripts, given)


async def _break(made: Cluster, owner: ReplicaNode, fault: Fault, key: SessionKey) -> None:
    if fault == "kill":
        made.background(owner.kill())
        owner.power.kill()
    elif fault == "stop":
        owner.stop()
        made.background(_wake_later(owner))
    else:
        made.background(owner.replica.drain())


async def _wake_later(owner: ReplicaNode) -> None:
    await advance(20.0)
    owner.wake()


def _state(made: Cluster, key: SessionKey) -> State:
    head = head_of(made.store, key)
    assert head is not None
    return replay(Loaded(head, None, records_of(made.store, key), (), True))


def _ended(made: Cluster, key: SessionKey) -> bool:
    log = records_of(made.store, key)
    ends = [each.event for each in log if isinstance(each.event, ev.ResponseCompleted | ev.ResponseIncomplete)]
    return bool(ends) and not _state(made, key).busy
