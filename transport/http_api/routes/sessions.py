"""`/v1/sessions`: sessions as such: listed, searched, read, changed, deleted, exported, shared by links, and their logs
as server-sent events. `/v1/shares`: what was shared.

`GET /v1/sessions/{id}/events?after=N` is the log itself: each event with its `id: <epoch>:<offset>`, which a reader
that comes back sends as `Last-Event-ID`. It goes on there, or gets a `snapshot` or `reset` event where it cannot,
exactly as over WebSocket (docs/protocol.md, 3.1).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field, StringConstraints

from sessions.model import commands as cm
from sessions.model.errors import BadInput, Gone, SessileError, Unavailable
from sessions.model.shares import ShareId, ShareLink
from sessions.model.types import INTEGER_MAX, Epoch, ItemId, Principal, SessionId
from transport import errors
from transport.http import sse
from transport.http.headers import EventId, last_event_id
from transport.http.paging import page_of
from transport.http_api.context import command_id_of, gateway_of, principal_of
from transport.http_api.credential_gate import address_of
from transport.http_api.routes.conversations import key_of
from transport.http_api.strict_json import StrictRoute
from transport.openai import export, request_models
from transport.openai.log_cursor import LogCursor
from transport.openai.response_models import (
    ERRORS,
    MARKDOWN,
    STREAMED,
    NewShareObject,
    SessionDeletedObject,
    SessionExport,
    SessionListObject,
    SessionMatchList,
    SessionObject,
    SharedConversation,
    ShareDeletedObject,
    ShareList,
    answers,
)
from transport.protocol.decoding import BadFrame, RefusedFrame, decode
from transport.protocol.delta_merge import merged
from transport.protocol.frames import (
    JSON,
    Ack,
    CaughtUp,
    Hello,
    Ping,
    Pong,
    SessionGet,
    SessionList,
    SessionSearch,
    Subscribe,
    Unsubscribe,
    event_frame,
)
from transport.reading.log_reader import ResumePlan
from transport.reading.reader_set import resumed
from transport.reading.search import QUERY_MAX

ROUTE: Final = "sessions"
POLL_MS_MAX: Final = 25_000  # proxies cut what is silent for 30 s
PAGE_S: Final = 30.0  # seconds for a page of events that exist already
SAMPLED: Final = ("temperature", "max_output_tokens")
_OPTIONAL: Final = ("context_policy", "compact_threshold", "knowledge", "compactions")

UNINDEXED: Final = {"cache-control": "no-store", "x-robots-tag": "noindex, nofollow, noarchive"}

Name = Annotated[str, Path(max_length=64)]
Token = Annotated[str, Path(max_length=64)]
_encode = msgspec.json.Encoder().encode


class SessionChange(request_models.RequestModel):
    """Changes of a session. Absent fields stay as they are; null clears one. Limits are as for `session.update`."""

    title: Annotated[str, StringConstraints(max_length=256)] | None = None
    metadata: Annotated[dict[str, Any], Field(max_length=64)] | None = None
    instructions: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2, strict=True)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] | None = None
    context_policy: Literal["off", "truncate", "compact"] | None = None
    compact_threshold: Annotated[int, Field(ge=1, le=100_000_000, strict=True)] | None = None


class ShareRequest(request_models.RequestModel):
    """The branch to share: the one that ends in `item_id`; without it, the present branch."""

    item_id: Annotated[str, StringConstraints(max_length=128)] | None = None


def answer(body: Any, media_type: str = "application/json") -> Response:
    return Response(body if isinstance(body, str) else _encode(body), media_type=media_type)


routes = APIRouter(tags=["sessions"], route_class=StrictRoute)


async def described(request: Request, principal: Principal, session: str) -> dict[str, Any]:
    done = await gateway_of(request).get(principal, "", SessionId(session))
    assert done.state is not None
    state = done.state
    names = ("title", "model", "metadata", "instructions", "tools", *SAMPLED, "created_at", "head")
    return {
        "id": session,
        "object": "session",
        "epoch": done.epoch,
        "offset": done.offset,
        **{name: state[name] for name in names},
        **{name: state[name] for name in _OPTIONAL if name in state},
        "reviews": state.get("reviews", []),
        "open": [each["response_id"] for each in state["open"]],
        "num_items": len(state["items"]),
    }


@routes.get("/v1/sessions", response_model=None, responses=answers(SessionListObject))
async def list_sessions(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = None,
) -> Response:
    """Lists the sessions that the caller may see, newest first."""
    principal, position = principal_of(request, "read"), None if after is None else SessionId(after)
    listed = await gateway_of(request).list(principal, "", limit, position)
    data = [{"object": "session", **each} for each in listed.data]
    return answer({"object": "list", "data": data, "has_more": listed.has_more, "last_id": listed.last_id})


@routes.get("/v1/sessions/search", response_model=None, responses=answers(SessionMatchList))
async def search_sessions(
    request: Request,
    q: Annotated[str, Query(min_length=1, max_length=QUERY_MAX)],
    limit: Annotated[int, Query(ge=1, le=50)] = 20,
    after: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = None,
) -> Response:
    """Searches the caller's sessions for those with every word of `q` in the title or in one text, newest first. One
    request looks at a bounded number: while `has_more`, continue with `after=last_id`, even if nothing matched."""
    principal, position = principal_of(request, "read"), None if after is None else SessionId(after)
    matched = await gateway_of(request).search(principal, "", q, limit, position)
    data = [{"object": "session.match", **each} for each in matched.data]
    return answer({"object": "list", "data": data, "has_more": matched.has_more, "last_id": matched.last_id})


@routes.get("/v1/sessions/{session}", response_model=None, responses=answers(SessionObject))
async def read(request: Request, session: Name) -> Response:
    return answer(await described(request, principal_of(request, "read"), session))


@routes.patch("/v1/sessions/{session}", response_model=None, responses=answers(SessionObject))
async def change(request: Request, session: Name, body: SessionChange) -> Response:
    """Changes a session's title, its metadata (as a whole), or how its next answers are made."""
    principal = principal_of(request, "chat")
    changes: dict[str, Any] = {name: getattr(body, name) for name in body.model_fields_set}
    command = cm.SessionUpdate(
        id=command_id_of(request, principal, ROUTE),
        session=key_of(principal, session).session,
        **changes,
    )
    await gateway_of(request).execute(principal, command)
    return answer(await described(request, principal, session))


