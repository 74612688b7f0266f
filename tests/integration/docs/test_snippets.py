"""The programs that the documents show, run as they stand: in their order, in one folder, against a real server.

Only the server's port is another one. Not run: what needs a phone (React Native) and what needs a compiler (Kotlin and
Java); those are lines of programs that other tests compile and run, and this one compares them. What the pages name as
commands is checked in `tests/unit/docs/test_commands.py`.
"""

from __future__ import annotations

import ast
import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documented_commands import FENCE, ROOT, fences
from tests.support.node import CLIENT, WITH_NODE, node_modules

PROGRAM_S = 110
EXAMPLES = ROOT / "docs" / "examples"
PYTHON = {"clients/python/README.md": 7, "docs/files.md": 1}  # page: how many programs it shows
# README: (program that is compiled and run elsewhere, the fence's language)
EXCERPTS = [
    ("clients/jvm/README.md", "kotlin", "clients/jvm/examples/KotlinExample.kt"),
    ("clients/jvm/README.md", "java", "clients/jvm/examples/JavaExample.java"),
    ("clients/react-native/README.md", "tsx", "clients/react-native/example/App.tsx"),
]
SHOWN_ONLY = {("clients/react-native/README.md", "ts")}  # its push registration asks a phone for a token


def programs(page: str, language: str) -> list[str]:
    return [body for kind, body in fences((ROOT / page).read_text(encoding="utf-8")) if kind == language]


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The port of a server, started as a newcomer starts one, except for its model."""
    data = tmp_path_factory.mktemp("snippets") / "data"
    command = [sys.executable, str(ROOT / "app.py"), "serve", "--engine", "sim", "--port", "0", "--data", str(data)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SESSILE_")}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = next(line for line in process.stdout if "Sessile is ready: " in line)
            yield re.findall(r"127\.0\.0\.1:(\d+)", ready)[0]
        finally:
            process.terminate()
            process.wait(60)


async def run(*command: str, cwd: Path, **variables: str) -> str:
    """Returns the output of a program that has ended well."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **variables},
    )
    out, err = await asyncio.wait_for(process.communicate(), PROGRAM_S)
    assert process.returncode == 0, f"{out.decode()}\n{err.decode()}"
    return out.decode()


async def run_python(port: str, program: str, folder: Path) -> str:
    (folder / "program.py").write_text(program.replace("127.0.0.1:8080", f"127.0.0.1:{port}"))
    return await run(sys.executable, "program.py", cwd=folder, PYTHONPATH=str(ROOT / "clients" / "python"))


@pytest.mark.parametrize(("page", "count"), PYTHON.items())
async def test_the_python_programs_of_a_page_run(port: str, page: str, count: int, tmp_path: Path) -> None:
    shown = programs(page, "python")
    assert len(shown) == count
    for program in shown:
        assert await run_python(port, program, tmp_path), program
    for program in shown:  # again, in a folder that it was in before; what was answered then is shown by none
        await run_python(port, program, tmp_path)


def test_the_python_client_is_installed_from_a_folder_that_is_there() -> None:
    (install,) = programs("clients/python/README.md", "sh")
    *command, folder = install.split()
    assert command == ["pip", "install"] and (ROOT / folder / "pyproject.toml").is_file()


async def test_the_readmes_way_to_the_typescript_client(port: str, tmp_path: Path) -> None:
    await node_modules()
    page = "clients/typescript/README.md"
    (install,), (program,) = programs(page, "sh"), programs(page, "js")
    assert [line.split()[0] for line in install.splitlines()] == ["npm", "npm", "npm"]
    _, pack, take = (line.split() for line in install.splitlines())
    # The first line, `npm ci`, is what `node_modules` has done; another test may be using what it would replace.
    await run(WITH_NODE, *pack, "--pack-destination", str(tmp_path), cwd=ROOT)
    (tmp_path / "package.json").write_text("{}")
    await run(WITH_NODE, *take, "--offline", "--no-audit", "--legacy-peer-deps", cwd=tmp_path)
    (tmp_path / "node_modules" / "ws").symlink_to(CLIENT / "node_modules" / "ws")
    (tmp_path / "talk.mjs").write_text(program.replace("8080", port))
    assert "completed" in await run(WITH_NODE, "node", "talk.mjs", cwd=tmp_path)


@pytest.mark.parametrize(("page", "language", "example"), EXCERPTS)
def test_what_is_not_run_here_stands_in_a_program_that_is(page: str, language: str, example: str) -> None:
    source = {line.strip() for line in (ROOT / example).read_text(encoding="utf-8").splitlines()}
    (shown,) = programs(page, language)
    assert [line for line in shown.splitlines() if line.strip() not in {"", *source}] == []


def test_every_program_of_a_clients_page_is_run_or_named_here() -> None:
    known = {(page, "python") for page in PYTHON} | {(page, language) for page, language, _ in EXCERPTS} | SHOWN_ONLY
    known |= {("clients/typescript/README.md", "js")}
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("clients/*/README.md")]
    assert {
        (page.relative_to(ROOT).as_posix(), language)
        for page in pages
        for language, _ in FENCE.findall(page.read_text(encoding="utf-8"))
        if language not in {"sh", "text", "toml", "json", "yaml"}
    } == known


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_the_examples_page_installs_what_each_imports(example: Path) -> None:
    """By the line that the page has for them, in an environment that has nothing else."""
    line = next(line for line in programs("docs/examples/README.md", "sh")[0].splitlines() if "pip install" in line)
    installed = {re.split(r"[=<>]", name)[0].replace("-", "_") for name in line.split("install", 1)[1].split()}
    brought = {"langchain_core": "langchain_openai", "pydantic": "langchain_openai", "grpc": "grpcio"}
    brought |= {"google": "grpcio_reflection", "sessile_client": "./clients/python"}
    imports = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(example.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    foreign = imports - set(sys.stdlib_module_names) - {"transport"}
    assert {name for name in foreign if brought.get(name, name) not in installed} == set()
