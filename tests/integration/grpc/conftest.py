"""A whole server in this process with the simulated engine, its gRPC door, and a stub in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from inference.simulated import SimulatedOptions
from tests.support.doors.grpc_door import Door, opened


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    async with opened() as made:
        yield made


@pytest.fixture
async def slow_door() -> AsyncIterator[Door]:
    """Its answers go on until they are stopped."""
    async with opened(SimulatedOptions(step_base_s=0.005, answer_tokens_mean=0)) as made:
        yield made


@pytest.fixture
def new_command() -> Callable[[], str]:
    numbers = iter(range(1, 1000))
    return lambda: f"command-{next(numbers)}"
