"""Begins the turns of HTTP clients: finds the session, makes the command, acquires the reader, sends it.

Every request becomes one `turn.create` with an id of its own, or one that follows from its `Idempotency-Key`: then the
same key and body find the same session and the same answer, whether that is still being written or long done (I5).
Where a request with a key goes is decided once, for every gateway and over restarts, and the log is what remembers it:
the session that follows from the key either holds the turn, or was created by the very same command id as a note that
names the place: of a stateless request the one which the history index gave, of another the session that the request
names. Of two gateways that decide at once one is refused (`idempotency_conflict`) and reads what the other has written.

A place that the history index gave is given back when the turn did not begin; with a key it stays with the key, because
the same request may have been applied without our knowing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import msgspec
import structlog

from sessions.model import commands as cm
from sessions.model.errors import Conflict, Gone, NotFound, SessileError, Unavailable
from sessions.model.events import ResponseBody
from sessions.model.journal_types import ResponsePlace
from sessions.model.types import (
    CommandId,
    ItemId,
    Json,
    Principal,
    ResponseId,
    Sampling,
    SessionId,
    SessionKey,
    Tool,
    derived_session_id,
)
from transport.gateway import Gateway
from transport.http.headers import EventId
from transport.openai.chat_render import resendable_answer
from transport.openai.history import (
    HistoryIndex,
    HistoryMatch,
    HistoryPlace,
    Unit,
    chain_root,
    extend_chain_all,
    find_history,
)
from transport.openai.log_cursor import LogCursor
from transport.openai.resume import check, resume

RETRIES_MAX: Final = 20_000
PLACE: Final = "sessile.place"  # in the metadata of a note: session[, last item, messages that are there already]

log = structlog.get_logger(__name__)


class TurnInput(NamedTuple):
    """What a stateless request asks for."""

    model: str
    user: str | None
    instructions: str | None
    tools: tuple[Tool, ...]
    units: list[Unit]
    sampling: Sampling
    choices: int = 1
    metadata: Mapping[str, Json] = MappingProxyType({})
    request: Mapping[str, Json] = MappingProxyType({"store": False})


class StartedTurn(NamedTuple):
    """A turn that is in the log. Whoever has it closes the cursor; events of the responses come behind `after`."""

    cursor: LogCursor
    responses: tuple[ResponseId, ...]
    after: int
    chain: bytes  # of the history up to the answer


class _Retry:
    """What is known of an Idempotency-Key."""

    __slots__ = ("body", "found", "lock")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.lock = asyncio.Lock()
        self.found: HistoryMatch | None | bool = False  # False: not decided


class TurnStarter:
    """One for all HTTP doors of a gateway."""

    def __init__(self, gateway: Gateway, *, history: HistoryIndex, new_id: Callable[[], str]) -> None:
        self.gateway = gateway
        self.history = history
        self._new_id = new_id
        self._retries: OrderedDict[tuple[str, ...], _Retry] = OrderedDict()

    def command_id(self, principal: Principal, door: str, idempotency_key: str | None) -> CommandId:
        if idempotency_key is None:
            return CommandId(f"http_{self._new_id()}")
        digest = hashlib.sha256("\0".join((door, principal.tenant, principal.id, idempotency_key)).encode())
        return CommandId(f"idem_{digest.hexdigest()[:40]}")

    # -- stateless ------------------------------------------------------------------------------------------------

    async def begin(
        self,
        principal: Principal,
        door: str,
        wanted: TurnInput,
        body: bytes,
        key: str | None,
        seen: EventId | None = None,
    ) -> StartedTurn:
        """Begins the turn of a client that brings its whole history; or finds the one that its reader, who has `seen`
        some of it, comes back to. Raises SessileError."""
        start = chain_root(principal, wanted.user, wanted.model, wanted.tools, wanted.instructions)
        behind = extend_chain_all(start, wanted.units)
        if seen is not None and seen.response is not None:
            found = await resume(self.gateway, principal, seen, choices=wanted.choices)
            return StartedTurn(*found, behind[-1] if behind else start)
        begun = await self._begin_once(principal, door, wanted, body, key, behind, start)
        await self._check_seen(begun.cursor, begun.after, seen)
        return begun

    async def _begin_once(
        self,
        principal: Principal,
        door: str,
        wanted: TurnInput,
        body: bytes,
        key: str | None,
        behind: Sequence[bytes],
        start: bytes,
    ) -> StartedTurn:
        command_id = self.command_id(principal, door, key)
        if key is None:
            found = await self._find(behind, wanted.units)
            return await self._begin(principal, command_id, wanted, found, behind, start, give_back=True)
        retry = self._retry((door, principal.tenant, principal.id, key), hashlib.sha256(body).digest())
        async with retry.lock:
            if retry.found is False:
                retry.found = await self._recorded_match(principal, command_id, wanted, behind)
            assert not isinstance(retry.found, bool)
            try:
                return await self._begin(principal, command_id, wanted, retry.found, behind, start, give_back=False)
            except Conflict as error:
                noted = await self._noted(principal, command_id, behind) if retry.found is None else None
                if error.code != "idempotency_conflict" or not isinstance(noted, HistoryMatch):
                    raise
                retry.found = noted
                return await self._begin(principal, command_id, wanted, noted, behind, start, give_back=False)

    async def _recorded_match(
        self, principal: Principal, command_id: CommandId, wanted: TurnInput, behind: Sequence[bytes]
    ) -> HistoryMatch | None:
        """Where a request with a key goes: None for the session that follows from the key. Notes any other place."""
        noted = await self._noted(principal, command_id, behind)
        if not isinstance(noted, bool):
            return noted
        found = await self._find(behind, wanted.units)
        if found is None:
            return None
        try:
            await self._note(principal, command_id, [*found.place, found.units], wanted.model)
        except SessileError as error:
            await self._give_back(found)
            noted = await self._noted(principal, command_id, behind) if error.code == "idempotency_conflict" else False
            if isinstance(noted, bool):
                raise
            return noted
        return found

    async def bind(self, principal: Principal, turn: cm.TurnCreate) -> None:
        """Binds a key to the session that its turn goes to, where that does not follow from the key itself. Raises
        Conflict for a key that went elsewhere."""
        if turn.session != derived_session_id(principal, turn.id):
            await self._note(principal, turn.id, [turn.session])

    async def _note(
        self, principal: Principal, command_id: CommandId, place: list[Json], model: str | None = None
    ) -> None:
        """Notes a place in the session that follows from a key. The same note again is none."""
        note = cm.TurnCreate(
            id=command_id,
            session=derived_session_id(principal, command_id),
            create=cm.SessionSettings(model=model, metadata={PLACE: place}, listed=False),
            respond=False,
        )
        await self.gateway.execute(principal, note)

    async def _noted(
        self, principal: Principal, command_id: CommandId, behind: Sequence[bytes]
    ) -> HistoryMatch | None | Literal[False]:
        """What the log says of it; False: nothing yet. Raises Unavailable."""
        key = SessionKey(principal.tenant, derived_session_id(principal, command_id))
        try:
            _, state = await self.gateway.logs.state(principal, key)
        except (NotFound, Gone):
            return False
        match state["metadata"].get(PLACE):
            case [str(session), str(leaf), int(units)] if 0 < units <= len(behind):
                return HistoryMatch(HistoryPlace(SessionId(session), ItemId(leaf)), units, behind[units - 1])
        return None

    def _retry(self, name: tuple[str, ...], body: bytes) -> _Retry:
        retry = self._retries.get(name)
        if retry is None:
            retry = self._retries[name] = _Retry(body)
            if len(self._retries) > RETRIES_MAX:
                self._retries.popitem(last=False)
        if retry.body != body:
            raise Conflict(
                "idempotency_conflict", "This Idempotency-Key was used for another request.", param="idempotency_key"
            )
        return retry

    async def _find(self, behind: Sequence[bytes], units: Sequence[Unit]) -> HistoryMatch | None:
        """None too where the index is away, which it tells by itself."""
        try:
            return await find_history(self.history, behind, units)
        except Unavailable:
            return None

    async def _give_back(self, found: HistoryMatch) -> None:
        """Raises nothing for an index that is away: the next request of its client begins a session."""
        with suppress(Unavailable):
            await self.history.give_back(found.chain, found.place)

    async def _begin(
        self,
        principal: Principal,
        command_id: CommandId,
        wanted: TurnInput,
        found: HistoryMatch | None,
        behind: Sequence[bytes],
        start: bytes,
        *,
        give_back: bool,
    ) -> StartedTurn:
        chain = behind[-1] if behind else start
        if found is not None:
            try:
                return await self._send(principal, self._turn(command_id, wanted, found), wanted, chain)
            except SessileError as error:
                if not isinstance(error, NotFound | Gone) and error.code != "session_full":
                    if give_back:
                        await self._give_back(found)
                    raise
                log.info("place_is_gone", session=found.place.session, error=error.code)
            with suppress(Unavailable):
                await self.history.drop(found.chain, found.place)
            command_id = CommandId(f"{command_id}.anew")  # the session of the key itself may hold the note
        turn = self._turn(command_id, wanted, None, derived_session_id(principal, command_id))
        return await self._send(principal, turn, wanted, chain)

    def _turn(
        self, command_id: CommandId, wanted: TurnInput, found: HistoryMatch | None, session: SessionId | None = None
    ) -> cm.TurnCreate:
        if found is not None:
            session, parent, units = found.place.session, found.place.leaf, wanted.units[found.units :]
            create = None
        else:
            parent, units = None, wanted.units
            create = cm.SessionSettings(
                model=wanted.model, instructions=wanted.instructions, tools=wanted.tools, listed=False
            )
        assert session is not None
        return cm.TurnCreate(
            id=command_id,
            session=session,
            create=create,
            items=tuple(item for unit in units for item in unit.items),
            parent_id=parent,
            metadata=dict(wanted.metadata),
            request=dict(wanted.request),
            **msgspec.structs.asdict(wanted.sampling),
        )

    async def _send(self, principal: Principal, turn: cm.TurnCreate, wanted: TurnInput, chain: bytes) -> StartedTurn:
        begun = await self.send(principal, turn)
        responses = begun.responses
        try:
            parent = turn.parent_id if begun.last is None else begun.last
            for number in range(1, wanted.choices):
                seed = turn.seed + number if turn.seed is not None else None
                another = cm.ResponseCreate(
                    id=CommandId(f"{turn.id}.{number}"),
                    session=turn.session,
                    parent_id=parent,
                    **(msgspec.structs.asdict(wanted.sampling) | {"seed": seed}),
                )
                ok = await self.gateway.execute(principal, another)
                assert ok.response_id is not None
                responses += (ok.response_id,)
            begun.cursor.follow(responses)
        except BaseException:
            begun.cursor.close()
            raise
        return StartedTurn(begun.cursor, responses, begun.after, chain)

    async def record_answer(self, begun: StartedTurn, body: ResponseBody) -> None:
        """Notes where an answer lies, for its client's next request."""
        answer = resendable_answer(body)
        if answer is None:
            return
        leaf, unit = answer
        with suppress(Unavailable):  # then its next request begins a session
            await self.history.put(
                extend_chain_all(begun.chain, [unit])[0], HistoryPlace(begun.cursor.key.session, leaf)
            )

    # -- any ------------------------------------------------------------------------------------------------------

    class Sent(NamedTuple):
        cursor: LogCursor
        responses: tuple[ResponseId, ...]
        after: int
        last: ItemId | None

    async def send(self, principal: Principal, turn: cm.TurnCreate, seen: EventId | None = None) -> Sent:
        """Sends a turn, with a reader already on its log, who may have `seen` some of it. Whoever gets the cursor
        closes it."""
        # It follows none until the answer names one: nobody comes back to what closing cancels, which was begun without
        # a key.
        cursor = LogCursor(self.gateway, principal, SessionKey(principal.tenant, turn.session), follows=())
        try:
            ok = await self.gateway.execute(principal, turn)
        except BaseException:
            cursor.close()
            raise
        assert ok.offset is not None
        await self._check_seen(cursor, ok.offset, seen)
        responses = () if ok.response_id is None else (ok.response_id,)
        cursor.follow(responses)
        return TurnStarter.Sent(cursor, responses, ok.offset, ok.item_id)

    async def _check_seen(self, cursor: LogCursor, after: int, seen: EventId | None) -> None:
        """Raises BadInput, and has closed the cursor, where a reader cannot have been."""
        if seen is not None:
            try:
                await check(cursor, after, seen)
            except BaseException:
                cursor.close()
                raise

    async def find_response(self, principal: Principal, response_id: str, param: str = "response_id") -> ResponsePlace:
        """Raises NotFound, Unavailable."""
        place = await self.gateway.find_response(principal, ResponseId(response_id))
        if place is None:
            raise NotFound("response_not_found", f"Response with id '{response_id}' not found.", param=param)
        return place

    def cancel_soon(self, principal: Principal, session: SessionId, responses: Sequence[ResponseId]) -> None:
        """Cancels responses whose client has left, in a task of the gateway's."""

        async def cancel() -> None:
            for response_id in responses:
                command = cm.ResponseCancel(
                    id=CommandId(f"http_{self._new_id()}"), session=session, response_id=response_id
                )
                try:
                    await self.gateway.execute(principal, command)
                except SessileError as error:
                    log.info("not_cancelled", session=session, response=response_id, error=error.code)

        self.gateway.tasks.start(cancel())
