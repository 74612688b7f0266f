"""Making an attempt on a door, and judging what came of it.

What an attempt must come to:

    no key, a wrong one, an expired one, a revoked one     unauthorized, and no more
    a key without the scope or the authority               forbidden, and no more
    somebody else's thing                                  word for word what is said of a thing that does not exist
    one's own affair                                       anything, without a canary in it
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio
import httpx
import msgspec
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from tests.support.authorisation.entries import Command, Entry, Http, Method, Names
from tests.support.authorisation.world import World
from transport.grpc_api.sessile_pb2_grpc import SessionsStub

PATIENCE_S: Final = 60.0
NOBODYS: Final = Names("ses_" + "q" * 26, "resp_" + "q" * 26, "msg_" + "q" * 26, "q" * 12, "rev_" + "q" * 24)
REFUSALS: Final = {401: "unauthorized", 403: "forbidden", 404: "not found", 429: "limited"}
CODES: Final = {
    "unauthorized": "unauthorized",
    "token_expired": "unauthorized",
    "forbidden": "forbidden",
    "session_not_found": "not found",
    "rate_limited": "limited",
}
STATUSES: Final = {
    grpc.StatusCode.UNAUTHENTICATED: "unauthorized",
    grpc.StatusCode.PERMISSION_DENIED: "forbidden",
    grpc.StatusCode.NOT_FOUND: "not found",
}


class Came(NamedTuple):
    """What an attempt came to: a refusal by its name, "allowed", or "other" (a bad request, say); and all that was
    said."""

    outcome: str
    said: str


async def attempt(world: World, entry: Entry, credential: str | None, names: Names) -> Came:
    async with asyncio.timeout(PATIENCE_S):
        match entry:
            case Http():
                return await over_http(world, entry, credential, names)
            case Command():
                return await over_websocket(world, entry, credential, names)
            case Method():
                return await over_grpc(world, entry, credential, names)


async def over_http(
    world: World, entry: Http, credential: str | None, names: Names, headers: dict[str, str] | None = None
) -> Came:
    sent = dict(headers or {})
    if credential is not None:
        sent["authorization"] = f"Bearer {credential}"
    body = None if entry.body is None else entry.body(names)
    request = world.http.build_request(
        entry.method, entry.url(names), params=dict(entry.query) or None, json=body, headers=sent
    )
    response = await world.http.send(request, stream=True)
    try:
        if response.status_code < 300 and response.headers.get("content-type", "").startswith("text/event-stream"):
            return Came("allowed", await _first(response))
        said = (await response.aread()).decode(errors="replace")
    finally:
        await response.aclose()
    if response.status_code < 300:
        return Came("allowed", said)
    if response.status_code == 400 and '"reason_required"' in said:
        return Came("reason required", said)
    return Came(REFUSALS.get(response.status_code, "other"), said)


async def _first(response: httpx.Response) -> str:
    """What a stream says first; it may go on for ever."""
    async for chunk in response.aiter_text():
        if chunk.strip() and not chunk.startswith(":"):
            return chunk
    return ""


async def over_websocket(world: World, entry: Command, credential: str | None, names: Names) -> Came:
    return await talk(world, [entry.make(names, "attempt")], credential)


async def talk(
    world: World,
    frames: list[msgspec.Struct],
    credential: str | None,
    *,
    resume: tuple[dict[str, Any], ...] = (),
    header: str | None = None,
    query: str = "",
    protocols: tuple[str, ...] = (),
    user: str | None = None,
) -> Came:
    """Says hello with a credential, then the frames, and hears everything up to the answer."""
    said: list[str] = []
    hello: dict[str, Any] = {"type": "hello", "resume": list(resume)}
    if credential is not None:
        hello["auth"] = credential
    try:
        headers = {} if header is None else {"Authorization": header}
        if user is not None:
            headers["X-Sessile-User"] = user
        spoken = [Subprotocol(name) for name in protocols] or None
        async with connect(
            world.assembly.ws + query, additional_headers=headers, subprotocols=spoken, compression=None
        ) as socket:
            await socket.send(msgspec.json.encode([hello, *frames]).decode())
            while True:
                text = await socket.recv()
                assert isinstance(text, str)
                found = msgspec.json.decode(text)
                for frame in found if isinstance(found, list) else [found]:
                    if frame["type"] != "ready":  # which names the connection
                        said.append(msgspec.json.encode(frame).decode())
                    outcome = _outcome(frame, expects_resumed=bool(resume) or _subscribes(frames))
                    if outcome is not None:
                        return Came(outcome, "\n".join(said))
    except InvalidStatus as refused:
        body = refused.response.body or b""
        return Came(REFUSALS.get(refused.response.status_code, "other"), bytes(body).decode(errors="replace"))
    except ConnectionClosed:
        return Came("other", "\n".join(said))


def _subscribes(frames: list[msgspec.Struct]) -> bool:
    return any(type(frame).__name__ == "Subscribe" for frame in frames)


def _outcome(frame: dict[str, Any], *, expects_resumed: bool) -> str | None:
    """What a frame decides; None: nothing yet."""
    match frame["type"]:
        case "error":
            return CODES.get(frame["error"]["code"], "other")
        case "resumed":
            return CODES.get(frame["error"]["code"], "other") if frame["mode"] == "gone" else "allowed"
        case "ok":
            return None if expects_resumed else "allowed"
    return None


async def over_grpc(world: World, entry: Method, credential: str | None, names: Names) -> Came:
    metadata = () if credential is None else (("authorization", f"Bearer {credential}"),)
    call = getattr(SessionsStub(world.channel), entry.method)
    request = entry.make(names)
    try:
        if not entry.streams:
            return Came("allowed", str(await call(request, metadata=metadata)))
        stream = call(metadata=metadata) if entry.streams == "both" else call(request, metadata=metadata)
        if entry.streams == "both":
            await stream.write(request)
        first = await stream.read()
        if first is grpc.aio.EOF:
            code, details = await stream.code(), await stream.details()
            return Came(STATUSES.get(code, "other"), str(details))
        stream.cancel()
        return Came("allowed", str(first))
    except grpc.aio.AioRpcError as error:
        return Came(STATUSES.get(error.code(), "other"), str(error.details()))
    except asyncio.InvalidStateError:  # the call ended while it was written to
        return Came(STATUSES.get(await stream.code(), "other"), str(await stream.details()))


def like(said: str, names: Names, instead: Names) -> str:
    """`said` with the names of one replaced by those of the other, for comparing word for word."""
    for mine, theirs in zip(names, instead, strict=True):
        said = said.replace(mine, theirs)
    return said
