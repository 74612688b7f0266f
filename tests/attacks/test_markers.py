"""Every text that a prompt holds was judged: a marker in every field of every door, and what the filters were shown.

A field that is new at a door and carries no marker here fails; one that can reach a prompt past the filters, too.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, NamedTuple

import grpc.aio
import httpx
import msgspec
import pytest
from google.protobuf import json_format
from websockets.asyncio.client import connect

from inference.simulated import SimulatedOptions
from tests.support.doors import markers as mk
from tests.support.doors.assembly import Assembly, assembled
from tests.support.doors.grpc_door import ENDS, Talk
from tests.support.doors.marked_bodies import (
    Sample,
    bodies,
    function,
    given_file,
    mcp_source,
    running_tool,
    schema,
    search_scope,
    searching_tool,
)
from tests.support.doors.transport import app_of
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.server import GrpcServer
from transport.grpc_api.sessile_pb2_grpc import SessionsStub
from transport.protocol.frames import ClientFrame

ENGINE: Final = SimulatedOptions(step_base_s=0.0005, answer_tokens_mean=4)


class Recorded(NamedTuple):
    assembly: Assembly
    filters: mk.RecordingFilters
    prompts: list[str]

    def read(self) -> set[str]:
        """The markers that a model read."""
        return {marker for prompt in self.prompts for marker in mk.MARKER.findall(prompt)}

    def unjudged(self) -> set[str]:
        return self.read() - {marker for text in self.filters.judged for marker in mk.MARKER.findall(text)}


@pytest.fixture
async def recorded() -> AsyncIterator[Recorded]:
    prompts: list[str] = []
    filters = mk.RecordingFilters()
    async with assembled(engine=mk.RecordingEngine(ENGINE, prompts), filters=filters) as assembly:
        yield Recorded(assembly, filters, prompts)


# -- HTTP -------------------------------------------------------------------------------------------------------------


async def test_all_that_a_prompt_holds_was_judged_over_http(recorded: Recorded) -> None:
    sent = bodies(mk.markers())
    document = (await app_of(recorded.assembly.server, "whole")).openapi()
    definitions = document["components"]["schemas"]
    missing = {
        (method, path): mk.unmarked(
            mk.described(next(iter(operation["requestBody"]["content"].values()))["schema"], definitions),
            sent.get((method, path), []),
        )
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if "requestBody" in operation
    }
    assert {route: paths for route, paths in missing.items() if paths} == {}

    async with httpx.AsyncClient(base_url=recorded.assembly.server.url, timeout=60) as http:
        for (method, path), samples in sent.items():
            made = (await http.post("/v1/conversations", json={})).json()["id"]
            others = {"tenant": "local", "response_id": "resp_x", "review_id": "rev_x", "memory_id": "mem_x"}
            others |= {"store_id": "vs_x", "file_id": "file_x", "batch_id": "vsfb_x", "name": "x", "server": "x"}
            url = path.format(conversation=made, session=made, **others)
            for number, sample in enumerate(samples):
                answer = await http.request(method, url, json=sample)
                if number == 0 and not any(
                    word in path for word in ("operator", "keys", "review", "push", "files", "{store_id}")
                ):
                    assert answer.status_code == 200 or path.endswith(
                        (
                            "appeal",
                            "feedback",
                            "shares",
                            "steer",
                            "memories",
                            "agreements",
                            "_id}",
                            "{name}",
                            "{server}",
                        )
                    ), (
                        path,
                        answer.text,
                    )
                session = answer.json().get("id") if path == "/v1/conversations" else made
                if answer.status_code == 200 and "conversation" in path:
                    asked = {"model": "simulated", "input": "go on", "conversation": session}
                    (await http.post("/v1/responses", json=asked)).raise_for_status()

    whole = sent["post", "/v1/chat/completions"][0]
    conversation = sent["post", "/v1/conversations/{conversation}/items"][0]
    must = set(mk.MARKER.findall(json.dumps([whole["messages"], whole["tools"], conversation["items"]])))
    never = {whole["messages"][0]["name"], conversation["items"][0]["id"]}
    never |= set(mk.MARKER.findall(" ".join(_refusals([whole["messages"], conversation["items"]]))))
    assert must - never <= recorded.read()  # or else this shows nothing
    assert recorded.unjudged() == set()


def _refusals(value: Any) -> Iterator[str]:
    match value:
        case dict():
            for name, each in value.items():
                if name == "refusal":
                    yield each
                else:
                    yield from _refusals(each)
        case list():
            for each in value:
                yield from _refusals(each)


# -- WebSocket --------------------------------------------------------------------------------------------------------


def frames(m: Iterator[str], session: str) -> list[Sample]:
    """Every frame that a client may send; those without a marker have no text of the caller's own."""
    here = {"session": session}
    text = {"format": {"type": "json_schema", "name": next(m), "schema": schema(m)}}
    options = {"stop": [next(m)], "logit_bias": {next(m): 1}, "tool_choice": next(m), "text": text}
    named = {"tool_choice": {"type": "function", "name": next(m)}, "stop": next(m)}
    settings = {"title": next(m), "metadata": {next(m): next(m)}, "instructions": next(m)}
    made: Sample = {"type": "session.create", **here, "tools": [{"type": "function", **function(m)}], **settings}
    parts: list[Sample] = [
        {"type": "input_text", "text": next(m)},
        {"type": "output_text", "text": next(m), "annotations": [{next(m): next(m)}]},
    ]
    whole: list[Sample] = [
        made,
        {"type": "message.create", **here, "content": next(m), "role": "assistant", "respond": False},
        {"type": "message.create", **here, "content": next(m), "role": "developer", "respond": False},
        {"type": "message.create", **here, "content": parts, "queue": True},
        {"type": "message.create", **here, "content": next(m), "queue": True},
        {"type": "message.create", **here, "content": f"{mk.CALLS} {next(m)}", "queue": True, "parent_id": None},
        {"type": "session.update", **here, "tools": [{"type": "function", **function(m)}], **settings},
        {"type": "message.create", **here, "content": next(m), "parent_id": None},
        {"type": "message.create", **here, "content": [{"type": "input_file", **given_file(m)}], "parent_id": None},
    ]
    stored = {name: next(m) for name in ("file_id", "filename", "media_type", "text")}
    data = {name: next(m) for name in ("file_data", "media_type", "text")}
    image = {name: next(m) for name in ("image_url", "file_id", "sha256")}
    files: list[Sample] = [
        {"type": "input_file", **stored},
        {"type": "input_file", **data},
        {"type": "input_image", **image},
    ]
    refused: list[Sample] = [
        {"type": "message.create", **here, "content": files},
        {"type": "message.create", **here, "content": files[1:2]},
        {"type": "message.create", **here, "content": files[2:]},
        {"type": "message.edit", **here, "item_id": "x", "content": files},
        {"type": "response.steer", **here, "response_id": "x", "content": files},
        {"type": "session.create", "model": next(m)},
        {"type": "session.create", "tools": [{"type": "function", **mcp_source(m, [next(m)])}]},
        {"type": "session.update", **here, "tools": [{"type": "function", **mcp_source(m, [next(m)])}]},
        {"type": "session.create", "tools": [searching_tool(m)]},
        {"type": "session.update", **here, "tools": [searching_tool(m)]},
        {"type": "session.create", "tools": [running_tool(m)]},
        {"type": "session.update", **here, "tools": [running_tool(m)]},
        {"type": "session.create", "knowledge": search_scope(m)},
        {"type": "session.update", **here, "knowledge": search_scope(m)},
        {"type": "message.create", **here, "content": "x", "knowledge": search_scope(m)},
        {"type": "message.edit", **here, "item_id": "x", "content": "x", "knowledge": search_scope(m)},
        {"type": "message.create", **here, "content": "x", **options, "model": next(m)},
        {"type": "message.create", **here, "content": "x", **named, "parent_id": next(m)},
        {"type": "message.edit", **here, "item_id": next(m), "content": next(m), **options},
        {"type": "message.edit", **here, "item_id": "x", "content": parts, **named, "model": next(m)},
        {"type": "response.create", **here, "parent_id": next(m), **options},
        {"type": "response.create", **here, "parent_id": "x", **named, "model": next(m)},
        {"type": "response.cancel", **here, "response_id": next(m)},
        {"type": "response.steer", **here, "response_id": next(m), "content": next(m)},
        {"type": "response.steer", **here, "response_id": "x", "content": parts},
        {"type": "tool.output", **here, "call_id": next(m), "output": next(m)},
        {"type": "review.appeal", **here, "content": next(m), "note": next(m)},
        {"type": "review.appeal", **here, "response_id": next(m)},
        {"type": "feedback.set", **here, "response_id": next(m), "rating": "down", "reason": next(m)},
        {"type": "session.compact", **here, "item_id": next(m)},
        {"type": "compaction.undo", **here, "compaction_id": next(m)},
        {"type": "item.pin", **here, "item_id": next(m)},
        {"type": "tool.approve", **here, "call_id": next(m)},
        {"type": "subscribe", "session": "ses_elsewhere", "epoch": next(m), "offset": 0},
        {"type": "session.list", "after": next(m)},
        {"type": "session.search", "q": next(m), "after": next(m)},
    ]
    return [*whole, *refused]


