"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's shape, on sessions that the client need not know of.

Closing a stream cancels its answer, as at `/v1/chat/completions`, unless the request carried an `Idempotency-Key`.
"""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from sessions.model.inspection import PromptTokens, TokenIds
from sessions.turn.tool_call_parser import forced_tools
from transport.anthropic import request as messages
from transport.anthropic.answer import MessageReader
from transport.anthropic.request import CountRequest, MessagesRequest
from transport.anthropic.response_models import MESSAGE, TOKEN_COUNT
from transport.http import sse
from transport.http.headers import read_retry_headers
from transport.http.json_response import JsonResponse
from transport.http_api.context import gateway_of, principal_of, turn_starter_of
from transport.http_api.routes.texts import prompt_messages
from transport.http_api.strict_json import StrictRoute, release_body
from transport.model_catalog import card
from transport.openai.chat import ChatCompletionReader
from transport.openai.chat_render import StreamUsage
from transport.openai.turn_starter import TurnRequest, naming_input
from transport.openai.unknown_parameters import check_optional, leave_out

ROUTE: Final = "messages"

routes = APIRouter(tags=["messages"], route_class=StrictRoute)


@routes.post("/v1/messages", response_model=None, responses=MESSAGE)
async def create(request: Request, body: MessagesRequest) -> Response:
    """Answers a conversation that the client keeps. `stream: true` gives server-sent events."""
    gateway, starter, principal = gateway_of(request), turn_starter_of(request), principal_of(request, "chat")
    gateway.check_draining()
    key = read_retry_headers(request).idempotency_key
    model = card(gateway.models, body.model)
    if gateway.ignores_unknown:
        leave_out(request, messages.take_unreadable_blocks(body, images=model.images))
    turn = messages.message_turn(body, model, attended=key is None)
    leave_out(request, messages.left_out(body, thoughts=model.thoughts, efforts=model.efforts))
    turn = turn._replace(sampling=check_optional(request, model, turn.sampling))
    forced = forced_tools(turn.sampling, turn.tools)
    given, has_left = await request.body(), request.is_disconnected if key is None else None
    release_body(request, body.messages)
    await gateway.check_schemas(principal, turn.tools, turn.sampling.text, messages.SCHEMAS, forced)
    with naming_input("messages", instructions="system", format="output_config.format"):
        started = await starter.start(TurnRequest(principal, ROUTE, turn, given, key, None, has_left))

    def left() -> None:
        if key is None and started.cursor.sole_reader:
            starter.cancel_soon(principal, started.cursor.key.session, started.responses)

    completion = ChatCompletionReader(
        starter, started, model=turn.model, logprobs=False, usage=StreamUsage(last=body.stream)
    )
    message = MessageReader(completion, model=turn.model, request_id=request.state.request_id)
    if not body.stream:
        whole = await sse.cancel_on_disconnect(request, message.whole(), left)
        return JsonResponse(whole, headers=message.headers)
    events = message.stream()
    # What goes wrong before the first event is answered by the status.
    first = await sse.cancel_on_disconnect(request, anext(events), left)
    return sse.EventStreamResponse(sse.resumed(first, events), left=left, headers=message.headers)


@routes.post("/v1/messages/count_tokens", response_model=None, responses=TOKEN_COUNT)
async def count_tokens(request: Request, body: CountRequest) -> Response:
    """Counts the tokens of a request's whole prompt, before anything is left out to fit the model's context."""
    gateway, principal = gateway_of(request), principal_of(request, "chat")
    model = card(gateway.models, body.model)
    leave_out(request, messages.left_out(body, thoughts=model.thoughts, efforts=model.efforts))
    if gateway.ignores_unknown:
        leave_out(request, messages.take_unreadable_blocks(body, images=model.images))
    units = messages.units_of(body.messages, images=model.images, open_ended=True)
    units = await gateway.files.attachments.units(principal, units)
    question = PromptTokens(
        instructions=messages.instructions(body),
        tools=messages.functions(body),
        messages=prompt_messages(units, images=model.images),
    )
    prompt = await gateway.inspect(principal, model.id, question)
    assert isinstance(prompt, TokenIds)
    return JsonResponse({"input_tokens": len(prompt.tokens)})
