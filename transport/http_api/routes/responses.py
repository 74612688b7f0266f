"""`/v1/responses`: answers that are kept, continued, steered, read again from any place, cancelled and erased.

A response lives in a session: a new one, that of `previous_response_id`, or the `conversation` itself. With
`background` nobody needs to read it; without, closing its stream cancels it as closing a chat's does. Where a client
resends the whole history, its session is found by that. With `store: false` an answer is not shown again, nor gone on
from.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from msgspec import UNSET
from msgspec.structs import asdict, replace

from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import BadInput, Conflict, Gone, Internal, NotFound, Unavailable
from sessions.model.generation import ATTENDED
from sessions.model.types import (
    INTEGER_MAX,
    CommandId,
    FunctionCall,
    ItemId,
    Json,
    Principal,
    ResponseId,
    SessionId,
    SessionKey,
    Tool,
    UnixMs,
    Usage,
    derived_session_id,
)
from sessions.turn.tool_call_parser import forced_tools
from transport.http import sse
from transport.http.headers import EventId, event_id_format, last_event_id, read_retry_headers, resumed_event_id
from transport.http.json_response import JsonResponse
from transport.http_api.context import command_id_of, gateway_of, principal_of, socket_turn_of, turn_starter_of
from transport.http_api.strict_json import StrictRoute, release_body
from transport.model_catalog import ModelCard, card
from transport.openai import responses_render
from transport.openai.compaction import behind_compaction, compacted, compaction_not_found, last_compaction, place_of
from transport.openai.conversations import Include, ItemPageParams, branch_items, item_page
from transport.openai.item_references import ResolvedInput, has_references, resolve_references
from transport.openai.left_out import include_left_out, left_out, read_parts, service_left_out
from transport.openai.log_cursor import LogCursor
from transport.openai.mcp.approvals import ApprovalAnswer, calls_before, decisions_of, resume_behind
from transport.openai.parse_request import input_units, response_sampling, response_tools, steer_text
from transport.openai.request_models import CompactRequest, ConversationRef, InputItem, ResponsesRequest, SteerRequest
from transport.openai.response_models import (
    STREAM,
    CompactedResponse,
    ItemList,
    ResponseDeleted,
    ResponseObject,
    ResponseSteered,
    answers,
)
from transport.openai.responses import ResponseReader, not_found
from transport.openai.resume import resume
from transport.openai.turn_starter import TurnDraft, TurnInput, TurnRequest, naming_input, units_behind
from transport.openai.unknown_parameters import check_optional, leave_out
from transport.websocket.inner_requests import SocketTurn

ROUTE: Final = "responses"
COMPACT_ROUTE: Final = "responses.compact"
SUMMARY_WAIT_S: Final = 300.0


routes = APIRouter(tags=["responses"], route_class=StrictRoute)


async def answer_to(
    request: Request, principal: Principal, response_id: str, *, param: str = "response_id", seen: EventId | None = None
) -> ResponseReader:
    """Returns a reader of a response, checked to be readable and to have the event `seen`. Whoever gets it closes its
    cursor. Raises NotFound, Gone, Unavailable, BadInput."""
    place = await turn_starter_of(request).find_response(principal, response_id, param)
    name = ResponseId(response_id)
    answer = ResponseReader(
        LogCursor(gateway_of(request), principal, place.key, follows=[name]), name, place.offset - 1
    )
    try:
        await answer.check(unstored=socket_turn_of(request) is not None)
        if seen is not None:
            await answer.check_seen(seen)
        begun = await answer.begun()
        before = await calls_before(gateway_of(request), principal, place.key, begun)
    except BaseException as error:
        answer.cursor.close()
        if isinstance(error, NotFound):
            raise not_found(response_id, param) from error
        raise
    return dataclasses.replace(answer, before=before) if before else answer


async def session_behind(
    request: Request, principal: Principal, response_id: str, command_id: CommandId, held: ExitStack | None = None
) -> SessionId:
    """Returns the session of the response that a turn continues from. The response must be readable, unless this turn
    was already begun before it was erased. `held` gets its reader, to close it later. Raises NotFound."""
    try:
        answer = await answer_to(request, principal, response_id, param="previous_response_id")
    except NotFound:
        key = (await turn_starter_of(request).find_response(principal, response_id, "previous_response_id")).key
        if not await gateway_of(request).applied(principal, key, command_id):
            raise
        return key.session
    if held is None:
        answer.cursor.close()
    else:
        held.enter_context(answer.cursor)
    return answer.cursor.key.session


@routes.post("/v1/responses", response_model=None, responses=answers(ResponseObject, also=STREAM))
async def create(request: Request, body: ResponsesRequest) -> Response:
    """Answers an input. `stream: true` gives server-sent events; `background: true` answers at once and goes on without
    a reader. A GET with an upgrade to WebSocket has the same as frames: docs/responses-websocket.md."""
    gateway, starter, principal = gateway_of(request), turn_starter_of(request), principal_of(request, "chat")
    gateway.check_draining()
    headers, given = read_retry_headers(request), await request.body()
    seen = resumed_event_id(request, headers, given)
    model = card(gateway.models, body.model)
    socket = socket_turn_of(request)
    _check(body, socket)
    plain = socket is None and not (body.background or headers.idempotency_key is not None or headers.event_ids)
    # A socket may break and its client come back; where nothing is stored, only those who read it on within seconds.
    attended = plain or (socket is not None and body.store is False and headers.idempotency_key is None)
    has_left = request.is_disconnected if plain else None
    leave_out(request, left_out(body, efforts=model.efforts))
    unread = read_parts(body.input, "input", images=model.images, ignores_unknown=gateway.ignores_unknown)
    leave_out(request, unread)
    decisions = decisions_of(body.input, body.previous_response_id)
    resolved = None if decisions else await _behind_compaction_item(request, principal, body)
    by_history = body.previous_response_id is None and body.conversation is None and (socket is None or socket.generate)
    if by_history and not decisions and resolved is None:
        resolved = await _resolved(request, principal, body)
        by_history = body.store is False or resolved.session is None
    else:
        by_history = False
    if decisions:
        command_id = starter.command_id(principal, ROUTE, headers.idempotency_key)
        answer = await _behind_approvals(request, principal, body.previous_response_id or "", decisions, command_id)
    elif by_history and resolved is not None:
        turn = stateless_turn(body, model, resolved.items, attended=attended)
        turn = turn._replace(sampling=check_optional(request, model, turn.sampling))
        forced = forced_tools(turn.sampling, turn.tools)
        await gateway.check_schemas(principal, turn.tools, turn.sampling.text, forced=forced)
        with naming_input("input", instructions="instructions"):
            started = await starter.start(
                TurnRequest(principal, ROUTE, turn, given, headers.idempotency_key, seen, has_left)
            )
        record = partial(starter.record_answer, started)
        answer = ResponseReader(started.cursor, started.responses[0], started.after, ended=record)
    elif seen is not None and seen.response is not None:
        resumed = await resume(gateway, principal, seen)
        answer = ResponseReader(resumed.cursor, resumed.responses[0], resumed.after)
    else:
        command_id = starter.command_id(principal, ROUTE, headers.idempotency_key)
        draft = elsewhere = None
        if resolved is None and seen is None and headers.idempotency_key is None:
            draft = await _draft_behind(request, principal, body, model, attended=attended)
        await sse.demand_client(has_left)
        if draft is not None and (socket is None or socket.generate):
            with naming_input("input", instructions="instructions"):
                elsewhere = await starter.start_elsewhere(draft)
        if elsewhere is not None:
            sent = elsewhere
        else:
            with ExitStack() as held:
                command = await stored_turn(
                    request, principal, body, model, command_id, resolved, held, attended=attended
                )
                tools, text = cm.schemas_of(command)
                await gateway.check_schemas(principal, tools, text, forced=forced_tools(command, tools))
                await sse.demand_client(has_left)
                if headers.idempotency_key is not None:
                    await starter.bind(principal, command)
                with naming_input("input", instructions="instructions"):
                    sent = await starter.send_stored(principal, command, seen, user=body.user or body.safety_identifier)
            if draft is not None:
                sent = await starter.record_question(draft, sent)
        ended = None if draft is None else partial(starter.record_answer, sent)
        answer = ResponseReader(sent.cursor, sent.responses[0], sent.after, ended=ended)
    cursor = answer.cursor

    def left() -> None:
        if plain and cursor.sole_reader:
            starter.cancel_soon(principal, cursor.key.session, [answer.response_id])

    release_body(request, body.input)
    named = {"x-session-id": cursor.key.session}
    if body.stream:
        ids = event_id_format(answer.response_id, given, headers.idempotency_key) if headers.event_ids else None
        chunks = answer.stream(ids=ids, skip=seen)
        first = await sse.cancel_on_disconnect(request, anext(chunks, b""), left)  # nothing: all of it was seen
        return sse.EventStreamResponse(sse.resumed(first, chunks), left=left, headers={**named, **answer.cache})
    with cursor:
        work = answer.shown_begun() if body.background else answer.shown(ended=True)
        whole = await sse.cancel_on_disconnect(request, work, left)
    return JsonResponse(whole, headers={**named, **answer.cache})


async def _draft_behind(
    request: Request, principal: Principal, body: ResponsesRequest, model: ModelCard, *, attended: bool
) -> TurnDraft | None:
    """Returns the draft of a turn that continues from a response or prepares one; None for an unknown history."""
    gateway, starter, previous = gateway_of(request), turn_starter_of(request), body.previous_response_id
    if body.conversation is not None or not starter.knows_end(previous) or has_references(body.input):
        return None
    turn = stateless_turn(body, model, body.input, attended=attended)
    draft = await starter.draft_behind(principal, turn, previous)
    if draft is not None and draft.resends:
        sampling = check_optional(request, model, turn.sampling)
        draft = draft._replace(input=draft.input._replace(sampling=sampling))
        forced = forced_tools(sampling, turn.tools)
        await gateway.check_schemas(principal, turn.tools, sampling.text, forced=forced)
    return draft


async def _behind_approvals(
    request: Request, principal: Principal, previous: str, decisions: Sequence[ApprovalAnswer], command_id: CommandId
) -> ResponseReader:
    """Sends approval decisions about a response's calls. Returns a reader of the response that continues after them."""
    asking = await answer_to(request, principal, previous, param="previous_response_id")
    with asking.cursor as cursor:
        asked = cursor.key, await asking.body(), asking.after
        work = resume_behind(gateway_of(request), principal, asked, decisions, command_id)
        resumed = await sse.cancel_on_disconnect(request, work, lambda: None)
    return ResponseReader(resumed.cursor, resumed.response_id, resumed.after, before=resumed.before)


