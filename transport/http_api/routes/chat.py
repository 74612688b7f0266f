"""`POST /v1/chat/completions`: OpenAI's shape exactly, on sessions that the client need not know of.

A stream carries `data:` lines and `[DONE]` and nothing else, unless `X-Sessile-Event-Ids: 1` requests ids; the same
request with the last of them as `Last-Event-ID` goes on behind it. Closing a plain stream cancels its answer, but only
if the request carried neither `Idempotency-Key` nor that header and nobody else reads the answer here; whoever reads
its whole session does, a stream of another answer of that session does not.

`POST /v1/completions`: bare prompts go on as the model would have them, without a chat template. A prompt passes the
input chain as a message does. Several prompts are several answers of one completion, written at the same time; a stream
shows them one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from sessions.billing.prices import sum_public
from sessions.model import commands as cm
from sessions.model.errors import BadInput
from sessions.model.generation import ATTENDED, CONTINUES, CONTINUOUS_USAGE, RAW_PROMPT, TRUNCATION
from sessions.model.types import Json, Principal
from sessions.turn.tool_call_parser import forced_tools
from transport.history_index import Unit
from transport.http import sse
from transport.http.headers import event_id_format, read_retry_headers, resumed_event_id
from transport.http.json_response import JsonResponse
from transport.http_api.context import gateway_of, principal_of, turn_starter_of
from transport.http_api.strict_json import StrictRoute, release_body
from transport.model_catalog import ModelCard, card
from transport.openai.chat import ChatCompletionReader
from transport.openai.chat_render import StreamUsage, encode
from transport.openai.completion_models import Completion, CompletionRequest
from transport.openai.completions import CompletionReader
from transport.openai.left_out import left_out, read_parts, thoughts_left_out
from transport.openai.parse_request import (
    CHAT_SCHEMAS,
    chat_history,
    chat_sampling,
    chat_tools,
    completion_sampling,
    goes_on,
    stream_usage,
)
from transport.openai.request_models import ChatRequest
from transport.openai.response_models import STREAM, ChatCompletion, answers
from transport.openai.resume import StartedTurn
from transport.openai.scored_prompts import needs_no_turn, read_prompts, read_scores, scored_completion
from transport.openai.turn_starter import TurnInput, TurnRequest, naming_input
from transport.openai.unknown_parameters import check_optional, leave_out

ROUTE: Final = "chat"
COMPLETIONS: Final = "completions"


routes = APIRouter(tags=["chat"], route_class=StrictRoute)


@routes.post("/v1/chat/completions", response_model=None, responses=answers(ChatCompletion, also=STREAM))
async def create(request: Request, body: ChatRequest) -> Response:
    """Answers a conversation that the client keeps. `stream: true` gives server-sent events."""
    gateway, starter, principal = gateway_of(request), turn_starter_of(request), principal_of(request, "chat")
    gateway.check_draining()
    headers, given = read_retry_headers(request), await request.body()
    seen = resumed_event_id(request, headers, given)
    model = card(gateway.models, body.model)
    usage = stream_usage(body.stream_options, stream=bool(body.stream))
    plain = headers.idempotency_key is None and not headers.event_ids
    unread = read_parts(body.messages, "messages", images=model.images, ignores_unknown=gateway.ignores_unknown)
    leave_out(request, unread)
    turn = chat_turn(body, model, counted=usage.each, attended=plain)
    leave_out(request, left_out(body, efforts=model.efforts))
    leave_out(request, thoughts_left_out(body, turn.sampling, thoughts=model.thoughts))
    turn = turn._replace(sampling=check_optional(request, model, turn.sampling))
    forced = forced_tools(turn.sampling, turn.tools)
    release_body(request, body.messages)
    await gateway.check_schemas(principal, turn.tools, turn.sampling.text, CHAT_SCHEMAS, forced)
    with naming_input("messages", format="response_format"):
        has_left = request.is_disconnected if plain else None
        started = await starter.start(
            TurnRequest(principal, ROUTE, turn, given, headers.idempotency_key, seen, has_left)
        )
    session = started.cursor.key.session

    def left() -> None:
        if plain and started.cursor.sole_reader:
            starter.cancel_soon(principal, session, started.responses)

    completion = ChatCompletionReader(
        starter,
        started,
        model=turn.model,
        logprobs=turn.sampling.logprobs,
        usage=usage,
    )
    if not body.stream:
        whole = await sse.cancel_on_disconnect(request, completion.whole(), left)
        return JsonResponse(whole, headers=completion.headers)
    ids = event_id_format(started.responses[0], given, headers.idempotency_key) if headers.event_ids else None
    chunks = completion.stream(ids=ids, skip=seen)
    # What goes wrong before the first chunk is answered by the status.
    first = await sse.cancel_on_disconnect(request, anext(chunks), left)
    return sse.EventStreamResponse(sse.resumed(first, chunks), left=left, headers=completion.headers)


def chat_turn(body: ChatRequest, model: ModelCard, *, counted: bool = False, attended: bool = False) -> TurnInput:
    """Returns a chat request as the input of a turn. `counted`: each delta has the usage so far. `attended`: the answer
    is cancelled if its client leaves. Raises BadInput."""
    instructions, units = chat_history(body.messages)
    sampling = chat_sampling(body)
    tools = chat_tools(body.tools)
    model.check(sampling, tools, format_param="response_format")
    user = body.user or body.safety_identifier
    more: dict[str, Json] = {CONTINUOUS_USAGE: True} if counted else {}
    if attended:
        more[ATTENDED] = True
    if goes_on(body):
        more[CONTINUES] = True
    if body.truncation is not None:
        more[TRUNCATION] = body.truncation
    return TurnInput(
        model=model.id,
        user=user,
        instructions=instructions,
        tools=tools,
        units=units,
        sampling=sampling,
        choices=body.n or 1,
        metadata=dict(body.metadata or {}),
        request=_journaled(user, **more),
    )


def _journaled(user: str | None, **more: Json) -> dict[str, Json]:
    """Returns the part of a request that is stored with its response. `user` is in it because the end user decides
    which KV later runs may reuse."""
    return {"store": False, **({} if user is None else {"user": user}), **more}


# -- bare prompts -----------------------------------------------------------------------------------------------------


@routes.post("/v1/completions", response_model=None, responses=answers(Completion, also=STREAM))
async def complete(request: Request, body: CompletionRequest) -> Response:
    """Continues a prompt. `stream: true` gives server-sent events."""
    gateway, starter, principal = gateway_of(request), turn_starter_of(request), principal_of(request, "chat")
    gateway.check_draining()
    check_completion(body)
    usage = stream_usage(body.stream_options, stream=bool(body.stream))
    model = card(gateway.models, body.model)
    sampling = completion_sampling(body)
    model.check(sampling, format_param="prompt")
    leave_out(request, left_out(body))
    sampling = check_optional(request, model, sampling)
    prompts = await read_prompts(gateway, principal, model.id, body)
    scores = await sse.cancel_on_disconnect(request, read_scores(gateway, principal, model.id, body, prompts))
    retryable = read_retry_headers(request).idempotency_key is not None
    if scores and needs_no_turn(body, scores, retryable=retryable):
        whole = scored_completion(gateway, model, body, prompts, scores)
        return sse.EventStreamResponse(_at_once(whole, usage)) if body.stream else JsonResponse(whole)
    user = body.user or body.safety_identifier
    turns = [
        TurnInput(
            model=model.id,
            user=user,
            instructions=None,
            tools=(),
            units=[Unit((cm.NewMessage(content=prompt.text),))],
            sampling=sampling,
            choices=body.n or 1,
            metadata=dict(body.metadata or {}),
            request=_journaled(
                user,
                **{RAW_PROMPT: prompt.raw},
                **({CONTINUOUS_USAGE: True} if usage.each else {}),
                **({} if retryable else {ATTENDED: True}),
            ),
        )
        for prompt in prompts
    ]
    given = await request.body()
    release_body(request, body.prompt)
    with naming_input("prompt"):
        started = await _started(request, principal, turns, given)

    def left() -> None:
        for each in started:
            if not retryable and each.cursor.sole_reader:
                starter.cancel_soon(principal, each.cursor.key.session, each.responses)

    readers = [
        CompletionReader(
            starter,
            each,
            model=model.id,
            logprobs=sampling.logprobs,
            usage=usage,
            first=number * (body.n or 1),
            echo=prompts[number].text if body.echo else "",
            scored=scores[number].entries if scores else (),
        )
        for number, each in enumerate(started)
    ]
    if not body.stream:
        wholes = await sse.cancel_on_disconnect(request, asyncio.gather(*(each.whole() for each in readers)), left)
        return JsonResponse(merged(wholes), headers=readers[0].headers)
    chunks = _streamed(readers)
    first = await sse.cancel_on_disconnect(request, anext(chunks), left)
    return sse.EventStreamResponse(sse.resumed(first, chunks), left=left, headers=readers[0].headers)


async def _at_once(whole: dict[str, Any], usage: StreamUsage) -> AsyncGenerator[bytes, None]:
    """Yields a finished completion as server-sent events, in bytes."""
    head = {name: value for name, value in whole.items() if name != "usage"}
    yield sse.data(encode({**head, **({"usage": None} if usage.last else {})}))
    if usage.last:
        yield sse.data(encode({**head, "choices": [], "usage": whole["usage"]}))
    yield sse.DONE


async def _started(
    request: Request, principal: Principal, turns: Sequence[TurnInput], given: bytes
) -> list[StartedTurn]:
    """Starts all turns of a request, or none: if one is refused, those that were started are cancelled. `given`: the
    request's body."""
    starter, key = turn_starter_of(request), read_retry_headers(request).idempotency_key
    has_left = request.is_disconnected if key is None else None
    started: list[StartedTurn] = []
    try:
        for number, turn in enumerate(turns):
            of_this = key if key is None or number == 0 else f"{key}\0{number}"
            started.append(
                await starter.start(TurnRequest(principal, COMPLETIONS, turn, given, of_this, None, has_left))
            )
    except BaseException:
        for each in started:
            each.cursor.close()
            starter.cancel_soon(principal, each.cursor.key.session, each.responses)
        raise
    return started


async def _streamed(readers: Sequence[CompletionReader]) -> AsyncGenerator[bytes, None]:
    """Yields the streams of several prompts as one, with `[DONE]` only at the end."""
    for number, reader in enumerate(readers, 1):
        async for chunk in reader.stream():
            if chunk != sse.DONE or number == len(readers):
                yield chunk


def merged(wholes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the completions of several prompts as one, with their choices joined and usage added up."""
    if len(wholes) == 1:
        return wholes[0]
    usage = {
        name: sum(each["usage"][name] for each in wholes)
        for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    }
    details = {
        name: {field: sum(each["usage"][name][field] for each in wholes) for field in wholes[0]["usage"][name]}
        for name in ("prompt_tokens_details", "completion_tokens_details")
    }
    cost = sum_public(each["usage"]["cost"] for each in wholes if "cost" in each["usage"])
    return {
        **wholes[0],
        "choices": [choice for each in wholes for choice in each["choices"]],
        "usage": {**usage, **details, **({} if cost is None else {"cost": cost})},
    }


def check_completion(body: CompletionRequest) -> None:
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise BadInput("unsupported_parameter", "'best_of' may only be as large as 'n'.", param="best_of")
