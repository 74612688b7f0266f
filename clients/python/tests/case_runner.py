"""Runs a conformance case against the Python client: plays the server, under virtual time.

The whole client is exercised (API, shell, core); only the socket is ours. See docs/protocol/README.md for the format.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from typing import Any

import msgpack
from case_values import Mismatch, Values
from virtual_loop import settle

from sessile_client import Client, CommandTimeout, ConnectionStopped, Lost, MemoryStore, Position, ServerError, Session
from sessile_client._policy import DialError
from sessile_client._transport import Dial, TransportClosed
from sessile_client._wire import Encoding

_TOLERANCE_S = 1e-6


class FixedRandom(random.Random):
    """Chance that answers ``random()`` as the case says; ids stay different from each other."""

    def __init__(self, answer: float) -> None:
        super().__init__(1)
        self._answer = answer

    def random(self) -> float:
        return self._answer


class Wire:
    """One connection, seen from the server: the client's Transport."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self._to_client: asyncio.Queue[str | bytes | TransportClosed] = asyncio.Queue()
        self.from_client: list[dict[str, Any]] = []
        self.closed_with: int | None = None

    async def send(self, data: str | bytes) -> None:
        body = json.loads(data) if isinstance(data, str) else msgpack.unpackb(data)
        self.from_client.extend(body if isinstance(body, list) else [body])

    async def recv(self) -> str | bytes:
        data = await self._to_client.get()
        if isinstance(data, TransportClosed):
            self._to_client.put_nowait(data)
            raise data
        return data

    async def close(self, code: int) -> None:
        self.closed_with = code

    def put(self, body: Any) -> None:
        self._to_client.put_nowait(json.dumps(body) if self._encoding == "json" else msgpack.packb(body))

    def put_raw(self, data: str | bytes | TransportClosed) -> None:
        self._to_client.put_nowait(data)


