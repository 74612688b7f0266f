"""Conversations over gRPC through a network that cuts every connection: the text is the log, and a message is one."""

from __future__ import annotations

import asyncio
import random

import grpc.aio
import pytest

from inference.simulated import SimulatedOptions
from tests.support.chaos.proxy import Flow, Proxy
from tests.support.doors.grpc_door import ENDS, Door, Talk, events, opened, text
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.sessile_pb2_grpc import SessionsStub

ATTEMPTS_MAX = 300
CUT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


async def converse(door: Door, proxy: Proxy, message: pb.MessageCreate) -> tuple[list[pb.ConverseReply], int]:
    """What a client saw that comes back until the answer has ended, and how often it came."""
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
