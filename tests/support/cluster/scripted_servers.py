"""A directory's servers whose answers are written down beforehand."""

from __future__ import annotations

from typing import Any


class ScriptedServers:
    """Answers, or raises, one call after another."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[Any, ...]] = []

    async def call(self, key: str, *words: Any) -> Any:
        self.calls.append((key, *words))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer
