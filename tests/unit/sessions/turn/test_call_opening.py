"""Calls whose first words are decided: what the engine is given of them, and what the reader of its run gets."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest

from sessions.model.errors import BadInput, Unavailable
from sessions.model.generation import Chunk, Finish, GenerationRequest
from sessions.model.types import ResponseId, Sampling, Tool
from sessions.turn.call_opening import LEFT_MIN, call_opening, generate_behind
from tests.support.machine.generation_fixture import GivenEngine
from tests.support.machine.machine_fixture import KEY
from tests.support.virtual_time import virtual

LOOK = Tool(name="look", parameters={"type": "object", "properties": {}})
FIND = Tool(name="find")
OPENING = '{"name": "look", "arguments":'
UNFIT = BadInput("recovery_incompatible", "The grammar does not go on from there.")


def request_of(max_tokens: int = 100) -> GenerationRequest:
    return GenerationRequest(
        key=KEY,
        response_id=ResponseId("resp_1"),
        generation=1,
        prompt=array("I", list(b"hello")),
        sampling=Sampling(),
        seed=3,
        max_tokens=max_tokens,
    )


async def run(engine: GivenEngine, max_tokens: int = 100) -> list[Chunk | Finish]:
    given: Any = engine
    return [part async for part in generate_behind(given, request_of(max_tokens), OPENING)]


def test_only_one_function_decides_how_its_call_begins() -> None:
    info = GivenEngine(continues_formats=True).info
    assert call_opening(info, (LOOK,)) == OPENING
    assert call_opening(info, (LOOK, FIND)) == call_opening(info, ()) == ""
    assert call_opening(info, (msgspec.structs.replace(LOOK, name="schau_zu_ä"),)) == ""
    assert call_opening(GivenEngine().info, (LOOK,)) == ""


@virtual
async def test_with_little_room_the_engine_writes_all_of_it() -> None:
    engine = GivenEngine([OPENING + " {}}"])
    parts = await run(engine, len(OPENING) + LEFT_MIN - 1)
    assert engine.requests == [request_of(len(OPENING) + LEFT_MIN - 1)]
    assert isinstance(parts[0], Chunk) and parts[0].text == OPENING + " {}}"


@virtual
async def test_a_grammar_that_does_not_go_on_from_there_has_all_of_it_written() -> None:
    engine = GivenEngine([UNFIT], [OPENING + " {}}"])
    parts = await run(engine)
    assert engine.requests[1] == request_of()
    assert isinstance(parts[0], Chunk) and parts[0].text == OPENING + " {}}"


@virtual
async def test_whatever_else_goes_wrong_is_raised() -> None:
    scripts: list[list[str | Exception]] = [[Unavailable("engine_unavailable", "Away.")], [" {", UNFIT]]
    for script in scripts:
        engine = GivenEngine(script)
        with pytest.raises((Unavailable, BadInput)):
            await run(engine)
        assert len(engine.requests) == 1