async def stored_turn(
    request: Request,
    principal: Principal,
    body: ResponsesRequest,
    model: ModelCard,
    command_id: CommandId,
    resolved: ResolvedInput | None = None,
    held: ExitStack | None = None,
    *,
    attended: bool = False,
) -> cm.TurnCreate:
    """Returns the command for a turn in a stored session. `resolved`: the input, if its references are resolved
    already. `held` gets the previous response's reader, so that its log stays loaded until the turn is sent.
    `attended`: the answer is cancelled if its client leaves."""
    tools, socket = response_tools(body.tools), socket_turn_of(request)
    conversation = body.conversation.id if isinstance(body.conversation, ConversationRef) else body.conversation
    in_force = body.instructions, tools
    if conversation is not None and (body.instructions is None or body.tools is None):  # a conversation has its own
        _, state = await gateway_of(request).logs.state(
            principal, SessionKey(principal.tenant, SessionId(conversation))
        )
        in_force = (
            state["instructions"] if body.instructions is None else body.instructions,
            tuple(state["tools"]) if body.tools is None else tools,
        )
    sampling = response_sampling(body, [tool.name for tool in in_force[1]])
    model.check(sampling, tools, format_param="text.format")
    sampling = check_optional(request, model, sampling)
    create: cm.SessionSettings | None = None
    instructions: Any = body.instructions
    turn_tools: Any = tools
    after: ResponseId | None = None
    within: SessionId | None = None
    if body.previous_response_id is not None:
        session = within = await session_behind(request, principal, body.previous_response_id, command_id, held)
        after = ResponseId(body.previous_response_id)
    elif conversation is not None:
        session = within = SessionId(conversation)
        instructions = UNSET if body.instructions is None else body.instructions
        turn_tools = UNSET if body.tools is None else tools
    if resolved is None:
        resolved = await _resolved(request, principal, body, within=within, after=after)
    if resolved.session is not None:
        session = resolved.session
    elif within is None:
        session = derived_session_id(principal, command_id)
        create = cm.SessionSettings(
            model=model.id, instructions=body.instructions, tools=tools, listed=body.store is not False
        )
    return cm.TurnCreate(
        id=command_id,
        session=session,
        create=create,
        instructions=instructions,
        tools=turn_tools,
        items=tuple(item for unit in input_units(resolved.items) for item in unit.items),
        parent_id=UNSET if resolved.leaf is None else resolved.leaf,
        after_response=after,
        metadata=dict(body.metadata or {}),
        request=responses_render.requested(
            sampling,
            in_force[1],
            instructions=in_force[0],
            previous_response_id=body.previous_response_id,
            conversation=None if conversation is None else {"id": conversation},
            background=bool(body.background),
            store=body.store is not False,
            generate=None if socket is None or socket.generate else False,
            **{ATTENDED: attended or None},
            **_echoed(body),
        ),
        **_context(body),
        **asdict(sampling),
    )


