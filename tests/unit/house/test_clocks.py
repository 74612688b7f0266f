"""Time arrives as an argument: only `app.py` and the adapters named here read a clock of the system.

Deadlines go by the running loop's `time()`, wall time by an injected `Clock` (`sessions.clock`). An adapter is code at
a seam to something with a clock of its own (an engine, a store, a telemetry format), where a test hands in a clock or
needs none.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("sessions", "actors", "inference", "persistence", "transport")

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