@routes.delete("/v1/sessions/{session}", response_model=None, responses=answers(SessionDeletedObject))
async def delete(request: Request, session: Name) -> Response:
    principal = principal_of(request, "chat")
    command_id = command_id_of(request, principal, ROUTE)
    await gateway_of(request).execute(principal, cm.SessionDelete(id=command_id, session=SessionId(session)))
    return answer({"id": session, "object": "session.deleted", "deleted": True})


@routes.get("/v1/sessions/{session}/export", response_model=None, responses=answers(SessionExport, also=MARKDOWN))
async def exported(request: Request, session: Name, format: Literal["json", "markdown"] = "json") -> Response:
    """Returns the whole session as JSON, or its present branch as Markdown, without retracted text."""
    gateway, principal = gateway_of(request), principal_of(request, "read")
    gateway.audit.take_export(principal)
    head, state = await gateway.logs.state(principal, key_of(principal, session))
    detail = {"format": format, "offset": head.top}
    await gateway.audit.record(
        principal.tenant, "session.exported", by=principal, user=head.user, session=session, detail=detail
    )
    if format == "markdown":
        return answer(export.markdown(state), "text/markdown; charset=utf-8")
    return answer(export.document(session, head.epoch, head.top, state))


@routes.post("/v1/sessions/{session}/shares", status_code=201, responses=ERRORS)
async def share(request: Request, response: Response, session: Name, body: ShareRequest) -> NewShareObject:
    """Makes a share link: whoever has its token can read the branch as it is now. The token is only in this answer."""
    response.headers["cache-control"] = "no-store"
    principal = principal_of(request, "chat")
    leaf = None if body.item_id is None else ItemId(body.item_id)
    made, token = await gateway_of(request).sharing.share(principal, key_of(principal, session), leaf)
    return NewShareObject(**share_fields(made), token=token)


@routes.get("/v1/sessions/{session}/shares", responses=ERRORS)
async def shares(request: Request, session: Name) -> ShareList:
    """Lists all share links of a session, newest first, without their tokens."""
    principal = principal_of(request, "chat")
    found = await gateway_of(request).sharing.shares(principal, key_of(principal, session))
    return ShareList.model_validate(page_of(found, len(found), show=share_fields, cursor=lambda each: each.id))


@routes.delete("/v1/sessions/{session}/shares/{share_id}", responses=ERRORS)
async def revoke_share(request: Request, session: Name, share_id: Name) -> ShareDeletedObject:
    """Revokes a share link: its token shows nothing any more."""
    principal = principal_of(request, "chat")
    await gateway_of(request).sharing.revoke(principal, key_of(principal, session), ShareId(share_id))
    return ShareDeletedObject(object="session.share.deleted", id=share_id, deleted=True)


def share_fields(share: ShareLink) -> dict[str, Any]:
    fields = {name: getattr(share, name) for name in ("id", "item_id", "offset", "created_at", "created_by")}
    return {"object": "session.share", "session": share.key.session, **fields}


@routes.get("/v1/shares/{token}", responses=ERRORS)
async def shared(request: Request, response: Response, token: Token) -> SharedConversation:
    """Returns a shared branch to anybody who has the token; no key is needed. It must not be cached or indexed."""
    gateway = gateway_of(request)
    response.headers.update(UNINDEXED)
    found = await gateway.sharing.read(token, address_of(gateway.access, request.scope))
    return SharedConversation.model_validate(found)