IDS: Final = {"id", "session", "auth", "device", "resume[].session", "resume[].epoch"}  # names, which no prompt holds


async def test_all_that_a_prompt_holds_was_judged_over_websocket(recorded: Recorded) -> None:
    m = mk.markers()
    session = "ses_" + next(m)
    sent = frames(m, session)
    (reference,), definitions = msgspec.json.schema_components([ClientFrame], ref_template="#/$defs/{name}")
    missing = {}
    for kind, ref in reference["discriminator"]["mapping"].items():
        samples = [frame for frame in sent if frame["type"] == kind]
        paths = mk.unmarked(mk.described({"$ref": ref}, definitions), samples)
        missing[kind] = [path for path in paths if path not in IDS]
    assert {kind: paths for kind, paths in missing.items() if paths} == {}

    async with connect(recorded.assembly.ws, compression=None) as socket:
        talk = WebSocketTalk(socket, session)
        await talk.send({"type": "hello"}, *sent[:1])
        await talk.send({"type": "subscribe", "session": session})
        for frame in sent[1:]:
            await talk.send(frame)
        call = await talk.call()
        marker = next(m)
        await talk.send({"type": "tool.output", "session": session, "call_id": call, "output": marker})
        edited = next(m)
        await talk.send({"type": "message.edit", "session": session, "item_id": talk.items[0], "content": edited})
        await talk.settled()
    said = [part["text"] for part in sent[3]["content"]] + [sent[each]["content"] for each in (1, 2, 4, 5)]
    assert {marker, edited, *mk.MARKER.findall(" ".join(said))} <= recorded.read()
    assert set(mk.MARKER.findall(json.dumps([sent[0]["tools"], sent[6]["tools"]]))) <= recorded.read()
    assert recorded.unjudged() == set()


