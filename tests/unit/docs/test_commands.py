"""Every command in the documents is one that runs: its target, command, module and options are there.

What is cheap is run for real as well, in `tests/integration/docs`.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from tests.support.documented_commands import (
    COMMANDS,
    FAMILIES,
    LANGUAGES,
    NO_COMMAND,
    OPTION,
    PAGES,
    ROOT,
    Documented,
    commands_of,
    documented,
    fences,
    help_of,
    problems,
    script_options,
    text_of,
)

pytestmark = pytest.mark.slow

# Options of others that our pages name.
OF_SGLANG = {
    *("--enable-deterministic-inference", "--incremental-streaming-output", "--stream-output"),
    "--reasoning-parser",
}
FOREIGN_OPTIONS = {"--shm-size", *OF_SGLANG}


@pytest.mark.parametrize("entry", documented(), ids=str)
def test_a_documented_command_is_one_that_runs(entry: Documented) -> None:
    assert problems(entry.command) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_fence_says_what_it_holds(page: Path) -> None:
    assert [body for language, body in fences(text_of(page)) if language not in LANGUAGES] == []


@functools.cache
def known_options() -> frozenset[str]:
    """Every option of every command and program of ours."""
    known = set(OPTION.findall(help_of()))
    for command in COMMANDS:
        known |= set(OPTION.findall(help_of(*command.split())))
    for program in [*(ROOT / "bench").rglob("*.py"), *(ROOT / "deploy").glob("*.py")]:
        known |= script_options(program)
    return frozenset(known)


def named(pattern: str) -> set[tuple[str, str]]:
    """(what matches, page) of everything in the pages that matches."""
    return {(match, page.name) for page in PAGES for match in re.findall(pattern, text_of(page))}


def test_every_option_in_prose_belongs_to_some_command() -> None:
    options = {(option, page) for code, page in named(r"`(--[^`\n]+)`") for option in OPTION.findall(code)}
    assert {entry for entry in options if entry[0] not in known_options() | FOREIGN_OPTIONS} == set()


def test_every_variable_is_a_setting_or_one_of_the_tests() -> None:
    """A variable that is neither is refused by the server, or read by nobody."""
    sources = [path for folder in ("tests", "bench", "clients") for path in (ROOT / folder).rglob("*.*js")]
    sources += [
        path for folder in ("tests", "bench", "clients", "docs/examples") for path in (ROOT / folder).rglob("*.py")
    ]
    read = {
        name
        for path in sources
        if "node_modules" not in path.parts
        for name in re.findall(r"SESSILE_[A-Z_]+[A-Z]", path.read_text(encoding="utf-8"))
    }
    for variable, page in named(r"\b(SESSILE_[A-Z_]+[A-Z])\b"):
        option = "--" + variable.removeprefix("SESSILE_").lower().replace("_", "-")
        assert option in known_options() or variable in read, f"{page}: {variable}"


def test_the_documents_name_the_commands_that_newcomers_need() -> None:
    readme = [entry.command for entry in documented() if entry.page == "README.md"]
    assert {"make serve", "make test"} <= set(readme)
    assert len(documented()) > 100


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("make planted", "make has no target planted"),
        ("make serve PLANTED=1", "the Makefile reads no PLANTED"),
        ("python app.py serve --planted", "there is no option --planted"),
        ("./sessile planted", "app.py planted --help"),
        ("./sessile keys planted", "app.py has no command keys planted"),
        ("bench.planted --pairs 3", "there is no bench/planted.py"),
        ("bench.streams --planted", "there is no option --planted"),
        ("python deploy/cut_model.py --planted", "there is no option --planted"),
        ("curl https://chat.example/v1/models", "is no address of `make serve`"),
        ("rm -rf /", "of no kind that is checked"),
    ],
)
def test_a_command_that_would_not_run_is_found(command: str, problem: str) -> None:
    assert [text for text in problems(command) if problem in text], problems(command)


def test_the_commands_that_we_know_of_are_all_there_is() -> None:
    """So that a new command is looked at too."""
    for family in ("", *FAMILIES):
        shown = re.findall(r"^[ │]{1,4}([a-z]+)\b", help_of(*family.split()).partition("Commands")[2], re.MULTILINE)
        assert {f"{family} {command}".strip() for command in shown} <= {*COMMANDS, NO_COMMAND}, shown


def test_commands_are_collected_from_fences_and_from_inline_code() -> None:
    page = "Say `make help` or `tests`.\n```sh\nmake serve \\\n    PORT=9000   # a comment\n\n```\n"
    page += "```text\nmake nothing\n```\n"
    assert list(commands_of(page)) == ["make serve PORT=9000", "make help"]
