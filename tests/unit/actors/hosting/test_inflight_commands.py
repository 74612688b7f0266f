"""Copies of a command that is being answered get its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from actors.hosting.inflight_commands import InflightCommands
from sessions.model import commands as cm
from sessions.model.errors import Conflict
from sessions.model.request import Request, request_of
from sessions.model.types import LOCAL_PRINCIPAL, CommandId, SessionId
from tests.support.virtual_time import advance, virtual


async def execute_once(inflight: InflightCommands, request: Request, execute: Callable[[], Awaitable[cm.Ok]]) -> cm.Ok:
    """Executes a request as a replica does."""
    answer = await inflight.find(request)
    if answer is not None:
        return answer
    with inflight.answering(request) as answered:
        return answered(await execute())


def request(content: str) -> Request:
    command = cm.MessageCreate(id=CommandId("c1"), session=SessionId("s"), content=content)
    return request_of(LOCAL_PRINCIPAL, command)


@virtual
async def test_a_copy_whose_first_is_cancelled_goes_on_by_itself() -> None:
    inflight, go_on, begun = InflightCommands(), asyncio.Event(), list[str]()

    async def execute() -> cm.Ok:
        begun.append("once more")
        await go_on.wait()
        return cm.Ok(id=CommandId("c1"), offset=len(begun))

    first = asyncio.create_task(execute_once(inflight, request("hello"), execute))
    copy = asyncio.create_task(execute_once(inflight, request("hello"), execute))
    other = asyncio.create_task(execute_once(inflight, request("something else"), execute))
    await advance(0.1)
    assert len(begun) == 2, "the copy waits, another command of that id does not"
    first.cancel()
    await advance(0.1)
    assert len(begun) == 3
    go_on.set()
    assert [(await copy).offset, (await other).offset] == [3, 3]


@virtual
async def test_a_copy_gets_the_refusal_of_the_first_and_a_later_one_is_tried_anew() -> None:
    inflight, go_on, begun = InflightCommands(), asyncio.Event(), list[str]()

    async def refuse() -> cm.Ok:
        begun.append("once more")
        await go_on.wait()
        raise Conflict("response_in_progress", "busy")

    both = [asyncio.create_task(execute_once(inflight, request("hello"), refuse)) for _ in range(2)]
    await advance(0.1)
    go_on.set()
    errors = await asyncio.gather(*both, return_exceptions=True)
    assert len(begun) == 1 and all(isinstance(error, Conflict) for error in errors)
    with pytest.raises(Conflict):
        await execute_once(inflight, request("hello"), refuse)
    assert len(begun) == 2
