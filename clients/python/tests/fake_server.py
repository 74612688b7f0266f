"""A small server of the protocol over real WebSockets, for tests of the client: one log per session, in memory.

It answers what PROTOCOL says for the plain paths (resume in every mode, commands with idempotency, streaming answers,
the window), and can be cut, killed and started again on the same port with the logs it had. An answer is the list of
pieces that ``answer`` gives for a text; ``hold_after`` makes it wait before that piece until ``release`` is called.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from sessile_client._bell import Bell

Frame = dict[str, Any]


@dataclass
class Log:
    """A session: its epoch, its events, the answer being written."""

    name: str
    changed: Bell
    epoch: str = "ep_1"
    events: list[Frame] = field(default_factory=list)
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    answering: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    trimmed: int = 0  # readers further back get a snapshot

    def put(self, event: Frame) -> int:
        self.events.append(event)
        self.grown.set()
        self.grown = asyncio.Event()
        self.changed.ring()
        return len(self.events)

    @property
    def deleted(self) -> bool:
        return bool(self.events) and self.events[-1]["type"] == "session.deleted"

    def head(self) -> str | None:
        for event in reversed(self.events):
            if event["type"] in ("item.created", "response.output_item.added"):
                return str(event["item"]["id"])
        return None

    def state(self) -> Frame:
        """Items folded the plain way, answers whole."""
        items: dict[str, Frame] = {}
        made_by: dict[str, str] = {}
        open_: dict[str, list[str]] = {}
        title = None
        for event in self.events:
            match event["type"]:
                case "session.created" | "session.updated":
                    title = event["info"]["title"]
                case "item.created":
                    items[event["item"]["id"]] = event["item"]
                case "response.created":
                    open_[event["response_id"]] = []
                case "response.output_item.added":
                    items[event["item"]["id"]] = {**event["item"], "content": [{"type": "output_text", "text": ""}]}
                    made_by[event["item"]["id"]] = event["response_id"]
                    open_[event["response_id"]].append(event["item"]["id"])
                case "response.output_text.delta":
                    item = items[event["item_id"]]
                    text = item["content"][0]["text"] + event["delta"]
                    items[event["item_id"]] = {**item, "content": [{"type": "output_text", "text": text}]}
                case "response.completed" | "response.incomplete":
                    for item_id in open_.pop(event["response_id"]):
                        items[item_id] = {**items[item_id], "status": event["response"]["status"]}
        writing = {item_id for ids in open_.values() for item_id in ids}
        return {
            "items": [item for item_id, item in items.items() if item_id not in writing],
            "open": [
                {"response_id": r, "output": [items[i] for i in ids], "sequence_number": 0} for r, ids in open_.items()
            ],
            "made_by": made_by,
            "head": self.head(),
            "title": title,
            "metadata": {},
        }


class FakeServer:
    """``async with FakeServer() as server: ... Client(server.url)``"""

    def __init__(self, *, window_events: int = 1024) -> None:
        self.logs: dict[str, Log] = {}
        self.answer: Callable[[str], list[str]] = lambda text: [f"{word} " for word in f"you said {text}".split()]
        self.hold_after: int | None = None
        self.received: list[Frame] = []
        self.applied: dict[str, tuple[Frame, Frame]] = {}
        self.refuse: dict[str, Frame] = {}
        self.silent: set[str] = set()
        self.port = 0
        self.dialled = 0
        self.changed = Bell()
        self.on_frame: Callable[[Frame], None] = lambda frame: None
        self._window_events = window_events
        self._released = asyncio.Event()
        self._server: Server | None = None
        self._connections: set[ServerConnection] = set()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/ws"

    async def __aenter__(self) -> FakeServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        tasks = [task for log in self.logs.values() for task in log.answering.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def start(self) -> None:
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            self.port,
            subprotocols=[Subprotocol("sessile.v1+json"), Subprotocol("sessile.v1+msgpack")],
            compression=None,
            ping_interval=None,
        )
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def stop(self) -> None:
        """Killed: every connection is cut, nothing is said."""
        server, self._server = self._server, None
        if server is not None:
            self.cut()
            server.close()
            await server.wait_closed()

    def cut(self) -> None:
        """Every connection is cut off; the server stays."""
        for connection in list(self._connections):
            connection.transport.abort()

    async def close_all(self, code: int) -> None:
        await asyncio.gather(*(connection.close(code) for connection in list(self._connections)))

    def release(self) -> None:
        self.hold_after = None
        self._released.set()
        self._released = asyncio.Event()

    def log(self, name: str) -> Log:
        return self.logs.setdefault(name, Log(name, self.changed))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that comes with a connection, a frame or an event is so."""

        async def waiting() -> None:
            while not condition():
                await self.changed.wait()

        await asyncio.wait_for(waiting(), 60)

    async def _serve(self, connection: ServerConnection) -> None:
        self._connections.add(connection)
        self.dialled += 1
        self.changed.ring()
        reader = _Reader(self, connection)
        try:
            await reader.run()
        except ConnectionClosed:
            pass  # the client left, or a test cut it off
        finally:
            self._connections.discard(connection)
            await reader.close()

    # Commands

    def execute(self, frame: Frame) -> Frame:
        """The answer to a command, applied at most once."""
        command_id = frame["id"]
        if frame["type"] in self.refuse:
            return {"type": "error", "id": command_id, "error": self.refuse[frame["type"]]}
        known = self.applied.get(command_id)
        if known is not None:
            return known[1] if known[0] == frame else _error(command_id, "idempotency_conflict")
        answer = self._apply(frame)
        if answer["type"] == "ok":
            self.applied[command_id] = (frame, answer)
        return answer

    def _apply(self, frame: Frame) -> Frame:
        kind, command_id = frame["type"], frame["id"]
        if kind == "session.create":
            log = self.log(frame.get("session", f"ses_{command_id[-8:]}"))
            log.put({"type": "session.created", "info": {"model": "m", "title": frame.get("title"), "metadata": {}}})
            return {"type": "ok", "id": command_id, "session": log.name, "epoch": log.epoch, "offset": 1}
        if kind == "session.list":
            names = [n for n in reversed(self.logs) if not self.logs[n].deleted]
            start = names.index(frame["after"]) + 1 if "after" in frame else 0
            page = names[start : start + frame["limit"]]
            data = [{"id": name, "title": self.logs[name].state()["title"]} for name in page]
            more = start + frame["limit"] < len(names)
            return {
                "type": "ok",
                "id": command_id,
                "data": data,
                "has_more": more,
                "last_id": page[-1] if page else None,
            }
        found = self.logs.get(frame["session"])
        if found is None or found.deleted:
            return _error(command_id, "session_not_found")
        return self._apply_to(found, frame)

    def _apply_to(self, log: Log, frame: Frame) -> Frame:
        command_id = frame["id"]
        ok: Frame = {"type": "ok", "id": command_id}
        match frame["type"]:
            case "message.create" | "message.edit":
                if log.answering and not frame.get("queue") and frame["type"] == "message.create":
                    return _error(command_id, "response_in_progress", retryable=True, retry_after_ms=250)
                parent = frame.get("parent_id", log.head())
                if frame["type"] == "message.edit":
                    parent = next(
                        e["item"]["parent_id"]
                        for e in log.events
                        if e["type"] == "item.created" and e["item"]["id"] == frame["item_id"]
                    )
                item_id = f"msg_{command_id[-8:]}"
                content = [{"type": "input_text", "text": frame["content"]}]
                item = _item(item_id, parent, "user", "completed", content)
                offset = log.put({"type": "item.created", "item": item})
                ok |= {"item_id": item_id, "offset": offset}
                if frame.get("respond", True):
                    ok["response_id"] = self._begin(log, command_id, item_id, frame["content"])
            case "response.create":
                offset = len(log.events) + 1
                ok |= {"response_id": self._begin(log, command_id, frame.get("parent_id"), "again"), "offset": offset}
            case "response.cancel":
                task = log.answering.pop(frame["response_id"], None)
                if task is None:
                    ok["noop"] = True
                else:
                    task.cancel()
                    self._end(log, frame["response_id"], "incomplete", {"reason": "cancelled"})
                ok["offset"] = len(log.events)
            case "session.update":
                info = {"model": "m", "title": frame.get("title"), "metadata": frame.get("metadata", {})}
                ok["offset"] = log.put({"type": "session.updated", "info": info})
            case "session.delete":
                ok["offset"] = log.put({"type": "session.deleted"})
            case "session.get":
                ok |= {"session": log.name, "epoch": log.epoch, "offset": len(log.events), "state": log.state()}
        return ok

    def _begin(self, log: Log, command_id: str, parent: str | None, text: str) -> str:
        response_id = f"resp_{command_id[-8:]}"
        body: Frame = {"id": response_id, "status": "in_progress", "parent_id": parent, "output": []}
        log.put({"type": "response.created", "response_id": response_id, "sequence_number": 0, "response": body})
        item = _item(f"out_{command_id[-8:]}", parent, "assistant", "in_progress", [])
        log.put(
            {
                "type": "response.output_item.added",
                "response_id": response_id,
                "sequence_number": 1,
                "output_index": 0,
                "item": item,
            }
        )
        log.answering[response_id] = asyncio.ensure_future(self._write(log, response_id, item["id"], text))
        return response_id

    async def _write(self, log: Log, response_id: str, item_id: str, text: str) -> None:
        for index, piece in enumerate(self.answer(text)):
            while self.hold_after is not None and index >= self.hold_after:
                await self._released.wait()
            log.put(
                {
                    "type": "response.output_text.delta",
                    "response_id": response_id,
                    "sequence_number": index + 2,
                    "item_id": item_id,
                    "output_index": 0,
                    "content_index": 0,
                    "delta": piece,
                }
            )
            await asyncio.sleep(0)
        del log.answering[response_id]
        self._end(log, response_id, "completed", None)

    def _end(self, log: Log, response_id: str, status: str, details: Frame | None) -> None:
        usage = {"input_tokens": 3, "output_tokens": 2}
        body: Frame = {"id": response_id, "status": status, "usage": usage, "incomplete_details": details, "output": []}
        log.put({"type": f"response.{status}", "response_id": response_id, "sequence_number": 99, "response": body})


