"""Plans vLLM's KV offload: which snapshot a request is restored from, and what becomes of its blocks.

    before a run   the best snapshot of the session (or of an opening that it has in common with others) is held and
                   named as the request's source; a file in the staging folder is opened for the blocks that it lacks
    during it      full blocks are written into that file as they fill; whoever takes the session away has them `cut`
                   into a snapshot of their own
    after it       snapshot and file become the session's new snapshot, in the tiers' hands from then on; where the
                   workers died in it, the blocks that they had written do

Invariants: what is written counts against the host tier's bound before the first byte; a session that was released
meanwhile leaves nothing; a worker that failed costs what has no checksum, never an answer; a worker that is slow costs
nothing: what it has written by then is a snapshot, which its late close completes. Whether a worker is dead is the
supervisor's word (`lose`). Snapshots are whole blocks from the first token on, so that any common prefix of a branch is
a prefix of the file. It does not know vLLM.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from inference.kv.block_checksums import checksums_of, count_intact
from inference.kv.catalog import Snapshot
from inference.kv.envelope import SnapshotRefused, checked_chunks
from inference.kv.host_tier import HostSnapshot
from inference.kv.tiers import Tiers
from inference.shared_prefixes import SharedPrefixes
from inference.tokens import common_prefix
from inference.vllm.worker_events import BlocksLoaded, BlocksSaved, Report
from sessions.model.types import OPENINGS, Json, SessionKey
from sessions.turn.images import whole_names

log = structlog.get_logger(__name__)

_CLOSE_WAIT_S: Final = (
    30.0  # then what is written becomes a snapshot, and the rest of the file is waited for all the same
)
_COPY_BYTES: Final = 8 << 20
_ARRIVAL_WAIT_MAX_S: Final = 30.0  # for what another run has just left, unless computing is sooner done
_CUT_SHARE: Final = 7 / 8
_LOOK_TOKENS: Final = 64  # that the device lacks: fewer are computed sooner than looked up
_MEASURED_TOKENS_MIN: Final = 64  # fewer say more about a step than about the rate


@dataclass(slots=True, eq=False, repr=False)
class OffloadPlan:
    """A plan for one request's KV: where it is restored from, and where it is saved. Its fields are what is known of
    the request at each stage; methods of `KvOffload` fill them in as it passes."""

    name: str
    key: SessionKey
    shared_prefix: int
    scope: bytes
    ranks: InitVar[int]
    open_ranks: int = field(init=False)
    written: list[int] = field(init=False)  # blocks that each rank has reported while the run goes on
    hold: contextlib.AsyncExitStack = field(
        default_factory=contextlib.AsyncExitStack
    )  # keeps `source` until it is loaded
    source: HostSnapshot | None = None
    base_blocks: int = 0  # how many blocks of the prompt the source holds
    path: Path | None = None  # the run's file; None once a snapshot has it
    file: Path | None = None  # the run's file under its first name; the checksums are beside it
    reserved: int = 0
    limit_blocks: int = 0
    num_blocks: int = 0
    failed: bool = False
    num_cut: int = 0  # blocks that a snapshot holds which was made of it while it ran
    lost: bool = False  # the workers have died: what they had written is all there is
    forgotten: bool = False  # the session was deleted
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    bad_reason: str = ""  # why the source was refused while it was loaded
    resident_tokens: int = 0  # tokens that were on the device before the load
    planned_s: float | None = None  # when it was handed to the run, until that has yielded something
    loaded_s: float = 0.0  # seconds that the load took, once it is over
    settling: asyncio.Task[None] | None = None  # set once the run is over
    known: array.array[int] = field(default_factory=lambda: array.array("I"))  # the tokens that the run had at its end

    def __post_init__(self, ranks: int) -> None:
        self.open_ranks, self.written = ranks, [0] * ranks


class KvOffload:
    """Saves and restores sessions' blocks beside vLLM. The engine calls its methods as a run passes from one stage to
    the next."""

    def __init__(
        self,
        tiers: Tiers,
        *,
        block_tokens: int,
        block_bytes: int,
        ranks: int,
        answer_tokens: int,
        saves: bool,
        close_wait_s: float = _CLOSE_WAIT_S,
    ) -> None:
        """`block_bytes`: the size of a block, of all ranks together. `close_wait_s`: how many seconds after a run's end
        the workers have to close its file; then what is written so far becomes a snapshot."""
        self.tiers = tiers
        self.block_tokens = block_tokens
        self.block_bytes = block_bytes
        self.ranks = ranks
        self.saves = saves
        self._close_wait_s = close_wait_s
        self.counters: Counter[str] = Counter()
        self._stopped = False
        self._shared_prefixes = SharedPrefixes()
        self._answer_tokens = answer_tokens
        self._plans: dict[str, OffloadPlan] = {}
        self._settling: dict[SessionKey, set[asyncio.Task[None]]] = {}
        self._late: set[asyncio.Task[None]] = set()  # completing snapshots whose files are closed late

    # -- before a run --------------------------------------------------------------------------------------

    async def plan(
        self,
        name: str,
        key: SessionKey,
        prompt: array.array[int],
        shared_prefix: int,
        max_tokens: int,
        *,
        resident: int = 0,
        scope: bytes = b"",
        ahead: bool = False,
    ) -> OffloadPlan:
        """Plans from where a run's KV is restored and where it is saved. The caller then calls `on_output`, and at last
        `settle` or `abandon`. Trouble with KV raises nothing.

        `resident`: how many leading tokens of the session are expected to be on the device. `ahead`: the run only
        computes KV for a later run; if it adds little to its source it saves nothing, and the later run does."""
        plan = self._plans[name] = OffloadPlan(name, key, shared_prefix, scope, self.ranks)
        try:
            await self._hold_source(plan, prompt, resident)
            if self.saves and not (ahead and len(prompt) < 2 * plan.base_blocks * self.block_tokens):
                await self._make_file(plan, len(prompt), max_tokens)
        except BaseException:
            await self.abandon(plan)
            raise
        if plan.forgotten or self._stopped:  # meanwhile: the run takes nothing and leaves nothing
            await self.abandon(plan)
        plan.planned_s = time.monotonic()
        return plan

    def transfer(self, plan: OffloadPlan, tag: str, forget: list[str], retire: list[str]) -> dict[str, Json]:
        """Returns the plan as parameters for the connector (`RequestTransfer`). `forget` and `retire` are the tags
        whose blocks it must forget, or evict first."""
        parameters: dict[str, Json] = {"tag": tag, "name": plan.name, "forget": forget, "retire": retire}
        if plan.source is not None and plan.source.manifest is not None:
            manifest = plan.source.manifest
            parameters["source"] = {
                "path": str(plan.source.path),
                "num_blocks": plan.base_blocks,
                "snapshot_id": manifest.snapshot_id,
                "payload_bytes": manifest.payload_bytes,
                "tags": manifest.tags,
            }
        if plan.path is not None:
            parameters |= {"path": str(plan.path), "first_block": plan.base_blocks, "limit_blocks": plan.limit_blocks}
        return parameters

    async def on_output(self, plan: OffloadPlan, cached: int, end: int) -> None:
        """Notes that the run has yielded output, before which tokens [cached, end) of its prompt were computed.

        From the time that this took, waiting included, the cost model learns how long computing takes."""
        if plan.planned_s is not None:
            seconds, plan.planned_s = time.monotonic() - plan.planned_s - plan.loaded_s, None
            if end - cached >= _MEASURED_TOKENS_MIN and seconds > 0 and not plan.bad_reason:
                self.tiers.cost.prefilled(cached, end, seconds)
            await self._begun(plan)

    async def _begun(self, plan: OffloadPlan) -> None:
        """Releases the plan's source, because the run has loaded it or will not load it any more."""
        if plan.source is not None:
            source, plan.source = plan.source, None
            await plan.hold.aclose()
            if plan.bad_reason:
                self.counters["restores_refused"] += 1
                await self.tiers.refuse(source, plan.bad_reason)

    # -- what the connector reports ----------------------------------------------------------------------------

    def on_report(self, report: Report) -> None:
        match report:
            case BlocksSaved():
                plan = self._plans.get(report.request)
                if plan is not None:
                    plan.failed = plan.failed or report.failed
                    plan.written[report.rank] = report.num_blocks
                    if report.closed:
                        plan.open_ranks -= 1
                        plan.num_blocks = report.num_blocks
                        if plan.open_ranks == 0:
                            plan.closed.set()
            case BlocksLoaded():
                self.counters["restores" if not report.reason else "restores_failed"] += 1
                self.counters["restored_bytes"] += report.num_bytes
                self.counters["restore_ms"] += int(1000 * report.seconds)
                if not report.reason:
                    now_s = time.monotonic()
                    self.tiers.cost.moved("device", report.num_bytes * self.ranks, report.seconds, now_s)
                plan = self._plans.get(report.request)
                if plan is not None:
                    plan.loaded_s = max(plan.loaded_s, report.seconds)
                    if report.reason:
                        plan.bad_reason = report.reason
                        plan.resident_tokens = report.resident_tokens
            case _:
                pass

    # -- during a run --------------------------------------------------------------------------------------

    async def cut(self, plan: OffloadPlan, known: array.array[int]) -> None:
        """Makes a snapshot of what a run has written so far, because its session moves away in the middle of an answer.
        `known`: the run's prompt and what it has emitted. The run goes on; at its end it makes a snapshot of its
        own."""
        blocks = min(*plan.written, len(known) // self.block_tokens)
        tokens = known[: blocks * self.block_tokens]
        useless = plan.path is None or plan.failed or plan.lost or plan.forgotten or self._stopped
        if useless or plan.path is None or blocks <= plan.base_blocks:
            return
        await asyncio.shield(self._settling_task(plan.key, self._join(plan, plan.path, tokens)))
        if self._is_covered(plan.key, tokens):
            plan.num_cut = blocks

    # -- after a run -----------------------------------------------------------------------------------------

    def settle(self, plan: OffloadPlan, known: array.array[int]) -> None:
        """Makes the session's new snapshot from the run's blocks, in the background. `known`: the tokens of prompt and
        answer."""
        plan.known = known
        plan.settling = self._settling_task(plan.key, self._settle(plan, known))

    def _settling_task(self, key: SessionKey, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._settling.setdefault(key, set()).add(task)
        task.add_done_callback(lambda done: self._settled(key, done))
        return task

    def _settled(self, key: SessionKey, task: asyncio.Task[None]) -> None:
        tasks = self._settling[key]
        tasks.discard(task)
        if not tasks:
            del self._settling[key]
            self.tiers.trim(key.tenant)  # what the run left on the device counts from now on
        self._log_failure(task)

    def _log_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.counters["saves_failed"] += 1
            log.error("snapshot_write_failed", tier="host", exc_info=task.exception())

    def is_settling(self, key: SessionKey) -> bool:
        """Returns whether a run's KV of the session is on its way into the tiers."""
        return key in self._settling

    async def settled(self, key: SessionKey | None = None) -> None:
        """Waits until the runs of a session (None: of all) are in the tiers, except for blocks that a slow worker still
        has to write."""
        tasks = [t for k, held in self._settling.items() if key is None or k == key for t in held]
        if tasks:
            await asyncio.wait(tasks)

    async def completed(self) -> None:
        """Waits until every file of an ended run has been closed and kept."""
        while self._settling or self._late:
            await asyncio.wait({*self._late, *(task for tasks in self._settling.values() for task in tasks)})

    def forget(self, key: SessionKey) -> None:
        """Marks a deleted session: its KV on the way into the tiers is dropped on arrival."""
        for plan in self._plans.values():
            plan.forgotten = plan.forgotten or plan.key == key

    def lose(self) -> None:
        """Notes that the workers have died: they close no file any more, and what they wrote is kept."""
        for plan in self._plans.values():
            plan.lost = plan.lost or not plan.closed.is_set()
            plan.closed.set()

    async def stop(self) -> None:
        """Keeps the KV of ended runs, and what is written of files that a worker has not closed. Drops runs that have
        not ended; whatever ends later is dropped as well."""
        await self.settled()
        for plan in self._plans.values():
            if plan.settling is not None:
                plan.closed.set()
        await self.completed()
        self._stopped = True
        for plan in tuple(self._plans.values()):
            await self.abandon(plan)

    async def abandon(self, plan: OffloadPlan) -> None:
        """Drops the plan of a run that never reached the engine, or is to leave nothing."""
        self._plans.pop(plan.name, None)
        plan.source, plan.base_blocks = None, 0
        await plan.hold.aclose()
        await self._drop_file(plan)

    # -- inside ------------------------------------------------------------------------------------------------

    async def _hold_source(self, plan: OffloadPlan, prompt: array.array[int], resident: int) -> None:
        """Chooses the snapshot that the run is restored from, and keeps it from eviction; none if computing is faster.

        From a snapshot in host memory only the blocks that the device lacks are loaded. A snapshot in a tier below is
        first read as a whole, so that must be worth it for the lacking blocks."""
        most = (len(prompt) - 1) // self.block_tokens
        if most * self.block_tokens - resident >= _LOOK_TOKENS:
            await self.tiers.discover(plan.key, prompt[: most * self.block_tokens])
        snapshot, blocks = self._best(plan.key, prompt, plan.shared_prefix, plan.scope)
        have = max(resident, blocks * self.block_tokens)
        if most * self.block_tokens - have >= _LOOK_TOKENS and await self._await_arrivals(plan, prompt, have):
            snapshot, blocks = self._best(plan.key, prompt, plan.shared_prefix, plan.scope)
        blocks = max(0, min(blocks, most))
        blocks = whole_names(prompt, blocks * self.block_tokens) // self.block_tokens
        if snapshot is None or not blocks:
            return
        tokens = blocks * self.block_tokens
        begin = 0 if isinstance(snapshot, HostSnapshot) else min(resident, tokens)
        choice = self.tiers.choose(snapshot, begin, tokens, needed_bytes=blocks * self.block_bytes)
        if not choice.tries:
            self.counters["restores_declined"] += 1
            return
        try:
            plan.source = await plan.hold.enter_async_context(self.tiers.held(snapshot, choice))
        except SnapshotRefused as exc:
            slow = exc.reason == "too_slow"
            self.counters["restores_declined" if slow else f"sources_refused_{exc.reason}"] += 1
        else:
            plan.base_blocks = blocks

    async def _await_arrivals(self, plan: OffloadPlan, prompt: array.array[int], have: int) -> bool:
        """Waits, for a bounded time, for runs of other sessions in the same scope whose KV is on its way into the tiers
        and covers more of the prompt. Returns False, without waiting, if there are none."""
        if not plan.scope:
            return False
        near = [
            other.settling
            for other in self._plans.values()
            if other.settling is not None and (other.key.tenant, other.scope) == (plan.key.tenant, plan.scope)
            if common_prefix(other.known, prompt) - have >= _LOOK_TOKENS
        ]
        if not near:
            return False
        computing_s = self.tiers.cost.prefill_s(have, len(prompt))
        await asyncio.wait(near, timeout=min(_ARRIVAL_WAIT_MAX_S, computing_s))
        return True

    def _best(
        self, key: SessionKey, prompt: array.array[int], shared_prefix: int, scope: bytes = b""
    ) -> tuple[Snapshot | None, int]:
        """Returns the snapshot that covers most leading blocks of a prompt, and how many blocks it covers."""
        snapshot, tokens = self.tiers.catalog.find_near(key, prompt, scope)
        blocks = tokens // self.block_tokens
        whole = shared_prefix // self.block_tokens
        if whole > blocks:
            opening = prompt[: whole * self.block_tokens]
            shared, tokens = self.tiers.catalog.find(SessionKey(key.tenant, OPENINGS), opening)
            if tokens == len(opening):  # less is another opening, which this session does not share
                return shared, whole
        return snapshot, blocks

    async def _make_file(self, plan: OffloadPlan, prompt_tokens: int, max_tokens: int) -> None:
        limit = (prompt_tokens + min(max_tokens, self._answer_tokens)) // self.block_tokens
        size = (limit - plan.base_blocks) * self.block_bytes
        if size <= 0:
            return
        if not await self.tiers.reserve(size, plan.key.tenant):
            self.counters["saves_without_room"] += 1
            return
        plan.reserved, plan.limit_blocks = size, limit
        plan.path = plan.file = self.tiers.host.new_path()

    async def _settle(self, plan: OffloadPlan, known: array.array[int]) -> None:
        late = False
        try:
            await self._begun(plan)
            if plan.path is None or self._stopped:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._close_wait_s):
                    await plan.closed.wait()
            if plan.closed.is_set():
                await self._keep(plan, plan.path, known)
                return
            log.warning("kv_file_closed_late", waited_s=self._close_wait_s)
            self.counters["saves_late"] += 1
            plan.num_blocks = await self._count_written(plan, known)
            await self._keep_blocks(plan, plan.path, known)
            late = True
            task = asyncio.create_task(self._complete(plan, known))
            self._late.add(task)
            task.add_done_callback(self._completed)
        finally:
            if not late:
                await self._end(plan)

    async def _complete(self, plan: OffloadPlan, known: array.array[int]) -> None:
        """Keeps a run's file once the worker has closed it, or the supervisor says that the worker is dead."""
        try:
            await plan.closed.wait()
            if plan.path is not None:
                await self._keep(plan, plan.path, known)
        finally:
            await self._end(plan)

    def _completed(self, task: asyncio.Task[None]) -> None:
        self._late.discard(task)
        self._log_failure(task)

    async def _end(self, plan: OffloadPlan) -> None:
        self._plans.pop(plan.name, None)
        await self._drop_file(plan)

    async def _count_written(self, plan: OffloadPlan, known: array.array[int]) -> int:
        """Returns how many leading blocks of a run can be used: those of its source, and those in its file with right
        checksums."""
        assert plan.path is not None
        limit = min(plan.limit_blocks, len(known) // self.block_tokens)
        return await asyncio.to_thread(count_intact, plan.path, plan.base_blocks, limit, self.block_bytes, self.ranks)

    async def _keep(self, plan: OffloadPlan, tail: Path, known: array.array[int]) -> None:
        """Makes a snapshot of the run's file, which is closed, or which nobody will close."""
        if plan.lost or plan.failed or plan.open_ranks:
            plan.num_blocks = await self._count_written(plan, known)
            self.counters["saves_failed"] += plan.failed
            self.counters["blocks_adopted"] += plan.num_blocks - plan.base_blocks
        elif plan.num_cut > _CUT_SHARE * min(plan.num_blocks, len(known) // self.block_tokens):
            return  # its session has left, most likely: for the little that is new not all of it is copied once more
        await self._keep_blocks(plan, tail, known)

    async def _keep_blocks(self, plan: OffloadPlan, tail: Path, known: array.array[int]) -> None:
        """Makes a snapshot of the run's first `num_blocks`."""
        blocks = min(plan.num_blocks, len(known) // self.block_tokens)
        if blocks <= plan.base_blocks or plan.forgotten:
            return
        tokens = known[: blocks * self.block_tokens]
        size = blocks * self.block_bytes
        if plan.base_blocks or (plan.open_ranks and not plan.lost):  # its worker may write on in the file
            await self._join(plan, tail, tokens)
        else:
            await asyncio.to_thread(os.truncate, tail, size)
            if not plan.forgotten:
                reserved, plan.reserved, plan.path = plan.reserved, 0, None
                self.tiers.host.unreserve(reserved - size)
                self.tiers.adopt(plan.key, tokens, tail, size, size, plan.scope)
                self.counters["saves"] += 1
        if not plan.lost:  # else its session waits for what it can go on from
            await self._keep_opening(plan, tokens)

    async def _join(self, plan: OffloadPlan, tail: Path, tokens: array.array[int]) -> None:
        """Makes the session's new snapshot: the beginning of the run's source, if it has one, followed by the run's own
        blocks."""
        if self._is_covered(plan.key, tokens):
            return
        base_bytes = plan.base_blocks * self.block_bytes
        base, blocks = self._best(plan.key, tokens, plan.shared_prefix, plan.scope)
        if base_bytes and (base is None or blocks < plan.base_blocks):
            self.counters["saves_without_base"] += 1
            return
        try:
            async with contextlib.AsyncExitStack() as hold:
                held = await hold.enter_async_context(self.tiers.held(base)) if base_bytes and base else None
                await self._adopt_copy(plan, plan.key, tokens, held, base_bytes, tail)
        except SnapshotRefused as exc:
            self.counters[f"saves_refused_{exc.reason}"] += 1

    async def _keep_opening(self, plan: OffloadPlan, tokens: array.array[int]) -> None:
        """Stores the KV of the run's opening once for its tenant, if several sessions begin with that opening."""
        whole = plan.shared_prefix // self.block_tokens
        opening = tokens[: whole * self.block_tokens]
        if not whole or len(tokens) < len(opening):
            return
        key = SessionKey(plan.key.tenant, OPENINGS)
        if not self._shared_prefixes.common(plan.key, opening) or self._is_covered(key, opening):
            return
        own, blocks = self._best(plan.key, tokens, 0)
        if own is None or blocks < whole:
            return
        with contextlib.suppress(SnapshotRefused):
            async with self.tiers.held(own) as held:
                await self._adopt_copy(plan, key, opening, held, whole * self.block_bytes)
                self.counters["openings_kept"] += 1

    async def _adopt_copy(
        self,
        plan: OffloadPlan,
        key: SessionKey,
        tokens: array.array[int],
        base: HostSnapshot | None,
        base_bytes: int,
        tail: Path | None = None,
    ) -> None:
        """Makes a new snapshot: its first `base_bytes` bytes are copied from the snapshot `base`, the rest from the
        run's file `tail`, in which those first bytes are missing.

        Raises SnapshotRefused if `base` is damaged, and drops it."""
        size = len(tokens) // self.block_tokens * self.block_bytes
        if not await self.tiers.reserve(size, key.tenant, computed=len(tokens)):
            self.counters["saves_without_room"] += 1
            return
        path = self.tiers.host.new_path()
        try:
            with self.tiers.host.pending(key) as pending:
                try:
                    await asyncio.to_thread(_concatenate, path, base, base_bytes, tail, size)
                except SnapshotRefused as exc:
                    if base is not None:
                        await self.tiers.refuse(base, exc.reason)
                    raise
            if plan.forgotten or pending.revoked or self._is_covered(key, tokens):
                raise SnapshotRefused("no_snapshot")
        except BaseException as exc:
            await asyncio.to_thread(path.unlink, missing_ok=True)
            self.tiers.host.unreserve(size)
            if isinstance(exc, OSError):
                raise SnapshotRefused("unreadable") from exc
            raise
        self.tiers.adopt(key, tokens, path, size, size, plan.scope if key == plan.key else b"")
        self.counters["saves"] += 1

    def _is_covered(self, key: SessionKey, tokens: array.array[int]) -> bool:
        return self.tiers.catalog.find(key, tokens)[1] == len(tokens)

    async def _drop_file(self, plan: OffloadPlan) -> None:
        if plan.file is not None:
            files = [checksums_of(plan.file), *([plan.path] if plan.path is not None else [])]
            plan.file = plan.path = None
            await asyncio.to_thread(_remove, files)
        if plan.reserved:
            reserved, plan.reserved = plan.reserved, 0
            self.tiers.host.unreserve(reserved)


def _remove(files: list[Path]) -> None:
    """Deletes files. Blocking."""
    for file in files:
        file.unlink(missing_ok=True)


def _concatenate(path: Path, base: HostSnapshot | None, base_bytes: int, tail: Path | None, size: int) -> None:
    """Writes the first `base_bytes` bytes of `base` and the bytes [base_bytes, size) of `tail` into one file. Blocking.
    Checks the base while it copies it; `tail`, which the run wrote itself, has no checksums yet. Raises OSError, and
    SnapshotRefused for a damaged base."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
        if base is not None:
            assert base.manifest is not None
            for chunk in checked_chunks(base.path, base.manifest, base_bytes):
                target.write(chunk)
            target.flush()
        if tail is None:
            return
        with tail.open("rb", buffering=0) as source:
            at = base_bytes
            while at < size:
                done = os.sendfile(target.fileno(), source.fileno(), at, min(_COPY_BYTES, size - at))
                if not done:
                    raise OSError(f"{tail.name} is shorter than it was")
                at += done
