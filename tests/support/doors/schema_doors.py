"""Sends one JSON schema through every door that takes one, and reports what became of it, in one shape for all."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio
import httpx
from google.protobuf.json_format import ParseDict, ParseError

from testbed.wire_client import connected, new_ulid
from tests.support.doors.grpc_door import ENDS, error_of
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.sessile_pb2_grpc import SessionsStub

Schema = dict[str, Any]
ANSWER_TOKENS: Final = 6
REFUSALS: Final = frozenset(
    {
        *("invalid_schema", "invalid_request", "unsupported_parameter", "context_length_exceeded"),
        *("body_too_large", "content_too_large", "closed 4400", "closed 1009"),
        *("UNKNOWN", "RESOURCE_EXHAUSTED"),  # gRPC's own parser, and its bound on a message's bytes
    }
)
TEXT: Final = "Write JSON."


class SchemaOutcome(NamedTuple):
    """`code` "" : it was served, which includes an answer that was cut."""

    code: str
    message: str = ""

    @property
    def refused_with_reason(self) -> bool:
        """By the bounds of the door; OpenAI's calls it an invalid request."""
        return "Invalid schema for" in self.message

    @property
    def is_fair(self) -> bool:
        """Served, or refused with the reason: by the door, by the engine, or by the protocol where it is no message."""
        return not self.code or (self.code in REFUSALS and bool(self.message))