# -- gRPC -------------------------------------------------------------------------------------------------------------


def calls(m: Iterator[str], session: str) -> list[tuple[str, Sample]]:
    """(method, request); those of one stream are sent as commands of `Converse`, too."""
    here = {"session": session}
    plain = {
        "stop": [next(m)],
        "logit_bias": {next(m): 1},
        "tool_choice": next(m),
        "effort": next(m),
        "text": {"format": {"type": "json_schema", "name": next(m), "schema": schema(m)}},
    }
    tool = [{"type": next(m), **function(m)}]
    settings = {"title": next(m), "metadata": {next(m): next(m)}, "instructions": next(m)}
    parts = [{"type": "input_text", "text": next(m)}, {"type": "output_text", "text": next(m)}]
    files = [
        {"type": "input_file", "file_id": next(m), "filename": next(m), "media_type": next(m)},
        {"type": "input_file", "file_data": next(m)},
        {"type": "input_image", "image_url": next(m), "detail": next(m), "sha256": next(m)},
    ]
    whose = [("Send", {}), ("Edit", {"item_id": "x"}), ("Steer", {"response_id": "x"})]
    odd = [{"type": next(m), "text": "x", "refusal": next(m), "reasoning": next(m), "annotations": [next(m)]}]
    return [
        ("Create", {**here, **settings, "tools": [{"type": "function", **function(m)}]}),
        ("Send", {**here, "content": next(m), "role": "assistant", "no_response": True}),
        ("Send", {**here, "parts": parts, "queue": True}),
        ("Send", {**here, "content": f"{mk.CALLS} {next(m)}", "queue": True, "at_root": True}),
        ("Update", {**here, **settings, "tools": [{"type": "function", **function(m)}]}),
        ("Send", {**here, "content": next(m), "at_root": True}),
        # refused
        ("Create", {"session": next(m), "model": next(m), "tools": tool, "context_policy": next(m)}),
        ("Create", {**here, "tools": [mcp_source(m, next(m))]}),
        ("Update", {**here, "tools": [mcp_source(m, next(m))]}),
        ("Create", {**here, "tools": [searching_tool(m)], "knowledge": search_scope(m)}),
        ("Create", {**here, "tools": [running_tool(m)]}),
        ("Update", {**here, "tools": [searching_tool(m)], "knowledge": search_scope(m)}),
        ("Update", {**here, "tools": [running_tool(m)]}),
        ("Send", {**here, "content": "x", "knowledge": search_scope(m)}),
        ("Edit", {**here, "item_id": "x", "content": "x", "knowledge": search_scope(m)}),
        (
            "Send",
            {
                **here,
                "model": next(m),
                "content": "x",
                "role": next(m),
                "parent_id": next(m),
                "sampling": plain,
                "parts": odd,
            },
        ),
        ("Edit", {**here, "item_id": next(m), "content": next(m), "parts": odd, "sampling": plain}),
        ("Edit", {**here, "item_id": "x", "parts": parts, "model": next(m)}),
        *((method, {**here, **named, "parts": [file]}) for method, named in whose for file in files),
        ("Respond", {**here, "parent_id": next(m), "sampling": plain, "model": next(m)}),
        ("Cancel", {**here, "response_id": next(m)}),
        ("Steer", {**here, "response_id": next(m), "content": next(m), "parts": odd}),
        ("Steer", {**here, "response_id": "x", "parts": parts}),
        ("AnswerTool", {**here, "call_id": next(m), "output": next(m)}),
        ("Update", {**here, "tools": tool, "clear": [next(m)], "context_policy": next(m)}),
        ("Appeal", {**here, "response_id": next(m), "content": next(m), "note": next(m)}),
        ("Rate", {**here, "response_id": next(m), "rating": next(m), "reason": next(m)}),
        ("Compact", {**here, "item_id": next(m)}),
        ("UndoCompaction", {**here, "compaction_id": next(m)}),
        ("Pin", {**here, "item_id": next(m)}),
        ("Approve", {**here, "call_id": next(m)}),
        ("List", {"after": next(m)}),
        ("History", {**here, "position": {"epoch": next(m)}}),
    ]


