"""Hands sessions off to another replica, idle or in mid-answer: the source's side.

    reserve ─► bring KV up at the target, while the session goes on here ─► seal at a token boundary
            ─► the target claims, is granted the next fence, goes on at offset + 1 ─► it leaves here

KV that the engine has outside the device, or can bring there during a run, is copied in the snapshot format: an engine
with block access can do so with nearly all KV of a session in mid-answer, one without only with what was there before
the turn. The target prefills from the ledger what the copy lacks, in rounds: while it prefills, the source decodes
further, so each round has only what was written during the one before (pre-copy, as in the live migration of virtual
machines: Clark et al., 2005). When the rest is a few tokens, or stops shrinking, the session is sealed, and that rest
is all that its readers wait for. Where an engine reuses whole blocks, an answer is sealed when it has just begun one:
else up to a block of tokens that the target has seen before would be computed while readers wait.

Sessions that leave together are brought up together and switched few at a time: a switch is a dozen small steps of
three processes, and sealed all at once each would wait for the steps of all, and for the long prompts that the target
computes for the next (`actors.handoff.target_gate`). A session that waits for its switch goes on here.

Commands that come during the seal wait in the actor, bounded, and are answered by the owner of the session afterwards.

A hand-off may fail at any point and leaves exactly one owner. Before the seal: it goes on here. After: the journal
decides whose fence stands. Ours: it goes on here, and a target that is merely slow takes it from us by its grant, which
is as good. Not ours: it has moved. While the journal does not answer, going on is safe, because nothing is shown
without it.
"""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections.abc import AsyncGenerator
from weakref import WeakValueDictionary

import msgspec
import structlog

from actors.handoff.target_gate import TargetGate
from actors.hosting.runtime import Runtime
from actors.peer import frames as pf
from actors.peer.links import HandoffChannel, LinkDown, Links, PeerLink
from sessions.actor.actor import Actor, Phase
from sessions.model.errors import BadInput, SessileError, Unavailable
from sessions.model.types import ReplicaId, SessionKey, pack_tokens
from sessions.ports import Engine, Member, Owner

log = structlog.get_logger(__name__)


class HandoffLimits(msgspec.Struct, frozen=True):
    reserve_s: float = 5.0
    kv_s: float = 60.0  # for copying, and for prefilling; after that the session stays
    take_s: float = 5.0  # from the seal until the target has taken the session
    chunk_bytes: int = 8 << 20  # of KV under way
    near_tokens: int = 128  # a rest so small that the target will soon load the log
    rest_tokens: int = 4  # a rest so small that the session is sealed: readers wait for its prefill
    rounds_max: int = 8
    block_s: float = 3.0  # how long to wait for an answer to begin its next block
    look_s: float = 0.02  # how often that is looked at
    token_s: float = 0.25  # how long to wait for a token just before the seal
    token_look_s: float = 0.004  # how often that is looked at
    at_once: int = 8  # sessions that leave at the same time
    switches_at_once: int = 2  # of these, for one target, from the seal until it has taken them


class HandoffAbandoned(Exception):
    """Raised, with the reason, if a session was not handed off. The session goes on here, at the source."""