@routes.post("/v1/responses/compact", response_model=None, responses=answers(CompactedResponse))
async def compact(request: Request, body: CompactRequest) -> Response:
    """Summarises a conversation. Its `output` stands for the whole conversation in the `input` of later requests."""
    gateway, starter, principal = gateway_of(request), turn_starter_of(request), principal_of(request, "chat")
    gateway.check_draining()
    if not body.input and body.previous_response_id is None:
        raise BadInput("missing_required_parameter", "Missing required parameter: 'input'.", param="input")
    leave_out(request, service_left_out(body))
    if body.instructions and body.previous_response_id is not None:
        leave_out(request, ["instructions"])
    command_id = starter.command_id(principal, COMPACT_ROUTE, read_retry_headers(request).idempotency_key)
    turn = await _compact_turn(request, principal, body, command_id)
    summary = CommandId(f"{command_id}.c")
    sent = await starter.send(principal, turn, summary=summary)
    with sent.cursor as cursor:
        leaf = sent.last if turn.items else turn.parent_id
        if not isinstance(leaf, str):
            assert turn.after_response is not None
            leaf = await _last_item(request, principal, cursor.key, turn.after_response)
        ok = await gateway.execute(
            principal,
            cm.SessionCompact(id=summary, session=turn.session, keep_turns=0, item_id=leaf),
        )
        assert ok.compaction_id is not None and ok.offset is not None
        outcome = asyncio.wait_for(_compaction_outcome(cursor, ok.offset, ok.compaction_id), SUMMARY_WAIT_S)
        try:
            at, event = await sse.cancel_on_disconnect(request, outcome, lambda: None)
        except TimeoutError as error:
            raise Internal("compaction_failed", "Writing the summary takes too long.") from error
        _, state = await gateway.logs.state(principal, cursor.key)
        shown: dict[str, Any]
        if isinstance(event, ev.ContextCompacted):
            shown = {"summary": event.summary, "read_item_id": event.read_item_id, "usage": event.usage}
        else:
            shown = _summary_in_force(state, leaf, event)
        name = ok.compaction_id.replace("cmp_", "resp_", 1)
        return JsonResponse(compacted(name, turn.session, shown, state, at=at))


