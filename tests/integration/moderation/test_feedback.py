"""What a user thinks of an answer, from every door to the reviewers' queue, and what the reader of a snapshot sees."""

from __future__ import annotations

from pathlib import Path

import grpc.aio
from sessile_client import Client

from tests.support.doors.grpc_door import events
from tests.support.doors.review_door import running
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.server import GrpcServer
from transport.grpc_api.sessile_pb2_grpc import SessionsStub


async def test_a_thumbs_down_is_a_case_and_its_reason_may_change_until_it_is_decided(tmp_path: Path) -> None:
    async with running(tmp_path / "p.toml") as door:
        session, response = await door.ask("hello")
        path = f"/v1/sessions/{session}/responses/{response['id']}/feedback"
        status, up = await door.said("POST", path, {"rating": "up"})
        assert (status, up["review_id"], await door.queue()) == (200, None, [])
        for wrong in ({"rating": "so so"}, {}, {"rating": "up", "by": "me"}):
            assert (await door.said("POST", path, wrong))[0] == 400
        _, down = await door.said("POST", path, {"rating": "down", "reason": "wrong year"})
        (case,) = await door.queue(category="feedback")
        assert (case["id"], case["cause"], case["response_id"]) == (down["review_id"], "feedback", response["id"])
        assert (case["model"], case["action"]) == (response["model"], "flag")
        await door.said("POST", path, {"rating": "down", "reason": "wrong century"})
        _, whole = await door.said("GET", f"/v1/reviews/{case['id']}")
        assert (whole["note"], len(await door.queue())) == ("wrong century", 1)
        assert (await door.decide(case["id"], "upheld"))[0] == 200
        await door.said("POST", path, {"rating": "down", "reason": "wrong again"})
        _, whole = await door.said("GET", f"/v1/reviews/{case['id']}")
        assert (whole["note"], whole["state"]) == ("wrong century", "decided")
        assert door.told(session) == []  # the user hears nothing of it
        async with Client(f"{door.server.server.url.replace('http', 'ws')}/v1/ws") as client:  # it gets a snapshot
            seen = await client.session(session)
            assert response["id"] in seen.view.responses
        _, state = await door.said("GET", f"/v1/sessions/{session}/export")
        (given,) = state["state"]["feedback"]
        assert (given["rating"], given["reason"]) == ("down", "wrong again")
        (answer,) = state["state"]["answers"].values()
        assert answer["model"] == response["model"] and answer["usage"]["output_tokens"] > 0


async def test_feedback_over_grpc_and_in_its_events(tmp_path: Path) -> None:
    async with running(tmp_path / "p.toml") as door:
        session, response = await door.ask("hello")
        server = GrpcServer(door.server.gateway, host="127.0.0.1", port=0)
        assert await server.start()
        try:
            async with grpc.aio.insecure_channel(server.address) as channel:
                stub = SessionsStub(channel)
                rated = pb.FeedbackSet(session=session, response_id=response["id"], rating="down", reason="no")
                ok = await stub.Rate(rated)
                (case,) = await door.queue()
                assert case["id"] == ok.review_id
                state = await stub.Get(pb.GetRequest(session=session))
                assert [(each.rating, each.reason) for each in state.feedback] == [("down", "no")]
                assert state.answers[response["id"]].usage.output_tokens > 0
                await stub.Rate(pb.FeedbackSet(session=session, response_id=response["id"]))
                assert list((await stub.Get(pb.GetRequest(session=session))).feedback) == []
                log = events([each async for each in stub.History(pb.HistoryRequest(session=session))])
                given = [each.feedback_updated for each in log if each.WhichOneof("event") == "feedback_updated"]
                assert [each.HasField("rating") for each in given] == [True, False]
        finally:
            await server.stop()
