"""Reads one chat completion from its log: as a whole, or as the chunks of a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

from sessions.model import events as ev
from sessions.model.errors import SessileError, Unavailable
from sessions.model.events import Record
from sessions.model.types import Json
from transport import errors
from transport.http import sse
from transport.http.headers import EventId, EventIdFormat, service_headers
from transport.openai.chat_render import ChoiceBuilder, StreamUsage, encode, session_deleted, usage_of, usage_so_far
from transport.openai.continued import ContinuedAnswer
from transport.openai.resume import StartedTurn
from transport.openai.turn_starter import TurnStarter

FINGERPRINT: Final = "sessile"


class ChatCompletionReader:
    """Reads the responses of one request from their log as a chat completion with one choice each.

    `whole`, or the end of `chunks` or `stream`, closes the log's cursor. `headers`, those of the HTTP answer, are
    complete once the first event was read."""

    def __init__(
        self, starter: TurnStarter, started: StartedTurn, *, model: str, logprobs: bool, usage: StreamUsage
    ) -> None:
        self._starter = starter
        self._started = started
        self._model = model
        self._usage = usage
        self._choices = {
            response_id: ChoiceBuilder(index, response_id, logprobs=logprobs)
            for index, response_id in enumerate(started.responses)
        }
        self._by_index = list(self._choices.values())
        self._answers = {response_id: ContinuedAnswer(response_id, hidden=True) for response_id in started.responses}
        self._first = self._choices[started.responses[0]]
        self.headers: dict[str, str] = {"x-session-id": started.cursor.key.session}

    async def whole(self) -> dict[str, Json]:
        """Returns the `chat.completion` object once all choices have ended. Raises the error that one ended with."""
        with self._started.cursor:
            async for _ in self._entries():
                pass
        for choice in self._choices.values():
            if choice.error is not None:
                raise choice.error
        bodies = [choice.body for choice in self._choices.values() if choice.body is not None]
        return {
            **self._head("chat.completion"),
            "choices": [choice.whole() for choice in self._choices.values()],
            "usage": usage_of(bodies),
        }

    async def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yields the stream's `chat.completion.chunk` objects. Raises the error that a choice ended with."""
        with self._started.cursor:
            async for _, entries, error in self._entries():
                if error is not None:
                    raise error
                for entry in entries:
                    yield self._chunk([entry], self._usage_at(entry))
            if self._usage.last:
                yield self._last_chunk()

    async def stream(
        self, *, ids: EventIdFormat | None = None, skip: EventId | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yields the stream as server-sent events, in bytes. An error before the first of them is raised; a later one
        is sent as an event.

        `ids` makes the event ids; `skip` is the id of the last event that the client has from an earlier stream."""
        sent = False
        cursor = self._started.cursor
        with cursor:
            try:
                async for record, entries, error in self._entries():
                    if skip is not None and skip.epoch == cursor.epoch and record.offset <= skip.offset:
                        continue
                    if error is not None:
                        raise error
                    for number, entry in enumerate(entries, 1):
                        # The id stands on the last chunk of its event: one that is cut off before it comes again.
                        event_id = ids(cursor.epoch, record.offset) if ids and number == len(entries) else None
                        chunk = encode(self._chunk([entry], self._usage_at(entry)))
                        yield sse.data(chunk, id=None if event_id is None else str(event_id))
                        sent = True
                if self._usage.last:
                    yield sse.data(encode(self._last_chunk()))
                yield sse.DONE
            except SessileError as error:
                if not sent:
                    raise
                yield sse.data(encode({"error": errors.openai_public(error)}))

    async def _entries(self) -> AsyncIterator[tuple[Record, list[dict[str, Json]], SessileError | None]]:
        """Yields each event with the stream entries that it becomes and the error that it ends a choice with, up to
        the end of the last choice. Raises Gone, Unavailable."""
        left = len(self._choices)
        async for record in self._started.cursor.records(self._started.after):
            event = record.event
            if isinstance(event, ev.SessionDeleted):
                raise session_deleted()
            if isinstance(event, ev.ContentRetracted) and event.response_id in self._choices:
                self._choices[event.response_id].retract()
            for choice, part in self._taken(event):
                if choice is self._first and isinstance(part, ev.ResponseCreated):
                    self.headers |= service_headers(part.response)
                entries = choice.take(part)
                if choice.body is None:
                    if entries:
                        yield record, entries, None
                    continue
                await self._starter.record_answer(self._started, choice.body)
                yield record, entries, choice.error
                left -= 1
                if not left:
                    return
        raise Unavailable("journal_unavailable", "The log of this answer ended before the answer did.")

    def _taken(self, event: ev.AnyEvent) -> list[tuple[ChoiceBuilder, ev.ResponseEvent]]:
        """Returns the choices that an event belongs to, each with the event as its own response shows it. Responses
        that continue a choice after server tools count as that choice."""
        taken = []
        for response_id, answer in self._answers.items():
            at = answer.at
            taken += [(self._choices[response_id], part) for part in answer.take(event)]
            if answer.at != at:
                self._started.cursor.follow([*self._answers, *(each.at for each in self._answers.values())])
        return taken

    def _head(self, kind: str) -> dict[str, Json]:
        return {
            "id": f"chatcmpl-{self._first.response_id.removeprefix('resp_')}",
            "object": kind,
            "created": self._first.created,
            "model": self._first.model or self._model,
            "service_tier": "default",
            "system_fingerprint": FINGERPRINT,
            **self._first.left_out,
        }

    def _usage_at(self, entry: dict[str, Json]) -> dict[str, Json] | None:
        return usage_so_far(self._by_index[entry["index"]]) if self._usage.each else None

    def _chunk(self, entries: list[dict[str, Json]], usage: dict[str, Json] | None) -> dict[str, Any]:
        chunk = {**self._head("chat.completion.chunk"), "choices": entries}
        if self._usage.last:
            chunk["usage"] = usage
        return chunk

    def _last_chunk(self) -> dict[str, Any]:
        bodies = [choice.body for choice in self._choices.values() if choice.body is not None]
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage_of(bodies)}