class CaseRun:
    """One case, once, in one encoding."""

    def __init__(self, case: dict[str, Any], encoding: Encoding) -> None:
        self._case = case
        self._encoding = encoding
        self._values = Values(case.get("given", {}), random.Random(2))
        self._ignore = set(case.get("ignore", ["ack"]))
        self._dials: list[tuple[float, asyncio.Future[Wire]]] = []
        self._wire: Wire | None = None
        self._last: Wire | None = None
        self._sessions: dict[str, Session] = {}
        self._calls: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._labels = 0
        self._step_began = 0.0
        store = MemoryStore()
        for key, saved in case.get("saved", {}).items():
            store.positions[self._values.play(key)] = Position(**self._values.play(saved))
        self._client = Client(
            "ws://case.invalid",
            encoding=encoding,
            store=store,
            rng=FixedRandom(case.get("random", 0.5)),
            now_ms=lambda: 1_760_000_000_000,
            connect_with=self._connect,
        )

    async def _connect(self, dial: Dial) -> Wire:
        assert dial.subprotocol == f"sessile.v1+{self._encoding}"
        accepted: asyncio.Future[Wire] = asyncio.get_running_loop().create_future()
        self._dials.append((self._now(), accepted))
        return await accepted

    async def run(self) -> None:
        await self._client.__aenter__()
        try:
            for number, step in enumerate(self._case["steps"]):
                await settle()
                self._step_began = self._now()
                try:
                    await self._step(step)
                    await settle()
                except (Mismatch, AssertionError) as exc:
                    raise Mismatch(f"{self._case['name']}, step {number}: {exc}\n  {json.dumps(step)}") from exc
            self._nothing_left()
        finally:
            await self._client.close()
            for task in self._calls.values():
                task.cancel()
            await asyncio.gather(*self._calls.values(), return_exceptions=True)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _step(self, step: dict[str, Any]) -> None:
        match step:
            case {"connect": options}:
                await self._accept(options)
            case {"client": expected}:
                for frame in expected if isinstance(expected, list) else [expected]:
                    self._values.match(frame, self._next_frame())
            case {"server": frame}:
                self._open_wire().put(self._values.play(frame))
            case {"server_raw": {"text": str(text)}}:
                self._open_wire().put_raw(text)
            case {"server_raw": {"hex": str(digits)}}:
                self._open_wire().put_raw(bytes.fromhex(digits))
            case {"close": {"by": "client", "code": code}}:
                self._wire = None
                self._values.match(code, self._last_wire().closed_with)
            case {"close": {"by": by} as close}:
                self._open_wire().put_raw(TransportClosed(1006 if by == "network" else close["code"]))
                self._wire = None
            case {"advance_ms": ms}:
                await asyncio.sleep(ms / 1000)
            case {"quiet_ms": ms}:
                await self._quiet(ms)
            case {"call": name}:
                rest = {k: v for k, v in step.items() if k not in ("call", "as", "note")}
                self._call(name, self._values.play(rest), step.get("as"))
            case {"expect": expected}:
                self._expect(expected)
            case _:
                raise ValueError(f"a step that the runner does not know: {step}")

    # The connection

    async def _accept(self, options: dict[str, Any]) -> None:
        low, high = options.get("after_ms", [0, 0])
        began = self._step_began
        if not self._dials:
            await asyncio.sleep(high / 1000)
            await settle()
        assert self._dials, f"the client did not dial within {high} ms"
        at, accepted = self._dials.pop(0)
        waited_s = max(0.0, at - began)
        assert low / 1000 - _TOLERANCE_S <= waited_s <= high / 1000 + _TOLERANCE_S, (
            f"dialled after {waited_s * 1000:.1f} ms, not {low} to {high}"
        )
        match options.get("refuse"):
            case None:
                self._wire = self._last = Wire(self._encoding)
                accepted.set_result(self._wire)
            case {"http": int(status)}:
                after_s = float(options["refuse"].get("retry_after_s", 0))
                accepted.set_exception(DialError(f"HTTP {status}", http_status=status, retry_after_s=after_s))
            case _:
                accepted.set_exception(DialError("unreachable"))

    def _open_wire(self) -> Wire:
        assert self._wire is not None, "the case speaks as the server without a connection"
        return self._wire

    def _last_wire(self) -> Wire:
        assert self._last is not None, "there was no connection yet"
        return self._last

    def _waiting(self) -> list[dict[str, Any]]:
        if self._last is None:
            return []
        wire = self._last
        wire.from_client[:] = [f for f in wire.from_client if f.get("type") not in self._ignore]
        return wire.from_client

    def _next_frame(self) -> dict[str, Any]:
        frames = self._waiting()
        assert frames, "the client sent nothing"
        return frames.pop(0)

    async def _quiet(self, ms: int) -> None:
        before = len(self._waiting())
        await asyncio.sleep(ms / 1000)
        await settle()
        assert len(self._waiting()) == before, f"the client sent {self._waiting()[before:]}"
        assert not self._dials, "the client dialled"
        assert self._wire is None or self._wire.closed_with is None, "the client closed the connection"

    def _nothing_left(self) -> None:
        assert not self._dials, "the client dialled, and the case ended"
        if self._wire is not None:
            assert not self._waiting(), f"the client also sent {self._waiting()}"
            assert self._wire.closed_with is None, f"the client closed with {self._wire.closed_with}"

    # The program

    def _call(self, name: str, fields: dict[str, Any], label: str | None) -> None:
        self._labels += 1
        key = label if label is not None else f"call {self._labels}"
        assert key not in self._calls, f"the label {key} is taken"
        self._calls[key] = asyncio.create_task(self._perform(name, fields))

    def _perform(self, name: str, fields: dict[str, Any]) -> Coroutine[Any, Any, dict[str, Any]]:
        match name:
            case "attach":
                return self._attach(fields["session"])
            case "create":
                return self._create(fields)
            case "list":
                return self._list(fields)
            case "stop":
                return _nothing(self._client.close())
        session = self._sessions[fields.pop("session")]
        match name:
            case "detach":
                return _nothing(session.close())
            case "send":
                return _asked(session.send(fields.pop("content"), **fields))
            case "edit":
                return _asked(session.edit(fields.pop("item_id"), fields.pop("content"), **fields))
            case "regenerate":
                return _asked(session.regenerate(**fields))
            case "cancel":
                return _cancelled(session.cancel(fields.get("response_id")))
            case "steer":
                return _asked(session.steer(fields.pop("content"), fields.pop("response_id")))
            case "appeal":
                return _appealed(session.appeal(**fields))
            case "tool_output":
                return _answered(session.tool_output(fields.pop("call_id"), fields.pop("output"), **fields))
            case "update":
                return _nothing(session.update(**fields))
            case "delete":
                return _nothing(session.delete())
            case "get":
                return session.get()
            case "warm":
                return _nothing(session.warm())
        raise ValueError(f"a call that the runner does not know: {name}")

    async def _attach(self, name: str) -> dict[str, Any]:
        self._sessions[name] = await self._client.session(name, wait=False)
        return {}

    async def _create(self, fields: dict[str, Any]) -> dict[str, Any]:
        session = await self._client.create_session(fields.pop("session", None), **fields)
        self._sessions[session.id] = session
        return {"session": session.id}

    async def _list(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"data": [info.data async for info in self._client.sessions(page=fields.get("limit", 50))]}

    # What it sees

    def _expect(self, expected: dict[str, Any]) -> None:
        match expected:
            case {"client": client}:
                self._values.match(client, {"phase": self._client.link.value, "error": _error(self._client.error)})
            case {"label": label, **outcome}:
                self._values.match(outcome, self._outcome(self._calls[label]))
            case {"session": name, **view}:
                self._values.match(view, self._seen(self._values.play(name), view))
            case _:
                raise ValueError(f"expect what? {expected}")

    @staticmethod
    def _outcome(task: asyncio.Task[dict[str, Any]]) -> dict[str, Any]:
        if not task.done():
            return {"pending": True}
        error = task.exception()
        return {"ok": task.result()} if error is None else {"error": _error(error)}

    def _seen(self, name: str, asked: dict[str, Any]) -> dict[str, Any]:
        session = self._client._sessions.get(name) or self._sessions[name]
        view = session.view
        play = self._values.play
        seen: dict[str, Any] = {
            "phase": session.phase.value,
            "epoch": session.epoch,
            "offset": session.offset,
            "open": view.open,
            "items": list(view.items),
            "head": view.head,
            "title": view.title,
            "branch": [item.id for item in view.branch()],
        }
        reads: dict[str, Callable[[str], str]] = {
            "text": lambda i: session.response(i).text_so_far,
            "status": lambda i: session.response(i).status,
            "item_text": lambda i: view.items[i].text,
            "arguments": lambda i: view.items[i].arguments,
            "reviews": lambda i: view.reviews[i].standing,
        }
        for key, read in reads.items():
            seen[key] = {play(name): read(play(name)) for name in asked.get(key, {})}
        return seen


async def _nothing(work: Coroutine[Any, Any, Any]) -> dict[str, Any]:
    await work
    return {}


async def _asked(response: Any) -> dict[str, Any]:
    await response
    return {"item_id": response.item_id, "response_id": response.id}


async def _cancelled(work: Coroutine[Any, Any, bool]) -> dict[str, Any]:
    return {"noop": not await work}


async def _appealed(work: Coroutine[Any, Any, str]) -> dict[str, Any]:
    return {"review_id": await work}


async def _answered(work: Coroutine[Any, Any, Any]) -> dict[str, Any]:
    answer = await work
    return {"item_id": answer.item_id, "response_id": answer.response.id if answer.response else None}


def _error(error: BaseException | None) -> dict[str, Any] | None:
    match error:
        case None:
            return None
        case ServerError():
            return error.to_dict()
        case CommandTimeout():
            return {"code": "timeout"}
        case ConnectionStopped():
            return {"code": "stopped", "close_code": error.close_code, "http_status": error.http_status}
        case Lost():
            return {"code": "closed"}
    return {"code": type(error).__name__, "message": str(error)}