async def _compact_turn(
    request: Request, principal: Principal, body: CompactRequest, command_id: CommandId
) -> cm.TurnCreate:
    """Returns the command that adds what is to be summarised to its session, as far as it is not there yet."""
    gateway, starter = gateway_of(request), turn_starter_of(request)
    model = card(gateway.models, body.model)
    unread = read_parts(body.input, "input", images=model.images, ignores_unknown=gateway.ignores_unknown)
    leave_out(request, unread)
    given = ResponsesRequest(
        model=body.model,
        input=body.input,
        instructions=body.instructions,
        previous_response_id=body.previous_response_id,
    )
    resolved = await _behind_compaction_item(request, principal, given)
    if resolved is None and body.previous_response_id is None and not has_references(given.input):
        history = stateless_turn(given, model, given.input)
        history = history._replace(units=await gateway.files.attachments.units(principal, history.units))
        match = await starter.find_history(principal, history)
        if match is not None:
            rest = tuple(item for unit in units_behind(match, history.units) for item in unit.items)
            place = match.place
            return cm.TurnCreate(id=command_id, session=place.session, parent_id=place.leaf, items=rest, respond=False)
    turn = await stored_turn(request, principal, given, model, command_id, resolved)
    return replace(
        turn,
        create=None if turn.create is None else replace(turn.create, listed=False),
        instructions=UNSET,
        tools=UNSET,
        request=UNSET,
        respond=False,
    )