async def test_all_that_a_prompt_holds_was_judged_over_grpc(recorded: Recorded) -> None:
    m = mk.markers()
    session = "ses_" + next(m)
    sent = calls(m, session)
    service = pb.DESCRIPTOR.services_by_name["Sessions"]
    requests = {each.name: each.input_type for each in service.methods if each.name != "Converse"}
    missing = {}
    for method, message in requests.items():
        paths = mk.unmarked(mk.described_by(message), [sample for name, sample in sent if name == method])
        missing[method] = [path for path in paths if path not in IDS]
    assert {method: paths for method, paths in missing.items() if paths} == {}

    server = GrpcServer(recorded.assembly.gateway, host="127.0.0.1", port=0)
    assert await server.start()
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub, begun, answer = SessionsStub(channel), 0, None
            for number, (method, sample) in enumerate(sent):
                request = json_format.ParseDict(
                    {"id": str(number), **sample} if "id" in requests[method].fields_by_name else sample,
                    getattr(pb, requests[method].name)(),
                )
                try:
                    if method == "History":
                        async for _ in stub.History(request):
                            pass
                        continue
                    answer = await getattr(stub, method)(request)
                except grpc.aio.AioRpcError:
                    assert number > 5
                    continue
                begun += bool(method != "Cancel" and getattr(answer, "response_id", ""))
            talk = Talk(stub.Converse(), pb.Open(session=session, position=pb.Position(offset=0)))
            made = await talk.until(lambda r: r.event.response_output_item_done.item.type == "function_call")
            output, edited, streamed = next(m), next(m), next(m)
            call = made.event.response_output_item_done.item.call_id
            await talk.say(tool_output=pb.ToolOutput(id="a", call_id=call, output=output))
            first = next(
                each.event.item_created.item for each in talk.seen if each.event.item_created.item.role == "user"
            )
            await talk.say(message_edit=pb.MessageEdit(id="b", item_id=first.id, content=edited))
            await talk.say(message_create=pb.MessageCreate(id="c", content=streamed, queue=True))
            await talk.hang_up()
            ended = sum(each.event.WhichOneof("event") in ENDS for each in await talk.rest())
            assert ended >= begun + 2
    finally:
        await server.stop()
    must = [sent[0][1]["tools"], sent[1][1]["content"], sent[2][1]["parts"], sent[3][1]["content"], sent[4][1]["tools"]]
    assert {output, edited, streamed, *mk.MARKER.findall(json.dumps(must))} - {"type"} <= recorded.read()
    assert recorded.unjudged() == set()


