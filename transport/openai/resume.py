"""A reader that comes back with the last id that it saw: to the answer that it read, and to no other.

The id names the response, and the journal knows where that is: so every gateway finds it, after a restart too. Nothing
is begun here. Who may not see the session, and whoever stands where the log has nothing (any more), is refused.
"""

from __future__ import annotations

from typing import NamedTuple

from sessions.model import events as ev
from sessions.model.errors import BadInput, Gone, NotFound
from sessions.model.events import ERASED
from sessions.model.types import ItemId, Principal, ResponseId
from transport.gateway import Gateway
from transport.http.headers import EventId, bad_event_id
from transport.openai.log_cursor import LogCursor


class StartedTurn(NamedTuple):
    """A turn in the log. Whoever has it closes the cursor. Its responses' events come behind the offset `after`."""

    cursor: LogCursor
    responses: tuple[ResponseId, ...]
    after: int
    chain: bytes = b""  # of the history up to the answer, if the history index has it
    last: ItemId | None = None  # the last item that the turn added
    root: bytes = b""  # the chain before the history's first message


async def resume(gateway: Gateway, principal: Principal, seen: EventId, *, choices: int = 1) -> StartedTurn:
    """Returns the turn, with this many choices, whose stream had the event `seen`. Raises BadInput, Unavailable."""
    assert seen.response is not None
    place = await gateway.find_response(principal, seen.response)
    if place is None:
        raise _not_there()
    cursor, after = LogCursor(gateway, principal, place.key, follows=[seen.response]), place.offset - 1
    with cursor.closed_on_error():
        await check(cursor, after, seen)
        responses = await _responses(cursor, after, seen.response, choices)
        cursor.follow(responses)
    return StartedTurn(cursor, responses, after)


async def check(cursor: LogCursor, after: int, seen: EventId) -> None:
    """Raises BadInput if the log does not have the event `seen`, or its response was erased; Unavailable."""
    try:
        await cursor.check(after)
    except (NotFound, Gone) as error:
        raise _not_there() from error
    erased = seen.response is not None and cursor.retracted(seen.response, ERASED)
    if erased or cursor.epoch != seen.epoch or cursor.top < seen.offset:
        raise _not_there()


async def _responses(cursor: LogCursor, after: int, first: ResponseId, choices: int) -> tuple[ResponseId, ...]:
    """Returns a request's choices in order: `first` and the responses after it to the same message. Raises BadInput."""
    responses: list[ResponseId] = []
    parent_id = None
    async for record in cursor.records(after, live=False):
        match record.event:
            case ev.ResponseCreated(response=body) | ev.ResponseQueued(response=body):
                if not responses and body.id == first:
                    responses, parent_id = [first], body.parent_id
                elif responses and body.parent_id == parent_id:
                    responses.append(body.id)
                if len(responses) == choices:
                    return tuple(responses)
    raise _not_there()


def _not_there() -> BadInput:
    return bad_event_id("What this Last-Event-ID names is not there (any more): begin anew without it.")
