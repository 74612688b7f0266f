"""Collects the commands that the documents name, and checks each against what it would run, without running it.

A command is a line of a ```sh fence, or inline code that begins like one. `problems` returns what is wrong with one: a
target that the Makefile lacks, an option that a command's `--help` does not show, a bench without that option. A
command of no known kind is a problem too, so that a new kind cannot slip in unchecked.

Not looked at: what earlier releases were (the changelog below its newest one) and earlier benchmarks.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LANGUAGES = {"sh", "text", "toml", "json", "python", "yaml"}
FENCE = re.compile(r"^[ ]*```(\w*)\n(.*?)^[ ]*```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
ASSIGNMENT = re.compile(r"^[A-Z][A-Z_]*=")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
COMMAND_HEADS = ("make ", "python ", "./sessile ", "app.py ", "bench.", "curl ", "pip ", "npm ", "openssl ", ".venv")
FAMILIES = (
    "keys",
    "tokens",
    "audit",
    "users",
    "usage",
    "encryption",
    "models",
)  # commands that have their own
COMMANDS = (
    *("serve", "gateway", "replica", "replicas", "sessions", "drain", "undrain", "doctor", "plan", "chat", *FAMILIES),
    *("keys create", "keys list", "keys show", "keys revoke", "audit list", "audit verify"),
    *("tokens revoke", "tokens list"),
    *("users export", "users erase", "usage reconcile", "restore"),
    *("encryption status", "encryption rotate", "encryption rewrap", "encryption stop", "encryption resume"),
    *("encryption destroy", "encryption master"),
    *("models list", "models pull", "models remove"),
)
NO_COMMAND = "planted"
# Commands of others, by their beginning, and why they are in our documents.
FOREIGN = {
    ("openssl", "rand", "-hex", "32"): "makes a key file",
    ("pip", "install", "./clients/python"): "installs the SDK of this checkout",
    ("npm", "install", "openai"): "installs OpenAI's SDK",
    ("docker", "build", "-f", "deploy/image/Dockerfile"): "builds the image",
    ("docker", "compose", "-f", "deploy/compose.yaml"): "runs a cluster of containers",
    ("helm", "install", "sessile", "deploy/helm/sessile"): "installs the chart",
    ("kubectl", "create", "namespace", "chat"): "where the chart is installed",
    ("kubectl", "-n", "chat"): "makes the chart's Secret, and a key",
    ("systemctl", "enable", "--now"): "starts the units",
    ("pgbackrest", "--stanza=sessile"): "copies PostgreSQL; tests/backups runs it",
    ("pg_basebackup", "-d"): "copies PostgreSQL; tests/backups runs it",
}


class Documented(NamedTuple):
    page: str
    command: str

    def __str__(self) -> str:
        return f"{self.page}: {self.command}"


def fences(text: str) -> list[tuple[str, str]]:
    """(language, body) of every fence; the language is "" where none is named."""
    return FENCE.findall(text)


def text_of(page: Path) -> str:
    """What of a page holds now: of the changelog the newest release."""
    text = page.read_text(encoding="utf-8")
    return "## ".join(text.split("\n## ")[:2]) if page.name == "CHANGELOG.md" else text


def commands_of(text: str) -> Iterator[str]:
    """The commands that a page names, each on one line and without its comment."""
    for language, body in fences(text):
        if language == "sh":
            for line in body.replace("\\\n", " ").splitlines():
                words = split(line)
                if words:
                    yield shlex.join(words)
    for code in INLINE.findall(FENCE.sub("", text)):
        if (
            re.sub(r"^(?:[A-Z_]+=\S+ )+", "", code).startswith(COMMAND_HEADS)
            and not code.startswith(".venv-")
            and code != ".venv"
        ):
            yield shlex.join(split(code))


def split(line: str) -> list[str]:
    """Words as the shell has them. A backslash before a comment's end continues the line, comments go."""
    return shlex.split(line, comments=True)


def documented() -> list[Documented]:
    """Every command of every page, once a page."""
    found = []
    for page in PAGES:
        text = text_of(page)
        found += [
            Documented(page.relative_to(ROOT).as_posix(), command) for command in dict.fromkeys(commands_of(text))
        ]
    return found


# -- what there is to run ------------------------------------------------------------------------


@functools.cache
def make_targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@functools.cache
def make_variables() -> frozenset[str]:
    return frozenset(re.findall(r"\$\((?:if \$\()?([A-Z]+)\b", (ROOT / "Makefile").read_text()))


