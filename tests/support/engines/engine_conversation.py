"""One conversation with an engine, whose turns compute no more than what stands behind the first difference."""

from __future__ import annotations

from sessions.model.types import Tokens, UnixMs
from sessions.ports import ChatMessage, Engine
from sessions.turn.retokenisation import shared_length
from testbed.engine_client import ask, key

ANSWER_TOKENS = 6


class EngineConversation:
    """One session's conversation, and what the engine has computed of it."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        *,
        block: int = 1,
        answer_tokens: int = ANSWER_TOKENS,
    ) -> None:
        """`block`: the number of tokens in which the engine keeps KV."""
        self.engine = engine
        self.key = key(name)
        self.block = block
        self.answer_tokens = answer_tokens
        self.messages: list[ChatMessage] = []
        self.before: Tokens = ()  # what the last run left in KV

    async def prompt(self) -> Tokens:
        return await self.engine.tokenizer.conversation("be brief", (), self.messages, UnixMs(0), answer=True)

    async def turn(self, text: str) -> str:
        """Asks, and verifies that the engine computes only what stands behind the first difference, and one block, and
        that the answer's ids are those of its text."""
        self.messages.append(ChatMessage(role="user", text=text))
        prompt = await self.prompt()
        answer = await ask(self.engine, self.key, prompt, max_tokens=self.answer_tokens)
        kept = shared_length(prompt, self.before)
        assert len(prompt) - answer.finish.cached_tokens <= len(prompt) - kept + self.block
        assert b"".join(self.engine.tokenizer.pieces(answer.tokens)).decode() == answer.text
        self.before = (*prompt, *answer.tokens)
        self.messages.append(ChatMessage(role="assistant", text=answer.text, tokens=answer.tokens))
        return answer.text

    async def whole(self) -> None:
        """Talks for ten turns, edits the second question, and asks the first one again."""
        first = await self.turn("where does the river go ü 日本?")
        for number in range(9):
            await self.turn(f"and where does it go {number}?")
        self.messages = self.messages[:2]
        await self.turn("the river and it?")
        self.messages = []
        assert await self.turn("where does the river go ü 日本?") == first, "the same prompt, the same answer"