@routes.get("/v1/sessions/{session}/events", response_model=None, responses=STREAMED)
async def events(
    request: Request,
    session: Name,
    after: Annotated[int | None, Query(ge=0, le=INTEGER_MAX)] = None,
    epoch: Annotated[str | None, Query(max_length=128)] = None,
    wait_ms: Annotated[int | None, Query(ge=0, le=POLL_MS_MAX)] = None,
) -> Response:
    """Streams the session's events after `after` (or `Last-Event-ID`), old and new; without either a snapshot comes
    first. With `wait_ms` it answers once, with an array of frames: those that exist, or the first that come within
    that time."""
    gateway, principal = gateway_of(request), principal_of(request, "read")
    gateway.check_draining()
    stands = last_event_id(request)
    cursor = LogCursor(gateway, principal, key_of(principal, session))
    with cursor.closed_on_error():
        if stands is not None:
            try:
                standing = await cursor.standing(stands.epoch, stands.offset)
            except Gone:
                if wait_ms is None and (stands.epoch, stands.offset) == (cursor.epoch, cursor.top):
                    cursor.close()
                    return Response(status_code=204)  # it has read the deletion; an EventSource stops only at this
                raise
        else:
            if after and epoch is None:
                await cursor.check(after)  # a bare number is taken to be of the log as it is
                epoch = cursor.epoch
            standing = await cursor.standing(None if epoch is None else Epoch(epoch), after)
    if wait_ms is not None:
        polled = poll_log(cursor, standing, wait_ms / 1000)
        answered = answer(await sse.cancel_on_disconnect(request, polled, lambda: None))
        answered.headers["cache-control"] = "no-store"
        return answered
    return sse.EventStreamResponse(stream_log(cursor, standing))


async def stream_log(cursor: LogCursor, standing: ResumePlan) -> AsyncGenerator[bytes, None]:
    session = cursor.key.session
    with cursor:
        try:
            if standing.mode != "replay":
                at = str(EventId(standing.epoch, standing.position))
                yield sse.data(_encode(resumed(session, standing)), event=standing.mode, id=at)
            caught_up = False
            if standing.position >= standing.top:
                caught_up = True
                cursor.note_read(standing.position)
                yield sse.data(_encode(CaughtUp(session=session, offset=standing.position)), event="caught_up")
            async for record in cursor.records(standing.position):
                frame = event_frame(session, standing.epoch, record)
                at = str(EventId(standing.epoch, record.offset))
                yield sse.data(_encode(frame), event="event", id=at)
                if not caught_up and record.offset >= standing.top:
                    caught_up = True
                    cursor.note_read(record.offset)
                    yield sse.data(_encode(CaughtUp(session=session, offset=record.offset)), event="caught_up")
        except SessileError as error:
            yield sse.data(_encode({"error": errors.public(error)}), event="error")


async def poll_log(cursor: LogCursor, standing: ResumePlan, wait_s: float) -> list[Any]:
    """Returns the frames after a position: those that exist, else the first that come within `wait_s`, else none; none
    either once the server is draining. `caught_up` is added if no more exist. Closes the cursor."""
    session = cursor.key.session
    with cursor:
        if standing.mode != "replay":
            return [resumed(session, standing), *_caught_up(cursor, standing.position)]
        ready = standing.position < standing.top
        if not ready:
            cursor.note_read(standing.position)
        async with aclosing(cursor.batches(standing.position)) as batches:
            try:
                records = await asyncio.wait_for(anext(batches), PAGE_S if ready else wait_s)
            except TimeoutError:
                return []
            except Unavailable as error:
                if error.code != "draining":
                    raise
                return []
        spans = [event_frame(session, standing.epoch, *span) for span in merged(records)]
        return [*spans, *_caught_up(cursor, records[-1].offset)]


def _caught_up(cursor: LogCursor, offset: int) -> list[CaughtUp]:
    if offset < cursor.top:
        return []
    cursor.note_read(offset)
    return [CaughtUp(session=cursor.key.session, offset=offset)]


@routes.post("/v1/commands", response_model=None, responses=ERRORS)
async def command(request: Request) -> Response:
    """Carries out one command of the session protocol, sent as its JSON frame, and returns its `ok`: for clients that
    have no WebSocket. A command that is sent again with the same id is applied once and gets the same answer."""
    gateway, principal = gateway_of(request), principal_of(request)
    gateway.check_draining()
    try:
        frames = decode(await request.body(), JSON)
    except BadFrame as exc:
        raise BadInput("bad_frame", exc.reason) from exc
    if len(frames) != 1:
        raise BadInput("bad_frame", "A request carries one command.")
    frame = frames[0]
    if isinstance(frame, Hello | Subscribe | Unsubscribe | Ack | Ping | Pong):
        raise BadInput("unknown_type", "That is for connections; this door takes commands.", param="type")
    if isinstance(frame, RefusedFrame):
        raise frame.error
    match frame:
        case SessionGet():
            return answer(await gateway.get(principal, frame.id, frame.session))
        case SessionList():
            return answer(await gateway.list(principal, frame.id, frame.limit, frame.after))
        case SessionSearch():
            return answer(await gateway.search(principal, frame.id, frame.q, frame.limit, frame.after))
        case _:
            return answer(await gateway.execute(principal, frame))
