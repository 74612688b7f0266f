"""Any history, played on every journal, reads the same everywhere, and as `JournalModel` says.

A history is a list of small operations on a few sessions of two tenants, many of them wrong on purpose: stale fences,
wrong tops, ids that come again. Each outcome is compared, errors by their class, and at the end everything that can
be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sessions.billing.metering import UsageQuery
from sessions.model.errors import SessileError
from sessions.model.journal_types import Append, Due, Snapshot
from sessions.model.types import CommandId, Epoch, SessionId, SessionKey, TenantId, UnixMs
from sessions.store import Store
from tests.support.stores.journal_model import JournalModel
from tests.support.stores.journals import KINDS, NOW, a_bed, a_command, a_usage, deltas, patch, purge

BESIDE = (*("open", "closed", "command", "usage", "snapshot") * 3, "deleted", "unlisted")  # the last two end a story
SESSIONS = ("b", "B", "é")
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # each example syncs a disk: shrinking one would take minutes
_examples = count()


class Op(msgspec.Struct, frozen=True):
    """One call. `fence` and `top` are how far off the truth the caller is; 0 is right."""

    call: str
    session: str
    tenant: int
    fence: int = 0
    top: int = 0
    count: int = 0
    number: int = 0
    beside: frozenset[str] = frozenset()


ops = st.builds(
    Op,
    call=st.sampled_from(["purge", "grant", *["append"] * 12, *["read", "load", "list"] * 2]),
    session=st.sampled_from(SESSIONS),
    tenant=st.sampled_from([0, 0, 0, 1]),
    fence=st.sampled_from([*[0] * 8, -1, 1]),
    top=st.sampled_from([*[0] * 8, -1, 1]),
    count=st.integers(0, 4),
    number=st.integers(0, 3),
    beside=st.frozensets(st.sampled_from(BESIDE), max_size=4),
)


class Player:
    """Plays a history on one journal and writes down what came of it."""

    def __init__(self, journal: Any, usage: Any, example: int) -> None:
        self.journal, self.usage = journal, usage
        self.tenants = [TenantId(f"tenant-{example}-{n}") for n in range(2)]
        self.now = UnixMs(NOW)

    async def play(self, history: list[Op]) -> list[object]:
        outcomes = []
        for op in history:
            self.now = UnixMs(self.now + op.number)  # often the same moment: order must not hang on it
            outcomes.append(await self._outcome(self._call(op)))
        for tenant in self.tenants:
            for session in SESSIONS:
                at = SessionKey(tenant, SessionId(session))
                outcomes.append(self._plain(await self.journal.head(at)))
                outcomes.append(self._plain(await self.journal.load(at, now_ms=self.now)))
                for number in range(4):
                    outcomes.append(await self.journal.find_command(at, "k1", CommandId(f"c{number:05}")))
            outcomes.append(self._plain(await self.journal.list_heads(tenant, user=None, limit=9, after=None)))
            outcomes.append(self._plain(await self.journal.list_heads(tenant, user="u1", limit=9, after=None)))
            entries = await self.usage.entries(UsageQuery(tenant=tenant), after=0, limit=99)
            outcomes.append(sorted((entry.row for entry in entries), key=lambda row: row.response_id))
            first = SessionKey(tenant, SessionId(" "))
            open_heads = await self.journal.open_heads(limit=99, after=first)
            outcomes.append(self._plain([head for head in open_heads if head.key.tenant == tenant]))
        return outcomes

    async def _outcome(self, call: Awaitable[Any]) -> object:
        try:
            return self._plain(await call)
        except SessileError as exc:
            return type(exc).__name__

    async def _call(self, op: Op) -> Any:
        journal = self.journal
        at = SessionKey(self.tenants[op.tenant], SessionId(op.session))
        head = await journal.head(at)
        match op.call:
            case "grant":
                expected = None if head is None else head.fence + op.fence
                return await journal.grant(
                    at, expected_fence=expected, owner=f"o{op.number}", new_epoch=Epoch("e"), now_ms=self.now
                )
            case "append":
                if head is None and not op.fence:
                    head = await journal.grant(
                        at, expected_fence=None, owner="o", new_epoch=Epoch("e"), now_ms=self.now
                    )
                fence, top = (head.fence, head.top) if head else (1, 0)
                return await journal.append(self._append(op, at, fence + op.fence, max(0, top + op.top)))
            case "read":
                return await journal.read(at, after=op.count, limit=op.number + 1, bytes_max=200 * op.number + 1)
            case "load":
                return await journal.load(at, now_ms=self.now)
            case "list":
                after = at if op.number else None
                return await journal.list_heads(at.tenant, user=None, limit=op.count + 1, after=after)
            case _:
                before = UnixMs(self.now - 4 * op.number)
                purged = await purge(journal, Due(deleted_before=before), commands_before=before, limit=1000)
                return sorted(key for key in purged if key.tenant in self.tenants)

    def _append(self, op: Op, at: SessionKey, fence: int, top: int) -> Append:
        beside = op.beside
        head = None
        if beside & {"open", "closed", "deleted", "unlisted"}:
            head = patch(
                open="open" in beside,
                user=f"u{op.number}" if op.number else None,
                title=f"title {op.number}",
                metadata={"n": op.number},
                listed="unlisted" not in beside,
                deleted_at=self.now if "deleted" in beside else None,
            )
        commands = (a_command(op.number, at=self.now),) if "command" in beside else ()
        usage = (a_usage(f"r{op.number}", at=self.now, tenant=at.tenant),) if "usage" in beside else ()
        snapshot = Snapshot(top + op.count, bytes([op.number]) * 9) if "snapshot" in beside else None
        return Append(
            key=at,
            fence=fence,
            top=top,
            records=deltas(top, op.count),
            commands=commands,
            head=head,
            usage=usage,
            snapshot=snapshot,
            at=self.now,
        )

    def _plain(self, value: Any) -> Any:
        """Without the name of the incarnation, which is each store's own."""
        plain = msgspec.to_builtins(value)
        text: str = msgspec.json.encode(plain, order="sorted").decode()
        return text.replace(self.journal.incarnation, "INCARNATION")


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[asyncio.Runner, Store]]:
    """An event loop with a store open on it, for all examples of a test."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def open_it() -> Store:
            bed = await stack.enter_async_context(a_bed(request.param, tmp_path))
            store = await bed.open()
            stack.push_async_callback(store.close)
            return store

        yield runner, runner.run(open_it())
        runner.run(stack.aclose())


@settings(
    phases=PHASES, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(history=st.lists(ops, min_size=5, max_size=40))
def test_every_journal_has_the_same_history(opened: tuple[asyncio.Runner, Store], history: list[Op]) -> None:
    (runner, store), model = opened, JournalModel()
    example = next(_examples)

    async def play() -> tuple[list[object], list[object]]:
        expected = await Player(model, model, example).play(history)
        return expected, await Player(store.journal, store.usage, example).play(history)

    for number, (expected, found) in enumerate(zip(*runner.run(play()), strict=True)):
        if found != expected:  # a plain comparison of such long lists takes minutes to be shown
            pytest.fail(f"outcome {number} differs:\n  model {expected}\n  found {found}")
