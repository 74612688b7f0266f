"""Starts the turns of HTTP clients: finds the session, makes the command, acquires the reader, sends the command.

Every request becomes one `turn.create` with an id of its own, or one that follows from its `Idempotency-Key`: then the
same key and body find the same session and the same answer, whether that is still being written or long done (I5).
Where a request with a key goes is decided once, for every gateway and over restarts, and the log is what remembers it:
the session that follows from the key either holds the turn, or was created by the very same command id as a pointer to
the place: of a stateless request the one that the history index gave, of another the session that the request names. Of
two gateways that decide at once one is refused (`idempotency_conflict`) and reads what the other has written.

A turn that goes on from a response by its id is found by its words later too, as far as this gateway knows the chain
behind that response (`HistoryEnd`, in memory): a client that resends such a history (Codex, a later process of it) goes
on where it was said. Where the chain is not known, the turn goes on from the response itself, as ever.

A place that the history index gave is given back when the turn did not begin; with a key it stays with the key, because
the same request may have been applied without our knowing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
import structlog
from starlette.requests import ClientDisconnect

from sessions.model import commands as cm
from sessions.model.errors import BadInput, Conflict, Gone, NotFound, SessileError, Unavailable
from sessions.model.events import ResponseBody
from sessions.model.generation import is_attended
from sessions.model.journal_types import ResponsePlace
from sessions.model.types import (
    INTEGER_MAX,
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
from transport.history_index import (
    HistoryMatch,
    HistoryPlace,
    Opening,
    Unit,
    call_ids,
    caller_of,
    chain_root,
    extend_chain_all,
    find_history,
    look_up,
    opening_of,
    rename_outputs,
)
from transport.http.headers import EventId
from transport.http.sse import HasLeft, demand_client
from transport.openai.chat_render import resendable_answer
from transport.openai.history_ends import HistoryEnd, HistoryEnds
from transport.openai.log_cursor import LogCursor
from transport.openai.resume import StartedTurn, check, resume

RETRIES_MAX: Final = 20_000
PLACE: Final = "sessile.place"  # a pointer's metadata key: [session, last item, messages it has, *call ids]
AT_ONCE_CHARS: Final = 256 * 1024  # characters of calls' arguments; longer ones are hashed in a thread

log = structlog.get_logger(__name__)


FORMAT: Final = "text.format"  # its name at the session protocol and in Responses
_OPENAI_NAMES: Final[dict[str | None, str]] = {
    "thinking": "chat_template_kwargs",
    "thinking_tokens": "thinking_token_budget",
}


class TurnInput(NamedTuple):
    """The input of a stateless request, in the terms of sessions: messages, tools, sampling, settings."""

    model: str
    user: str | None
    instructions: str | None
    tools: tuple[Tool, ...]
    units: list[Unit]
    sampling: Sampling
    choices: int = 1
    metadata: Mapping[str, Json] = MappingProxyType({})
    request: Mapping[str, Json] = MappingProxyType({"store": False})
    context: Mapping[str, Any] = MappingProxyType({})  # how the conversation is fitted into the context window
    listed: bool = False  # whether lists show the session, if one is made


class TurnRequest(NamedTuple):
    """A stateless request: its sender, route and input, and the idempotency key that a repetition has too."""

    principal: Principal
    route: str
    input: TurnInput
    body: bytes  # as it came: an Idempotency-Key is valid for one body
    idempotency_key: str | None = None
    seen: EventId | None = None  # the last event that a reconnecting client has
    has_left: HasLeft | None = None  # of a turn that is begun only for a client that still waits; None: of others


@contextmanager
def naming_input(param: str, *, instructions: str | None = None, format: str = FORMAT) -> Iterator[None]:
    """Sets `param` of BadInput errors in the block to the names of OpenAI's requests, that of an answer's format to
    `format`. If a conversation is too long for the context window, that is `param`, `tools`, or `instructions`,
    whichever takes most of the window."""
    try:
        yield
    except BadInput as error:
        if error.code != "context_length_exceeded":
            names = _OPENAI_NAMES | {FORMAT: format}
            error.param = names.get(error.param, error.param)
        elif error.param != "tools":
            error.param = instructions or param if error.param == "instructions" else param
        raise


class TurnDraft(NamedTuple):
    """A turn that has a command id but no session yet, with the hash chains of its history."""

    principal: Principal
    command_id: CommandId
    input: TurnInput
    root: bytes  # the chain before the first message
    chains: Sequence[bytes]  # behind each message
    has_left: HasLeft | None = None  # as the request's

    @property
    def chain(self) -> bytes:
        return self.chains[-1] if self.chains else self.root

    @property
    def resends(self) -> bool:
        """Whether the history has answers, so that a session may hold it already."""
        return any(unit.answer for unit in self.input.units)


class _Unread(Enum):
    """The value of `_Retry.match` before the log was read."""

    UNREAD = "unread"


UNREAD: Final = _Unread.UNREAD


@dataclass(slots=True)
class _Retry:
    """The state of one idempotency key. `match` is the place that its turn continues; None if the turn begins the
    session whose id follows from the key; UNREAD if the log was not read for it yet."""

    body: bytes
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    match: HistoryMatch | None | _Unread = UNREAD


class TurnStarter:
    """Starts the turns of all HTTP routes of a gateway: finds or makes the session, sends the turn, reads its log.
    Its methods are the steps of that way, which all routes share."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._history = gateway.history
        self._retries: OrderedDict[tuple[str, ...], _Retry] = OrderedDict()
        self._ends = HistoryEnds()

    def command_id(self, principal: Principal, route: str, idempotency_key: str | None) -> CommandId:
        """Returns the command id that follows from an Idempotency-Key; a new one without a key."""
        if idempotency_key is None:
            return CommandId(f"http_{self.gateway.new_id()}")
        digest = hashlib.sha256("\0".join((route, principal.tenant, principal.id, idempotency_key)).encode())
        return CommandId(f"idem_{digest.hexdigest()[:40]}")

    # -- stateless ------------------------------------------------------------------------------------------------

    async def start(self, request: TurnRequest) -> StartedTurn:
        """Starts the turn of a request that has its whole history; or finds it again for a client that comes back after
        the event `seen`. Raises SessileError; ClientDisconnect if `has_left` says so before all choices are begun."""
        principal, given, seen = request.principal, request.input, request.seen
        given = given._replace(units=await self.gateway.files.attachments.units(principal, given.units))
        root = chain_root(principal, given.user, given.model, given.tools, given.instructions, listed=given.listed)
        command_id = self.command_id(principal, request.route, request.idempotency_key)
        draft = TurnDraft(principal, command_id, given, root, await _chains(root, given.units), request.has_left)
        if seen is not None and seen.response is not None:
            resumed = await resume(self.gateway, principal, seen, choices=given.choices)
            return resumed._replace(chain=draft.chain, root=draft.root)
        await demand_client(draft.has_left)  # before it takes a place in the history index
        if request.idempotency_key is None:
            match, near = await self._look_up(draft)
            started = await self._begin(draft, match, near, give_back=True)
        else:
            started = await self._begin_once(draft, self._retry(request, request.idempotency_key))
        await self._check_seen(started.cursor, started.after, seen)
        return started

    async def _begin_once(self, draft: TurnDraft, retry: _Retry) -> StartedTurn:
        async with retry.lock:
            if retry.match is UNREAD:
                retry.match = await self._decide(draft)
            try:
                near = await self._nearest(_opening(draft)) if retry.match is None else None
                return await self._begin(draft, retry.match, near, give_back=False)
            except Conflict as error:
                match = await self._read_pointer(draft) if retry.match is None else None
                if error.code != "idempotency_conflict" or not isinstance(match, HistoryMatch):
                    raise
                retry.match = match
                return await self._begin(draft, match, None, give_back=False)

    async def _decide(self, draft: TurnDraft) -> HistoryMatch | None:
        """Returns the place that a request with an Idempotency-Key continues; None if the request begins the session
        whose id follows from the key. A place is stored in the log first, so that a repeated request gets the same
        one."""
        recorded = await self._read_pointer(draft)
        if recorded is not UNREAD:
            return recorded
        match = await self._find(draft)
        if match is None:
            return None
        try:
            session, leaf, calls = match.place
            place: list[Json] = [session, leaf, match.units, *calls]
            await self._write_pointer(draft.principal, draft.command_id, place, draft.input.model)
        except SessileError as error:
            await self._give_back(match)
            recorded = await self._read_pointer(draft) if error.code == "idempotency_conflict" else UNREAD
            if recorded is UNREAD:
                raise
            return recorded
        return match

    async def bind(self, principal: Principal, turn: cm.TurnCreate) -> None:
        """Stores in the log to which session the turn of an Idempotency-Key goes. Does nothing if that is the session
        whose id follows from the key. Raises Conflict if another session is stored for the key."""
        if turn.session != derived_session_id(principal, turn.id):
            await self._write_pointer(principal, turn.id, [turn.session])

    async def _write_pointer(
        self, principal: Principal, command_id: CommandId, place: list[Json], model: str | None = None
    ) -> None:
        """Stores `place` as metadata of the session whose id follows from the key's `command_id`; it makes that
        session, unlisted. Storing the same place again changes nothing."""
        command = cm.TurnCreate(
            id=command_id,
            session=derived_session_id(principal, command_id),
            create=cm.SessionSettings(model=model, metadata={PLACE: place}, listed=False),
            respond=False,
        )
        await self.gateway.execute(principal, command)

    async def _read_pointer(self, draft: TurnDraft) -> HistoryMatch | None | _Unread:
        """Returns what the log has stored for an idempotency key: the place that its turn continues; None if the turn
        is in the session whose id follows from the key; UNREAD if there is nothing yet. Raises Conflict,
        Unavailable."""
        key = SessionKey(draft.principal.tenant, derived_session_id(draft.principal, draft.command_id))
        try:
            head, state = await self.gateway.logs.state(draft.principal, key)
        except (NotFound, Gone):
            return UNREAD
        if head.user != draft.principal.user:  # what another may write is no word of ours
            raise Conflict("idempotency_conflict", "The place of this key is another's.", param="idempotency_key")
        match state["metadata"].get(PLACE):
            case [str(session), str(leaf), int(units), *calls] if 0 < units <= len(draft.chains):
                place = HistoryPlace(SessionId(session), ItemId(leaf), tuple(map(str, calls)))
                return HistoryMatch(place, units, draft.chains[units - 1])
        return None

    def _retry(self, request: TurnRequest, idempotency_key: str) -> _Retry:
        """Returns the state of an idempotency key. Raises Conflict for a key that was used with another body."""
        name = (request.route, request.principal.tenant, request.principal.id, idempotency_key)
        body = hashlib.sha256(request.body).digest()
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

    async def _find(self, draft: TurnDraft) -> HistoryMatch | None:
        """Returns the place that covers most of a history; None if there is none or the index is unavailable."""
        try:
            return await find_history(self._history, draft.chains, draft.input.units)
        except Unavailable:
            return None

    async def _look_up(self, draft: TurnDraft) -> tuple[HistoryMatch | None, SessionId | None]:
        """Returns the place that covers most of a history, and the session near which a new session is best placed;
        None for either if it is unknown."""
        if not self._history.shared:
            return await self._find(draft), None
        try:
            return await look_up(self._history, _opening(draft), draft.chains, draft.input.units)
        except Unavailable:
            return None, None

    async def _nearest(self, opening: Opening) -> SessionId | None:
        with suppress(Unavailable):
            return await self._history.nearest(*opening)
        return None

    async def _mark(self, opening: Opening, session: SessionId) -> None:
        with suppress(Unavailable):
            await self._history.mark(*opening, session)

    async def _give_back(self, match: HistoryMatch) -> None:
        """Gives a place back to the history index, so that another request can get it. If the index is unavailable,
        nothing happens, and the next request begins a session of its own."""
        with suppress(Unavailable):
            await self._history.give_back(match.chain, match.place)

    async def _begin(
        self, draft: TurnDraft, match: HistoryMatch | None, near: SessionId | None, *, give_back: bool
    ) -> StartedTurn:
        """Sends a turn to the session that has its history, or to a new one, on the replica of the session `near`."""
        command_id = draft.command_id
        if match is not None:
            started = await self._go_on(draft, match, give_back=give_back)
            if started is not None:
                return started
            command_id = CommandId(f"{command_id}.anew")  # the session of the key itself may hold the pointer
        turn = _turn(draft, command_id, None)
        started = await self._send(draft, turn, None if near is None else SessionKey(draft.principal.tenant, near))
        if self._history.shared:
            await self._mark(_opening(draft), turn.session)
        return started

    async def _go_on(self, draft: TurnDraft, match: HistoryMatch, *, give_back: bool) -> StartedTurn | None:
        """Sends a turn to the session that has its history; returns None if that session is gone or full."""
        try:
            return await self._send(draft, _turn(draft, draft.command_id, match))
        except SessileError as error:
            if not isinstance(error, NotFound | Gone) and error.code != "session_full":
                if give_back:
                    await self._give_back(match)
                raise
            log.info("history_place_lost", session=match.place.session, error=error.code)
        with suppress(Unavailable):
            await self._history.drop(match.chain, match.place)
        return None

    async def _send(self, draft: TurnDraft, turn: cm.TurnCreate, near: SessionKey | None = None) -> StartedTurn:
        principal, given = draft.principal, draft.input
        sent = await self.send(principal, turn, near=near)
        responses = sent.responses
        with sent.cursor.closed_on_error():
            parent = turn.parent_id if sent.last is None else sent.last
            for number in range(1, given.choices):
                seed = (turn.seed + number) & INTEGER_MAX if turn.seed is not None else None
                another = cm.TurnCreate(
                    id=CommandId(f"{turn.id}.{number}"),
                    session=turn.session,
                    parent_id=parent,
                    metadata=turn.metadata,
                    request=turn.request,
                    **(msgspec.structs.asdict(given.sampling) | {"seed": seed}),
                )
                try:
                    await demand_client(draft.has_left)
                    ok = await self.gateway.execute(principal, another)
                except (SessileError, ClientDisconnect):
                    if is_attended(turn.request):  # nobody comes back to those that were begun
                        self.cancel_soon(principal, turn.session, responses)
                    raise
                assert ok.response_id is not None
                responses += (ok.response_id,)
            if sent.last is not None:  # the question: its client may resend it with another answer behind it
                with suppress(Unavailable):
                    await self._history.put(draft.chain, HistoryPlace(turn.session, sent.last))
            sent.cursor.follow(responses)
        return sent._replace(responses=responses, chain=draft.chain, root=draft.root)

    async def record_answer(self, started: StartedTurn, body: ResponseBody) -> None:
        """Puts an ended answer into the history index and remembers its history by the response's id, so that the next
        request can continue from it."""
        answer = resendable_answer(body)
        if answer is None:
            if body.status == "completed":
                self._ends.put(body.id, HistoryEnd(started.root, started.chain))
            return
        leaf, units = answer
        calls = call_ids(units[-1])
        chain = extend_chain_all(started.chain, units)[-1]
        self._ends.put(body.id, HistoryEnd(started.root, chain, calls))
        with suppress(Unavailable):  # then its next request begins a session
            await self._history.put(chain, HistoryPlace(started.cursor.key.session, leaf, calls))

    # -- behind a response ----------------------------------------------------------------------------------------

    def knows_end(self, previous: str | None) -> bool:
        """Returns whether the history that ends with response `previous` is known; the empty one (None) always is."""
        return previous is None or previous in self._ends

    async def draft_behind(self, principal: Principal, given: TurnInput, previous: str | None) -> TurnDraft | None:
        """Returns the draft of a turn that continues from a response; None if that history is unknown or had another
        model, tools or instructions."""
        given = given._replace(units=await self.gateway.files.attachments.units(principal, given.units))
        root = chain_root(principal, given.user, given.model, given.tools, given.instructions, listed=given.listed)
        end = HistoryEnd(root, root) if previous is None else self._ends.get(previous)
        if end is None or end.root != root:
            return None
        chains = await _chains(end.chain, given.units, end.calls)
        return TurnDraft(principal, self.command_id(principal, "", None), given, root, chains or [end.chain])

    async def start_elsewhere(self, draft: TurnDraft) -> StartedTurn | None:
        """Continues a turn in the session that holds the earlier answers which the request resends. Returns None if no
        session does."""
        match = await self._find(draft) if draft.resends else None
        if match is None:
            return None
        return await self._go_on(draft, match, give_back=True)

    async def record_question(self, draft: TurnDraft, started: StartedTurn) -> StartedTurn:
        """Puts the question of a turn that continued from a response into the history index, so that a client that
        resends the history finds it. Returns `started` with the hash chains of the history."""
        if started.last is not None:
            with suppress(Unavailable):
                await self._history.put(draft.chain, HistoryPlace(started.cursor.key.session, started.last))
        return started._replace(chain=draft.chain, root=draft.root)

    # -- stored ---------------------------------------------------------------------------------------------------

    async def send_stored(
        self, principal: Principal, turn: cm.TurnCreate, seen: EventId | None = None, *, user: str | None
    ) -> StartedTurn:
        """Sends a turn to the session that it names. In a cluster a new session begins on the replica whose session
        shares most of its instructions and tools. `user`: the end user of the request."""
        create = turn.create
        if create is None or not self._history.shared:
            return await self.send(principal, turn, seen)
        model = create.model or ""
        root = chain_root(principal, user, model, create.tools, create.instructions, listed=create.listed)
        opening = opening_of(caller_of(principal, user, model), create.instructions, root, ())
        near = await self._nearest(opening)
        started = await self.send(
            principal, turn, seen, near=None if near is None else SessionKey(principal.tenant, near)
        )
        await self._mark(opening, turn.session)
        return started

    # -- any ------------------------------------------------------------------------------------------------------

    async def send(
        self,
        principal: Principal,
        turn: cm.TurnCreate,
        seen: EventId | None = None,
        *,
        near: SessionKey | None = None,
        summary: CommandId | None = None,
    ) -> StartedTurn:
        """Sends a turn with a cursor already on its log; the caller closes the cursor. `seen` is the last event that
        the client has. `summary`: the command that the request sends next, as for `Gateway.execute`."""
        # It follows none until the answer names one: nobody comes back to what closing cancels, which was begun without
        # a key.
        cursor = LogCursor(self.gateway, principal, SessionKey(principal.tenant, turn.session), follows=())
        with cursor.closed_on_error():
            ok = await self.gateway.execute(principal, turn, near, summary)
        assert ok.offset is not None
        await self._check_seen(cursor, ok.offset, seen)
        responses = () if ok.response_id is None else (ok.response_id,)
        cursor.follow(responses)
        return StartedTurn(cursor, responses, ok.offset, last=ok.item_id)

    async def _check_seen(self, cursor: LogCursor, after: int, seen: EventId | None) -> None:
        """Raises BadInput, after closing the cursor, if the log does not have the event `seen`."""
        if seen is not None:
            with cursor.closed_on_error():
                await check(cursor, after, seen)

    async def find_history(self, principal: Principal, given: TurnInput) -> HistoryMatch | None:
        """Returns the place that covers most of a history: first sought among sessions that lists show, then among the
        others. None if neither has one."""
        for listed in (True, False):
            root = chain_root(principal, given.user, given.model, given.tools, given.instructions, listed=listed)
            draft = TurnDraft(principal, CommandId(""), given, root, await _chains(root, given.units))
            if (match := await self._find(draft)) is not None:
                return match
        return None

    async def find_response(self, principal: Principal, response_id: str, param: str = "response_id") -> ResponsePlace:
        """Returns the session and offset of a response. Raises NotFound, Unavailable."""
        place = await self.gateway.find_response(principal, ResponseId(response_id))
        if place is None:
            raise NotFound("response_not_found", f"Response with id '{response_id}' not found.", param=param)
        return place

    def cancel_soon(self, principal: Principal, session: SessionId, responses: Sequence[ResponseId]) -> None:
        """Starts a task of the gateway that cancels responses whose client has left."""
        self.gateway.tasks.start(self.gateway.cancel(principal, session, responses, id_prefix="http"))


