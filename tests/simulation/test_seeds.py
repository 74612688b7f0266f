"""The seeds that run with every test: none may break a promise, and together they must have seen everything."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.nemesis import FAULTS, OPERATIONS
from tests.simulation.people import ACTIONS
from tests.simulation.seeds import run_seeds
from tests.support.stores.journals import postgres

SEEDS = 240  # of `make test-all`; `make test` runs the first quarter of them, spread over its workers
CHUNKS = 4
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "first",
    [pytest.param(n, marks=pytest.mark.xdist_group(f"seeds-{n}")) for n in range(0, SEEDS // 4, SEEDS // 4 // CHUNKS)],
)
def test_none_of_a_few_seeds_breaks_a_promise(first: int) -> None:
    outcomes = list(run_seeds(first, SEEDS // 4 // CHUNKS, jobs=1))
    assert [f"make simulate SEED={each.seed}: {each.problems[0]}" for each in outcomes if each.problems] == []
    assert len(outcomes) == SEEDS // 4 // CHUNKS


@pytest.mark.slow
def test_no_seed_breaks_a_promise() -> None:
    seen: Counter[str] = Counter()
    ran = 0
    for outcome in run_seeds(0, SEEDS):
        assert not outcome.problems, f"make simulate SEED={outcome.seed}: {outcome.problems[0]}"
        seen.update(outcome.counters)
        ran += 1
    assert ran == SEEDS
    wanted = [f"did_{name}" for name in ACTIONS] + [f"nemesis_{name}" for name in (*FAULTS, *OPERATIONS)]
    wanted += ["handed_off_open", "handed_off_idle", "drained", "moves", "ended_completed", "ended_incomplete"]
    wanted += ["resumed_replay", "resumed_snapshot", "resumed_gone", "refused_response_in_progress"]
    assert [name for name in wanted if not seen[name]] == [], "a scenario that never came"


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "sqlite-sealed", "postgres", "postgres-sealed"])
def test_no_seed_breaks_a_promise_on_a_real_database(store: str) -> None:
    """The bar is 500 of them: `make simulate SEEDS=500 ARGS="--store sqlite-sealed"`."""
    if store.startswith("postgres"):
        postgres()  # one server for all processes
    for outcome in run_seeds(0, 20, store=store, chunk=5):
        assert not outcome.problems, f"{outcome.problems[0]}: make simulate SEED={outcome.seed} ARGS='--store {store}'"


def test_an_emptied_directory_costs_no_living_replica_a_session() -> None:
    for bent_on in (("directory_flushed",), ("directory_flushed", "kill_replica", "drain")):
        for outcome in run_seeds(0, 10, bent_on=bent_on):
            assert not outcome.problems, f"seed {outcome.seed}, {bent_on}: {outcome.problems[0]}"


def test_a_seed_is_the_same_run_in_every_process() -> None:
    """Whatever the hash seed and the addresses are."""
    digests = set()
    for hash_seed in ("1", "2"):
        printed = subprocess.run(
            [sys.executable, "-m", "tests.simulation.seeds", "--seed", "5"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        digests.add(printed.stdout.splitlines()[-1])
    assert len(digests) == 1
    assert "clean" in digests.pop()
