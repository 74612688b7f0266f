"""What contracts run on: every kind of store, and Valkey as one server and as a cluster.

The vLLM stage loads this file too, and its environment has no Valkey: only the fixtures import it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from sessions.ports import Engine, Journal
from sessions.store import Store
from tests.support.stores.journals import KINDS, Bed, a_bed

if TYPE_CHECKING:
    from testbed.valkey_server import Server


@pytest.fixture(params=KINDS)
async def bed(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bed]:
    async with a_bed(request.param, tmp_path) as made:
        yield made


@pytest.fixture
async def store(bed: Bed) -> AsyncIterator[Store]:
    opened = await bed.open()
    yield opened
    await opened.close()


@pytest.fixture
def journal(store: Store) -> Journal:
    return store.journal


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def idle() -> AsyncIterator[list[Engine]]:
    """Engines of llama.cpp between two tests."""
    engines: list[Engine] = []
    yield engines
    for engine in engines:
        await engine.close()


@pytest.fixture(scope="module")
def one_valkey() -> Iterator[list[Server]]:
    from testbed.valkey_server import running

    with running() as server:
        yield [server]


@pytest.fixture(scope="module")
def many_valkeys() -> Iterator[list[Server]]:
    from testbed.valkey_server import running_cluster

    with running_cluster() as servers:
        yield servers
