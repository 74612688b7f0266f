"""An engine that says what a script says, one byte a token, and goes on with it wherever a run before it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from inference.simulated import SimulatedEngine, decode
from sessions.model.generation import Chunk, EngineInfo, Finish, GenerationRequest
from sessions.model.types import ResponseId, Tool
from tests.support.virtual_time import passed

LOOK = Tool(name="look", parameters={"type": "object", "properties": {"at": {"type": "string"}}})


class Scripted(SimulatedEngine):
    """Says the scripts in order, one for each response; shared by all replicas of a place."""

    def __init__(self, scripts: list[str], given: dict[ResponseId, str]) -> None:
        super().__init__()
        self._scripts, self._given = scripts, given
        self.prompts: list[str] = []

    @property
    def info(self) -> EngineInfo:
        return msgspec.structs.replace(super().info, tool_format="hermes")

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        script = self._given.setdefault(request.response_id, self._scripts[len(self._given)])
        self.prompts.append(decode(request.prompt))
        said = len(decode(request.emitted).encode())
        for byte in script.encode()[said:]:
            await passed(0.01)
            yield Chunk((byte,), chr(byte))
        yield Finish("stop", len(request.prompt), 0)
