"""Conversations with images, for the tests of engines that see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sessions.model.generation import Chunk, Finish, GenerationRequest
from sessions.model.types import InputImage, InputText, UnixMs
from sessions.ports import ChatMessage, Engine
from sessions.turn.images import prompt_text
from testbed.engine_client import Answer, key, request
from tests.support.engines.tiny_projector import input_image, noise

ONE, TWO = input_image(noise(1)), input_image(noise(2, width=200))
PARTS = (InputText("where does "), ONE, InputText(" the river go?"))


class ImageTalk:
    """A conversation with images."""

    def __init__(self, engine: Engine, name: str, tenant: str = "t") -> None:
        self.engine = engine
        self.key = key(name, tenant)
        self.messages: list[ChatMessage] = []
        self.images: list[InputImage] = []

    async def ask(self, *parts: InputText | InputImage, max_tokens: int = 8) -> tuple[tuple[int, ...], Answer]:
        """Returns the prompt and the answer."""
        self.images += [part for part in parts if isinstance(part, InputImage)]
        self.messages.append(ChatMessage(role="user", text=prompt_text(parts, sees=True), names_images=True))
        prompt = await self.prompt()
        answer = await self.run(prompt, max_tokens=max_tokens)
        self.messages.append(ChatMessage(role="assistant", text=answer.text, tokens=answer.tokens))
        return prompt, answer

    async def prompt(self, instructions: str = "be brief") -> tuple[int, ...]:
        tokenizer = self.engine.tokenizer
        return tuple(await tokenizer.conversation(instructions, (), self.messages, UnixMs(0), answer=True))

    async def run(self, prompt: Sequence[int], **more: Any) -> Answer:
        usual = {"max_tokens": 8, "images": tuple(self.images)}
        sent = request(self.key, prompt, **{**usual, **more})
        return await answered(self.engine, sent)


async def answered(engine: Engine, sent: GenerationRequest) -> Answer:
    items = [item async for item in engine.generate(sent)]
    assert isinstance(items[-1], Finish)
    return Answer(tuple(item for item in items if isinstance(item, Chunk)), items[-1])
