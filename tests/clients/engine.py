"""The engine of these tests: an agent's steps are answered from a script, whatever else it asks gets a title."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import msgspec

from inference.simulated import SimulatedOptions, decode
from inference.simulated.engine import SimulatedStream
from inference.simulated.vocabulary import TOOLS
from sessions.model.generation import Chunk, Finish, GenerationRequest
from sessions.model.types import SessionKey, Tokens
from tests.support.doors.openai_server import ScriptedEngine, smallest

OPTIONS: Final = SimulatedOptions(
    context_window=400_000,
    kv_tokens_max=8_000_000,
    step_base_s=0.0005,
    prefill_tokens_per_s=1e7,
    prefill_chunk_tokens=65_536,
    answer_tokens_mean=24,
)
TITLE: Final = "A title"
UNSCRIPTED: Final = "The script has ended."


@dataclass(slots=True, eq=False)
class Step:
    """One prompt of the conversation under test, with its answer."""

    prompt: Tokens
    answer: str
    written: int = 0  # tokens of the answer
    cached: int | None = None  # None until the answer is whole

    @property
    def is_whole(self) -> bool:
        return self.cached is not None


class AgentEngine(ScriptedEngine):
    """Answers a prompt that has the word `marker` with the next text of `script`, and any other with a title.

    Where `tools` is set, a prompt without tools is none of the agent's steps either (it asks for a title, a summary);
    nor is one with the words `side`."""

    def __init__(self, marker: str, *, tools: bool, side: str = "") -> None:
        super().__init__(OPTIONS)
        self.steps: list[Step] = []
        self.seen: list[Tokens] = []  # all prompts, steps or not
        self.open = 0  # runs that have not ended
        self.progress = asyncio.Condition()
        self._marker = marker
        self._tools = tools
        self._side = side
        self._answers: dict[SessionKey, str] = {}
        self._step_of: dict[SessionKey, Step] = {}

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        self.seen.append(request.prompt)
        step = None
        if request.sampling.text is not None:  # a call of a strict function, written anew under its grammar
            step = next((each for each in reversed(self.steps) if each.prompt == request.prompt), None)
            if step is not None:
                step.written, step.cached = 0, None
        elif self._is_step(request.prompt):
            step = Step(request.prompt, self.script.pop(0) if self.script else UNSCRIPTED)
            self.steps.append(step)
        if request.sampling.text is None:
            self._answers[request.key] = TITLE if step is None else step.answer
        self.open += 1
        try:
            async with contextlib.aclosing(super().generate(request)) as answer:  # type: ignore[type-var]
                async for item in answer:
                    if step is not None:
                        async with self.progress:
                            if isinstance(item, Finish):
                                step.cached = item.cached_tokens
                            else:
                                step.written += len(item.tokens)
                            self.progress.notify_all()
                    yield item
        finally:
            self.open -= 1
            async with self.progress:
                self.progress.notify_all()

    def _is_step(self, prompt: Tokens) -> bool:
        text = decode(prompt)
        is_side = self._side and self._side in text
        return self._marker in text and not is_side and (TOOLS in prompt or not self._tools)

    def draw(self, stream: SimulatedStream) -> int | None:
        if stream not in self._said:
            schema = self._schemas.get(stream.key)
            if stream.key in self._answers:
                self._said[stream] = self._answers.pop(stream.key).encode()
            elif schema is not None:
                self._said[stream] = msgspec.json.encode(smallest(schema))
        return super().draw(stream)

    async def writing(self) -> None:
        """Returns when the last step has begun to be answered."""
        async with self.progress:
            await self.progress.wait_for(lambda: self.steps and self.steps[-1].written > 100)

    async def idle(self) -> None:
        """Returns when nothing is being generated."""
        async with self.progress:
            await self.progress.wait_for(lambda: self.open == 0)


def kept_tokens(before: Step, after: Step) -> int:
    """How many tokens of a step's prompt and answer stand at the beginning of the prompt behind it."""
    whole = [*before.prompt, *before.answer.encode()]
    return next((at for at, (a, b) in enumerate(zip(whole, after.prompt, strict=False)) if a != b), len(whole))
