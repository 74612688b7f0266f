"""Open and closed loops against a stand-in: arrivals, think times, Retry-After, and ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from tests.support.doors.openai_stand_in import StandIn, plain, stand_in
from transport.load.measurements import LatencyTargets, Measurements
from transport.load.runner import LoadPlan, LoadRunner
from transport.load.stream_client import StreamClient, parse_address
from transport.load.workload import Workload, parse_trace

CONVERSATION = parse_trace('{"turns": [{"prompt": "one"}, {"prompt": "two", "think_s": 0.001}]}')
SHORT = {"short": 1.0}


def runner(server: StandIn, plan: LoadPlan, mix: Mapping[str, float] = SHORT) -> tuple[LoadRunner, Measurements]:
    client = StreamClient(parse_address(server.url), "", clock=time.perf_counter, timeout_s=10)
    counted = Measurements(LatencyTargets())
    return LoadRunner(client, Workload(mix, CONVERSATION), counted, plan, time.perf_counter), counted


async def test_a_closed_loop_sends_as_many_requests_as_it_may() -> None:
    async with stand_in() as server:
        load, counted = runner(server, LoadPlan(model="stand-in", users=3, requests=10))
        await load.run()
    # each of the others may have had one under way
    assert 10 <= len(counted.results) <= 12 and not counted.errors and counted.in_flight == 0
    assert server.connections <= 3
    path, body = server.requests[0]
    assert path == "/v1/chat/completions" and body["stream_options"] == {"include_usage": True}


async def test_a_conversation_resends_its_history() -> None:
    async with stand_in() as server:
        load, _ = runner(server, LoadPlan(model="stand-in", users=1, requests=2), {"turns": 1})
        await load.run()
    assert [each["content"] for each in server.requests[1][1]["messages"]] == ["one", "Hello", "two"]


async def test_an_open_loop_waits_for_no_answer() -> None:
    async with stand_in(usual=None) as server:  # which never answers
        load, counted = runner(server, LoadPlan(model="stand-in", rate=2000.0, requests=20))
        enough = asyncio.Event()
        server.on_request = lambda: enough.set() if len(server.requests) == 20 else None
        running = asyncio.ensure_future(load.run())
        await enough.wait()
        assert counted.in_flight == 20 and not counted.results
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert counted.in_flight == 0


async def test_a_user_who_is_turned_away_comes_back_when_it_may() -> None:
    refusal = plain("{}", status="429 Too Many", fields="Retry-After: 60\r\n")
    async with stand_in(refusal) as server:
        load, counted = runner(server, LoadPlan(model="stand-in", users=1, seconds=0.25))
        await load.run()  # after 0.1 s it would come back on its own
    assert [each.turned_away for each in counted.results] == [True] and len(server.requests) == 1


async def test_time_ends_a_load_with_what_is_under_way_answered() -> None:
    async with stand_in() as server:
        load, counted = runner(server, LoadPlan(model="stand-in", users=2, seconds=0.02))
        await load.run()
    assert counted.results and not counted.errors
