"""Journals for the contract: each test runs on every kind of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sessions.ports import Journal
from tests.contract.journals import KINDS, Bed, a_bed


@pytest.fixture(params=KINDS)
async def bed(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bed]:
    async with a_bed(request.param, tmp_path) as made:
        yield made


@pytest.fixture
async def journal(bed: Bed) -> AsyncIterator[Journal]:
    opened = await bed.open()
    yield opened
    await opened.close()
