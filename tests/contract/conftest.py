"""What contracts run on: every kind of journal, and Valkey as one server and as a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sessions.ports import Journal
from tests.contract.directories import Server, running, running_cluster
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


@pytest.fixture(scope="module")
def one_valkey() -> Iterator[list[Server]]:
    with running() as server:
        yield [server]


@pytest.fixture(scope="module")
def many_valkeys() -> Iterator[list[Server]]:
    with running_cluster() as servers:
        yield servers
