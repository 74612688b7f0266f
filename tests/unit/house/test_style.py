"""No test sleeps, each runs in its stage, only `app.py` and the adapters named here read clocks and the environment."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.house import PACKAGES, files, modules, name_of


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
    lines = []
    for node, name in calls(source):
        yields = name == "asyncio.sleep" and len(node.args) == 1 and ast.unparse(node.args[0]) == "0"
        if name in {"asyncio.sleep", "time.sleep", "anyio.sleep"} and not yields:
            lines.append(node.lineno)
    return lines


# Under virtual time a sleep is a scripted moment; in the chaos runs the random moment is the very subject; a kubelet's
# probes have periods.
MAY_SLEEP = (
    *("tests/simulation/", "tests/chaos/", "tests/support/chaos/", "tests/support/rounds/"),
    *("tests/support/kubernetes/", "testbed/chaos/"),
)
VIRTUAL_TIME = re.compile(r"virtual_time|in_virtual_time|Harness|VirtualLoop")


def test_no_test_sleeps() -> None:
    breaches = []
    for path in files("tests", "testbed"):
        source = path.read_text()
        if "sleep" in source and not name_of(path).startswith(MAY_SLEEP) and not VIRTUAL_TIME.search(source):
            breaches += [f"{name_of(path)}:{line}" for line in sleeps(source)]
    assert breaches == [], "wait for a named signal instead"


def test_the_sleep_check_sees_every_spelling() -> None:
    assert sleeps("import asyncio\nasyncio.sleep(0)") == []
    assert sleeps("import asyncio\nasyncio.sleep(0.1)") == [2]
    assert sleeps("from asyncio import sleep as nap\nnap(1)") == [2]
    assert sleeps("import time as t\nt.sleep(1)") == [2]


def test_what_no_stage_would_run_does_not_exist() -> None:
    """`make test` leaves `chaos` and `browser` out; the stages of `make test-all` look in their own folders."""
    marked = {name_of(path) for path in files("tests") if re.search(r"mark\.(chaos|browser)\b", path.read_text())}
    assert marked, "else this looks for something else"
    assert [name for name in marked if not name.startswith(("tests/chaos/", "tests/browser/"))] == []


def environment_reads(source: str) -> list[int]:
    """Lines that read the environment. `os.environ[name] = value` sets something for a library or a child."""
    tree = ast.parse(source)
    reads = {"environ", "getenv", "environb", "getenvb"}
    stored = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)}
    return [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in reads and id(node) not in stored)
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and reads & {a.name for a in node.names})
    ]


def test_only_app_reads_the_environment() -> None:
    for path in files(*PACKAGES):
        source = path.read_text()
        if "env" in source:
            assert environment_reads(source) == [], name_of(path)


def test_a_read_of_the_environment_is_seen() -> None:
    assert environment_reads("import os\nos.environ['A']\nos.getenv('B')") == [2, 3]
    assert environment_reads("from os import environ") == [1]
    assert environment_reads("import os\nos.environ['A'] = 'b'") == []


def test_a_module_opens_with_what_it_decides() -> None:
    product = modules(*PACKAGES, "clients", "deploy", "bench", "testbed", "app.py")
    assert [each.path for each in product if not ast.get_docstring(each.tree)] == []


ROOT = Path(__file__).resolve().parents[3]

CLOCKS = {
    *(
        f"time.{name}{suffix}"
        for name in ("time", "monotonic", "perf_counter", "process_time")
        for suffix in ("", "_ns")
    ),
    *(f"time.{name}" for name in ("clock_gettime", "localtime", "gmtime", "strftime", "ctime", "asctime")),
    *(f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")),
    "datetime.date.today",
}
IMPORTS_A_CLOCK = re.compile(r"^\s*(import|from)\b.*\b(time|datetime)\b", re.MULTILINE)

# Files, not folders: a new module that reads a clock has to be named here.
ADAPTERS = (
    *(
        f"inference/kv/{name}.py"
        for name in ("cold_tier", "disk", "host_tier", "promotion", "redis", "snapshot_worth", "tiers")
    ),
    "inference/llama/engine.py",
    "inference/llama/slot_kv.py",
    "inference/tools/code/supervisor.py",  # a program of its own, without a loop
    *(f"inference/vllm/{name}.py" for name in ("block_copier", "engine", "offload", "scheduling/scheduler")),
    "persistence/data_dir.py",
    "persistence/postgres/database.py",
    "persistence/sqlite/database.py",
    "transport/cli/users.py",  # a command waits for an erasure in a thread, where no loop runs
    "transport/ops/loop_watchdog.py",  # a loop that stands still has no time
    "transport/ops/otlp.py",  # spans carry unix time
)


def clock_reads(source: str) -> Iterator[tuple[int, str]]:
    """(line, clock) wherever a clock of the system is named: called, handed on or a default."""
    if not IMPORTS_A_CLOCK.search(source):
        return
    nodes = list(ast.walk(ast.parse(source)))
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            head, dot, rest = dotted(node).partition(".")
            name = names.get(head, "") + dot + rest
            if name in CLOCKS:
                yield node.lineno, name


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


FILES = [
    path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if path.relative_to(ROOT).as_posix() not in ADAPTERS
]


def test_only_app_and_adapters_read_clocks() -> None:
    assert [
        (path.relative_to(ROOT).as_posix(), *read) for path in FILES for read in clock_reads(path.read_text())
    ] == []


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_listed_adapter_reads_a_clock(name: str) -> None:
    assert list(clock_reads((ROOT / name).read_text())), "take it off the list"


@pytest.mark.parametrize(
    "source",
    [
        "import time\nx = time.time()",
        "import time as t\ndef f(now=t.monotonic): ...",
        "from time import time_ns as n\nx = n()",
        "from datetime import UTC, datetime\nx = datetime.now(UTC)",
        "import datetime\nx = datetime.datetime.now()",
        "import datetime as d\nx = d.date.today()",
    ],
)
def test_the_lint_sees_a_planted_read(source: str) -> None:
    assert [line for line, _ in clock_reads(source)] == [2]


@pytest.mark.parametrize("source", ["import asyncio\nx = asyncio.get_running_loop().time()", "x = clock.now_ms()"])
def test_the_loop_and_an_injected_clock_are_free(source: str) -> None:
    assert list(clock_reads(source)) == []
