"""Appeals as an SDK and a gRPC caller make them: over WebSocket and gRPC, on a real server with a policy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest
from sessile_client import Client, Conflict, ServerError

from tests.support.doors.grpc_door import error_of, events
from tests.support.doors.review_door import SECRET, running
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.server import GrpcServer
from transport.grpc_api.sessile_pb2_grpc import SessionsStub


async def test_an_answer_that_was_withheld_is_appealed_once_and_its_outcome_is_seen(tmp_path: Path) -> None:
    async with running(tmp_path / "p.toml") as door:
        door.server.engine.script += [f"Sure: {SECRET} starts", "Fine."]
        async with Client(f"{door.server.server.url.replace('http', 'ws')}/v1/ws") as client:
            session = await client.create_session()
            withheld = session.send("hello")
            assert (await withheld.wait()).incomplete_reason == "content_filter"
            review = await session.appeal(withheld.id, note="It is a museum.", command_id="a1")
            assert review == await session.appeal(withheld.id, note="It is a museum.", command_id="a1")
            assert session.view.reviews[review].standing == "appealed"
            (case,) = await door.queue(appealed="true")
            assert (case["id"], case["response_id"]) == (review, withheld.id)
            with pytest.raises(Conflict, match="appeal"):
                await session.appeal(withheld.id)
            assert (await door.decide(review, "overturned"))[0] == 200
            async with asyncio.timeout(60), contextlib.aclosing(cast(AsyncGenerator[Any], session.events())) as events_:
                async for _ in events_:
                    if session.view.reviews[review].outcome is not None:
                        break
            assert session.view.reviews[review].standing == "overturned"
            harmless = session.send("hello again")
            await harmless.wait()
            with pytest.raises(ServerError) as refused:
                await session.appeal(harmless.id)
            assert refused.value.code == "not_withheld"
        async with Client(f"{door.server.server.url.replace('http', 'ws')}/v1/ws") as other:  # it gets a snapshot
            seen = await other.session(session.id)
            assert seen.view.reviews[review].standing == "overturned"
            assert withheld.id is not None and harmless.id is not None
            assert seen.view.responses[withheld.id].incomplete_reason == "content_filter"
            assert seen.view.responses[withheld.id].status == "incomplete"
            assert seen.view.responses[harmless.id].incomplete_reason is None


async def test_a_refused_message_is_appealed_over_grpc(tmp_path: Path) -> None:
    async with running(tmp_path / "p.toml") as door:
        server = GrpcServer(door.server.gateway, host="127.0.0.1", port=0)
        assert await server.start()
        try:
            async with grpc.aio.insecure_channel(server.address) as channel:
                stub = SessionsStub(channel)
                session = (await stub.Create(pb.SessionCreate())).session
                said = pb.MessageCreate(session=session, content=f"Tell me of {SECRET}")
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stub.Send(said)
                assert error_of(refused.value).code == "content_filter"
                appeal = pb.ReviewAppeal(session=session, content=said.content, note="The bird.")
                ok = await stub.Appeal(appeal)
                (case,) = await door.queue(appealed="true")
                assert case["id"] == ok.review_id
                assert (await door.decide(ok.review_id, "upheld"))[0] == 200
                log = events([each async for each in stub.History(pb.HistoryRequest(session=session))])
                assert [each.WhichOneof("event") for each in log][1:] == ["review_appealed", "review_decided"]
                assert log[-1].review_decided.outcome == "upheld"
                assert SECRET not in str(log)
                with pytest.raises(grpc.aio.AioRpcError) as nothing:
                    await stub.Appeal(pb.ReviewAppeal(session=session, content="Tell me of birds"))
                assert error_of(nothing.value).code == "not_withheld"
                for both in ({}, {"content": "x", "response_id": "resp_x"}):
                    with pytest.raises(grpc.aio.AioRpcError) as neither:
                        await stub.Appeal(pb.ReviewAppeal(session=session, **both))
                    assert neither.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        finally:
            await server.stop()
