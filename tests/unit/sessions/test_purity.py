"""The session machine imports nothing that waits, reads a clock, draws by chance or writes logs, however indirectly.

import-linter holds this (`make imports`); here the same contract runs on a graph into which such an import is planted.
"""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path

import grimp
import pytest
from importlinter.configuration import configure
from importlinter.contracts.forbidden import ForbiddenContract

ROOT = Path(__file__).resolve().parents[3]
IMPURE = ("asyncio", "time", "random", "os", "logging", "structlog")


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("sessions", include_external_packages=True, cache_dir=None)


@pytest.fixture(scope="module")
def contract() -> ForbiddenContract:
    configure()
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (options,) = (each for each in contracts if each["name"] == "the session machine and its vocabulary are pure")
    assert set(IMPURE) <= set(options["forbidden_modules"])
    return ForbiddenContract(
        options["name"], {"root_packages": ["sessions"], "include_external_packages": True}, options
    )


def test_the_machine_is_pure(graph: grimp.ImportGraph, contract: ForbiddenContract) -> None:
    assert contract.check(copy.deepcopy(graph), verbose=False).kept


@pytest.mark.parametrize("impure", IMPURE)
@pytest.mark.parametrize("importer", ["sessions.machine.state", "sessions.model.types", "sessions.billing.prices"])
def test_a_planted_import_breaks_the_contract(
    graph: grimp.ImportGraph, contract: ForbiddenContract, importer: str, impure: str
) -> None:
    planted = copy.deepcopy(graph)
    planted.add_module(impure, is_squashed=True)
    planted.add_import(importer=importer, imported=impure)
    assert not contract.check(planted, verbose=False).kept


def test_a_helper_between_hides_nothing(graph: grimp.ImportGraph, contract: ForbiddenContract) -> None:
    planted = copy.deepcopy(graph)
    planted.add_module("sessions.planted")
    planted.add_import(importer="sessions.machine.item_tree", imported="sessions.planted")
    planted.add_import(importer="sessions.planted", imported="asyncio")
    assert not contract.check(planted, verbose=False).kept
