"""Finds tests whose verdict is a clock's: an assertion that compares a time, a rate or a memory figure.

A name is *measured* when it is assigned from a clock or from `getrusage`, directly or through another measured name;
an assertion that orders a measured value is a verdict by the clock. The clock of a loop on virtual time is no clock:
there every run of a test is the same run, so `loop.time()` counts only where a test runs on the real loop.

Python is read as a tree, one function at a time; JavaScript and TypeScript line by line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Final

CLOCKS: Final = frozenset(
    {
        *(
            f"time.{name}{suffix}"
            for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")
            for suffix in ("", "_ns")
        ),
        "resource.getrusage",
    }
)
CLOCK_NAMES: Final = frozenset(clock.partition(".")[2] for clock in CLOCKS) - {"time"}
ELAPSED: Final = re.compile(r"(^|_)(elapsed|took|lasted|rss)(_(s|ms|ns|kb|mb|bytes))?$")
MENTIONED: Final = re.compile(
    r"\btime\.|\.time\(|perf_counter|monotonic|(process|thread)_time|getrusage|elapsed|took|lasted|rss"
)
ORDERS: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
SCRIPT_CLOCK: Final = re.compile(
    r"\b(performance\.now|Date\.now|process\.hrtime|process\.cpuUsage|process\.memoryUsage)\b"
)
SCRIPT_NAMES: Final = re.compile(r"(?:const|let|var)\s+(\w+)\s*=|(\w+)\.push\(|(\w+)\s*[:+]?=[^=]|(\w+):")
SCRIPT_VERDICT: Final = re.compile(r"^\s*(assert|expect|ok\b|if .*throw)")


def verdicts(source: str) -> list[int]:
    """Returns the lines of a Python test module whose assertions order a measured value."""
    if not MENTIONED.search(source):
        return []
    tree = ast.parse(source)
    on_virtual_time = "virtual_time" in source or "simulation" in source
    found = [line for scope, real in _scopes(tree, on_virtual_time) for line in _verdicts_of(scope, real)]
    return sorted(set(found))


def script_verdicts(source: str) -> list[int]:
    """Returns the lines of a JavaScript or TypeScript test whose assertions order a measured value."""
    measured: set[str] = set()
    found = []
    for number, line in enumerate(source.splitlines(), start=1):
        names = set(re.findall(r"\w+", line))
        if SCRIPT_CLOCK.search(line) or measured & names:
            if SCRIPT_VERDICT.match(line) and re.search(r"[<>]=?(?!=)(?<!=>)", line.replace("=>", "")):
                found.append(number)
            elif SCRIPT_CLOCK.search(line) or re.search(r"-|push", line):
                measured |= {name for match in SCRIPT_NAMES.finditer(line) for name in match.groups() if name}
    return found


def _scopes(tree: ast.Module, on_virtual_time: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Yields each outermost function, and whether its loop's clock is the real one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef):
            for inside in node.body:
                if isinstance(inside, ast.FunctionDef | ast.AsyncFunctionDef):
                    virtual = any("virtual" in ast.unparse(each) for each in inside.decorator_list)
                    tested = isinstance(inside, ast.AsyncFunctionDef) and inside.name.startswith("test_")
                    yield inside, not virtual and (tested or not on_virtual_time)


def _verdicts_of(scope: ast.AST, loop_is_real: bool) -> Iterator[int]:
    measured = _measured_names(scope, loop_is_real)
    for node in ast.walk(scope):
        if isinstance(node, ast.Assert):
            for compared in ast.walk(node.test):
                if isinstance(compared, ast.Compare) and any(isinstance(op, ORDERS) for op in compared.ops):
                    sides = (compared.left, *compared.comparators)
                    if any(_is_measured(side, measured, loop_is_real) for side in sides):
                        yield node.lineno


def _measured_names(scope: ast.AST, loop_is_real: bool) -> set[str]:
    measured: set[str] = set()
    while True:
        before = len(measured)
        for node in ast.walk(scope):
            match node:
                case ast.Assign(targets=targets, value=value) if _is_measured(value, measured, loop_is_real):
                    measured.update(_names(targets))
                case ast.AnnAssign(target=target, value=ast.expr() as value) if _is_measured(
                    value, measured, loop_is_real
                ):
                    measured.update(_names([target]))
                case ast.AugAssign(target=target, value=value) if _is_measured(value, measured, loop_is_real):
                    measured.update(_names([target]))
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value]):
                    if _is_measured(value, measured, loop_is_real):
                        measured.add(name)
        if len(measured) == before:
            return measured


def _names(targets: Iterable[ast.expr]) -> Iterator[str]:
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                yield node.id


def _is_measured(value: ast.expr, measured: set[str], loop_is_real: bool) -> bool:
    called = {id(node.func) for node in ast.walk(value) if isinstance(node, ast.Call)}
    for node in ast.walk(value):
        match node:
            case ast.Call(func=function) if _is_clock(function, loop_is_real):
                return True
            case ast.Name(id=name) if name in measured:
                return True
            case ast.Name(id=name) | ast.Attribute(attr=name) if loop_is_real and ELAPSED.search(name):
                if id(node) not in called:
                    return True
    return False


def _is_clock(function: ast.expr, loop_is_real: bool) -> bool:
    match function:
        case ast.Name(id=name):
            return name in CLOCK_NAMES
        case ast.Attribute(value=ast.Name(id=module), attr=name) if f"{module}.{name}" in CLOCKS:
            return True
        case ast.Attribute(value=on, attr="time"):
            return loop_is_real and "loop" in ast.unparse(on)
    return False


HANG_S: Final = 60.0
GLANCE_S: Final = 1.0  # a shorter time-out waits for something that must not come: a slow machine cannot fail it


def short_time_outs(source: str) -> list[int]:
    """Returns the lines of a Python test module with a time-out that a slow machine could reach: under HANG_S.

    Those are limits of asyncio, arguments named `timeout` (of httpx, subprocess, threads) and defaults of a parameter
    whose name has `timeout` or `patience` in it, as numbers or by a constant of the module."""
    if not re.search("timeout|wait_for|patience", source):
        return []
    tree = ast.parse(source)
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }

    def is_short(limit: ast.expr | None) -> bool:
        value = constants.get(limit.id) if isinstance(limit, ast.Name) else limit
        seconds = value.value if isinstance(value, ast.Constant) else None
        return isinstance(seconds, int | float) and GLANCE_S < seconds < HANG_S

    found = set()
    for node in ast.walk(tree):
        limits: list[ast.expr | None] = []
        if isinstance(node, ast.Call):
            limits = [each.value for each in node.keywords if each.arg == "timeout"]
            match node.func:
                case ast.Attribute(value=ast.Name(id="asyncio"), attr="timeout" | "wait_for"):
                    limits += node.args[-1:]
        elif isinstance(node, ast.arguments):
            given = [*node.posonlyargs, *node.args]
            named = [*zip(given[len(given) - len(node.defaults) :], node.defaults, strict=True)]
            named += [(name, value) for name, value in zip(node.kwonlyargs, node.kw_defaults, strict=True) if value]
            limits = [value for name, value in named if "timeout" in name.arg or "patience" in name.arg]
        found |= {limit.lineno for limit in limits if limit is not None and is_short(limit)}
    return sorted(found)