async def _last_item(request: Request, principal: Principal, key: SessionKey, response_id: ResponseId) -> ItemId:
    """Returns the last item of a response, or, if it wrote none, the item that it answers. Raises Conflict if there is
    neither."""
    _, state = await gateway_of(request).logs.state(principal, key)
    made_by = state["made_by"]
    leaf = next((ItemId(item) for item in reversed(made_by) if made_by[item] == response_id), None)
    if leaf is None:
        answer = await answer_to(request, principal, response_id, param="previous_response_id")
        with answer.cursor:
            leaf = (await answer.body()).parent_id
    if leaf is None:
        raise Conflict("nothing_to_compact", "There is nothing to summarise here.")
    return leaf


async def _compaction_outcome(
    cursor: LogCursor, after: int, compaction_id: ItemId
) -> tuple[UnixMs, ev.ContextCompacted | ev.CompactionFailed]:
    async for record in cursor.records(after):
        event = record.event
        if isinstance(event, ev.ContextCompacted) and event.summary.id == compaction_id:
            return record.at, event
        if isinstance(event, ev.CompactionFailed) and event.compaction_id == compaction_id:
            return record.at, event
    raise Unavailable("journal_unavailable", "The log of this conversation ended before its summary was written.")


def _summary_in_force(state: dict[str, Any], leaf: ItemId, failed: ev.CompactionFailed) -> dict[str, Any]:
    """Returns the summary that already ends at `leaf`, where a new one had nothing to add; else raises the failure."""
    for each in reversed(state.get("compactions", ())):
        if failed.error["code"] == "nothing_to_compact" and each["read_item_id"] == leaf:
            return {**each, "usage": Usage(0, 0).public()}
    if failed.error["code"] == "nothing_to_compact":
        raise Conflict("nothing_to_compact", failed.error["message"])
    raise Internal("compaction_failed", failed.error["message"])


@routes.get("/v1/responses/{response_id}", response_model=None, responses=answers(ResponseObject, also=STREAM))
async def retrieve(
    request: Request,
    response_id: str,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0, le=INTEGER_MAX)] = None,
    include: Annotated[list[str] | None, Query()] = None,
    bracketed: Include = None,
    include_obfuscation: bool | None = None,
) -> Response:
    """Returns a response as it is now. With `stream=true` it sends the events after `starting_after` or `Last-Event-ID`
    up to the response's end."""
    principal = principal_of(request, "read")
    leave_out(request, include_left_out((*(include or ()), *(bracketed or ()))))
    leave_out(request, ["include_obfuscation"] if include_obfuscation else [])
    seen = last_event_id(request) if stream else None
    answer = await answer_to(request, principal, response_id, seen=seen)
    if stream:
        chunks = answer.stream(starting_after=starting_after, ids=EventId, skip=seen)
        first = b""
        with answer.cursor.closed_on_error():
            ended = seen is not None and (await answer.body()).status not in ("queued", "in_progress")
            if ended and not (first := await anext(chunks, b"")):
                return Response(status_code=204)  # an EventSource comes again behind anything else
        return sse.EventStreamResponse(sse.resumed(first, chunks))
    with answer.cursor:
        return JsonResponse(await answer.shown())


