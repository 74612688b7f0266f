"""A chain over Responses' WebSocket through a cut and a kill -9: each costs a round trip, and nothing else."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from testbed.server_process import ServerProcess

FLAGS = ("--engine", "sim", "--sim-tokens-per-s", "200", "--sim-answer-tokens", "30", "--journal-encryption", "off")
ENDED = ("response.completed", "response.incomplete", "response.failed", "error")
TURNS, CUT_AT, KILLED_AT = 6, 2, 4
WAIT_S = 60.0


class Agent:
    """Chains turns; when its connection breaks, it dials again and sends the turn that it was at once more."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.connection: ClientConnection | None = None
        self.frames = 0
        self.previous: str | None = None

    async def _dial(self) -> ClientConnection:
        if self.connection is None:
            address = f"ws://127.0.0.1:{self.server.port}/v1/responses"
            self.connection = await connect(address, max_size=None)
        return self.connection

    async def turn(self, number: int, *, break_off: Any = None) -> list[Any]:
        """The events of a turn, from the connection that saw its end. `break_off` is called at its first text."""
        frame: dict[str, Any] = {
            "type": "response.create",
            "input": f"turn {number}",
            "store": False,
            "idempotency_key": f"turn-{number}",
        }
        if self.previous is not None:
            frame["previous_response_id"] = self.previous
        while True:
            events: list[Any] = []
            connection = await self._dial()
            try:
                await connection.send(json.dumps(frame))
                self.frames += 1
                while not events or events[-1]["type"] not in ENDED:
                    events.append(json.loads(await asyncio.wait_for(connection.recv(), WAIT_S)))
                    if break_off is not None and events[-1]["type"] == "response.output_text.delta":
                        break_off, do = None, break_off
                        do(connection)
            except ConnectionClosed:
                self.connection = None
                continue
            self.previous = events[-1]["response"]["id"]
            return events


async def test_a_cut_and_a_kill_cost_a_round_trip_each_and_nothing_else() -> None:
    with ServerProcess(*FLAGS) as server:
        agent = Agent(server)

        def cut(connection: ClientConnection) -> None:
            connection.transport.abort()

        def kill(_: ClientConnection) -> None:
            server.kill()
            server.start()

        texts, names = [], []
        for number in range(TURNS):
            events = await agent.turn(number, break_off={CUT_AT: cut, KILLED_AT: kill}.get(number))
            last = events[-1]
            assert last["type"] == "response.completed"
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            deltas = "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta")
            assert deltas == last["response"]["output"][0]["content"][0]["text"]
            texts.append(deltas)
            names.append(last["response"]["id"])
        assert agent.frames == TURNS + 2
        assert len(set(names)) == TURNS and all(texts)
        assert agent.connection is not None
        await agent.connection.send(json.dumps({"type": "response.retrieve", "response_id": names[KILLED_AT]}))
        events = [json.loads(await asyncio.wait_for(agent.connection.recv(), WAIT_S))]
        while events[-1]["type"] not in ENDED:
            events.append(json.loads(await asyncio.wait_for(agent.connection.recv(), WAIT_S)))
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == texts[KILLED_AT]
        await agent.connection.close()
