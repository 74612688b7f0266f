"""gRPC: messages within bounds, words both ways, who is served, and links of peers."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast, get_args

import grpc
import grpc.aio
import msgspec
import pytest
from google.protobuf import struct_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from msgspec import UNSET

from actors.peer.links import Carrier, LinkDown
from sessions.model import commands as cm
from sessions.model.commands import SessionCreate
from sessions.model.errors import BadInput, TooLarge, Unavailable
from sessions.model.events import AnyEvent, ItemCreated, OutputTextDelta, Record
from sessions.model.types import (
    CommandId,
    Epoch,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    ItemId,
    Message,
    Principal,
    RunFile,
    Sampling,
    SessionId,
    TenantId,
    UnixMs,
)
from tests.support.doors.transport import function_output, gateway_over, memory_sessions
from tests.support.listening_sockets import needs_ipv6
from transport.addresses import joined
from transport.auth.authenticator import Authenticator, key_digest
from transport.auth.connection_shares import ConnectionShares, ShareLimits
from transport.errors import CODES
from transport.grpc_api import public_services, translate
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.message_size import JSON_BYTES_MAX, SMALL_BYTES, check_size
from transport.grpc_api.public_services import HealthCalls
from transport.grpc_api.server import GrpcLimits, GrpcServer
from transport.grpc_api.service import _address, decoded
from transport.peer.client import ClientCarrier, GrpcDialer
from transport.peer.security import PeerCertificates, PeerSecurity
from transport.peer.server import PeerServer
from transport.protocol.decoding import VALUES_MAX
from transport.protocol.delta_merge import Span


def nulls(number: int) -> Any:
    return struct_pb2.Struct(
        fields={"a": struct_pb2.Value(list_value=struct_pb2.ListValue(values=[struct_pb2.Value()] * number))}
    )


@pytest.mark.parametrize("nested", [False, True])
def test_the_json_of_a_message_has_a_bound(nested: bool) -> None:
    create = pb.SessionCreate(metadata=nulls(JSON_BYTES_MAX // 2 + 1))
    message: Any = pb.ConverseRequest(command=pb.Command(session_create=create)) if nested else create
    with pytest.raises(TooLarge, match="JSON"):
        decoded(type(message), message.SerializeToString())


def test_the_fields_of_a_message_have_a_bound() -> None:
    with pytest.raises(TooLarge, match="fields"):
        decoded(pb.MessageCreate, pb.MessageCreate(parts=[{}] * (VALUES_MAX + 1)).SerializeToString())


def test_a_long_text_is_no_matter() -> None:
    message = pb.MessageCreate(id="m", content="x" * 1_000_000)
    assert decoded(pb.MessageCreate, message.SerializeToString()) == message


def test_what_is_no_message_is_refused_or_left_to_the_decoder() -> None:
    chance = random.Random(7)
    for _ in range(20):
        try:
            check_size(pb.SessionCreate, chance.randbytes(SMALL_BYTES + 100))
        except (BadInput, TooLarge):
            continue
    with pytest.raises(BadInput, match="SessionCreate"):
        check_size(pb.SessionCreate, b"\x0b" * (SMALL_BYTES + 1))


def test_the_values_of_all_structs_of_a_message_are_counted() -> None:
    many = nulls(VALUES_MAX // 2)
    fits = pb.SessionCreate(tools=[pb.Tool(name="a", parameters=many)])
    assert isinstance(translate._Reading().fields_of(fits), dict)
    bomb = pb.SessionCreate(tools=[pb.Tool(name="a", parameters=many)] * 3)
    with pytest.raises(BadInput, match="values in one message"):
        translate.command_of(bomb, "session_create", id="c", session=None)
    assert SessionCreate is translate.COMMANDS["session_create"]


class Caller:
    """A call of health from an address; its message comes when `message` is set."""

    def __init__(self, address: str, message: bytes | None = None) -> None:
        self.address = address
        self.message: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.status: grpc.StatusCode | None = None
        if message is not None:
            self.message.set_result(message)

    async def read(self) -> bytes:
        return await self.message

    def set_code(self, status: grpc.StatusCode) -> None:
        self.status = status

    def set_details(self, details: str) -> None:
        assert details

    def set_trailing_metadata(self, trailing: tuple[Any, ...]) -> None:
        assert trailing == ()


class Sessions:
    def client(self, context: Any) -> str:
        return str(context.address)


async def test_strangers_who_hold_all_calls_of_health_keep_no_probe_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("READS_MAX", "CALLS_MAX"):
        monkeypatch.setattr(public_services, name, 4)
    calls = HealthCalls(cast(Any, Sessions()), ConnectionShares())
    watching = asyncio.Event()

    async def check(request: Any, context: Any) -> str:
        if request.service == "watch":
            await watching.wait()
        return "serving"

    answer: Any = calls.answering(check)
    watch = health_pb2.HealthCheckRequest(service="watch").SerializeToString()
    for message in (None, watch):  # messages that never come, and calls that last
        strangers = [Caller(f"192.0.2.{number}", message) for number in (1, 2, 1, 3)]
        held = [asyncio.create_task(answer(None, each)) for each in strangers]
        await asyncio.sleep(0)
        assert await answer(None, Caller("198.51.100.7", b"")) == "serving"
        await held[0]
        assert [each.status for each in strangers] == [grpc.StatusCode.UNAVAILABLE, None, None, None]
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)


async def test_a_port_that_is_taken_is_named() -> None:
    gateway = gateway_over(await memory_sessions())
    server = GrpcServer(gateway, host="127.0.0.1", port=0)
    assert await server.start() and server.port > 0
    try:
        with pytest.raises(Unavailable) as caught:
            await GrpcServer(gateway, host="127.0.0.1", port=server.port).start()
        assert str(server.port) in caught.value.public_message
    finally:
        await server.stop()


WATCH, CHECK = "/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/Check"
KEY = (("authorization", "Bearer good"),)


@pytest.fixture
async def channel() -> AsyncIterator[Any]:
    """A channel to a server with keys, which lets each address have three calls without one."""
    keys = {key_digest("good"): Principal(tenant=TenantId("acme"), key_id="k")}
    access = Authenticator(keys, clock=lambda: 0.0, now_ms=lambda: UnixMs(1))
    limits = GrpcLimits(shares=ShareLimits(unauthenticated_per_address=3))
    server = GrpcServer(gateway_over(await memory_sessions(), access), host="127.0.0.1", port=0, limits=limits)
    await server.start()
    async with grpc.aio.insecure_channel(server.address) as made:
        yield made
    await server.stop()


async def test_the_calls_of_health_are_shared_out_among_addresses(channel: Any) -> None:
    watches = [channel.unary_stream(WATCH)(b"") for _ in range(3)]
    for watch in watches:
        assert health_pb2.HealthCheckResponse.FromString(await watch.read()).status == 1
    for refused in (channel.unary_stream(WATCH)(b""), channel.unary_unary(CHECK)(b"")):
        assert await refused.code() is grpc.StatusCode.UNAVAILABLE
    for watch in watches:
        watch.cancel()
    for _ in range(9):  # answered one after the other: each gives its place back
        assert await channel.unary_unary(CHECK, request_serializer=bytes)(b"", wait_for_ready=True)


async def test_a_question_about_health_is_a_name(channel: Any) -> None:
    question = health_pb2.HealthCheckRequest(service="x" * 100_000).SerializeToString()
    for call in (channel.unary_unary(CHECK)(question), channel.unary_stream(WATCH)(question)):
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_needs_a_key_and_asks_for_names(channel: Any, version: str) -> None:
    path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    question = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
    for metadata, message, code in (
        ((), question, grpc.StatusCode.UNAUTHENTICATED),
        (KEY, question, grpc.StatusCode.OK),
        (KEY, question + b"\x0a\xff\x7f" + b"x" * 16383, grpc.StatusCode.INVALID_ARGUMENT),
    ):
        call = channel.stream_stream(path)(metadata=metadata)
        await call.write(message)
        if code is grpc.StatusCode.OK:
            assert b"sessile.v1.Sessions" in await call.read()
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
        assert await call.code() is code


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:127.0.0.1:4711", "127.0.0.1"), ("ipv6:%5B::1%5D:4711", "::1"), ("unix:/tmp/x", None), ("", None)],
)
def test_the_address_of_a_caller(peer: str, address: str | None) -> None:
    assert _address(peer) == address


ROOT = Path(__file__).resolve().parents[4]
EVENTS = get_args(AnyEvent)


def test_what_is_made_from_the_proto_is_up_to_date() -> None:
    subprocess.run([sys.executable, "deploy/generate_protos.py", "--check"], cwd=ROOT, check=True)


def fields_of(message: Any, name: str) -> set[str]:
    """The fields of the message that a field of `message` holds."""
    return set(message.DESCRIPTOR.fields_by_name[name].message_type.fields_by_name)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__struct_config__.tag)
def test_every_event_has_its_message(event: Any) -> None:
    assert set(event.__struct_fields__) == fields_of(pb.Event, event.__struct_config__.tag.replace(".", "_"))


def test_the_proto_has_no_event_of_its_own() -> None:
    (body,) = [each for each in pb.Event.DESCRIPTOR.oneofs if each.name == "event"]
    assert {field.name for field in body.fields} == {e.__struct_config__.tag.replace(".", "_") for e in EVENTS}


@pytest.mark.parametrize("item", [Message, FunctionCall, FunctionCallOutput])
def test_every_item_has_its_fields(item: Any) -> None:
    assert set(item.__struct_fields__) <= set(pb.Item.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize("field", sorted(translate.COMMANDS))
def test_every_command_has_its_message(field: str) -> None:
    sampled = set(Sampling.__struct_fields__)
    wanted = set(translate.COMMANDS[field].__struct_fields__)
    if sampled <= wanted:
        wanted = (wanted - sampled) | {"sampling"}
    told = fields_of(pb.Command, field)
    ours = {"parts": "content", "at_root": "parent_id", "no_response": "respond", "clear": "title"} | {
        "no_knowledge": "knowledge"
    }
    assert wanted == {ours.get(name, name) for name in told}
    assert sampled == set(pb.Sampling.DESCRIPTOR.fields_by_name)


def test_every_code_has_a_status() -> None:
    for code, row in CODES.items():
        assert grpc.StatusCode[row.grpc] is not grpc.StatusCode.OK, code


def test_a_delta_is_told_the_same_on_both_ways() -> None:
    """The short way for what is nearly all there is says what the long one says."""
    plain: dict[str, Any] = {"response_id": "r", "sequence_number": 4, "item_id": "i", "output_index": 0}
    event = OutputTextDelta(**plain, content_index=1, delta="été")
    short = translate.event_of(SessionId("s"), Epoch("e"), Span(Record(9, 5, event), 7))  # type: ignore[arg-type]
    long = pb.Event(session="s", epoch="e", offset=9, first_offset=7, at=5)
    translate.fill(long.response_output_text_delta, event)
    assert short == long
    logged = msgspec.structs.replace(event, logprobs=({"token": "a", "logprob": -0.5, "bytes": [97]},))
    told = translate.event_of(SessionId("s"), Epoch("e"), Span(Record(9, 5, logged), None))  # type: ignore[arg-type]
    assert told.response_output_text_delta.logprobs[0].struct_value["token"] == "a"


def test_what_proto_cannot_say_as_json_does() -> None:
    def read(field: str, message: Any) -> Any:
        return translate.command_of(message, field, id="made", session=None)

    absent = read("message_create", pb.MessageCreate(session="s", content="Hi"))
    assert absent == cm.MessageCreate(id=CommandId("made"), session=SessionId("s"), content="Hi")
    assert absent.parent_id is UNSET
    sampling = pb.Sampling(temperature=0, stop=["a", "b"], logit_bias={"7": -1})
    sampling.tool_choice.string_value = "none"
    sampling.text.format.update({"type": "json_schema", "schema": {"maxLength": 3}})
    told = read(
        "message_create",
        pb.MessageCreate(
            id="m",
            session="s",
            parts=[pb.ContentPart(type="input_text", text="Hi")],
            at_root=True,
            no_response=True,
            sampling=sampling,
        ),
    )
    assert told.content == (InputText("Hi"),) and told.parent_id is None and not told.respond
    assert (told.temperature, told.stop, told.logit_bias, told.tool_choice) == (0, ("a", "b"), {"7": -1}, "none")
    assert told.text.format == {"type": "json_schema", "schema": {"maxLength": 3}}
    assert isinstance(told.text.format["schema"]["maxLength"], int)
    below = read("response_create", pb.ResponseCreate(session="s", parent_id="i"))
    assert below.parent_id == ItemId("i")
    update = read("session_update", pb.SessionUpdate(session="s", title="T", clear=["metadata", "tools"]))
    assert (update.title, update.metadata, update.tools, update.instructions) == ("T", None, (), UNSET)
    assert read("tool_output", pb.ToolOutput(session="s", call_id="c")).output == ""


def test_files_of_code_go_both_ways() -> None:
    tools = [pb.Tool(name="code", server=True, file_ids=["file-1"]), pb.Tool(name="other", server=True)]
    create = translate.command_of(pb.SessionCreate(tools=tools), "session_create", id="made", session=None)
    assert isinstance(create, cm.SessionCreate) and [tool.file_ids for tool in create.tools] == [("file-1",), UNSET]
    file = RunFile(file_id="file-2", path="a/b.csv", size=3, source="file-1")
    output = function_output("i", "x", files=(file,))
    event = translate.event_of(SessionId("s"), Epoch("e"), Span(Record(1, UnixMs(1), ItemCreated(item=output)), None))
    (told,) = event.item_created.item.files
    assert told == pb.RunFile(file_id="file-2", path="a/b.csv", size=3, source="file-1")


@pytest.mark.parametrize(
    ("field", "message", "param"),
    [
        ("message_create", pb.MessageCreate(session="a b", content="Hi"), "session"),
        ("message_create", pb.MessageCreate(session="s", parent_id="i", at_root=True), "at_root"),
        ("message_create", pb.MessageCreate(session="s", sampling=pb.Sampling(seed=-1)), "seed"),
        (
            "message_create",
            pb.MessageCreate(session="s", sampling=pb.Sampling(temperature=float("nan"))),
            "temperature",
        ),
        ("session_update", pb.SessionUpdate(session="s", title="T", clear=["title"]), "clear"),
        ("session_update", pb.SessionUpdate(session="s", clear=["epoch"]), "clear"),
        ("session_create", pb.SessionCreate(id="a b"), "id"),
    ],
)
def test_what_is_refused(field: str, message: Any, param: str) -> None:
    with pytest.raises(BadInput) as refused:
        translate.command_of(message, field, id="made", session=None)
    assert refused.value.param == param


def test_numbers_that_json_cannot_say_are_refused() -> None:
    message = pb.SessionCreate()
    message.metadata["x"] = float("inf")
    with pytest.raises(BadInput):
        translate.command_of(message, "session_create", id="made", session=None)


class Call:
    """A stream that has ended with a status."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    async def read(self) -> Any:
        return grpc.aio.EOF

    async def code(self) -> grpc.StatusCode:
        return self._code

    async def details(self) -> str:
        return "why"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "rejected"),
        (grpc.StatusCode.PERMISSION_DENIED, "rejected"),
        (grpc.StatusCode.UNAVAILABLE, "reset"),
        (grpc.StatusCode.OK, "reset"),
    ],
)
async def test_a_refusal_is_told_from_a_loss(code: grpc.StatusCode, cause: str) -> None:
    channel: Any = None
    with pytest.raises(LinkDown) as caught:
        await ClientCarrier(channel, Call(code)).receive()
    assert caught.value.reason == cause