class WebSocketTalk:
    """Sends frames, each with an id, and reads until what they began has ended."""

    def __init__(self, socket: Any, session: str) -> None:
        self._socket = socket
        self._sent = 0
        self._open: set[str] = set()
        self.items: list[str] = []  # of messages that were sent
        self._calls: list[str] = []

    async def send(self, *sent: Mapping[str, Any]) -> None:
        """Sends, and reads up to the last one's answer."""
        named = []
        for frame in sent:
            self._sent += 1
            named.append(frame if frame["type"] == "hello" else {**frame, "id": str(self._sent)})
        await self._socket.send(json.dumps(named))
        while True:
            for frame in await self._read():
                if frame.get("id") == str(self._sent):
                    if frame["type"] == "ok" and frame.get("response_id") and sent[-1]["type"] != "response.cancel":
                        self._open.add(frame["response_id"])
                    return

    async def call(self) -> str:
        while not self._calls:
            await self._read()
        return self._calls[0]

    async def settled(self) -> None:
        while self._open:
            await self._read()

    async def _read(self) -> list[dict[str, Any]]:
        found = json.loads(await self._socket.recv())
        read = found if isinstance(found, list) else [found]
        for frame in read:
            event = frame.get("event", {})
            kind = event.get("type", "")
            if kind in ("response.completed", "response.incomplete", "response.failed"):
                self._open.discard(event["response_id"])
            elif kind == "item.created" and event["item"].get("role") == "user":
                self.items.append(event["item"]["id"])
            elif kind == "response.output_item.done" and event["item"]["type"] == "function_call":
                self._calls.append(event["item"]["call_id"])
        return read
