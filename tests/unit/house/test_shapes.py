"""A file is one concept, a function one screen, a call a handful of arguments, a folder one look."""

from __future__ import annotations

import pytest

from tests.support.house import (
    FUNCTION_LINES_MAX,
    LINES_MAX,
    MODULES_MAX,
    PARAMETERS_MAX,
    Module,
    everything,
    full_folders,
    long_files,
    long_functions,
    wide_functions,
)


@pytest.mark.parametrize(
    "rule",
    [
        "functions over 80 lines",
        "more than 8 parameters",
        "files over 700 lines",
        "folders with more than 20 modules",
    ],
)
def test_shapes(rule: str) -> None:
    assert everything()[rule] == []


def function(lines: int) -> str:
    return "def f():\n" + "    pass\n" * (lines - 1)


def test_a_long_function_is_seen_and_a_table_of_routes_is_not_one() -> None:
    assert long_functions([Module("a.py", function(FUNCTION_LINES_MAX))]) == []
    assert long_functions([Module("a.py", function(FUNCTION_LINES_MAX + 1))]) == ["a.py:f"]
    handler = "    @router.get('/')\n    async def handler():\n" + "        pass\n" * 60
    assert long_functions([Module("a.py", "def routes():\n" + handler * 3)]) == []
    helper = "    async def helper():\n" + "        pass\n" * 60
    assert long_functions([Module("a.py", "def routes():\n" + helper * 3)]) == ["a.py:routes"]


def test_a_wide_function_is_seen() -> None:
    names = [f"a{n}" for n in range(PARAMETERS_MAX)]
    whole = ", ".join(names)
    assert wide_functions([Module("a.py", f"class A:\n    def f(self, {whole}): ...\ndef g({whole}): ...\n")]) == []
    assert wide_functions([Module("a.py", f"def f(self_, {whole}): ...\n")]) == ["a.py:f"]
    assert wide_functions([Module("a.py", f"def f({whole}, **more): ...\n")]) == ["a.py:f"]
    assert wide_functions([Module("a.py", f"async def f(*, {whole}, b): ...\n")]) == ["a.py:f"]
    assert wide_functions([Module("a.py", f"@router.get('/')\ndef f({whole}, b): ...\n")]) == []


def test_a_long_file_and_a_full_folder_are_seen() -> None:
    assert long_files([Module("a.py", "pass\n" * LINES_MAX), Module("b.py", "pass\n" * (LINES_MAX + 1))]) == ["b.py"]
    paths = [f"sessions/actor/{n}.py" for n in range(MODULES_MAX)] + ["sessions/actor/__init__.py"]
    assert full_folders(paths) == []
    assert full_folders([*paths, "sessions/actor/one_more.py"]) == ["sessions/actor"]