@routes.post("/v1/responses/{response_id}/cancel", response_model=None, responses=answers(ResponseObject))
async def cancel(request: Request, response_id: str) -> Response:
    """Cancels a response that is being written; what was written so far stays. A background response that has ended is
    returned as it is."""
    principal = principal_of(request, "chat")
    answer = await answer_to(request, principal, response_id)
    with answer.cursor:
        body = await answer.body()
        under_way = body.status in ("queued", "in_progress")
        if not under_way and (body.request is UNSET or not body.request.get("background")):
            raise BadInput("invalid_request", "Cannot cancel a synchronous response.", param="response_id")
        if under_way:
            command = cm.ResponseCancel(
                id=turn_starter_of(request).command_id(principal, ROUTE, None),
                session=answer.cursor.key.session,
                response_id=answer.response_id,
            )
            await gateway_of(request).execute(principal, command)
            return JsonResponse(await answer.shown(ended=True))
        return JsonResponse(await answer.shown())


@routes.post("/v1/responses/{response_id}/steer", response_model=None, responses=answers(ResponseSteered))
async def steer(request: Request, response_id: str, body: SteerRequest) -> Response:
    """Adds a message to a response that is being written. It ends as `incomplete` (`steered`) with what was written so
    far, and the response `response_id` of the answer continues after the message. If it calls tools, the message waits
    for it to end and for the tools' outputs."""
    gateway, principal = gateway_of(request), principal_of(request, "chat")
    gateway.check_draining()
    command_id, content = command_id_of(request, principal, f"{ROUTE}.steer"), steer_text(body.input)
    answer = await answer_to(request, principal, response_id, param="previous_response_id")
    with answer.cursor:
        key = answer.cursor.key
        command = cm.ResponseSteer(id=command_id, session=key.session, response_id=answer.response_id, content=content)
        ok = await gateway.execute(principal, command)
        _, state = await gateway.logs.state(principal, key)
    waits = any(waiting["response_id"] == ok.response_id for waiting in state["queued"])
    turns = (turn for turn in state["awaiting"] if turn["response_id"] == answer.response_id)
    missing = {call_id for turn in turns for call_id in turn["missing"]}
    calls = [item for item in state["items"] if isinstance(item, FunctionCall) and item.call_id in missing]
    return JsonResponse(
        {
            "id": f"steer_{str(ok.response_id).removeprefix('resp_')}",
            "object": "response.steer",
            "previous_response_id": response_id,
            "response_id": ok.response_id,
            "status": "pending" if waits else "accepted",
            "required_input": [
                {"type": "function_call_output", "call_id": call.call_id, "name": call.name} for call in calls if waits
            ],
        },
        headers={"x-session-id": key.session},
    )


@routes.delete("/v1/responses/{response_id}", response_model=None, responses=answers(ResponseDeleted))
async def erase(request: Request, response_id: str) -> Response:
    """Erases what a response wrote. The response is not found any more."""
    principal = principal_of(request, "chat")
    answer = await answer_to(request, principal, response_id)
    with answer.cursor:
        command = cm.ResponseErase(
            id=turn_starter_of(request).command_id(principal, ROUTE, None),
            session=answer.cursor.key.session,
            response_id=answer.response_id,
        )
        await gateway_of(request).execute(principal, command)
    return JsonResponse({"id": response_id, "object": "response", "deleted": True})


@routes.get("/v1/responses/{response_id}/input_items", response_model=None, responses=answers(ItemList))
async def input_items(request: Request, response_id: str, page: ItemPageParams) -> Response:
    """Lists the input items of a response: those after the previous answer."""
    principal = principal_of(request, "read")
    answer = await answer_to(request, principal, response_id)
    with answer.cursor:
        body = await answer.body()
        _, state = await gateway_of(request).logs.state(principal, answer.cursor.key)
    made_by = state["made_by"]
    items = branch_items(state["items"], body.parent_id, until=lambda item: item.id in made_by)
    return JsonResponse(item_page(items, page))


def _check(body: ResponsesRequest, socket: SocketTurn | None) -> None:
    if body.previous_response_id is not None and body.conversation is not None:
        raise BadInput(
            "invalid_request",
            "Only one of 'previous_response_id' and 'conversation' may be given.",
            param="conversation",
        )
    if body.background and body.store is False:
        raise BadInput("invalid_request", "Background responses must be stored.", param="background")
    if body.store is False and body.conversation is not None:
        raise BadInput("invalid_request", "Items of a conversation are stored.", param="store")
    if body.store is False and body.previous_response_id is not None and socket is None:
        raise BadInput("invalid_request", "What continues a stored response is stored.", param="store")
    prepares = socket is not None and not socket.generate
    if not body.input and body.previous_response_id is None and body.conversation is None and not prepares:
        raise BadInput("missing_required_parameter", "Missing required parameter: 'input'.", param="input")


