"""Lets a session's turn wait for its KV that is being brought up ahead of it, so that neither is computed twice.

A hint and the turn that it was for come close behind each other. The turn waits for what is mostly its own prompt; one
of another branch (a message that was edited) would wait for nothing, and begins beside it. Knows no engine.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from inference.tokens import common_prefix
from sessions.model.types import SessionKey


class _Warming(NamedTuple):
    prompt: array.array[int]
    ended: asyncio.Future[None]


class Warmings:
    """The prompts whose KV is being brought to the device now, at most one of a session."""

    def __init__(self) -> None:
        self._of: dict[SessionKey, _Warming] = {}

    def __contains__(self, key: SessionKey) -> bool:
        return key in self._of

    @contextlib.contextmanager
    def of(self, key: SessionKey, prompt: array.array[int]) -> Iterator[None]:
        """Marks the prompt as being warmed inside the block; the session must have no other."""
        warming = self._of[key] = _Warming(prompt, asyncio.get_running_loop().create_future())
        try:
            yield
        finally:
            del self._of[key]
            warming.ended.set_result(None)

    async def settled(self, key: SessionKey, prompt: array.array[int]) -> None:
        """Waits until the session's warming ends, if at least half of the warmed prompt begins `prompt` too."""
        warming = self._of.get(key)
        if warming is not None and 2 * common_prefix(warming.prompt, prompt) >= len(warming.prompt):
            await asyncio.wait([warming.ended])