class HandoffSource:
    """Hands off the sessions of one replica."""

    def __init__(self, runtime: Runtime, engine: Engine, links: Links, *, limits: HandoffLimits | None = None) -> None:
        self.limits = limits or HandoffLimits()
        self.handed_off = 0
        self._runtime = runtime
        self._engine = engine
        self._links = links
        self._measures = runtime.metrics
        self._leaving: dict[SessionKey, None] = {}
        self._resolving: set[asyncio.Task[None]] = set()  # of hand-offs that failed behind the seal
        self._slots = asyncio.Semaphore(self.limits.at_once)
        self._gates: WeakValueDictionary[ReplicaId, TargetGate] = WeakValueDictionary()

    async def close(self) -> None:
        """Waits until it is known who owns the sessions whose hand-offs were cut off. Called once no hand-off runs."""
        while self._resolving:
            await asyncio.wait(self._resolving)

    def leaving(self, key: SessionKey) -> bool:
        """Returns whether the session is being handed off."""
        return key in self._leaving

    async def hand_off(self, key: SessionKey, target: Member, *, between_turns: bool = False) -> Owner:
        """Hands a session off to `target` and returns its new owner. With `between_turns` it fails if a turn is open.
        KV is not sent to a replica of another model. Raises HandoffAbandoned if the session stays here, Unavailable if
        another replica than the target has taken it meanwhile."""
        if key in self._leaving:
            raise HandoffAbandoned("it is leaving already")
        self._leaving[key] = None
        outcome, begun_at = "failed", asyncio.get_running_loop().time()
        try:
            async with self._slots:
                owner = await self._hand_off(key, target, between_turns)
            outcome = "moved"
            return owner
        except LinkDown as down:
            outcome = "stayed"
            raise HandoffAbandoned(f"{target.replica}: {down}") from down
        except HandoffAbandoned:
            outcome = "stayed"
            raise
        finally:
            del self._leaving[key]
            self._measures.handoffs.add(outcome)
            self._measures.handoff_s.of("whole").observe(asyncio.get_running_loop().time() - begun_at)

    async def _hand_off(self, key: SessionKey, target: Member, between_turns: bool) -> Owner:
        actor = self._runtime.actor(key)
        if actor is None or actor.phase is not Phase.WARM:
            raise HandoffAbandoned("it is not here")
        link: PeerLink = await self._links.get(target)
        gate = self._gates.get(target.replica)
        if gate is None:
            gate = self._gates[target.replica] = TargetGate(self.limits.switches_at_once)
        with link.open_handoff() as channel:
            try:
                if target.model == self._engine.info.model:
                    await self._reserve(channel, actor)
                    last = await self._bring_up(channel, actor, gate)
                    await self._await_block(channel, actor, last)
                    async with gate.switch():
                        await self._bring_rest(channel, actor, last)
                        await self._await_token(actor)
                        owner = await self._switch(channel, actor, between_turns)
                else:
                    channel.send(pf.Reserve(channel.number, key, 0))
                    await self._receive(channel, self.limits.reserve_s)
                    owner = await self._switch(channel, actor, between_turns)
            except BaseException:  # whatever it was: the target is not to wait for the session
                channel.give_up("given up")
                raise
        self.handed_off += 1
        await self._engine.park(key)
        return owner

    async def _receive(self, channel: HandoffChannel, seconds: float) -> pf.HandoffAnswer:
        """Returns the target's next answer. Raises HandoffAbandoned if it gives up, or does not answer within
        `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                answer = await channel.receive()
        except TimeoutError:
            raise HandoffAbandoned("the target does not answer") from None
        if isinstance(answer, pf.Abort):
            raise HandoffAbandoned(f"the target does not take it: {answer.reason}")
        return answer

    # -- before the seal ---------------------------------------------------------------------------------------------

    async def _reserve(self, channel: HandoffChannel, actor: Actor) -> None:
        longest = max((len(ledger) for ledger in await _ledgers(actor)), default=0)
        channel.send(pf.Reserve(channel.number, actor.key, longest))
        await self._receive(channel, self.limits.reserve_s)

    async def _bring_up(self, channel: HandoffChannel, actor: Actor, gate: TargetGate) -> array[int]:
        """Has the target get KV for nearly all of the session's ledgers. Returns the ledger for which the target
        computed KV last, empty if for none."""
        covered: list[array[int]] = []
        for ledger in await _ledgers(actor):
            await self._copy(channel, actor.key, ledger, covered)
        rest_before, near = -1, False
        last: array[int] = array("I")
        before: list[array[int]] = []  # the ledgers of the last round
        for _ in range(self.limits.rounds_max):
            ledgers = await _ledgers(actor)
            rests = [len(ledger) - covered_prefix_length(ledger, covered) for ledger in ledgers]
            rest = sum(rests)
            if rest <= self.limits.rest_tokens or 0 <= rest_before <= rest or ledgers == before:
                return last
            before = ledgers
            if rest <= self.limits.near_tokens and not near:
                near = True
                actor.leaves_soon()
            rest_before = rest
            for ledger, missing in zip(ledgers, rests, strict=True):
                if missing:
                    long = missing > self.limits.near_tokens
                    async with gate.compute() if long else contextlib.nullcontext():
                        covered.append(ledger[: await self._prefill(channel, ledger, last)])
                    last = ledger
            if actor.phase is not Phase.WARM:
                raise HandoffAbandoned("it left by itself")
        return last

    async def _prefill(self, channel: HandoffChannel, ledger: array[int], last: array[int]) -> int:
        """Has the target compute the KV of `ledger`, of which only the tokens that differ from `last`, the ledger sent
        before, are sent. Returns for how many leading tokens the target then has KV; 0 if it does not say."""
        keep = common_prefix_length(last, ledger)
        channel.send(pf.HandoffPrefill(channel.number, keep, pack_tokens(ledger[keep:])))
        answer = await self._receive(channel, self.limits.kv_s)
        return answer.tokens if isinstance(answer, pf.HandoffReady) else 0

    async def _await_block(self, channel: HandoffChannel, actor: Actor, last: array[int]) -> None:
        """Waits until the answer has just begun a KV block and has the target compute everything before that block, or
        gives up after `block_s`. Returns at once unless exactly one answer is being written."""
        block, loop = self._engine.info.kv_block_tokens, asyncio.get_running_loop()
        if block <= self.limits.rest_tokens or not actor.is_generating:
            return
        until = loop.time() + self.limits.block_s
        while loop.time() < until and actor.phase is Phase.WARM and len(actor.open) == 1:
            (ledger,) = await _ledgers(actor) or [last]
            if len(ledger) % block <= self.limits.rest_tokens:
                if len(ledger) // block > len(last) // block:
                    await self._prefill(channel, ledger, last)
                return
            await asyncio.sleep(self.limits.look_s)

    async def _bring_rest(self, channel: HandoffChannel, actor: Actor, last: array[int]) -> None:
        """Has the target compute what was written while the session waited for its switch, if that is more than
        `rest_tokens`. Does nothing for an engine whose blocks are larger than that (`_await_block` is for those)."""
        if self._engine.info.kv_block_tokens > self.limits.rest_tokens or not actor.is_generating:
            return
        if actor.phase is not Phase.WARM:
            raise HandoffAbandoned("it left by itself")
        ledgers = await _ledgers(actor)
        if len(ledgers) == 1 and len(ledgers[0]) - common_prefix_length(ledgers[0], last) > self.limits.rest_tokens:
            await self._prefill(channel, ledgers[0], last)

    async def _await_token(self, actor: Actor) -> None:
        """Waits until the engine has just made a token. The token that is computed during the seal is thrown away, and
        at this moment the least work has gone into it."""
        before = actor.generated
        for _ in range(round(self.limits.token_s / self.limits.token_look_s)):
            if not actor.is_generating or len(actor.open) != 1 or actor.generated != before:
                return
            await asyncio.sleep(self.limits.token_look_s)

    async def _copy(
        self, channel: HandoffChannel, key: SessionKey, ledger: array[int], covered: list[array[int]]
    ) -> None:
        """Sends the KV that this replica has of a ledger, if it covers more of it than the ledgers in `covered`, which
        the target has. Adds what the target then has to `covered`."""
        try:
            async with asyncio.timeout(self.limits.kv_s):
                export = await self._engine.export_kv(key, ledger)
        except Exception:  # KV is a cache: what an engine does here costs tokens at most
            log.exception("kv_export_failed", session=key.session, tenant=key.tenant)
            return
        if export is None:
            return
        async with contextlib.aclosing(export.chunks) as chunks:
            gain = common_prefix_length(ledger, export.ledger) - covered_prefix_length(ledger, covered)
            if gain > 0 and 2 * gain >= len(export.ledger):  # else it is another branch's, and most of it of no use
                tokens = await self._send(channel, key, chunks)
                covered.append(export.ledger[:tokens])

    async def _send(self, channel: HandoffChannel, key: SessionKey, chunks: AsyncGenerator[bytes, None]) -> int:
        """Sends a KV snapshot; returns how many of its leading tokens the target has taken."""
        under_way, sent = 0, False
        async with contextlib.aclosing(_log_export_errors(chunks, key)) as whole:
            async for chunk in whole:
                while under_way and under_way + len(chunk) > self.limits.chunk_bytes:
                    answer = await self._receive(channel, self.limits.kv_s)
                    if isinstance(answer, pf.KVSnapshotCredit):
                        under_way -= answer.num_bytes
                if chunk:
                    channel.send(pf.KVSnapshotChunk(channel.number, chunk))
                    under_way, sent = under_way + len(chunk), True
        if not sent:
            return 0
        channel.send(pf.KVSnapshotChunk(channel.number, b""))
        while True:
            answer = await self._receive(channel, self.limits.kv_s)
            if isinstance(answer, pf.HandoffReady):
                return answer.tokens

    # -- the seal and after ------------------------------------------------------------------------------------------

    async def _switch(self, channel: HandoffChannel, actor: Actor, between_turns: bool) -> Owner:
        """Seals the session, and returns who owns it then. Cancelling the call leaves it with exactly one owner,
        too."""
        owner = self._runtime.ownership.owner(actor.key) if actor.phase is Phase.WARM else None
        if owner is None:
            raise HandoffAbandoned("it left by itself")
        sealed_at = asyncio.get_running_loop().time()
        try:
            await actor.seal()
            if actor.phase is not Phase.SEALED:
                raise HandoffAbandoned("it left by itself")
            if between_turns and actor.in_turn:
                raise HandoffAbandoned("a turn has begun")
            channel.send(pf.Sealed(channel.number, owner, actor.epoch, actor.top))
            answer = await self._receive(channel, self.limits.take_s)
            assert isinstance(answer, pf.SessionTaken)
        except BaseException as error:
            resolving = asyncio.create_task(self._resolve(actor))
            self._resolving.add(resolving)
            resolving.add_done_callback(self._resolving.discard)
            await asyncio.shield(resolving)
            if isinstance(error, HandoffAbandoned | LinkDown) and self._runtime.actor(actor.key) is not actor:
                raise Unavailable("session_moving", "The session went to another replica.") from error
            raise
        self._measures.handoff_s.of("seal").observe(asyncio.get_running_loop().time() - sealed_at)
        self._runtime.hand_over(actor.key, answer.owner)
        return answer.owner

    async def _resolve(self, actor: Actor) -> None:
        """Asks the journal who owns a session that the target has not taken. If we do, the session goes on here; if
        not, its actor ends."""
        try:
            ours = await self._runtime.ownership.confirm(actor.key, actor.fence)
        except SessileError as error:
            log.warning("handoff_unresolved", session=actor.key.session, tenant=actor.key.tenant, error=str(error))
            ours = True
        if ours:
            await self._runtime.ownership.reclaim_one(actor.key)
            actor.unseal()
        else:
            actor.lost()


async def _log_export_errors(chunks: AsyncGenerator[bytes, None], key: SessionKey) -> AsyncGenerator[bytes, None]:
    """Yields an engine's chunks, and ends where the engine fails, with the error in the log. The target then refuses
    the incomplete snapshot and computes the KV itself."""
    try:
        async for chunk in chunks:
            yield chunk
    except Exception:  # KV is a cache, as above
        log.exception("kv_export_failed", session=key.session, tenant=key.tenant)


async def _ledgers(actor: Actor) -> list[array[int]]:
    """Returns the ledgers whose KV the target should have; none for a turn that does not fit the context window."""
    try:
        return await actor.ledgers()
    except BadInput:  # a turn that does not fit the window fails by itself; there is no KV to bring up for it
        return []


def covered_prefix_length(ledger: array[int], covered: list[array[int]]) -> int:
    """Returns the length in tokens of the longest prefix that `ledger` shares with one of the ledgers in `covered`."""
    return max((common_prefix_length(ledger, other) for other in covered), default=0)


def common_prefix_length(one: array[int], other: array[int]) -> int:
    """Returns how many leading tokens two ledgers share. It compares slices and halves them, because ledgers have
    thousands of tokens."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
