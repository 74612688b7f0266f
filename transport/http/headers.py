"""Reads the headers that repeat a request or resume a stream: Idempotency-Key, Last-Event-ID."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from fastapi import Request

from sessions.machine.model_routing import routing_note
from sessions.machine.routed_turns import ROUTING
from sessions.model.errors import BadInput
from sessions.model.events import ResponseBody
from sessions.model.generation import ITEMS_LEFT_OUT
from sessions.model.types import INTEGER_MAX, Epoch, ResponseId

KEY_LENGTH_MAX: Final = 255
_EVENT_ID: Final = re.compile(
    r"^(?P<epoch>[^\s:.]{1,128})(\.(?P<response>[^\s:.]{1,128})\.(?P<request>[0-9a-f]{12}))?:(?P<offset>\d{1,16})$"
)


class RetryHeaders(NamedTuple):
    idempotency_key: str | None
    event_ids: bool


class EventId(NamedTuple):
    """A place in a log, as the `id:` line of an event has it. On a request's stream it also names the response (the
    first of several) and the request, so that a client can come back with this id alone."""

    epoch: Epoch
    offset: int
    response: ResponseId | None = None
    request: str = ""  # `request_digest`

    def __str__(self) -> str:
        answer = "" if self.response is None else f".{self.response}.{self.request}"
        return f"{self.epoch}{answer}:{self.offset}"


EventIdFormat = Callable[[Epoch, int], EventId]
"""Makes the ids of a stream's events from epoch and offset."""


def event_id_format(response: ResponseId, body: bytes, key: str | None) -> EventIdFormat:
    """Returns the function that makes the event ids of a request's stream. An id names the response and the request,
    unless the request has an Idempotency-Key: then repeating the request leads back to the stream."""
    if key is not None:
        return EventId
    return partial(EventId, response=response, request=request_digest(body))


def request_digest(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=6).hexdigest()


def read_retry_headers(request: Request) -> RetryHeaders:
    """Returns the headers by which a client repeats or resumes a request. Raises BadInput."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= KEY_LENGTH_MAX:
        raise BadInput(
            "invalid_request", f"An Idempotency-Key has 1 to {KEY_LENGTH_MAX} characters.", param="idempotency_key"
        )
    return RetryHeaders(key, request.headers.get("x-sessile-event-ids") == "1")


def last_event_id(request: Request) -> EventId | None:
    """Returns the Last-Event-ID of a reconnecting client; None without one. Raises BadInput if it is none of ours."""
    given = request.headers.get("last-event-id")
    if not given:
        return None
    match = _EVENT_ID.match(given)
    if match is None or int(match["offset"]) > INTEGER_MAX:
        raise BadInput("invalid_request", "Last-Event-ID is not an id of this server.", param="last_event_id")
    response = ResponseId(match["response"]) if match["response"] else None
    return EventId(Epoch(match["epoch"]), int(match["offset"]), response, match["request"] or "")


def resumed_event_id(request: Request, headers: RetryHeaders, body: bytes) -> EventId | None:
    """Returns the place in the stream that this same request began, from its Last-Event-ID; None without one. Raises
    BadInput if it leads to no such stream, because its sender wants no second answer."""
    seen = last_event_id(request)
    if seen is None:
        return None
    if not headers.event_ids:
        raise bad_event_id("Last-Event-ID needs X-Sessile-Event-Ids: 1 beside it.")
    if seen.response is None and headers.idempotency_key is None:
        raise bad_event_id(
            "This Last-Event-ID does not name its answer: send the Idempotency-Key of the first request with it, or"
            " begin anew without it."
        )
    if seen.response is not None and seen.request != request_digest(body):
        raise bad_event_id("This Last-Event-ID is of a stream that another request began.")
    return seen


def bad_event_id(why: str) -> BadInput:
    return BadInput("invalid_request", why, param="last_event_id")


def service_headers(body: ResponseBody) -> dict[str, str]:
    """Returns headers about a response: if it came from the result cache, how many items its prompt leaves out, and
    which model was chosen and why."""
    headers = dict[str, str]()
    if body.service and (outcome := body.service.get("cache")) is not None:
        headers["x-cache"] = str(outcome)
    if body.service and (left_out := body.service.get(ITEMS_LEFT_OUT)):
        headers["x-sessile-items-left-out"] = str(left_out)
    if body.service and isinstance(receipt := body.service.get(ROUTING), dict):
        headers["x-sessile-routing"] = routing_note(receipt)
    return headers