class SchemaDoors:
    """The doors of one server. `names` is all of them; `send` takes any."""

    def __init__(self, http: httpx.AsyncClient, url: str, stub: Any, model: str) -> None:
        self._http = http
        self._url = url
        self._stub = stub
        self._model = model
        self._doors: dict[str, Callable[[Schema], Awaitable[SchemaOutcome]]] = {
            "chat tools": self._chat_tools,
            "chat format": self._chat_format,
            "responses tools": self._responses_tools,
            "responses format": self._responses_format,
            "conversation": self._conversation,
            "websocket tools": self._websocket_tools,
            "websocket format": self._websocket_format,
            "grpc tools": self._grpc_tools,
            "grpc format": self._grpc_format,
        }

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._doors)

    async def send(self, door: str, schema: Schema) -> SchemaOutcome:
        return await self._doors[door](schema)

    # -- OpenAI's API ----------------------------------------------------------------------------------------------

    async def _post(self, path: str, **body: Any) -> SchemaOutcome:
        answer = await self._http.post(path, json={"model": self._model, **body})
        said = answer.json()
        error = said.get("error")
        if error:
            return SchemaOutcome(error["code"] or str(answer.status_code), error["message"])
        return SchemaOutcome("" if answer.status_code == 200 else str(answer.status_code), answer.text[:200])

    async def _chat(self, **body: Any) -> SchemaOutcome:
        messages = [{"role": "user", "content": TEXT}]
        return await self._post("/v1/chat/completions", messages=messages, max_tokens=ANSWER_TOKENS, **body)

    async def _chat_tools(self, schema: Schema) -> SchemaOutcome:
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        return await self._chat(tools=[tool], tool_choice="required")

    async def _chat_format(self, schema: Schema) -> SchemaOutcome:
        return await self._chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})

    async def _responses(self, **body: Any) -> SchemaOutcome:
        return await self._post("/v1/responses", input=TEXT, max_output_tokens=ANSWER_TOKENS, **body)

    async def _responses_tools(self, schema: Schema) -> SchemaOutcome:
        tool = {"type": "function", "name": "f", "parameters": schema}
        return await self._responses(tools=[tool], tool_choice="required", store=False)

    async def _responses_format(self, schema: Schema) -> SchemaOutcome:
        return await self._responses(text={"format": {"type": "json_schema", "name": "s", "schema": schema}})

    async def _conversation(self, schema: Schema) -> SchemaOutcome:
        made = (await self._http.post("/v1/conversations", json={})).json()
        tool = {"type": "function", "name": "f", "parameters": schema}
        return await self._responses(tools=[tool], tool_choice="required", conversation=made["id"])

    # -- WebSocket -------------------------------------------------------------------------------------------------

    async def _websocket(self, tools: list[Any], **sampling: Any) -> SchemaOutcome:
        async with connected(self._url) as wire:
            try:
                session = await wire.create(tools=tools)
                asked = await wire.command(
                    "message.create", session=session, content=TEXT, max_output_tokens=ANSWER_TOKENS, **sampling
                )
            except RuntimeError as refused:
                code = re.search(r"'code': '(\w+)'", str(refused))
                return SchemaOutcome(code[1] if code else "unknown", str(refused))
            except ConnectionError:  # a frame that the protocol itself does not take
                return SchemaOutcome(f"closed {wire.socket.close_code}", wire.socket.close_reason or "")
            last = (await wire.until_end(asked["response_id"]))[-1]["event"]
            error = last.get("error") or {}
            return SchemaOutcome(error.get("code", ""), error.get("message", ""))

    async def _websocket_tools(self, schema: Schema) -> SchemaOutcome:
        return await self._websocket([{"name": "f", "parameters": schema, "strict": True}], tool_choice="required")

    async def _websocket_format(self, schema: Schema) -> SchemaOutcome:
        return await self._websocket([], text={"format": {"type": "json_schema", "name": "s", "schema": schema}})

    # -- gRPC ------------------------------------------------------------------------------------------------------

    async def _grpc(self, tools: list[Any], sampling: dict[str, Any]) -> SchemaOutcome:
        try:
            create = ParseDict({"id": new_ulid(), "tools": tools}, pb.SessionCreate())
            session = (await self._stub.Create(create)).session
            message = {"id": new_ulid(), "session": session, "content": TEXT}
            sampling = {"max_output_tokens": ANSWER_TOKENS, **sampling}
            asked = await self._stub.Send(ParseDict({**message, "sampling": sampling}, pb.MessageCreate()))
            async for reply in self._stub.History(pb.HistoryRequest(session=session, follow=True)):
                event = reply.event
                kind = event.WhichOneof("event")
                if kind in ENDS and getattr(event, kind).response_id == asked.response_id:
                    failed = event.response_failed.response.error if kind == "response_failed" else pb.ResponseError()
                    return SchemaOutcome(failed.code, failed.message)
        except ParseError as refused:  # gRPC's messages do not nest so deep
            return SchemaOutcome("UNKNOWN", str(refused))
        except grpc.aio.AioRpcError as refused:
            if not refused.trailing_metadata():
                return SchemaOutcome(refused.code().name, refused.details() or "")
            error = error_of(refused)
            return SchemaOutcome(error.code, error.message)
        return SchemaOutcome("ended", "the log ended before the answer")

    async def _grpc_tools(self, schema: Schema) -> SchemaOutcome:
        return await self._grpc([{"name": "f", "parameters": schema, "strict": True}], {"tool_choice": "required"})

    async def _grpc_format(self, schema: Schema) -> SchemaOutcome:
        return await self._grpc([], {"text": {"format": {"type": "json_schema", "name": "s", "schema": schema}}})


@asynccontextmanager
async def schema_doors(port: int, grpc_address: str) -> AsyncIterator[SchemaDoors]:
    """All doors of a server on loopback without keys."""
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120) as http,
        grpc.aio.insecure_channel(grpc_address) as channel,
    ):
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        yield SchemaDoors(http, f"ws://127.0.0.1:{port}/v1/ws", SessionsStub(channel), model)


async def send_all(
    doors: SchemaDoors, schemas: list[tuple[str, Schema]], *, at_once: int
) -> list[tuple[str, str, SchemaOutcome]]:
    """(kind, door, outcome) of every schema, each through the next door; `at_once` go on at the same time."""
    work = iter(list(zip(schemas, itertools.cycle(doors.names), strict=False)))
    done: list[tuple[str, str, SchemaOutcome]] = []

    async def sender() -> None:
        for (kind, schema), door in work:
            done.append((kind, door, await doors.send(door, schema)))

    await asyncio.gather(*(sender() for _ in range(at_once)))
    return done
