"""Reads one response of the Responses API from its log: as it stands, to its end, or as a stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from sessions.model import events as ev
from sessions.model.errors import NotFound, SessileError
from sessions.model.events import ERASED
from sessions.model.types import Item, Json, ResponseId, UnixMs
from transport import errors
from transport.http import sse
from transport.http.headers import EventId, EventIdFormat, bad_event_id, service_headers
from transport.openai import responses_render
from transport.openai.chat_render import session_deleted
from transport.openai.continued import TERMINAL, ContinuedAnswer
from transport.openai.log_cursor import LogCursor
from transport.openai.mcp.shown import McpEvents
from transport.openai.output_logprobs import OutputLogprobs
from transport.openai.resume import check
from transport.openai.thoughts import ThoughtEvents

_encode = msgspec.json.Encoder().encode
_PLACE: Final = "_place"  # of an event on its way: its id, and whether its reader has it already


class _Read(NamedTuple):
    body: ev.ResponseBody
    ended_at: UnixMs | None
    logprobs: OutputLogprobs


@dataclass(frozen=True, eq=False, repr=False)
class ResponseReader:
    """Reads one response from its log. Whoever makes a reader closes the cursor, or reads `stream` to its end.

    All events of the response come behind the offset `after`. `ended` is called with the response at its end, before
    the client gets it.
    """

    cursor: LogCursor
    response_id: ResponseId
    after: int
    ended: Callable[[ev.ResponseBody], Awaitable[None]] | None = None
    before: Sequence[Item] = ()  # calls that the response continues from, and their outputs
    cache: dict[str, str] = field(default_factory=dict)  # headers about its result cache, once its first event was read

    async def check(self, *, unstored: bool = False) -> None:
        """Raises NotFound, Gone, Unavailable if the response cannot be read: it was erased, or was requested with
        `store: false` and `unstored` is not set."""
        await self.cursor.check(self.after)
        if self.cursor.retracted(self.response_id, ERASED):
            raise not_found(self.response_id)
        request = (await self.begun()).request
        if not unstored and isinstance(request, dict) and request.get("store") is False:
            raise not_found(self.response_id)

    async def check_seen(self, seen: EventId) -> None:
        """Raises BadInput if `seen`, a client's last event id, is not a place in this response; Unavailable."""
        if seen.response not in (None, self.response_id):
            raise bad_event_id("This Last-Event-ID is of another response.")
        await check(self.cursor, self.after, seen)

    async def body(self, *, ended: bool = False) -> ev.ResponseBody:
        """Returns the response as it is now; with `ended`, waits for its end."""
        return (await self._read(ended=ended)).body

    async def shown(self, *, ended: bool = False) -> dict[str, Json]:
        """Returns the response rendered as OpenAI's `response` object; with `ended`, waits for its end."""
        read = await self._read(ended=ended)
        return responses_render.response(read.body, ended_at=read.ended_at, logprobs=read.logprobs)

    async def _read(self, *, ended: bool) -> _Read:
        body: ev.ResponseBody | None = None
        ended_at, logprobs = None, OutputLogprobs()
        answer = ContinuedAnswer(self.response_id, before=self.before)
        async for record in self.cursor.records(self.after, live=ended):
            logprobs.take(record.event)
            for event in self._followed(answer, record.event):
                if isinstance(event, ev.ResponseQueued | ev.ResponseCreated | TERMINAL):
                    body = event.response
                    self.cache.update(service_headers(body))
                    if isinstance(event, TERMINAL):
                        ended_at = record.at
                        await self._report_end(body)
            if ended_at is not None:
                break
        if body is None:
            raise not_found(self.response_id)
        return _Read(body, ended_at, logprobs)

    def _followed(self, answer: ContinuedAnswer, event: ev.AnyEvent) -> list[ev.ResponseEvent]:
        at = answer.at
        shown = answer.take(event)
        if answer.at != at:
            self.cursor.follow([self.response_id, answer.at])
        return shown

    async def _report_end(self, body: ev.ResponseBody) -> None:
        if self.ended is not None:
            await self.ended(body)

    async def begun(self) -> ev.ResponseBody:
        """Returns the response as it was when it was accepted. Raises NotFound."""
        async for record in self.cursor.records(self.after):
            event = record.event
            if isinstance(event, ev.ResponseQueued | ev.ResponseCreated) and event.response_id == self.response_id:
                self.cache.update(service_headers(event.response))
                return event.response
        raise not_found(self.response_id)

    async def shown_begun(self) -> dict[str, Json]:
        """Returns OpenAI's `response` object as it was when the response was accepted."""
        return responses_render.response(await self.begun())

    async def stream(
        self, *, starting_after: int | None = None, ids: EventIdFormat | None = None, skip: EventId | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yields the response's events as server-sent events, in bytes: those after `starting_after` (a sequence
        number) and after the event with the id `skip`. `ids` makes their ids. An error is sent as the last event."""
        body: ev.ResponseBody | None = None
        logprobs, answer = OutputLogprobs(), ContinuedAnswer(self.response_id, before=self.before)
        mcp, thoughts = McpEvents(), ThoughtEvents()
        upcoming = 0 if starting_after is None else starting_after + 1
        with self.cursor as cursor:
            try:
                async for record in cursor.records(self.after):
                    event = record.event
                    if isinstance(event, ev.SessionDeleted):
                        raise session_deleted()
                    logprobs.take(event)
                    for part in self._followed(answer, event):
                        if isinstance(part, TERMINAL):
                            await self._report_end(part.response)
                        if isinstance(part, ev.ResponseQueued | ev.ResponseCreated):
                            body = part.response
                            self.cache.update(service_headers(body))
                        known = skip is not None and skip.epoch == cursor.epoch and record.offset <= skip.offset
                        plain = responses_render.event(part, record.at, logprobs)
                        if isinstance(part, ev.ResponseInProgress) and body is not None:
                            plain["response"] = responses_render.response(
                                msgspec.structs.replace(body, status="in_progress")
                            )
                        event_id = None if ids is None else str(ids(cursor.epoch, record.offset))
                        taken = ({**each, _PLACE: (event_id, known)} for each in mcp.take(part, plain))
                        every = [shown for each in taken for shown in thoughts.take(each)]
                        for place, shown in enumerate(every, 1):
                            # One that was held back has the place of its own record; of several of one record the last
                            # has the id: a record that is cut off comes again.
                            own_id, was_known = shown.pop(_PLACE, (event_id, known))
                            if own_id == event_id and place < len(every):
                                own_id = None
                            number = shown["sequence_number"]
                            upcoming = max(upcoming, number + 1)
                            # A text that was taken back since may have had more events: the end is sent all the same.
                            is_end = isinstance(part, TERMINAL) and place == len(every)
                            if not was_known and (starting_after is None or number > starting_after or is_end):
                                yield sse.data(_encode(shown), event=shown["type"], id=own_id)
                        if isinstance(part, TERMINAL):
                            return
            except SessileError as error:
                shown = {**errors.openai_public(error), "type": "error", "sequence_number": upcoming}
                yield sse.data(_encode(shown), event="error")


def not_found(response_id: str, param: str = "response_id") -> NotFound:
    return NotFound("response_not_found", f"Response with id '{response_id}' not found.", param=param)