async def _chains(root: bytes, units: Sequence[Unit], calls: Sequence[str] = ()) -> list[bytes]:
    arguments = sum(len(item.arguments) for unit in units for item in unit.items if isinstance(item, cm.NewCall))
    if arguments <= AT_ONCE_CHARS:
        return extend_chain_all(root, units, calls)
    return await asyncio.to_thread(extend_chain_all, root, units, calls)


def units_behind(match: HistoryMatch, units: Sequence[Unit]) -> list[Unit]:
    """Returns the messages behind the matched ones, with outputs renamed to the call ids that the session has."""
    names = dict(zip(call_ids(units[match.units - 1]), match.place.calls, strict=False))
    return rename_outputs(units[match.units :], names)


def _opening(draft: TurnDraft) -> Opening:
    given = draft.input
    caller = caller_of(draft.principal, given.user, given.model)
    return opening_of(caller, given.instructions, draft.root, draft.chains)


def _turn(draft: TurnDraft, command_id: CommandId, match: HistoryMatch | None) -> cm.TurnCreate:
    """Returns a draft's command: a turn below the matched place, or in a session whose id follows from `command_id`."""
    given = draft.input
    settings: dict[str, Any]
    if match is not None:
        session, parent, create = match.place.session, match.place.leaf, None
        settings = {"instructions": given.instructions, "tools": given.tools}  # another turn may have changed them
    else:
        session, parent, settings = derived_session_id(draft.principal, command_id), None, {}
        create = cm.SessionSettings(
            model=given.model, instructions=given.instructions, tools=given.tools, listed=given.listed
        )
    units = given.units if match is None else units_behind(match, given.units)
    return cm.TurnCreate(
        id=command_id,
        session=session,
        create=create,
        items=tuple(item for unit in units for item in unit.items),
        parent_id=parent,
        metadata=dict(given.metadata),
        request=dict(given.request),
        **settings,
        **given.context,
        **msgspec.structs.asdict(given.sampling),
    )