class _Reader:
    """One connection."""

    def __init__(self, server: FakeServer, connection: ServerConnection) -> None:
        self._server = server
        self._connection = connection
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._unacked: dict[str, int] = {}
        self._held: dict[str, list[tuple[int, Frame]]] = {}
        self._sent: dict[str, int] = {}
        self._acked = asyncio.Event()

    async def run(self) -> None:
        async for data in self._connection:
            body = json.loads(data) if isinstance(data, str) else msgpack.unpackb(data)
            for frame in body if isinstance(body, list) else [body]:
                self._server.received.append(frame)
                self._server.changed.ring()
                self._server.on_frame(frame)
                await self._frame(frame)

    async def close(self) -> None:
        for stream in self._streams.values():
            stream.cancel()
        await asyncio.gather(*self._streams.values(), return_exceptions=True)

    async def send(self, frame: Frame) -> None:
        binary = self._connection.subprotocol == "sessile.v1+msgpack"
        await self._connection.send(msgpack.packb(frame) if binary else json.dumps(frame))

    async def _frame(self, frame: Frame) -> None:
        match frame["type"]:
            case kind if kind in self._server.silent:
                return
            case "hello":
                await self.send(
                    {
                        "type": "ready",
                        "connection": f"con_{self._server.dialled}",
                        "heartbeat_ms": 25000,
                        "window_events": self._server._window_events,
                        "window_bytes": 262144,
                    }
                )
                for entry in frame.get("resume", []):
                    self._read(entry)
            case "subscribe":
                await self.send({"type": "ok", "id": frame["id"]})
                self._read(frame)
            case "unsubscribe":
                stream = self._streams.pop(frame["session"], None)
                self._sent.pop(frame["session"], None)
                if stream is not None:
                    stream.cancel()
                await self.send({"type": "ok", "id": frame["id"]})
            case "ack":
                self._unacked[frame["session"]] = frame["offset"]
                self._acked.set()
                self._acked = asyncio.Event()
            case "ping":
                await self.send({"type": "pong"})
            case "pong":
                return
            case _:
                answer = self._server.execute(frame)
                self._held.setdefault(frame.get("session", ""), []).append((answer.get("offset", 0), answer))
                await self._release(frame.get("session", ""))

    async def _release(self, name: str) -> None:
        """Answers come after the events that they speak of, where those are read on this connection."""
        held, sent = self._held.get(name, []), self._sent.get(name, 2**53)
        while held and held[0][0] <= sent:
            await self.send(held.pop(0)[1])

    def _read(self, entry: Frame) -> None:
        stream = self._streams.pop(entry["session"], None)
        if stream is not None:
            stream.cancel()
        self._streams[entry["session"]] = asyncio.ensure_future(self._stream(entry))

    async def _stream(self, entry: Frame) -> None:
        name = entry["session"]
        log = self._server.logs.get(name)
        if log is None or log.deleted:
            error = _error("", "session_not_found")["error"]
            await self.send({"type": "resumed", "session": name, "mode": "gone", "error": error})
            return
        epoch, offset = entry.get("epoch"), entry.get("offset")
        common = {"type": "resumed", "session": name, "epoch": log.epoch}
        if offset is None or (epoch == log.epoch and 0 < offset < log.trimmed):
            offset = len(log.events)
            await self.send({**common, "mode": "snapshot", "at": offset, "state": log.state()})
        elif (epoch != log.epoch and (offset > 0 or epoch is not None)) or offset > len(log.events):
            offset = len(log.events)
            await self.send({**common, "mode": "reset", "at": offset, "state": log.state(), "reason": "epoch_changed"})
        else:
            await self.send({**common, "mode": "replay", "from": offset + 1, "top": len(log.events)})
        live = False
        self._unacked[name] = self._sent[name] = offset
        await self._release(name)
        while True:
            while offset < len(log.events):
                while offset - self._unacked[name] >= self._server._window_events:
                    await self._acked.wait()
                offset += 1
                event = log.events[offset - 1]
                await self.send(
                    {"type": "event", "session": name, "epoch": log.epoch, "offset": offset, "at": 1, "event": event}
                )
                self._sent[name] = offset
                await self._release(name)
            if not live:
                live = True
                await self.send({"type": "caught_up", "session": name, "offset": offset})
            if offset >= len(log.events):
                await log.grown.wait()


def _item(item_id: str, parent: str | None, role: str, status: str, content: list[Frame]) -> Frame:
    return {
        "id": item_id,
        "parent_id": parent,
        "type": "message",
        "role": role,
        "status": status,
        "content": content,
        "created_at": 1,
    }


def _error(command_id: str, code: str, **more: Any) -> Frame:
    error = {"type": "invalid_request_error", "code": code, "message": code, "retryable": False, **more}
    return {"type": "error", "id": command_id, "error": error}