TOKEN = "0123456789abcdef"
WHOLE = PeerCertificates(authority=b"a", certificate=b"c", key=b"k")


@pytest.mark.parametrize("fields", [{"token": "short"}, {"token": "0123456789abcdé-"}, {"token": "0123456789abc\ndef"}])
def test_a_weak_token_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        PeerSecurity(**fields)


def test_certificates_are_whole_and_renewed_at_once() -> None:
    for half in ({"authority": b"a"}, {"authority": b"a", "certificate": b"c"}, {"key": b"k"}):
        with pytest.raises(BadInput):
            PeerCertificates(**half)
    security, new = PeerSecurity(certificates=WHOLE), PeerCertificates(authority=b"A", certificate=b"C", key=b"K")
    before = security.certificates
    security.renew(new)
    assert security.certificates is new and before == WHOLE
    with pytest.raises(AttributeError):
        before.key = b"K"  # type: ignore[misc]


def test_only_who_shows_the_token_is_admitted() -> None:
    security = PeerSecurity(token=TOKEN)
    assert security.admits(security.metadata())
    assert security.admits([("authorization", f"Bearer {TOKEN}".encode())])
    for metadata in (None, [], [("authorization", TOKEN)], [("authorization", f"Bearer {TOKEN}x")], [("x", TOKEN)]):
        assert not security.admits(metadata)
    assert PeerSecurity().admits(None) and PeerSecurity().metadata() == ()


