"""The gRPC API by its generated client: sessions, cuts, and the services of everybody."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from inference.simulated import SimulatedOptions
from sessions.model.errors import BadInput, TooLarge
from sessions.model.types import Epoch, SessionId, SessionKey, TenantId, UnixMs
from testbed.chaos.proxy import Flow, Proxy
from tests.support.doors.grpc_door import ENDS, Door, Talk, error_of, events, has, opened, text
from tests.support.garbage import no_cycles
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.server import GrpcServer
from transport.grpc_api.sessile_pb2_grpc import SessionsStub

NewCommand = Callable[[], str]


async def ask(door: Door, session: str, id: str, content: str = "Hello", **more: Any) -> list[pb.ConverseReply]:
    """A message and its answer, on a stream that ends by itself."""
    talk = door.converse(session, position=pb.Position(offset=0))
    await talk.say(message_create=pb.MessageCreate(id=id, content=content, **more))
    await talk.hang_up()
    return await talk.rest()


async def test_a_conversation(door: Door, new_command: NewCommand) -> None:
    made = await door.stub.Create(pb.SessionCreate(id=new_command(), title="First", model="simulated"))
    assert (made.session, made.offset) == (made.session, 1) and made.session and made.epoch
    replies = await ask(door, made.session, "m1")
    kinds = [reply.WhichOneof("reply") for reply in replies]
    assert kinds[:3] == ["resumed", "event", "caught_up"]
    assert replies[0].resumed.mode == "replay" and replies[0].resumed.from_offset == 1
    (ok,) = [reply.ok for reply in replies if reply.WhichOneof("reply") == "ok"]
    found = events(replies)
    covered = [n for event in found for n in range(event.first_offset or event.offset, event.offset + 1)]
    assert covered == list(range(1, found[-1].offset + 1))
    end = found[-1].response_completed.response
    assert end.id == ok.response_id and end.usage.output_tokens > 0
    assert end.output[0].content[0].text == text(replies) != ""
    state = await door.stub.Get(pb.GetRequest(session=made.session))
    assert [item.role for item in state.items] == ["user", "assistant"]
    assert (state.title, state.items[-1].content[0].text) == ("First", text(replies))
    history = await door.history(made.session)
    assert text(history) == text(replies) and history[-1].WhichOneof("reply") == "caught_up"
    listed = await door.stub.List(pb.ListRequest(limit=1))
    assert [each.id for each in listed.data] == [made.session] and not listed.has_more
    await door.stub.Delete(pb.SessionDelete(session=made.session))
    with pytest.raises(grpc.aio.AioRpcError) as gone:
        await door.stub.Get(pb.GetRequest(session=made.session))
    assert gone.value.code() is grpc.StatusCode.NOT_FOUND and error_of(gone.value).code == "session_deleted"


async def test_commands_are_idempotent(door: Door) -> None:
    first = await door.stub.Create(pb.SessionCreate(id="create"))
    again = await door.stub.Create(pb.SessionCreate(id="create"))
    assert first == again
    sent = [await door.stub.Send(pb.MessageCreate(id="m", session=first.session, content="Hi")) for _ in range(3)]
    assert sent[0] == sent[1] == sent[2]
    with pytest.raises(grpc.aio.AioRpcError) as conflict:
        await door.stub.Send(pb.MessageCreate(id="m", session=first.session, content="Ho"))
    assert conflict.value.code() is grpc.StatusCode.ALREADY_EXISTS
    assert error_of(conflict.value).code == "idempotency_conflict"


async def test_a_stream_that_was_cut_goes_on_where_it_stood(slow_door: Door) -> None:
    door = slow_door
    session = (await door.stub.Create(pb.SessionCreate(id="c"))).session
    talk = door.converse(session, position=pb.Position(offset=0))
    await talk.say(message_create=pb.MessageCreate(id="m", content="On", sampling=pb.Sampling(max_output_tokens=120)))
    await talk.until(has("response_output_text_delta"))
    last = (await talk.until(has("response_output_text_delta"))).event
    talk.call.cancel()
    again = door.converse(session, position=pb.Position(epoch=last.epoch, offset=last.offset))
    await again.until(lambda reply: reply.event.WhichOneof("event") in ENDS)
    await again.hang_up()
    whole = await door.history(session)
    assert text(talk.seen) + text(again.seen) == text(whole)
    assert events(again.seen)[0].first_offset or events(again.seen)[0].offset == last.offset + 1
    assert again.seen[0].resumed.mode == "replay"
    assert events(whole)[-1].response_incomplete.response.incomplete_details.reason == "max_output_tokens"
    assert await again.rest()


async def test_every_resumed_is_followed_by_caught_up(door: Door) -> None:
    session = (await door.stub.Create(pb.SessionCreate())).session
    talk = door.converse(session)
    await talk.until(has("caught_up"))
    key, journal = SessionKey(TenantId("local"), SessionId(session)), door.assembly.journal
    for number in range(2):  # the journal is put back to a backup
        journal.database.restore(journal.database.backup())
        head = await journal.head(key)
        assert head is not None
        epoch = Epoch(f"epoch-{number}")
        await journal.grant(key, expected_fence=head.fence, owner="r", new_epoch=epoch, now_ms=UnixMs(1))
        await door.history(session)
        async with asyncio.timeout(60):
            resumed = (await talk.until(has("resumed"))).resumed
            assert (resumed.mode, resumed.epoch, resumed.reason) == ("reset", epoch, "epoch_changed")
            assert (await talk.until(has("caught_up"))).caught_up.offset == resumed.at
    await talk.hang_up()
    async with asyncio.timeout(60):
        await talk.rest()


async def test_a_stream_that_is_hung_up_before_it_has_caught_up_ends_when_it_has(door: Door) -> None:
    session = (await door.stub.Create(pb.SessionCreate())).session
    for number in range(200):
        await door.stub.Send(pb.MessageCreate(session=session, content=f"Line {number}", no_response=True))
    talk = door.converse(session, position=pb.Position(offset=0))
    await talk.hang_up()
    async with asyncio.timeout(60):
        replies = await talk.rest()
    assert len(events(replies)) == 201 and replies[-1].WhichOneof("reply") == "caught_up"


async def test_hanging_up_cancels_only_where_it_was_asked_to(slow_door: Door) -> None:
    door = slow_door
    for cancel_on_leave in (False, True):
        session = (await door.stub.Create(pb.SessionCreate())).session
        watcher = door.converse(session, position=pb.Position(offset=0))
        await watcher.until(has("caught_up"))
        talk = door.converse(session, cancel_on_leave=cancel_on_leave)
        await talk.say(
            message_create=pb.MessageCreate(id="m", content="On", sampling=pb.Sampling(max_output_tokens=150))
        )
        ok = (await talk.until(has("ok"))).ok
        await talk.until(has("response_output_text_delta"))
        talk.call.cancel()
        end = await watcher.until(lambda reply: reply.event.WhichOneof("event") in ENDS)
        response = end.event.response_incomplete.response
        assert response.id == ok.response_id
        assert response.incomplete_details.reason == ("cancelled" if cancel_on_leave else "max_output_tokens")
        watcher.call.cancel()


async def test_nothing_of_a_cancelled_response_follows_the_answer(slow_door: Door) -> None:
    session = (await slow_door.stub.Create(pb.SessionCreate())).session
    talk = slow_door.converse(session)
    await talk.say(message_create=pb.MessageCreate(id="m", content="On"))
    response = (await talk.until(has("ok"))).ok.response_id
    await talk.until(has("response_output_text_delta"))
    await talk.say(response_cancel=pb.ResponseCancel(id="x", response_id=response))
    await talk.until(lambda reply: reply.ok.id == "x")
    await talk.say(response_cancel=pb.ResponseCancel(id="y", response_id=response))
    assert (await talk.until(lambda reply: reply.ok.id == "y")).ok.noop
    await talk.hang_up()
    kinds = [r.event.WhichOneof("event") or r.WhichOneof("reply") for r in await talk.rest()]
    assert kinds.index("response_incomplete") < kinds.index("ok", kinds.index("ok") + 1)
    assert "response_output_text_delta" not in kinds[kinds.index("response_incomplete") :]


async def test_words_are_taken_up_while_an_answer_is_written(slow_door: Door) -> None:
    session = (await slow_door.stub.Create(pb.SessionCreate())).session
    talk = slow_door.converse(session)
    await talk.say(message_create=pb.MessageCreate(id="m", content="On"))
    first = (await talk.until(has("ok"))).ok.response_id
    await talk.until(has("response_output_text_delta"))
    await talk.say(response_steer=pb.ResponseSteer(id="s", response_id=first, content="In French"))
    ended = (await talk.until(has("response_incomplete"))).event.response_incomplete.response
    second = ended.incomplete_details.response_id
    assert ended.incomplete_details.reason == "steered" and second
    words = (await talk.until(has("item_created"))).event.item_created.item
    assert (words.role, words.parent_id) == ("user", ended.output[-1].id)
    created = (await talk.until(has("response_created"))).event.response_created
    assert (created.response_id, created.response.parent_id) == (second, words.id)
    part = pb.ContentPart(type="input_text", text="Or not")
    ok = await slow_door.stub.Steer(pb.ResponseSteer(session=session, response_id=second, parts=[part]))
    assert (await talk.until(has("response_incomplete"))).event.response_incomplete.response_id == second
    talk.call.cancel()
    await slow_door.stub.Cancel(pb.ResponseCancel(session=session, response_id=ok.response_id))


async def test_a_command_outlives_its_deadline(door: Door) -> None:
    """The caller stops waiting; the command, once begun, is applied once, and its id asks for the answer again."""
    session = (await door.stub.Create(pb.SessionCreate())).session
    sessions = door.assembly.gateway._sessions
    begun, release = asyncio.Event(), asyncio.Event()
    execute = sessions.execute

    async def held(request: Any) -> Any:
        begun.set()
        await release.wait()
        return await execute(request)

    sessions.execute = held  # type: ignore[method-assign]
    message = pb.MessageCreate(id="m", session=session, content="Hi", no_response=True)
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await door.stub.Send(message, timeout=0.2)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert begun.is_set()
    release.set()
    sessions.execute = execute  # type: ignore[method-assign]
    ok = await door.stub.Send(message)
    state = await door.stub.Get(pb.GetRequest(session=session))
    assert [item.id for item in state.items] == [ok.item_id]


async def test_errors_inside_a_conversation_leave_it_open(slow_door: Door) -> None:
    session = (await slow_door.stub.Create(pb.SessionCreate())).session
    talk = slow_door.converse(session)
    await talk.say(message_create=pb.MessageCreate(id="a", content="On"))
    await talk.until(has("ok"))
    await talk.say(message_create=pb.MessageCreate(id="b", content="And?"))
    busy = (await talk.until(has("error"))).error
    assert (busy.id, busy.status, busy.error.code, busy.error.retryable) == (
        "b",
        "ABORTED",
        "response_in_progress",
        True,
    )
    await talk.say(message_create=pb.MessageCreate(content="No id"))
    assert (await talk.until(has("error"))).error.error.param == "id"
    await talk.say(session_create=pb.SessionCreate(id="c"))
    assert (await talk.until(has("error"))).error.status == "INVALID_ARGUMENT"
    await talk.say(message_create=pb.MessageCreate(id="d", session="another", content="Hi"))
    assert (await talk.until(has("error"))).error.error.param == "session"
    await talk.say()
    assert (await talk.until(has("error"))).error.error.code == "unknown_type"
    await talk.say(message_create=pb.MessageCreate(id="e", content="Hi", sampling=pb.Sampling(temperature=9)))
    assert (await talk.until(has("error"))).error.error.param == "temperature"
    await talk.say(session_delete=pb.SessionDelete(id="f"))
    await talk.until(lambda reply: reply.ok.id == "f")
    assert (await talk.rest())[-1].ok.id == "f", "a deleted session's conversation ends by itself"


async def test_an_error_has_the_status_of_the_table(door: Door) -> None:
    cases: list[tuple[str, Any, str, str]] = [
        ("Get", pb.GetRequest(session="ses_none"), "NOT_FOUND", "session_not_found"),
        ("Get", pb.GetRequest(session="a b"), "INVALID_ARGUMENT", "invalid_request"),
        ("List", pb.ListRequest(limit=0), "INVALID_ARGUMENT", "invalid_request"),
        ("List", pb.ListRequest(after="ses_none"), "NOT_FOUND", "session_not_found"),
        ("Cancel", pb.ResponseCancel(session="ses_none", response_id="r"), "NOT_FOUND", "session_not_found"),
        ("Steer", pb.ResponseSteer(session="ses_none", response_id="r", content="x"), "NOT_FOUND", "session_not_found"),
        ("Send", pb.MessageCreate(session="ses_none", content="Hi"), "NOT_FOUND", "session_not_found"),
        ("Update", pb.SessionUpdate(session="s", clear=["model"]), "INVALID_ARGUMENT", "invalid_request"),
    ]
    for call, request_, status, code in cases:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await getattr(door.stub, call)(request_)
        assert refused.value.code() is grpc.StatusCode[status]
        assert error_of(refused.value).code == code
        assert refused.value.details() == error_of(refused.value).message


async def test_a_conversation_that_cannot_be(door: Door) -> None:
    for opening, status in (("ses_none", grpc.StatusCode.NOT_FOUND), ("a b", grpc.StatusCode.INVALID_ARGUMENT)):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await door.converse(opening).rest()
        assert refused.value.code() is status
    call = door.stub.Converse()
    await call.write(pb.ConverseRequest(command=pb.Command(session_warm=pb.SessionWarm(id="w"))))
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_without_keys_it_listens_on_loopback_only(door: Door) -> None:
    with pytest.raises(BadInput):
        await GrpcServer(door.assembly.gateway, host="0.0.0.0", port=0).start()
    off = GrpcServer(door.assembly.gateway, host="127.0.0.1", port=-1)
    assert not await off.start()
    await off.stop()


async def test_health_reflection_and_going_away(slow_door: Door) -> None:
    door = slow_door
    health = health_pb2_grpc.HealthStub(door.channel)
    asked = health_pb2.HealthCheckRequest(service="sessile.v1.Sessions")
    assert (await health.Check(asked)).status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(door.channel).ServerReflectionInfo()
    await reflection.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    names = {service.name for service in (await reflection.read()).list_services_response.service}
    versions = {"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"}
    assert names == {"sessile.v1.Sessions", "grpc.health.v1.Health", *versions}
    reflection.cancel()

    session = (await door.stub.Create(pb.SessionCreate())).session
    talk = door.converse(session)
    await talk.say(message_create=pb.MessageCreate(id="m", content="On"))
    await talk.until(has("response_output_text_delta"))
    history = door.stub.History(pb.HistoryRequest(session=session, follow=True))
    await history.read()
    await door.server.drain()
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        while await history.read() is not grpc.aio.EOF:
            pass
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.aio.AioRpcError) as left:
        await talk.rest()
    assert left.value.code() is grpc.StatusCode.UNAVAILABLE
    assert error_of(left.value).code == "draining" and error_of(left.value).retryable
    assert dict(left.value.trailing_metadata() or ())["grpc-retry-pushback-ms"] == "1000"
    assert (await health.Check(asked)).status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_caller_that_does_not_read_holds_up_nobody(door: Door) -> None:
    """Its cursor stands still; another caller reads the same log to its end meanwhile."""
    session = (await door.stub.Create(pb.SessionCreate())).session
    for number in range(40):
        message = pb.MessageCreate(id=f"m{number}", session=session, content="x" * 4_000, no_response=True)
        await door.stub.Send(message)
    lazy = door.converse(session, position=pb.Position(offset=0))
    await lazy.until(has("resumed"))
    replies = await ask(door, session, "last", "short")
    assert events(replies)[-1].WhichOneof("event") == "response_completed"
    await lazy.hang_up()
    assert events(await lazy.rest())[-1].offset == events(replies)[-1].offset


ATTEMPTS_MAX = 300
CUT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


async def converse(door: Door, proxy: Proxy, message: pb.MessageCreate) -> tuple[list[pb.ConverseReply], int]:
    """Returns what a client saw that comes back until the answer has ended, and how often it came."""
    seen: list[pb.ConverseReply] = []
    position = pb.Position(offset=0)
    for attempt in range(1, ATTEMPTS_MAX):
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{proxy.port}", options=(("grpc.use_local_subchannel_pool", 1),)
        ) as channel:
            talk = Talk(SessionsStub(channel).Converse(), pb.Open(session=message.session, position=position))
            try:
                await talk.say(message_create=message)
                await talk.until(lambda reply: reply.event.WhichOneof("event") in ENDS)
            except grpc.aio.AioRpcError as error:
                # A message that was being sent when the connection went is an error of the library's core.
                if error.code() not in CUT and "execute_batch" not in (error.debug_error_string() or ""):
                    raise
            except asyncio.InvalidStateError:  # it was cut before the first word: the same, as a write says it
                assert await talk.call.code() in CUT
            seen += talk.seen
        found = events(talk.seen)
        if found:
            position = pb.Position(epoch=found[-1].epoch, offset=found[-1].offset)
            if found[-1].WhichOneof("event") in ENDS:
                return seen, attempt
        if attempt == ATTEMPTS_MAX // 2:
            proxy.heal()
    raise AssertionError("the answer never ended")


@pytest.mark.parametrize("seed", range(2))
async def test_the_text_is_the_log(seed: int) -> None:
    rng = random.Random(seed)
    async with (
        opened(SimulatedOptions(step_base_s=0.002, answer_tokens_mean=0)) as door,
        Proxy(("127.0.0.1", door.server.port), seed=seed) as proxy,
    ):
        session = (await door.stub.Create(pb.SessionCreate())).session
        proxy.set(down=Flow(cut_within_bytes=rng.choice((1500, 4000)), jitter_s=0.01))
        message = pb.MessageCreate(
            id="m", session=session, content="On", sampling=pb.Sampling(max_output_tokens=300, seed=seed)
        )
        seen, attempts = await converse(door, proxy, message)
        whole = await door.history(session)
    assert attempts > 1 and proxy.counts.cuts > 0
    assert text(seen) == text(whole) != ""
    offsets = [n for event in events(seen) for n in range(event.first_offset or event.offset, event.offset + 1)]
    assert offsets == list(range(1, offsets[-1] + 1))
    kinds = [event.WhichOneof("event") for event in events(whole)]
    assert kinds.count("item_created") == kinds.count("response_created") == 1


GARBAGE = b"\x0a\xff\xff\xff\xff\x7f"  # a field of 2 GiB that is not there
VERSIONS = ("v1", "v1alpha")


def reflecting(door: Door, version: str, *, raw: bool = False) -> Any:
    return door.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=None if raw else reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )()


@pytest.mark.parametrize("version", VERSIONS)
async def test_reflection_describes_every_service_itself_included(door: Door, version: str) -> None:
    call = reflecting(door, version)
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    names = [service.name for service in (await call.read()).list_services_response.service]
    assert {"sessile.v1.Sessions", *(f"grpc.reflection.{each}.ServerReflection" for each in VERSIONS)} <= set(names)
    for name in names:
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
        (first, *_) = (await call.read()).file_descriptor_response.file_descriptor_proto
        file = descriptor_pb2.FileDescriptorProto.FromString(first)
        assert name in [f"{file.package}.{service.name}" for service in file.service]
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK


async def test_a_reflection_that_cannot_be_decoded_is_an_invalid_argument(door: Door) -> None:
    for version in VERSIONS:
        call = reflecting(door, version, raw=True)
        await call.write(GARBAGE)
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_check_that_cannot_be_decoded_is_an_invalid_argument(door: Door) -> None:
    for method in ["Check", "Watch"]:
        path = f"/grpc.health.v1.Health/{method}"
        channel: Any = door.channel
        call = (channel.unary_stream if method == "Watch" else channel.unary_unary)(path)(GARBAGE)
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("path", ["/grpc.health.v1.Health/Check", "/sessile.v1.Sessions/Create"])
async def test_a_call_that_is_refused_is_free_at_once(door: Door, path: str) -> None:
    channel: Any = door.channel
    with no_cycles(BadInput, TooLarge, grpc.aio.AbortError):
        for data in (GARBAGE, b"\x0a\x00" * 70_000):  # the second has more fields than a message may have
            call = channel.unary_unary(path)(data)
            assert await call.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
        del call


async def test_a_message_that_cannot_be_decoded_is_an_invalid_argument(door: Door) -> None:
    for method in [each.name for each in pb.DESCRIPTOR.services_by_name["Sessions"].methods]:
        described = pb.DESCRIPTOR.services_by_name["Sessions"].methods_by_name[method]
        path = f"/sessile.v1.Sessions/{method}"
        channel: Any = door.channel
        if described.client_streaming:
            call = channel.stream_stream(path)()
            await call.write(GARBAGE)
        elif described.server_streaming:
            call = channel.unary_stream(path)(GARBAGE)
        else:
            call = channel.unary_unary(path)(GARBAGE)
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
