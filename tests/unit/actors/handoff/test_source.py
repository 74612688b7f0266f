"""What two ledgers share, and which KV a source copies."""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator

from hypothesis import given
from hypothesis import strategies as st

from actors.handoff.source import HandoffSource, common_prefix_length
from actors.peer import frames as pf
from sessions.model.generation import KVExport
from sessions.model.types import SessionId, SessionKey, TenantId
from tests.support.cluster.harness import cluster
from tests.support.virtual_time import virtual

ledgers = st.lists(st.integers(0, 2), max_size=40).map(lambda tokens: array("I", tokens))


@given(ledgers, ledgers, ledgers)
def test_what_ledgers_share_is_their_longest_common_beginning(
    start: array[int], one: array[int], other: array[int]
) -> None:
    one, other = start + one, start + other
    shared = common_prefix_length(one, other)
    assert one[:shared] == other[:shared]
    assert shared in (len(one), len(other)) or one[shared] != other[shared]


def key(number: int) -> SessionKey:
    return SessionKey(TenantId("acme"), SessionId(f"s{number}"))


class Exports:
    """An engine of which only what it exports matters."""

    def __init__(self, *ledgers: list[int]) -> None:
        self.left = [array("I", ledger) for ledger in ledgers]
        self.closed = 0

    async def export_kv(self, key: SessionKey, ledger: array[int]) -> KVExport | None:
        async def chunks() -> AsyncGenerator[bytes, None]:
            try:
                yield b"snapshot"
            finally:
                self.closed += 1

        return KVExport(self.left.pop(0), chunks()) if self.left else None


class Taker:
    """A target that takes whatever is sent."""

    number = 1

    def __init__(self, tokens: int) -> None:
        self.sent, self._tokens = 0, tokens

    def send(self, frame: pf.Frame) -> None:
        assert isinstance(frame, pf.KVSnapshotChunk)
        self.sent += not frame.data

    async def receive(self) -> pf.Frame:
        return pf.HandoffReady(1, self._tokens)


@virtual
async def test_kv_is_copied_where_at_least_half_of_it_is_of_use() -> None:
    ledger = array("I", range(100))
    other = list(range(50, 150))
    cases: list[tuple[list[int], list[array[int]], bool]] = [
        (list(range(90)), [], True),
        ([*range(40), *other[:30]], [], True),
        ([*range(40), *other], [], False),  # another branch's
        (list(range(90)), [array("I", range(90))], False),  # it has it
        (list(range(90)), [array("I", range(40))], True),
        (list(range(90)), [array("I", range(80))], False),  # it will have computed that sooner
        (other, [], False),
    ]
    async with cluster(replicas=1, gateways=0) as made:
        for exported, told, wanted in cases:
            engine, talk = Exports(exported), Taker(len(exported))
            migration = HandoffSource(made.replicas["r1"].replica.runtime, engine, None)  # type: ignore[arg-type]
            before = len(told)
            await migration._copy(talk, key(1), ledger, told)  # type: ignore[arg-type]
            assert talk.sent == len(told) - before == wanted
            assert not wanted or (told[-1] == array("I", exported) and engine.closed == 1)