def test_without_either_it_listens_on_loopback_only() -> None:
    PeerSecurity().check_address("127.0.0.1")
    for plain in (PeerSecurity(), PeerSecurity(token=TOKEN), PeerSecurity(insecure=True)):
        with pytest.raises(BadInput, match=r"--peer-authority.*--peer-insecure"):
            plain.check_address("0.0.0.0")
    PeerSecurity(token=TOKEN, insecure=True).check_address("0.0.0.0")
    PeerSecurity(certificates=WHOLE).check_address("0.0.0.0")


SECURITY = PeerSecurity(token="0123456789abcdef")


async def echo(link: Carrier, peer: str) -> None:
    """One message, back to where it came from."""
    await link.send(await link.receive())


@asynccontextmanager
async def listening(security: PeerSecurity = SECURITY, host: str = "127.0.0.1") -> AsyncIterator[str]:
    server = PeerServer(echo, security=security)
    port = await server.start(host, 0)
    try:
        yield joined(host, port)
    finally:
        await server.stop()


async def test_messages_go_both_ways_until_the_stream_ends() -> None:
    async with listening() as address:
        carrier = await GrpcDialer(SECURITY).dial(address)
        await carrier.send(b"hello")
        assert await carrier.receive() == b"hello"
        with pytest.raises(LinkDown) as ended:
            await carrier.receive()
        assert ended.value.reason == "reset"
        await carrier.close()
        with pytest.raises(LinkDown) as closed:
            await carrier.receive()
        assert closed.value.reason == "closed"


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_links_go_over_ipv6_however_its_literal_is_spelled(host: str) -> None:
    async with listening(host=host) as address:
        assert address.startswith("[::1]:")
        carrier = await GrpcDialer(SECURITY).dial(address)
        await carrier.send(b"hello")
        assert await carrier.receive() == b"hello"
        await carrier.close()