async def _resolved(
    request: Request,
    principal: Principal,
    body: ResponsesRequest,
    *,
    within: SessionId | None = None,
    after: ResponseId | None = None,
) -> ResolvedInput:
    """Returns a request's input in which items that it names by their ids stand in full. `within` and `after`: the
    session and the response that it continues from, if any. Raises NotFound, BadInput, TooLarge."""
    given = body.input
    if not has_references(given):
        return ResolvedInput(given)
    assert isinstance(given, list)

    async def find(response_id: ResponseId) -> SessionKey:
        answer = await answer_to(request, principal, response_id, param="input")
        answer.cursor.close()
        return answer.cursor.key

    async def load(key: SessionKey) -> dict[str, Json]:
        return (await gateway_of(request).logs.state(principal, key))[1]

    key = None if within is None else SessionKey(principal.tenant, within)
    leaf = None
    if key is not None and after is not None:
        made_by = (await load(key))["made_by"]
        leaf = next((ItemId(item) for item in reversed(made_by) if made_by[item] == after), None)
    return await resolve_references(given, find=find, load=load, within=key, leaf=leaf)


def stateless_turn(
    body: ResponsesRequest, model: ModelCard, given: str | Sequence[InputItem] | None, *, attended: bool = False
) -> TurnInput:
    """Returns a request with its whole history as a turn's input. `given` is its resolved input. `attended`: the answer
    is cancelled if its client leaves. Raises BadInput."""
    tools: tuple[Tool, ...] = response_tools(body.tools)
    sampling = response_sampling(body, [tool.name for tool in tools])
    model.check(sampling, tools, format_param="text.format")
    return TurnInput(
        model=model.id,
        user=body.user or body.safety_identifier,
        instructions=body.instructions,
        tools=tools,
        units=input_units(given),
        sampling=sampling,
        metadata=dict(body.metadata or {}),
        request=responses_render.requested(
            sampling,
            tools,
            instructions=body.instructions,
            previous_response_id=body.previous_response_id,
            background=bool(body.background),
            store=body.store is not False,
            **{ATTENDED: attended or None},
            **_echoed(body),
        ),
        context=_context(body),
        listed=body.store is not False,
    )


async def _behind_compaction_item(
    request: Request, principal: Principal, body: ResponsesRequest
) -> ResolvedInput | None:
    """Resolves an input that has a compaction item; returns None for other inputs. Raises BadInput, NotFound."""
    at = last_compaction(body.input)
    if at is None:
        return None
    assert isinstance(body.input, list)
    if body.previous_response_id is not None or body.conversation is not None:
        what = "A compaction item stands for what came before it: leave out 'previous_response_id' and 'conversation'."
        raise BadInput("invalid_request", what, param=f"input[{at}]")
    session, compaction_id = place_of(body.input[at], at)
    try:
        _, state = await gateway_of(request).logs.state(principal, SessionKey(principal.tenant, session))
    except (NotFound, Gone) as error:
        raise compaction_not_found(at) from error
    return behind_compaction(body.input, at, session, compaction_id, state)


def _context(body: ResponsesRequest) -> dict[str, Any]:
    """Returns the settings of a turn for how its conversation is fitted into the context window."""
    if not body.context_management:
        return {}
    threshold = body.context_management[0].compact_threshold
    return {"context_policy": "compact"} | ({} if threshold is None else {"compact_threshold": threshold})


def _echoed(body: ResponsesRequest) -> dict[str, Any]:
    """Returns parameters that the response shows and that have no effect."""
    return {
        "max_tool_calls": body.max_tool_calls,
        "prompt_cache_key": body.prompt_cache_key,
        "safety_identifier": body.safety_identifier,
        "truncation": body.truncation,
        "user": body.user,
    }
