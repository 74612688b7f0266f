"""An opened store in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from persistence.memory.store import MemoryStore


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    made = MemoryStore()
    await made.open()
    yield made
    await made.close()
