"""`/v1/conversations`: sessions under OpenAI's name for them, and their items.

A conversation's items are those of its present branch. One that is deleted is out of it, and its text is in no log that
is read from then on; the answer that it was part of stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from sessions.model import commands as cm
from sessions.model.errors import NotFound
from sessions.model.types import ItemId, Json, Principal, SessionId, SessionKey, derived_session_id
from transport.http.json_response import JsonResponse
from transport.http_api.context import command_id_of, gateway_of, principal_of
from transport.http_api.strict_json import StrictRoute
from transport.openai import request_models, responses_render
from transport.openai.conversations import Include, ItemPageParams, ItemPageQuery, branch_items, item_page
from transport.openai.left_out import LOGPROBS, include_left_out, read_parts
from transport.openai.log_cursor import LogCursor
from transport.openai.output_logprobs import NONE, OutputLogprobs
from transport.openai.parse_request import input_units
from transport.openai.response_models import Conversation, ConversationDeleted, ItemList, ItemObject, answers
from transport.openai.unknown_parameters import leave_out

ROUTE: Final = "conversations"
Items = Annotated[list[request_models.InputItem], Field(max_length=20)]


class ConversationCreate(request_models.RequestModel):
    items: Items | None = None
    metadata: request_models.Metadata | None = None


class ConversationUpdate(request_models.RequestModel):
    metadata: request_models.Metadata | None


class ItemsCreate(request_models.RequestModel):
    items: Items


routes = APIRouter(tags=["conversations"], route_class=StrictRoute)


async def state_of(request: Request, principal: Principal, conversation: str) -> dict[str, Json]:
    _, state = await gateway_of(request).logs.state(principal, key_of(principal, conversation))
    return state


async def conversation_of(request: Request, principal: Principal, conversation: str) -> dict[str, Json]:
    state = await state_of(request, principal, conversation)
    return {
        "id": conversation,
        "object": "conversation",
        "created_at": state["created_at"] // 1000,
        "metadata": state["metadata"],
    }


@routes.post("/v1/conversations", response_model=None, responses=answers(Conversation))
async def create(request: Request, body: ConversationCreate | None = None) -> Response:
    """Makes a conversation with the items that it begins with."""
    principal = principal_of(request, "chat")
    gateway = gateway_of(request)
    gateway.check_draining()
    command_id = command_id_of(request, principal, ROUTE)
    session = derived_session_id(principal, command_id)
    given = body or ConversationCreate()
    default = next(iter(gateway.models()), None)
    turn = cm.TurnCreate(
        id=command_id,
        session=session,
        create=cm.SessionSettings(metadata=dict(given.metadata or {})),
        items=_new_items(request, given.items or (), images=default is None or default.images),
        respond=False,
    )
    await gateway.execute(principal, turn)
    return JsonResponse(await conversation_of(request, principal, session))


@routes.get("/v1/conversations/{conversation}", response_model=None, responses=answers(Conversation))
async def retrieve(request: Request, conversation: str) -> Response:
    return JsonResponse(await conversation_of(request, principal_of(request, "read"), conversation))


@routes.post("/v1/conversations/{conversation}", response_model=None, responses=answers(Conversation))
async def update(request: Request, conversation: str, body: ConversationUpdate) -> Response:
    principal = principal_of(request, "chat")
    command = cm.SessionUpdate(
        id=command_id_of(request, principal, ROUTE),
        session=key_of(principal, conversation).session,
        metadata=dict(body.metadata or {}),
    )
    await gateway_of(request).execute(principal, command)
    return JsonResponse(await conversation_of(request, principal, conversation))


@routes.delete("/v1/conversations/{conversation}", response_model=None, responses=answers(ConversationDeleted))
async def delete(request: Request, conversation: str) -> Response:
    principal = principal_of(request, "chat")
    command = cm.SessionDelete(id=command_id_of(request, principal, ROUTE), session=SessionId(conversation))
    await gateway_of(request).execute(principal, command)
    return JsonResponse({"id": conversation, "object": "conversation.deleted", "deleted": True})


@routes.get("/v1/conversations/{conversation}/items", response_model=None, responses=answers(ItemList))
async def items(request: Request, conversation: str, page: ItemPageParams) -> Response:
    """Lists the items of a conversation, newest first unless `order` says otherwise."""
    principal = principal_of(request, "read")
    state = await state_of(request, principal, conversation)
    logprobs = await _logprobs(request, principal, conversation) if page.logprobs else None
    return JsonResponse(item_page(branch_items(state["items"], state["head"]), page, logprobs))


@routes.post("/v1/conversations/{conversation}/items", response_model=None, responses=answers(ItemList))
async def add(request: Request, conversation: str, body: ItemsCreate, include: Include = None) -> Response:
    """Adds items after the newest one, without answering them."""
    leave_out(request, include_left_out(include))
    principal = principal_of(request, "chat")
    items = _new_items(request, body.items, images=await _sees(request, principal, conversation, body.items))
    turn = cm.TurnCreate(
        id=command_id_of(request, principal, ROUTE),
        session=key_of(principal, conversation).session,
        items=items,
        respond=False,
    )
    ok = await gateway_of(request).execute(principal, turn)
    state = await state_of(request, principal, conversation)
    made = branch_items(state["items"], ok.item_id)[-len(turn.items) :] if turn.items else []
    return JsonResponse(item_page(made, ItemPageQuery(limit=100, order="asc", after=None)))


@routes.get("/v1/conversations/{conversation}/items/{item_id}", response_model=None, responses=answers(ItemObject))
async def item(
    request: Request,
    conversation: str,
    item_id: str,
    include: Annotated[list[str] | None, Query()] = None,
    bracketed: Include = None,
) -> Response:
    principal = principal_of(request, "read")
    state = await state_of(request, principal, conversation)
    shown = (*(include or ()), *(bracketed or ()))
    leave_out(request, include_left_out(shown))
    for each in state["items"]:
        if each.id == item_id:
            logprobs = await _logprobs(request, principal, conversation) if LOGPROBS in shown else None
            return JsonResponse(responses_render.item(each, NONE if logprobs is None else logprobs.of(each.id)))
    raise NotFound("item_not_found", f"There is no item {item_id!r} in this conversation.", param="item_id")


@routes.delete("/v1/conversations/{conversation}/items/{item_id}", response_model=None, responses=answers(Conversation))
async def delete_item(request: Request, conversation: str, item_id: str) -> Response:
    """Removes one item. The items after it then follow the item before it."""
    principal = principal_of(request, "chat")
    command = cm.ItemDelete(
        id=command_id_of(request, principal, ROUTE),
        session=key_of(principal, conversation).session,
        item_id=ItemId(item_id),
    )
    await gateway_of(request).execute(principal, command)
    return JsonResponse(await conversation_of(request, principal, conversation))


def _new_items(request: Request, given: Sequence[request_models.InputItem], *, images: bool) -> tuple[cm.NewItem, ...]:
    """Returns a request's `items` for a model that sees `images` or none. Raises BadInput."""
    unread = read_parts(given, "items", images=images, ignores_unknown=gateway_of(request).ignores_unknown)
    leave_out(request, unread)
    return tuple(item for unit in input_units(given, "items") for item in unit.items)


async def _sees(
    request: Request, principal: Principal, conversation: str, given: Sequence[request_models.InputItem]
) -> bool:
    """Returns whether the conversation's model sees images; true where the items have no parts, or the model is not
    known here."""
    if not any(isinstance(each.content, list) or isinstance(each.output, list) for each in given):
        return True
    model = (await state_of(request, principal, conversation))["model"]
    return all(each.images for each in gateway_of(request).models() if model in each.names)


async def _logprobs(request: Request, principal: Principal, conversation: str) -> OutputLogprobs:
    """Returns the log probabilities of all texts of a conversation, which only its log has."""
    logprobs = OutputLogprobs()
    with LogCursor(gateway_of(request), principal, key_of(principal, conversation)) as cursor:
        await cursor.check(0)
        async for record in cursor.records(0, live=False):
            logprobs.take(record.event)
    return logprobs


def key_of(principal: Principal, session: str) -> SessionKey:
    return SessionKey(principal.tenant, SessionId(session))
