"""What two ledgers share, and which KV a source copies."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from actors.handoff.source import HandoffLimits, HandoffSource, common_prefix_length
from actors.handoff.target_gate import TargetGate
from actors.peer import frames as pf
from sessions.actor.actor import Phase
from sessions.model.generation import KVExport
from sessions.model.types import SessionId, SessionKey, TenantId, unpack_tokens
from tests.support.cluster.harness import cluster
from tests.support.virtual_time import advance, virtual

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


class Writing:
    """An actor of which only its answer matters: it has a token more at each look, `pace` of them."""

    def __init__(self, tokens: int, pace: int = 1) -> None:
        self.key, self.phase, self.is_generating, self.open = key(1), Phase.WARM, bool(pace), ("response",)
        self._tokens, self._pace = tokens, pace

    async def ledgers(self) -> list[array[int]]:
        self._tokens += self._pace
        return [array("I", range(self._tokens))]

    def leaves_soon(self) -> None:
        return


class Blocks:
    """A target that keeps whole blocks, and an engine that does."""

    number = 1

    def __init__(self, size: int) -> None:
        self.size = size
        self.info = SimpleNamespace(kv_block_tokens=size)
        self.ledger: array[int] = array("I")
        self.prefills = 0

    async def export_kv(self, key: SessionKey, ledger: array[int]) -> None:
        return

    def send(self, frame: pf.Frame) -> None:
        assert isinstance(frame, pf.HandoffPrefill)
        self.prefills += 1
        self.ledger = self.ledger[: frame.keep] + unpack_tokens(frame.tokens)

    async def receive(self) -> pf.Frame:
        return pf.HandoffReady(1, len(self.ledger) // self.size * self.size)


async def brought_up(blocks: Blocks, actor: Writing) -> int:
    """How many tokens of the answer readers would wait for."""
    async with cluster(replicas=1, gateways=0) as made:
        runtime = made.replicas["r1"].replica.runtime
        source = HandoffSource(runtime, blocks, None)  # type: ignore[arg-type]
        last = await source._bring_up(blocks, actor, TargetGate(2))  # type: ignore[arg-type]
        await source._await_block(blocks, actor, last)  # type: ignore[arg-type]
    return actor._tokens - len(blocks.ledger) // blocks.size * blocks.size


@virtual
async def test_an_answer_is_sealed_when_it_has_just_begun_a_block_that_the_target_has_all_before_of() -> None:
    for tokens in range(1_000, 1_032):
        blocks, actor = Blocks(32), Writing(tokens)
        assert await brought_up(blocks, actor) <= HandoffLimits().rest_tokens
        assert blocks.prefills <= 4


@virtual
async def test_an_answer_that_does_not_get_on_is_waited_for_so_long_and_no_longer() -> None:
    begun = asyncio.get_running_loop().time()
    blocks, actor = Blocks(32), Writing(1_020, pace=0)
    actor.is_generating = True
    await brought_up(blocks, actor)
    assert HandoffLimits().block_s <= asyncio.get_running_loop().time() - begun < HandoffLimits().block_s + 0.1


class Speaking:
    """An actor whose engine makes a token every `pace_s`."""

    def __init__(self, pace_s: float) -> None:
        self.open, self.is_generating, self.pace_s = ("response",), bool(pace_s), pace_s

    @property
    def generated(self) -> int:
        return int(asyncio.get_running_loop().time() / self.pace_s) if self.pace_s else 0


@virtual
async def test_an_answer_is_sealed_when_its_engine_has_just_made_a_token() -> None:
    limits, loop = HandoffLimits(), asyncio.get_running_loop()
    async with cluster(replicas=1, gateways=0) as made:
        source = HandoffSource(made.replicas["r1"].replica.runtime, None, None)  # type: ignore[arg-type]
        for pace_s, least_s, most_s in (
            (0.1, 0.0, 0.1 + limits.token_look_s),
            (60.0, limits.token_s - limits.token_look_s, limits.token_s + limits.token_look_s),  # not waited for longer
            (0.0, 0.0, 0.0),  # nothing is being written
        ):
            await advance(0.033)
            begun = loop.time()
            await source._await_token(Speaking(pace_s))  # type: ignore[arg-type]
            assert least_s - 1e-6 <= loop.time() - begun <= most_s + 1e-6
            if pace_s == 0.1:
                assert loop.time() % pace_s <= limits.token_look_s + 1e-6


class SealedActor:
    """An actor whose seal is cut off."""

    key, fence, phase = key(1), 1, Phase.WARM

    def __init__(self) -> None:
        self.going_on = False

    async def seal(self) -> None:
        await asyncio.Event().wait()

    def unseal(self) -> None:
        self.going_on = True


class SlowOwnership:
    """An ownership that is confirmed only once `answer` is set."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()

    def owner(self, key: SessionKey) -> str:
        return "r1"

    async def confirm(self, key: SessionKey, fence: int) -> bool:
        await self.answer.wait()
        return True

    async def reclaim_one(self, key: SessionKey) -> None: ...


@virtual
async def test_closing_waits_until_it_is_known_who_owns_a_session_whose_hand_off_was_cut_off() -> None:
    ownership, actor = SlowOwnership(), SealedActor()
    runtime = SimpleNamespace(ownership=ownership, metrics=None)
    source = HandoffSource(runtime, None, None)  # type: ignore[arg-type]
    switch = asyncio.create_task(source._switch(None, actor, between_turns=False))  # type: ignore[arg-type]
    for _ in range(2):  # the second time while the journal is being asked
        await advance(0.1)
        switch.cancel()
    await advance(0.1)
    assert switch.cancelled()
    closing = asyncio.create_task(source.close())
    await advance(0.1)
    assert not closing.done() and not actor.going_on
    ownership.answer.set()
    await advance(0.1)
    assert closing.done() and actor.going_on
