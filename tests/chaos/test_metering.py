"""A few rounds of metering: kill -9, then the bill against the logs and against what the stream has."""

from __future__ import annotations

import pytest

from tests.support.rounds.metering import rounds


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.timeout(240)
async def test_every_token_is_billed_once_whatever_was_killed() -> None:
    figures = await rounds(3, seed=7, clients=3, kill_within_s=0.7)
    assert figures["faults"] == []
    assert figures["responses"] >= 3
