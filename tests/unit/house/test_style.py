"""No test sleeps, each runs in its stage, only `app.py` reads the environment, and every module says what it is for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

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
    "tests/support/kubernetes/",
)
VIRTUAL_TIME = re.compile(r"virtual_time|in_virtual_time|Harness|VirtualLoop")


def test_no_test_sleeps() -> None:
    breaches = []
    for path in files("tests"):
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
    product = modules(*PACKAGES, "clients", "deploy", "bench", "app.py")
    assert [each.path for each in product if not ast.get_docstring(each.tree)] == []
