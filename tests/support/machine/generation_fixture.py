"""A generation without an actor: an engine that yields what it is given, and an inbox that keeps what is reported."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Sequence
from typing import Any

from sessions.machine.inputs_and_effects import Input, Output
from sessions.machine.state import Open
from sessions.model.generation import Chunk, EngineInfo, Finish, GenerationRequest, ThoughtMarks
from sessions.model.types import ResponseId, Tokens, Tool
from sessions.ports import OutputFilter
from sessions.turn.ledger import PromptPlan
from sessions.turn.output_accumulator import OutputAccumulator
from tests.support.machine.machine_fixture import Ground


def open_response(**more: Any) -> Open:
    ground = Ground()
    ground.create()
    response_id = ground.say(**more).response_id
    assert response_id is not None
    return ground.state.open[response_id]


class KeptInbox:
    """Takes at once unless `busy`; keeps inputs in the order in which they were reported."""

    def __init__(self, *, busy: bool = False) -> None:
        self.busy = busy
        self.notified = 0
        self.inputs: list[Input] = []
        self.prompts: list[tuple[int, int]] = []

    def ready(self, output: OutputAccumulator) -> None:
        self.notified += 1
        taken = None if self.busy else output.take()
        if taken is not None:
            self.inputs.append(taken)

    def post(self, input: Input) -> None:
        self.inputs.append(input)

    def prompted(self, response_id: ResponseId, input_tokens: int, cached_tokens: int) -> None:
        self.prompts.append((input_tokens, cached_tokens))

    @property
    def text(self) -> str:
        outputs = (each for each in self.inputs if isinstance(each, Output))
        return "".join(getattr(piece, "text", "") for each in outputs for piece in each.pieces)


class ByteTokenizer:
    async def text(self, text: str) -> Tokens:
        return array("I", list(text.encode()))

    scaffold = text


class GivenEngine:
    """Yields one script a run, a token a character; an exception in a script is raised there."""

    def __init__(
        self,
        *scripts: Sequence[str | Exception],
        finish: Any = "stop",
        tool_format: Any = "none",
        continues_formats: bool = False,
        thoughts: ThoughtMarks | None = None,
        sampling: Sequence[str] = (),
    ) -> None:
        self.requests: list[GenerationRequest] = []
        self.tokenizer: ByteTokenizer = ByteTokenizer()
        self.info = EngineInfo(
            model="sim",
            build="b",
            model_fingerprint="m",
            context_window=1_000,
            slots=1,
            sampling=frozenset(sampling),
            tool_format=tool_format,
            continues_formats=continues_formats,
            thoughts=thoughts,
        )
        self._scripts = list(scripts)
        self._finish = finish

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        self.requests.append(request)
        for part in self._scripts.pop(0):
            if isinstance(part, Exception):
                raise part
            yield Chunk(tuple(part.encode()), part, cached_tokens=1)
        yield Finish(self._finish, len(request.prompt), 1)


class GivenLedger:
    def __init__(self, *, tools: tuple[Tool, ...] = (), max_tokens: int = 100) -> None:
        self.tools = tools
        self.max_tokens = max_tokens
        self.images = ()

    async def plan(self, open_: Open) -> PromptPlan:
        return PromptPlan(array("I", list(b"hello")), array("I"), 0, self.max_tokens, 0, None)


class GivenFilters:
    """The same filters for every run, made anew; `whole` as in the port."""

    def __init__(self, *make: Any, whole: bool = False) -> None:
        self._make = make
        self._whole = whole

    def holds_whole(self, principal: object) -> bool:
        return self._whole

    def version(self, principal: object) -> str:
        return "test"

    def output_filters(self, principal: object, *, shown: str = "", calls: bool = False) -> list[OutputFilter]:
        return [make() for make in self._make]

    def input_filters(self, principal: object) -> tuple[()]:
        return ()
