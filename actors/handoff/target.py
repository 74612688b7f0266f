"""Takes sessions in from other replicas: room is reserved, KV comes in while the source decodes, then the session.

    Reserve ─► Reserved        (or Abort: draining, full)
    KVSnapshotChunk …  ─► KVSnapshotCredit …, HandoffReady        the KV snapshot, verified by the engine; Ready 0 means
    refused HandoffPrefill    ─► HandoffReady                      KV computed here instead, or beyond the snapshot
    Sealed            ─► SessionTaken | Abort              claim instead of the source, the journal's next fence, go on

Invariants: nothing of the session starts before `Sealed` has come and the journal has granted the fence; KV that came
in is a cache and may be used or lost (I6). When the link ends, what was reserved is dropped. A session that was already
being taken is still taken completely, and the source learns of it from the journal.

Bounds: `arrivals_max` sessions on their way here at the same time; `chunk_bytes` of KV under way for each.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

import structlog

from actors.hosting.ownership import Moved
from actors.hosting.runtime import Runtime
from actors.peer import frames as pf
from sessions.model.errors import SessileError
from sessions.model.types import SessionKey, unpack_tokens
from sessions.ports import Engine

log = structlog.get_logger(__name__)

ENGINE_WAIT_S: Final = 1.0  # for answers to have their turn before KV is computed ahead
ENGINE_LOOK_S: Final = 0.01

Post = Callable[[pf.Frame], int]
Spawn = Callable[[Coroutine[Any, Any, None]], None]


class HandoffTarget:
    """Takes in the sessions that are handed off to a replica."""

    def __init__(self, runtime: Runtime, engine: Engine, *, arrivals_max: int = 64) -> None:
        self.runtime = runtime
        self.engine = engine
        self.arrivals_max = arrivals_max
        self.arriving: dict[SessionKey, IncomingHandoff] = {}
        self.taken = 0

    def open_session(self, post: Post, spawn: Spawn) -> HandoffTargetSession:
        return HandoffTargetSession(self, post, spawn)


class IncomingHandoff:
    """A session that is being handed off to this replica."""

    def __init__(self, number: int, key: SessionKey) -> None:
        self.number = number
        self.key = key
        self.ledger: array[int] = array("I")
        self.chunks: asyncio.Queue[bytes] | None = None  # bounded, because the source may send only so much ahead
        self.sealed = False
        self.busy = False  # while KV is brought up; one thing at a time
        self.work: asyncio.Task[None] | None = None


class HandoffTargetSession:
    """The incoming hand-offs of one link."""

    def __init__(self, target: HandoffTarget, post: Post, spawn: Spawn) -> None:
        self._target = target
        self._post = post
        self._spawn = spawn
        self._arrivals: dict[int, IncomingHandoff] = {}

    def receive(self, frame: pf.Frame) -> None:
        """Takes a frame of a hand-off. Raises ValueError for a frame that does not fit the state of its hand-off."""
        if isinstance(frame, pf.Reserve):
            self._reserve(frame)
            return
        assert isinstance(frame, pf.KVSnapshotChunk | pf.HandoffPrefill | pf.Sealed | pf.Abort)
        arrival = self._arrivals.get(frame.handoff)
        if arrival is None:
            return  # refused or given up before this came
        match frame:
            case pf.KVSnapshotChunk():
                self._chunk(arrival, frame.data)
            case pf.HandoffPrefill():
                if frame.keep > len(arrival.ledger):
                    raise ValueError("Prefill: keeps more than there is")
                arrival.ledger = arrival.ledger[: frame.keep] + unpack_tokens(frame.tokens)
                self._begin(arrival, lambda: self._prefill(arrival))
            case pf.Sealed():
                arrival.sealed = True
                self._spawn(self._take(arrival, frame))
            case pf.Abort():
                self._drop(arrival)

    def close(self) -> None:
        """Drops what was reserved, because the link has ended. Sessions that were sealed are still taken."""
        for arrival in list(self._arrivals.values()):
            if not arrival.sealed:
                self._drop(arrival)

    # -- room ------------------------------------------------------------------------------------------------------

    def _reserve(self, frame: pf.Reserve) -> None:
        target = self._target
        reason = None
        if target.runtime.draining:
            reason = "draining"
        elif frame.key in target.arriving:
            reason = "on its way already"
        elif len(target.arriving) >= target.arrivals_max:
            reason = "too many at the same time"
        elif frame.tokens >= target.engine.info.context_window:
            reason = "does not fit the context window"
        if reason is not None:
            self._post(pf.Abort(frame.handoff, reason))
            return
        arrival = IncomingHandoff(frame.handoff, frame.key)
        self._arrivals[frame.handoff] = target.arriving[frame.key] = arrival
        self._post(pf.Reserved(frame.handoff))

    def _drop(self, arrival: IncomingHandoff) -> None:
        """Frees the room that was reserved for a session, once it has come or will not come."""
        self._arrivals.pop(arrival.number, None)
        if self._target.arriving.get(arrival.key) is arrival:
            del self._target.arriving[arrival.key]
        if arrival.work is not None:
            arrival.work.cancel()

    # -- KV --------------------------------------------------------------------------------------------------------

    def _begin(self, arrival: IncomingHandoff, work: Callable[[], Coroutine[Any, Any, int]]) -> None:
        if arrival.busy:
            raise ValueError("one question at a time")
        arrival.busy = True

        async def answer() -> None:
            if self._arrivals.get(arrival.number) is not arrival:
                return  # dropped before this began
            arrival.work = asyncio.current_task()
            tokens = 0
            try:
                tokens = await work()
            except Exception as error:  # noqa: BLE001 - KV is a cache: what an engine does here costs tokens at most
                log.warning(
                    "kv_import_failed", session=arrival.key.session, tenant=arrival.key.tenant, error=repr(error)
                )
            arrival.work, arrival.busy = None, False
            self._post(pf.HandoffReady(arrival.number, tokens))

        self._spawn(answer())

    def _chunk(self, arrival: IncomingHandoff, data: bytes) -> None:
        if arrival.chunks is None:
            chunks = arrival.chunks = asyncio.Queue()
            self._begin(arrival, lambda: self._import(arrival, chunks))
        arrival.chunks.put_nowait(data)

    async def _import(self, arrival: IncomingHandoff, chunks: asyncio.Queue[bytes]) -> int:
        """Feeds a KV snapshot to the engine, and reads past what the engine does not take. Returns how many tokens the
        engine then has KV for. Raises what the engine raises."""
        ended = False

        async def arriving() -> AsyncIterator[bytes]:
            nonlocal ended
            while data := await chunks.get():
                self._post(pf.KVSnapshotCredit(arrival.number, len(data)))
                yield data
            ended = True

        stream, failed, tokens = arriving(), None, 0
        try:
            tokens = await self._target.engine.import_kv(arrival.key, stream)
        except Exception as error:  # noqa: BLE001 - reported below, once the rest has come
            failed = error
        await stream.aclose()  # type: ignore[attr-defined]
        while not ended and (data := await chunks.get()):
            self._post(pf.KVSnapshotCredit(arrival.number, len(data)))
        arrival.chunks = None  # another snapshot may follow
        if failed is not None:
            raise failed
        return tokens

    async def _prefill(self, arrival: IncomingHandoff) -> int:
        """Computes KV ahead and returns how many leading tokens of the ledger then have it. If answers still wait for
        the engine after some moments, nothing is computed. Answers that wait only for the engine's next step do not
        prevent it."""
        engine = self._target.engine
        for _ in range(round(ENGINE_WAIT_S / ENGINE_LOOK_S)):
            if engine.stats().waiting == 0:
                await engine.warm(arrival.key, arrival.ledger)
                break
            await asyncio.sleep(ENGINE_LOOK_S)
        return min(engine.place(arrival.key).tokens, len(arrival.ledger))

    # -- the session -------------------------------------------------------------------------------------------------

    async def _take(self, arrival: IncomingHandoff, sealed: pf.Sealed) -> None:
        """Claims a sealed session, is granted and loads it, and goes on with it. Answers the source with `SessionTaken`
        or `Abort`."""
        try:
            owner = await self._target.runtime.adopt(arrival.key, sealed.owner)
            self._target.taken += 1
            self._post(pf.SessionTaken(arrival.number, owner))
        except Moved as moved:
            self._post(pf.Abort(arrival.number, f"held by {moved.owner}"))
        except SessileError as error:
            log.warning("adoption_failed", session=arrival.key.session, tenant=arrival.key.tenant, error=str(error))
            self._post(pf.Abort(arrival.number, error.code))
        finally:
            self._drop(arrival)
