"""`POST /v1/completions`: bare prompts go on as the model would have them, without a chat template.

A prompt passes the input chain as a message does. Several prompts are several answers of one completion, written at
the same time; a stream shows them one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from sessions.billing.prices import sum_public
from sessions.model import commands as cm
from sessions.model.errors import BadInput
from sessions.model.generation import RAW_PROMPT
from sessions.model.types import Principal
from transport.http import sse
from transport.http.context import gateway_of, principal_of, turn_starter_of
from transport.http.headers import read_retry_headers
from transport.http.strict_json import StrictRoute
from transport.http.unknown_parameters import check_optional
from transport.openai.completion_models import Completion, CompletionRequest
from transport.openai.completions import CompletionReader
from transport.openai.history import Unit
from transport.openai.model_catalog import card
from transport.openai.parse_request import completion_sampling
from transport.openai.response_models import STREAM, answers
from transport.openai.resume import StartedTurn
from transport.openai.turn_starter import TurnInput, TurnRequest

ROUTE: Final = "completions"

routes = APIRouter(tags=["completions"], route_class=StrictRoute)


@routes.post("/v1/completions", response_model=None, responses=answers(Completion, also=STREAM))
async def create(request: Request, body: CompletionRequest) -> Response:
    """Goes on with a prompt; `stream: true` gives server-sent events."""
    gateway, starter, principal = gateway_of(request), turn_starter_of(request), principal_of(request, "chat")
    gateway.check_draining()
    _check(body)
    model = card(gateway.models, body.model)
    sampling = completion_sampling(body)
    model.check(sampling, format_param="prompt")
    check_optional(request, model, sampling)
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    turns = [
        TurnInput(
            model=model.id,
            user=body.user or body.safety_identifier,
            instructions=None,
            tools=(),
            units=[Unit((cm.NewMessage(content=prompt),))],
            sampling=sampling,
            choices=body.n or 1,
            request={"store": False, RAW_PROMPT: True},
        )
        for prompt in prompts
    ]
    started = await _started(request, principal, turns)
    plain = read_retry_headers(request).idempotency_key is None

    def left() -> None:
        for each in started:
            if plain and each.cursor.sole_reader:
                starter.cancel_soon(principal, each.cursor.key.session, each.responses)

    counted = body.stream_options is not None and bool(body.stream_options.include_usage)
    readers = [
        CompletionReader(
            starter,
            each,
            model=model.id,
            logprobs=sampling.logprobs,
            usage=counted,
            first=number * (body.n or 1),
            echo=prompts[number] if body.echo else "",
        )
        for number, each in enumerate(started)
    ]
    named = {"x-session-id": started[0].cursor.key.session}
    if not body.stream:
        wholes = await sse.cancel_on_disconnect(request, asyncio.gather(*(each.whole() for each in readers)), left)
        return JSONResponse(_merged(wholes), headers=named)
    chunks = _streamed(readers)
    first = await sse.cancel_on_disconnect(request, anext(chunks), left)
    return sse.EventStreamResponse(sse.resumed(first, chunks), left=left, headers=named)


async def _started(request: Request, principal: Principal, turns: Sequence[TurnInput]) -> list[StartedTurn]:
    """All of them, or none: what was begun is cancelled where one is refused."""
    starter, given, key = turn_starter_of(request), await request.body(), read_retry_headers(request).idempotency_key
    started: list[StartedTurn] = []
    try:
        for number, turn in enumerate(turns):
            of_this = key if key is None or number == 0 else f"{key}\0{number}"
            started.append(await starter.start(TurnRequest(principal, ROUTE, turn, given, of_this)))
    except BaseException:
        for each in started:
            each.cursor.close()
            starter.cancel_soon(principal, each.cursor.key.session, each.responses)
        raise
    return started


async def _streamed(readers: Sequence[CompletionReader]) -> AsyncGenerator[bytes, None]:
    """One stream of several: each but the last ends without the end."""
    for number, reader in enumerate(readers, 1):
        async for chunk in reader.stream():
            if chunk != sse.DONE or number == len(readers):
                yield chunk


def _merged(wholes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One completion of one for each prompt."""
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


def _check(body: CompletionRequest) -> None:
    if body.stream_options is not None and not body.stream:
        raise BadInput("invalid_request", "'stream_options' needs 'stream'.", param="stream_options")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise BadInput("unsupported_parameter", "'best_of' may only be as large as 'n'.", param="best_of")
    if body.echo and body.logprobs is not None:
        raise BadInput("unsupported_parameter", "'echo' with 'logprobs' is not served here.", param="echo")
