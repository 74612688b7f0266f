"""A stand-in for redis-py's connection: a test says what is answered, and sees what was sent."""

from __future__ import annotations

import asyncio
from typing import Any


class FakeConnection:
    """Answers come from `answers` in order; an exception among them is raised, `None` is silence until a time-out."""

    def __init__(self, *answers: Any, refuses: int = 0) -> None:
        self.answers = list(answers)
        self.refuses = refuses  # connection attempts that fail first
        self.sent: list[tuple[Any, ...]] = []
        self.attempts = 0
        self.is_connected = False
        self.leftover = False
        self.socket_timeout: float | None = 1.0
        self.news = asyncio.Event()

    async def connect(self) -> None:
        self.attempts += 1
        if self.refuses:
            self.refuses -= 1
            raise ConnectionError("refused")
        self.is_connected = True
        self.leftover = False

    async def disconnect(self, nowait: bool = False) -> None:
        self.is_connected = False

    async def can_read(self) -> bool:
        return self.leftover

    def pack_commands(self, commands: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return commands

    async def send_packed_command(self, commands: list[tuple[Any, ...]], check_health: bool = True) -> None:
        self.sent += commands

    async def read_response(self, timeout: float | None = None) -> Any:
        while not self.answers:
            self.news.clear()
            await self.news.wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answer(self, *answers: Any) -> None:
        self.answers += answers
        self.news.set()