# `app.py COMMAND --help` for each line of stdin, in one process: starting one for each would take a minute.
HELPS = """
import contextlib, io, json, sys
import app

def shown(words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = app.main([*words, "--help"])
        except SystemExit as exit:
            status = exit.code
    return status or 0, out.getvalue(), err.getvalue()

print(json.dumps({line: shown(line.split()) for line in sys.stdin.read().splitlines()}))
"""


@functools.cache
def helps() -> dict[str, tuple[int, str, str]]:
    """Command -> (status, stdout, stderr) of its `--help`, for every command that we know of and one that is none."""
    done = subprocess.run(
        [sys.executable, "-c", HELPS],
        cwd=ROOT,
        input="\n".join(["", NO_COMMAND, *COMMANDS]),
        capture_output=True,
        text=True,
        timeout=110,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb"},
    )
    assert done.returncode == 0, done.stderr
    return {command: tuple(shown) for command, shown in json.loads(done.stdout).items()}


def help_of(*command: str) -> str:
    """What `app.py COMMAND --help` prints; AssertionError where it is no command."""
    name = " ".join(command)
    assert name in helps(), f"app.py has no command {name}"
    status, shown, error = helps()[name]
    assert status == 0, f"app.py {name} --help: {error[-400:]}"
    return shown


@functools.cache
def script_options(path: Path) -> frozenset[str]:
    """The options that a program of ours declares, read from its source: importing some of them takes seconds."""
    options: set[str] = set()
    for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
        function = ast.unparse(call.func)
        if function.endswith("add_argument"):
            options |= {str(name.value) for name in call.args if isinstance(name, ast.Constant)}
        elif function == "run_bench":  # of `bench.support`: an option for each keyword
            options |= {f"--{keyword.arg.replace('_', '-')}" for keyword in call.keywords if keyword.arg}
    return frozenset(options)


# -- kinds of commands ---------------------------------------------------------------------------


def problems(command: str) -> list[str]:
    """What is wrong with a documented command; nothing where it would run."""
    words = split(command)
    while words and ASSIGNMENT.match(words[0]):
        words = words[1:]  # a variable for this command alone
    match words:
        case ["make", *rest]:
            return make_problems(rest)
        case ["app.py" | "./sessile", *rest]:
            return app_problems(rest)
        case [python, "app.py", *rest] if is_python(python):
            return app_problems(rest)
        case [python, "-m", module, *rest] if is_python(python):
            return script_problems(module.replace(".", "/") + ".py", rest)
        case [python, script, *rest] if is_python(python):
            return script_problems(script, rest)
        case [module, *rest] if module.startswith("bench."):
            return script_problems(module.replace(".", "/") + ".py", rest)
        case ["curl", url, *_]:
            return [] if url.startswith("http://127.0.0.1:8080/") else [f"{url} is no address of `make serve`"]
        case ["export", assignment] if ASSIGNMENT.match(assignment):
            return []
        case _ if any(tuple(words[: len(beginning)]) == beginning for beginning in FOREIGN):
            return []
    return [f"of no kind that is checked: {command}"]


def is_python(word: str) -> bool:
    return Path(word).name in ("python", "python3.11")


def make_problems(words: list[str]) -> list[str]:
    targets = [word for word in words if "=" not in word]
    variables = dict(word.split("=", 1) for word in words if "=" in word)
    wrong = [f"make has no target {target}" for target in targets if target not in make_targets()]
    wrong += [f"the Makefile reads no {name}" for name in variables if name not in make_variables()]
    if targets[:1] in (["serve"], ["cluster"]):
        wrong += app_problems(["serve", *split(variables.get("ARGS", ""))])
    return wrong


def app_problems(words: list[str]) -> list[str]:
    """Of a command line: whether the command is there and shows the options."""
    if not words or words[0].startswith("--") or words[0] == "COMMAND":
        return unknown_options(words, help_of())
    depth = 2 if words[0] in FAMILIES and len(words) > 1 and not words[1].startswith("-") else 1
    try:
        shown = help_of(*words[:depth])
    except AssertionError as error:
        return [str(error)]
    return unknown_options(words[depth:], shown)


def script_problems(script: str, words: list[str]) -> list[str]:
    path = ROOT / script
    if not path.is_file():
        return [f"there is no {script}"]
    return unknown_options(words, " ".join(script_options(path)))


def unknown_options(words: list[str], shown: str) -> list[str]:
    known = {"--help", *OPTION.findall(shown)}
    given = {word.split("=", 1)[0] for word in words if word.startswith("--")}
    return [f"there is no option {option}" for option in sorted(given - known)]
