"""This release and the one before it run together: real processes of both, and every move from one to the other.

Needs the history of the checkout; without it tests/golden/test_neighbours.py holds what was recorded.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.chaos.cluster import SIMULATED
from tests.support.chaos.mixed import mixed_cluster, upgraded_and_back
from tests.support.neighbours.previous import has_history, unpack_release

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not has_history(), reason="this checkout lacks the history of the release before"),
]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_release(tmp_path_factory.mktemp("release"))


async def test_sessions_go_from_release_to_release_each_way(older: Path) -> None:
    async with mixed_cluster(older, *SIMULATED) as mixed:
        for victim in ("r-old", "r-new"):
            done = await mixed.round(victim, sessions=3, tokens=60)
            assert done.findings == []
            other = "r-new" if victim == "r-old" else "r-old"
            assert done.moves[f"failover {victim}"] >= 1
            assert min(done.moves[f"handoff {victim}"], done.moves[f"handoff {other}"]) >= 1


async def test_an_upgrade_in_order_and_the_way_back_lose_nothing(older: Path) -> None:
    async with mixed_cluster(older, *SIMULATED, members=("r1-old", "r2-old", "g1-old", "g2-old")) as mixed:
        assert await upgraded_and_back(mixed, older, sessions=3, tokens=60) == []
