"""`/v1/responses/compact`: a conversation summarised on request, and an item that its client goes on with.

The summary is of the session that holds the conversation: that of `previous_response_id`, the one that the history in
`input` is found in, or a new one. It is requested with the conversation's own prefix, so what is computed is the
summary alone where the conversation's KV is at hand.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from msgspec import UNSET
from msgspec.structs import replace

from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import BadInput, Internal, Unavailable
from sessions.model.types import CommandId, ItemId, Principal, ResponseId, SessionKey, UnixMs, Usage
from transport.http.context import gateway_of, principal_of, turn_starter_of
from transport.http.headers import read_retry_headers
from transport.http.routes.responses import behind_compaction_item, stateless_turn, stored_turn
from transport.http.strict_json import StrictRoute
from transport.openai.compaction import compacted
from transport.openai.item_references import has_references
from transport.openai.log_cursor import LogCursor
from transport.openai.model_catalog import card
from transport.openai.request_models import CompactRequest, ResponsesRequest
from transport.openai.response_models import CompactedResponse, answers

ROUTE: Final = "responses.compact"
SUMMARY_WAIT_S: Final = 300.0

routes = APIRouter(tags=["responses"], route_class=StrictRoute)


@routes.post("/v1/responses/compact", response_model=None, responses=answers(CompactedResponse))
async def compact(request: Request, body: CompactRequest) -> Response:
    """Summarises a conversation; its `output` stands for all of it in the `input` of what follows."""
    gateway, starter, principal = gateway_of(request), turn_starter_of(request), principal_of(request, "chat")
    gateway.check_draining()
    if not body.input and body.previous_response_id is None:
        raise BadInput("missing_required_parameter", "Missing required parameter: 'input'.", param="input")
    command_id = starter.command_id(principal, ROUTE, read_retry_headers(request).idempotency_key)
    turn = await _turn(request, principal, body, command_id)
    sent = await starter.send(principal, turn)
    with sent.cursor as cursor:
        leaf = sent.last if turn.items else turn.parent_id
        if not isinstance(leaf, str):
            assert turn.after_response is not None
            leaf = await _last_item(request, principal, cursor.key, turn.after_response)
        ok = await gateway.execute(
            principal,
            cm.SessionCompact(id=CommandId(f"{command_id}.c"), session=turn.session, keep_turns=0, item_id=leaf),
        )
        assert ok.compaction_id is not None and ok.offset is not None
        try:
            async with asyncio.timeout(SUMMARY_WAIT_S):
                at, event = await _outcome(cursor, ok.offset, ok.compaction_id)
        except TimeoutError as error:
            raise Unavailable("compaction_timed_out", "Writing the summary takes too long.") from error
        _, state = await gateway.logs.state(principal, cursor.key)
        said: dict[str, Any]
        if isinstance(event, ev.ContextCompacted):
            said = {"summary": event.summary, "read_item_id": event.read_item_id, "usage": event.usage}
        else:
            said = _in_force(state, leaf, event)
        name = ok.compaction_id.replace("cmp_", "resp_", 1)
        return JSONResponse(compacted(name, turn.session, said, state, at=at))


async def _turn(request: Request, principal: Principal, body: CompactRequest, command_id: CommandId) -> cm.TurnCreate:
    """The command that brings what is to be compacted into its session, as far as it is not there."""
    starter, model = turn_starter_of(request), card(gateway_of(request).models, body.model)
    given = ResponsesRequest(
        model=body.model,
        input=body.input,
        instructions=body.instructions,
        previous_response_id=body.previous_response_id,
    )
    resolved = await behind_compaction_item(request, principal, given)
    if resolved is None and body.previous_response_id is None and not has_references(given.input):
        history = stateless_turn(given, model, given.input)
        match = await starter.find_history(principal, history)
        if match is not None:
            rest = tuple(item for unit in history.units[match.units :] for item in unit.items)
            session, leaf = match.place
            return cm.TurnCreate(id=command_id, session=session, parent_id=leaf, items=rest, respond=False)
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
    _, state = await gateway_of(request).logs.state(principal, key)
    made_by = state["made_by"]
    return next(ItemId(item) for item in reversed(made_by) if made_by[item] == response_id)


async def _outcome(
    cursor: LogCursor, after: int, compaction_id: ItemId
) -> tuple[UnixMs, ev.ContextCompacted | ev.CompactionFailed]:
    async for record in cursor.records(after):
        event = record.event
        if isinstance(event, ev.ContextCompacted) and event.summary.id == compaction_id:
            return record.at, event
        if isinstance(event, ev.CompactionFailed) and event.compaction_id == compaction_id:
            return record.at, event
    raise Unavailable("journal_unavailable", "The log of this conversation ended before its summary was written.")


def _in_force(state: dict[str, Any], leaf: ItemId, failed: ev.CompactionFailed) -> dict[str, Any]:
    """The summary that ends where another was requested, so that there was nothing to add to it. Raises what failed."""
    for each in reversed(state.get("compactions", ())):
        if failed.error["code"] == "nothing_to_compact" and each["read_item_id"] == leaf:
            return {**each, "usage": Usage(0, 0).public()}
    raise Internal(failed.error["code"], failed.error["message"])
