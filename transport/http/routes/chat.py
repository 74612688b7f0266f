"""`POST /v1/chat/completions`: OpenAI's shape exactly, on sessions that the client need not know of.

A stream carries `data:` lines and `[DONE]` and nothing else, unless `X-Sessile-Event-Ids: 1` requests ids; the same
request with the last of them as `Last-Event-ID` goes on behind it. Closing a plain stream cancels its answer, but only
if the request carried neither `Idempotency-Key` nor that header and nobody else reads the answer here; whoever reads
its whole session does, a stream of another answer of that session does not.
"""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from sessions.model.errors import BadInput
from transport.http import sse
from transport.http.context import gateway_of, principal_of, turn_starter_of
from transport.http.headers import event_id_format, read_retry_headers, resumed_event_id
from transport.http.strict_json import StrictRoute
from transport.http.unknown_parameters import check_optional
from transport.openai.chat import ChatCompletionReader
from transport.openai.model_catalog import ModelCard, card
from transport.openai.parse_request import CHAT_SCHEMAS, chat_history, chat_sampling, chat_tools
from transport.openai.request_models import ChatRequest
from transport.openai.response_models import STREAM, ChatCompletion, answers
from transport.openai.turn_starter import TurnInput, TurnRequest

ROUTE: Final = "chat"


routes = APIRouter(tags=["chat"], route_class=StrictRoute)


@routes.post("/v1/chat/completions", response_model=None, responses=answers(ChatCompletion, also=STREAM))
async def create(request: Request, body: ChatRequest) -> Response:
    """Answers a conversation that the client keeps; `stream: true` gives server-sent events."""
    gateway, starter, principal = gateway_of(request), turn_starter_of(request), principal_of(request, "chat")
    gateway.check_draining()
    headers, given = read_retry_headers(request), await request.body()
    seen = resumed_event_id(request, headers, given)
    model = card(gateway.models, body.model)
    turn = chat_turn(body, model)
    check_optional(request, model, turn.sampling)
    await gateway.check_schemas(principal, turn.tools, turn.sampling.text, CHAT_SCHEMAS)
    started = await starter.start(TurnRequest(principal, ROUTE, turn, given, headers.idempotency_key, seen))
    session = started.cursor.key.session
    plain = headers.idempotency_key is None and not headers.event_ids

    def left() -> None:
        if plain and started.cursor.sole_reader:
            starter.cancel_soon(principal, session, started.responses)

    completion = ChatCompletionReader(
        starter,
        started,
        model=turn.model,
        logprobs=turn.sampling.logprobs,
        usage=body.stream_options is not None and bool(body.stream_options.include_usage),
    )
    named = {"x-session-id": session}
    if not body.stream:
        whole = await sse.cancel_on_disconnect(request, completion.whole(), left)
        return JSONResponse(whole, headers=named)
    ids = event_id_format(started.responses[0], given, headers.idempotency_key) if headers.event_ids else None
    chunks = completion.stream(ids=ids, skip=seen)
    # What goes wrong before the first chunk is answered by the status.
    first = await sse.cancel_on_disconnect(request, anext(chunks), left)
    return sse.EventStreamResponse(sse.resumed(first, chunks), left=left, headers=named)


def chat_turn(body: ChatRequest, model: ModelCard) -> TurnInput:
    """The request in our words. Raises BadInput."""
    if body.stream_options is not None and not body.stream:
        raise BadInput(
            "invalid_request",
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
        )
    instructions, units = chat_history(body.messages)
    sampling = chat_sampling(body)
    tools = chat_tools(body.tools)
    model.check(sampling, tools, format_param="response_format")
    return TurnInput(
        model=model.id,
        user=body.user or body.safety_identifier,
        instructions=instructions,
        tools=tools,
        units=units,
        sampling=sampling,
        choices=body.n or 1,
    )
