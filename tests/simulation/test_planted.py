"""Each planted bug is found, and the product without it is not blamed."""

from __future__ import annotations

import pytest

from tests.simulation.planted import PLANTED
from tests.simulation.seeds import run_seeds

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, bent_on, store, plant = PLANTED[name]
    plant(monkeypatch)
    for outcome in run_seeds(0, seeds, chunk=2, bent_on=bent_on, store=store):
        if outcome.problems:
            return
    pytest.fail(f"{name} lives through {seeds} seeds")


def test_there_are_enough_of_them() -> None:
    assert len(PLANTED) >= 14
