"""The headers of an HTTP request that bear on sessions and streams."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from fastapi import Request

from sessions.errors import BadInput
from sessions.types import INTEGER_MAX, Epoch

KEY_LENGTH_MAX: Final = 255
_EVENT_ID: Final = re.compile(r"^(?P<epoch>[^\s:]{1,128}):(?P<offset>\d{1,16})$")


class Asked(NamedTuple):
    idempotency_key: str | None
    event_ids: bool


class EventId(NamedTuple):
    """A place in a log, as the `id:` line of an event names it."""

    epoch: Epoch
    offset: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.offset}"


def asked(request: Request) -> Asked:
    """Raises BadInput."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= KEY_LENGTH_MAX:
        raise BadInput(
            "invalid_request", f"An Idempotency-Key has 1 to {KEY_LENGTH_MAX} characters.", param="idempotency_key"
        )
    return Asked(key, request.headers.get("x-sessile-event-ids") == "1")


def last_event_id(request: Request) -> EventId | None:
    """Where a reader that comes back stands. Raises BadInput for what is no id of ours."""
    given = request.headers.get("last-event-id")
    if not given:
        return None
    found = _EVENT_ID.match(given)
    if found is None or int(found["offset"]) > INTEGER_MAX:
        raise BadInput("invalid_request", "Last-Event-ID is not an id of this server.", param="last_event_id")
    return EventId(Epoch(found["epoch"]), int(found["offset"]))
