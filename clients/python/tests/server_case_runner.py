"""Runs a conformance case against a server: plays the client over a real WebSocket, in real time.

``PYTHONPATH=.. python server_case_runner.py ws://127.0.0.1:8080/v1/ws [NAME...]`` runs every case whose settings are
among those given with ``--has NAME`` (how the server was started); ``run_case`` is the same for a test. See
docs/protocol/README.md for the format.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from typing import Any

import msgpack
from case_values import Mismatch, Values, load_cases
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

Frame = dict[str, Any]
ANSWER_S = 60.0


class _Line:
    """One connection, with the events that were passed over."""

    def __init__(self, socket: ClientConnection, encoding: str) -> None:
        self.socket = socket
        self.kept: list[Frame] = []
        self.offsets: dict[str, int] = {}
        self._encoding = encoding
        self._waiting: list[Frame] = []

    async def send(self, body: Any) -> None:
        await self.socket.send(json.dumps(body) if self._encoding == "json" else msgpack.packb(body))

    async def next(self, timeout_s: float = ANSWER_S) -> Frame:
        """The next frame; heartbeats are answered and left out. TimeoutError, ConnectionClosed."""
        while True:
            if not self._waiting:
                data = await asyncio.wait_for(self.socket.recv(), timeout_s)
                body = json.loads(data) if isinstance(data, str) else msgpack.unpackb(data)
                self._waiting = body if isinstance(body, list) else [body]
            frame = self._waiting.pop(0)
            if frame["type"] != "ping":
                return frame
            await self.send({"type": "pong"})


class ServerRun:
    def __init__(self, case: dict[str, Any], url: str, encoding: str, rng: random.Random) -> None:
        self._case = case
        self._url = url
        self._encoding = encoding
        self._values = Values(case.get("given", {}), rng)
        self._lines: dict[str, _Line] = {}
        self._logs: dict[str, list[Frame]] = {}

    async def run(self) -> None:
        try:
            for number, step in enumerate(self._case["steps"]):
                try:
                    await self._step(step, step.get("on", "a"))
                except (Mismatch, asyncio.TimeoutError, ConnectionClosed) as exc:
                    what = "nothing came" if isinstance(exc, asyncio.TimeoutError) else exc
                    raise Mismatch(f"{self._case['name']}, step {number}: {what}\n  {json.dumps(step)}") from exc
        finally:
            for line in self._lines.values():
                await line.socket.close()

    async def _step(self, step: dict[str, Any], on: str) -> None:
        match step:
            case {"call": _} | {"expect": _}:
                return
            case {"connect": options}:
                socket = await connect(
                    self._url,
                    subprotocols=[Subprotocol(f"sessile.v1+{self._encoding}")],
                    additional_headers=self._values.play(options.get("headers", {})),
                    compression=None,
                    ping_interval=None,
                    max_size=None,
                    close_timeout=2,
                )
                if socket.subprotocol != f"sessile.v1+{self._encoding}":
                    raise Mismatch(f"the server chose {socket.subprotocol}")
                self._lines[on] = _Line(socket, self._encoding)
            case {"client": frame}:
                await self._lines[on].send(self._values.play(frame))
            case {"client_raw": {"text": str(text)}}:
                await self._lines[on].socket.send(text)
            case {"client_raw": {"hex": str(digits)}}:
                await self._lines[on].socket.send(bytes.fromhex(digits))
            case {"server": expected}:
                for one in expected if isinstance(expected, list) else [expected]:
                    await self._expect(self._lines[on], one, skip=step.get("skip", False))
            case {"close": {"by": "server"} as close}:
                await self._closed_by_server(self._lines[on], close["code"])
            case {"close": {"by": "client"} as close}:
                await self._lines[on].socket.close(close.get("code", 1000))
            case {"close": {"by": "network"}}:
                self._lines[on].socket.transport.abort()
            case {"advance_ms": ms}:
                await asyncio.sleep(ms / 1000)
            case {"quiet_ms": ms}:
                await self._quiet(self._lines[on], ms / 1000)
            case {"events": wanted}:
                await self._events(self._lines[on], wanted)
            case _:
                raise ValueError(f"a step that the runner does not know: {step}")

    async def _expect(self, line: _Line, expected: Any, *, skip: bool) -> None:
        while True:
            frame = await line.next()
            before = dict(self._values.bound)
            try:
                self._values.match(expected, frame)
                return
            except Mismatch as exc:
                self._values.bound = before
                if not skip:
                    raise Mismatch(f"{exc} in {frame}") from exc
            if frame["type"] == "event":
                line.kept.append(frame)

    async def _closed_by_server(self, line: _Line, code: Any) -> None:
        try:
            while True:
                await line.next()
        except ConnectionClosed:
            self._values.match(code, line.socket.close_code, ".close_code")

    async def _quiet(self, line: _Line, seconds: float) -> None:
        try:
            frame = await line.next(seconds)
        except asyncio.TimeoutError:
            return
        raise Mismatch(f"the server sent {frame}")

    async def _events(self, line: _Line, wanted: dict[str, Any]) -> None:
        session = self._values.play(wanted["session"])
        read: list[Frame] = []
        last = self._values.play(wanted["from"]) - 1 if "from" in wanted else line.offsets.get(session)
        while True:
            from_wire = not any(frame["session"] == session for frame in line.kept)
            if from_wire:
                frame = await line.next()
            else:
                frame = next(frame for frame in line.kept if frame["session"] == session)
                line.kept.remove(frame)
            if frame["type"] != "event" or frame["session"] != session:
                continue
            first = frame.get("first_offset", frame["offset"])
            if last is not None and first != last + 1:
                raise Mismatch(f"after offset {last} came {first} to {frame['offset']}")
            last = line.offsets[session] = frame["offset"]
            read.append(frame)
            if from_wire and "without" in wanted and self._matches(wanted["without"], frame["event"]):
                raise Mismatch(f"this must not come any more: {frame}")
            if "until" in wanted and self._matches(wanted["until"], frame["event"], bind=True):
                break
            if len(read) == wanted.get("count"):
                break
        _check_sequence(read)
        if "last" in wanted:
            self._values.bound[wanted["last"]] = last
        if "as" in wanted:
            self._logs[wanted["as"]] = laid_together(read)
        if "equals" in wanted and laid_together(read) != self._logs[wanted["equals"]]:
            raise Mismatch(f"the logs differ:\n  {self._logs[wanted['equals']]}\n  {laid_together(read)}")

    def _matches(self, expected: Any, got: Any, *, bind: bool = False) -> bool:
        before = dict(self._values.bound)
        try:
            self._values.match(expected, got)
        except Mismatch:
            self._values.bound = before
            return False
        if not bind:
            self._values.bound = before
        return True


def _check_sequence(frames: list[Frame]) -> None:
    """The sequence numbers of every response go up by one per offset that its events cover."""
    at: dict[str, int] = {}
    for frame in frames:
        event = frame["event"]
        if "sequence_number" not in event:
            continue
        response_id, number = event["response_id"], event["sequence_number"]
        covered = frame["offset"] - frame.get("first_offset", frame["offset"]) + 1
        if response_id in at and number != at[response_id] + covered:
            raise Mismatch(f"{response_id}: sequence {number} after {at[response_id]}, covering {covered}")
        at[response_id] = number


def laid_together(frames: list[Frame]) -> list[Frame]:
    """The log with adjacent deltas of one text as one: what two readers of it must agree on."""
    log: list[Frame] = []
    for frame in frames:
        event = {k: v for k, v in frame["event"].items() if k != "sequence_number"}
        offset, kind = frame["offset"], event["type"]
        if kind.endswith(".delta") and log and log[-1]["event"]["type"] == kind:
            before = log[-1]["event"]
            if {**before, "delta": ""} == {**event, "delta": ""}:
                log[-1] = {"offset": offset, "event": {**event, "delta": before["delta"] + event["delta"]}}
                continue
        log.append({"offset": offset, "event": event})
    return log


async def run_case(case: dict[str, Any], url: str, encoding: str, *, seed: int = 0) -> None:
    """Run one case against the server at ``url``; raises Mismatch."""
    await ServerRun(case, url, encoding, random.Random(f"{seed} {case['name']} {encoding}")).run()


def main() -> int:
    top = argparse.ArgumentParser(description="Run the conformance cases against a server.")
    top.add_argument("url")
    top.add_argument("names", nargs="*", help="only these cases")
    top.add_argument("--has", action="append", default=[], help="a setting that this server was started with")
    top.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32), help="of made-up ids")
    given = top.parse_args()
    failed = skipped = 0
    for case in load_cases("server"):
        if given.names and case["name"] not in given.names:
            continue
        if not given.names and not set(case.get("settings", {})) <= set(given.has):
            skipped += 1
            continue
        for encoding in case.get("encodings", ["json", "msgpack"]):
            try:
                asyncio.run(run_case(case, given.url, encoding, seed=given.seed))
            except Mismatch as exc:
                failed += 1
                print(f"FAILED ({encoding}) {exc}")
    print(f"seed {given.seed}: {failed} failed, {skipped} skipped for their settings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
